"What is chosen is what is shown, labels come back, and nothing that is shown can run."

import csv
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import CHROMIUM, HOSTILE, in_browser, read

from humanlm.core.basics import DataError, write_jsonl
from humanlm.data.labels import Candidate, load_candidates, load_labels, save_labels
from humanlm.data.records import Example, Message, Persona, save_examples
from humanlm.data.trajectory import Score, Trajectory, load_trajectories, save_trajectories
from humanlm.data.widgets import JudgedBatch, TrajectoryViewer


def example(id="1", words="hello", **more) -> Example:
    return Example(
        id,
        "invented",
        "test",
        "yara",
        id,
        Persona("yara", more.pop("persona", "plain")),
        (Message("0", name="bram", content=words),),
        more.pop("reply", "yes"),
        **more,
    )


def candidate(source="a", id="1", value=0.5, text="for it", level="stance", **more) -> Candidate:
    return Candidate(
        source,
        id,
        level,
        text,
        Score("0", value, more.pop("status", "scored"), more.pop("reason", "because"), **more),
    )


def trajectory(text="for it", step=0, level="stance", group=0, reason="because") -> Trajectory:
    score = Score("0", 0.5, "scored", reason, ("point",), (0.5,))
    return Trajectory(
        f"{step}{level}{group}{text}",
        f"r{group}/{level}",
        group,
        step,
        level,
        (),
        [1],
        [2],
        [True],
        text=text,
        scores={level: score},
        advantage=0.0,
        example_id=f"r{group}",
    )


def write_run(folder, model="humanlm", value=0.5):
    "A run's folder as far as a batch reads it"
    score = {
        "id": "0",
        "value": value,
        "status": "scored",
        "reason": "",
        "key_points": [],
        "matches": [],
        "penalty": None,
    }
    scores = {
        "state_alignment": {"stance": score},
        "response_alignment": {"response": score},
        "reply_state_alignment": {"stance": score | {"value": 0.9}},
    }
    (folder / "evaluations").mkdir(parents=True)
    write_jsonl(
        folder / "evaluations" / f"{model}.jsonl",
        [
            {
                "example_id": "1",
                "context_id": "1",
                "texts": {"stance": "for it", "response": "yes"},
                "scores": scores,
            }
        ],
    )
    save_examples(folder / "examples.jsonl", [example(states={"stance": "strongly for it"})])
    return folder


# ---- a batch of a run


def test_two_runs_stand_side_by_side_with_persona_context_and_truth(tmp_path):
    batch = JudgedBatch.from_run(
        write_run(tmp_path / "one"), write_run(tmp_path / "two", value=1.0)
    )
    page = read(batch.html()).text
    assert batch.sources == ["one · humanlm", "two · humanlm"] and batch.keep("scores differ") == [
        ("1", "stance", 0),
        ("1", "response", 0),
    ]
    assert all(
        word in page
        for word in ("plain", "hello", "truth: strongly for it", "real reply: yes", "0.50", "1.00")
    )


def test_a_state_has_the_score_of_its_own_text_not_of_the_reply(tmp_path):
    assert [
        c.score.value
        for c in load_candidates(write_run(tmp_path / "one") / "evaluations" / "humanlm.jsonl")
    ] == [0.5, 0.5]


def test_a_missing_score_in_a_file_is_not_a_zero(tmp_path):
    batch = JudgedBatch.from_run(write_run(tmp_path / "one", value=None))
    assert (
        len(batch.keep("no score")) == 2
        and "no score" in batch.html()
        and "0.00" not in batch.html()
    )


def test_a_run_without_evaluations_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match="Evaluate the run first"):
        JudgedBatch.from_run(tmp_path)
    with pytest.raises(DataError, match="Did you mean 'humanlm'"):
        JudgedBatch.from_run(write_run(tmp_path / "one"), models=["humanln"])


# ---- choosing lines


def test_filters_find_difference_flags_and_missing_scores():
    batch = JudgedBatch(
        [
            candidate("a", "1", 0.9),
            candidate("b", "1", 0.5),
            candidate("a", "2", 0.4, flags=("own sum",)),
            candidate("b", "2", 0.6),
            candidate("a", "3", math.nan, status="judge failed"),
            candidate("b", "3", 1.0),
        ]
    )

    def ids(show, **more):
        return [key[0] for key in batch.keep(show, **more)]

    assert ids("all") == ["1", "2", "3"] and ids("flagged") == ["2"] and ids("no score") == ["3"]
    assert ids("scores differ") == ["1"] and ids("scores differ", sources=["a"]) == []
    batch.mark("a/2/stance/0", "wrong")
    assert ids("labelled") == ["2"] and ids("not labelled", sources=["a"]) == ["1", "3"]


@given(st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), max_size=8))
def test_lines_without_a_number_come_last_in_every_order(values):
    batch = JudgedBatch([candidate("a", str(n), value) for n, value in enumerate(values)])
    for order, sign in (("lowest score", 1), ("highest score", -1)):
        found = [batch.rows[key]["a"].score.value for key in batch.keep(order=order)]
        numbers = [value for value in found if not math.isnan(value)]
        assert len(found) == len(values) and found[: len(numbers)] == numbers == sorted(
            numbers, key=lambda v: sign * v
        )


@pytest.mark.parametrize(
    "place", ["persona", "words", "reply", "states", "text", "reason", "key_points"]
)
def test_a_search_reads_what_is_shown(place):
    told = (
        {place: {"stance": "a Needle"} if place == "states" else "a Needle"}
        if place in ("persona", "words", "reply", "states")
        else {}
    )
    said = {
        "text": {"text": "a Needle"},
        "reason": {"reason": "a Needle"},
        "key_points": {"key_points": ("a Needle",)},
    }.get(place, {})
    batch = JudgedBatch(
        [candidate("a", "1", **said), candidate("a", "2")], [example("1", **told), example("2")]
    )
    assert batch.keep(search="nEEDLE") == [("1", "stance", 0)]


# ---- labels


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1),
        st.text(st.characters(codec="utf-8"), min_size=1),
        max_size=5,
    )
)
def test_labels_come_back_from_both_kinds_of_file(tmp_path_factory, found):
    folder = tmp_path_factory.mktemp("labels")
    some = [candidate("a", id, text=label) for id, label in found.items()]
    labels = {c.id: found[c.example_id] for c in some}
    for kind in (".jsonl", ".csv"):
        assert load_labels(save_labels(folder / f"labels{kind}", some, labels)) == labels


def test_no_cell_of_a_table_is_a_formula(tmp_path):
    bad = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"]
    some = [candidate(text, text, text=text) for text in bad]
    with open(
        save_labels(tmp_path / "labels.csv", some, {c.id: c.text for c in some}),
        newline="",
        encoding="utf-8",
    ) as f:
        rows = [*csv.reader(f)]
    assert len(rows) == 7 and not [
        cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    ]


def test_a_saved_row_says_what_was_labelled(tmp_path):
    c = candidate(value=math.nan)
    row = json.loads(
        save_labels(tmp_path / "labels.jsonl", [c, candidate("b")], {c.id: "right"}).read_text()
    )
    assert row == {
        "id": "a/1/stance/0",
        "source": "a",
        "example_id": "1",
        "level": "stance",
        "sample": 0,
        "text": "for it",
        "score": None,
        "label": "right",
    }


@pytest.mark.parametrize(
    "name, text",
    [
        ("x.jsonl", '{"id": "a"}\n'),
        ("x.jsonl", "[]\n"),
        ("x.csv", "id,score\na,1\n"),
        ("x.jsonl", '{"id": 1, "label": "right"}\n'),
        ("x.txt", ""),
    ],
)
def test_a_file_that_holds_no_labels_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError):
        load_labels(tmp_path / name)


def test_labels_of_another_batch_are_refused():
    with pytest.raises(DataError, match="they were saved from"):
        JudgedBatch([candidate()], labels={"b/1/stance/0": "right"})


# ---- controls


def controls(batch, **more):
    top, pages, columns, *lines, file = batch.widget(**more).children
    return [*top.children, pages.children[0], *columns.children[1:]], lines, file.children


def test_a_level_is_offered_only_if_a_chosen_source_has_it():
    batch = JudgedBatch(
        [candidate("a"), candidate("b", level="goal"), candidate("c", level="value")]
    )
    (level, *_, left, right), lines, _ = controls(batch)
    assert [name for name, _ in level.options] == ["all", "stance", "goal"]
    level.value = "goal"
    right.value = "c"
    assert [name for name, _ in level.options] == ["all", "stance", "value"] and level.value == ""
    right.value = left.value
    assert [line.layout.display for line in lines][:2] == [None, "none"]


def test_pages_show_every_line_once_and_a_search_begins_at_the_first():
    batch = JudgedBatch([candidate("a", str(n), text=f"text {n}.") for n in range(12)])
    (_, _, _, search, page, *_), lines, _ = controls(batch)
    shown = []
    for page.value in (1, 2, 3):
        shown += [
            line.children[1].children[0].value for line in lines if line.layout.display is None
        ]
    assert (
        page.max == 3
        and [n for n in range(12) if f"text {n}." in shown[n]] == [*range(12)]
        and len(shown) == 12
    )
    search.value = "text 1"
    assert (
        page.value == 1 and page.max == 1 and "text 10." in lines[1].children[1].children[0].value
    )


def test_labels_follow_their_candidates_and_are_saved_and_loaded(tmp_path):
    batch = JudgedBatch([candidate("a", str(n)) for n in range(7)])
    (*_, page, _left, _right), lines, (path, save, load, said) = controls(batch)

    def menu(n):
        return lines[n].children[1].children[1]

    menu(1).value = "wrong"
    page.value = 2
    assert menu(1).value == "" and batch.labels == {"a/1/stance/0": "wrong"}
    menu(0).value = "right"
    page.value = 1
    assert menu(1).value == "wrong"
    path.value = str(tmp_path / "labels.csv")
    save.click()
    assert "2 labels are in" in said.value
    menu(1).value = ""
    assert batch.labels == {"a/5/stance/0": "right"}
    load.click()
    assert menu(1).value == "wrong" and len(batch.labels) == 2
    path.value = str(tmp_path / "<b>.txt")
    save.click()
    assert "Unknown kind of file" in said.value and "<b>" not in said.value


def test_a_label_that_is_not_on_offer_is_kept():
    batch = JudgedBatch([candidate()], labels={"a/1/stance/0": "odd"})
    _, lines, _ = controls(batch)
    assert lines[0].children[1].children[1].value == "odd" and batch.labels == {
        "a/1/stance/0": "odd"
    }


def test_a_batch_without_candidates_is_an_empty_page():
    assert (
        "0 of 0" in JudgedBatch([]).html()
        and "0 of 0 lines" in JudgedBatch([]).widget().children[1].children[1].value
    )


# ---- samples of a run


def test_the_viewer_reads_what_a_run_wrote(tmp_path):
    for step in (0, 5, 10, 15):
        save_trajectories(
            tmp_path / f"step-{step:06d}.parquet",
            [trajectory(step=step, level=level) for level in ("stance", "goal")],
        )
    viewer = TrajectoryViewer(load_trajectories(tmp_path), steps=2)
    page = viewer._repr_html_()
    assert viewer.steps == [0, 5, 10, 15] and viewer.levels == ["stance", "goal"]
    assert page.count("<details open") == 1 and "goal · step 15" in page and "step 5" not in page


def test_persona_and_truth_stand_above_a_group_whose_example_is_known():
    page = TrajectoryViewer(
        [trajectory()], examples=[example("r0", states={"stance": "known"}, persona="likes tea")]
    ).html()
    assert "likes tea" in page and "known" in read(page).text
    assert "persona" not in TrajectoryViewer([trajectory()]).html()


# ---- nothing leaves its place


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_shown_stays_text(text):
    person = example(text, text, persona=text, reply=text, states={text: text})
    batch = JudgedBatch(
        [
            candidate(source, text, text=text, level=text, reason=text, status=text, flags=(text,))
            for source in (text, "b")
        ],
        [person],
    )
    batch.mark(batch.sources[0] + f"/{text}/{text}/0", text)
    read(batch._repr_html_())
    _top, pages, _columns, *lines, _file = batch.widget().children
    for html in (lines[0].children[0], lines[0].children[1].children[0], pages.children[1]):
        read(html.value)
    samples = [replace(trajectory(text, level=text, reason=text), example_id=text, row_id=text)]
    viewer = TrajectoryViewer(samples, examples=[person])
    read(viewer._repr_html_())


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium or Chrome: apt install chromium")
def test_no_candidate_runs_in_a_real_browser(tmp_path):
    attacks = [
        "<script>document.title = 'ran'</script>",
        "<img src=x onerror=\"document.title = 'ran'\">",
        "</td></table><svg onload=\"document.title = 'ran'\">",
        "' onmouseover='x' autofocus onfocus='document.title = 1",
    ]
    batch = JudgedBatch(
        [candidate(a, a, text=a, level=a, reason=a) for a in attacks],
        [example(a, a, persona=a) for a in attacks],
    )
    page = in_browser(
        f"<!doctype html><meta charset=utf-8><title>quiet</title>{batch.html(sources=attacks)}",
        tmp_path,
    )
    assert "<title>quiet</title>" in page, "a text ran as a script"
    body = page.split("</title>")[1]
    assert not any(f"<{name}" in body for name in ("script", "img", "svg"))
    assert body.count("&lt;script&gt;document.title = 'ran'&lt;/script&gt;") >= 2
