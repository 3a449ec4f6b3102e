"What a timeline shows is what the record says, as text, with its faults marked; its controls start anew with new data."

import json
import re
import subprocess

import pages
import pytest
from pages import CHROMIUM, read

from humanlm.harness.viewer_server import _context_files, _Viewer
from humanlm.social.timeline import ContextTable, _objects, beliefs, load_text, timeline_figure
from humanlm.social.viewer import (
    TABS,
    Timeline,
    _paired_steps,
    comparison_html,
    timeline_page,
    viewer_data,
)
from humanlm.stories.answers import to_context
from humanlm.stories.contexts import Context, make_context
from humanlm.stories.violations import step_names, violations
from humanlm.stories.world import read_story

HOSTILE = [*pages.HOSTILE, "<same_as_state />", "<mental_state>x", "a: b\n\n- c", ":1", ""]

GOLDEN = make_context(
    ["Ida", "Per", "Moa"],
    [
        (
            "Ida and Per are in the barn.",
            {"Ida": "[SAME AS STATE]", "Per": "<same_as_state />"},
            {"Ida": "hides the bell", "Per": "hums"},
        ),
        (
            "The bell is in the hay.",
            {
                "Per": "<same_as_last_action_0 /> <mental_state>She is up to "
                "something.</mental_state>"
            },
            {"Per": "leaves the barn"},
        ),
        (
            "Ida is in the barn.",
            {"Ida": "<same_as_last_action />", "Moa": "A man comes by."},
            {"Ida": "moves the bell"},
        ),
        ("The bell is in the cart.", {"Per": "<same_as_last_action />"}, {}),
    ],
)


# ---- the golden record


def test_perceptions_and_written_out_texts_of_the_golden_record():
    shown = ContextTable.of(GOLDEN)
    assert {name: [cell.perceives for cell in row] for name, row in shown.cells.items()} == {
        "Ida": [True, True, True, True],
        "Per": [True, True, True, True],
        "Moa": [False, False, True, False],
    }
    assert [cell.saw for cell in shown.cells["Per"]] == [
        "Ida and Per are in the barn.",
        "Per hums. Ida hides the bell.",
        "Per leaves the barn",
        "Ida moves the bell",
    ]
    assert [cell.saw for cell in shown.cells["Ida"]] == [
        "Ida and Per are in the barn.",
        "Ida hides the bell",
        "Per leaves the barn",
        "Ida moves the bell",
    ]
    assert (
        shown.cells["Per"][1].thinks == "She is up to something."
        and shown.cells["Per"][1].does == "leaves the barn"
    )
    assert [(found.code, found.timestep, found.agent) for found in shown.violations] == [
        ("I10", 3, "Per")
    ]


def test_the_page_holds_what_the_record_says():
    reader = read(timeline_page(GOLDEN, title="Bells", source="Ida hid a bell."))
    for text in (
        "Bells",
        "Ida hid a bell.",
        "Per hums. Ida hides the bell.",
        "She is up to something.",
        "Moa perceives nothing",
        "warning I10, step 3, Per",
        "0 errors, 1 warning.",
    ):
        assert text in reader.text
    assert "same_as" not in reader.text and reader.classes.count("flagged") == 1
    assert [reader.classes.count(f"by{i}") for i in range(3)] == [2, 2, 0]


def test_the_page_stands_alone_and_hides_by_style():
    page = timeline_page(GOLDEN)
    assert not any(
        word in page for word in ("<script", "http:", "https:", "src=", "@import", "url(")
    )
    for i in range(3):
        assert f"#agent{i}:not(:checked)~.cards .by{i}" in page and f'id="agent{i}" checked' in page
    assert 'id="everyone">' in page and "#everyone:checked~.cards .own" in page


def test_plain_data_for_another_viewer():
    data = json.loads(json.dumps(viewer_data(GOLDEN)))
    assert [agent["name"] for agent in data["agents"]] == GOLDEN.agents
    assert len({agent["colour"] for agent in data["agents"]}) == 3
    assert data["steps"][2]["agents"][2] == {
        "perceives": True,
        "saw": "A man comes by.",
        "thinks": "",
        "does": "",
    }
    assert data["violations"][0]["code"] == "I10" and "comparison" not in data
    assert viewer_data(GOLDEN, GOLDEN)["comparison"]["f1"] == 1


def test_beliefs_follow_what_was_seen_together():
    found = {(belief.object, belief.chain): belief.places for belief in beliefs(GOLDEN)}
    assert _objects(GOLDEN) == ["bell"]
    assert found["bell", ()] == [None, "hay", None, "cart"]
    assert len(found) == 1 + 3 + 6
    many = make_context(
        [f"P{i}" for i in range(30)], [("The cup is in the box.", {"P0": "<same_as_state />"}, {})]
    )
    assert len(beliefs(many)) == 31


@pytest.mark.parametrize(
    "times, named",
    [
        (("1", "2", "3", "4"), ("1", "2", "3", "4")),
        (("0", "0", "", "dusk"), ("0 (no. 1)", "0 (no. 2)", "(no. 3)", "dusk")),
    ],
)
def test_violations_call_a_step_what_its_column_is_called(times, named):
    record = GOLDEN.model_copy(deep=True)
    for step, time in zip(record.steps, times):
        step.timestep = time
    shown, page = ContextTable.of(record), timeline_page(record)
    assert shown.timesteps == list(named)
    heads = (
        page.partition('class="grid"')[2]
        .partition("</tr>")[0]
        .replace("</th>", "")
        .split("<th>")[2:]
    )
    assert heads == list(named) and f"I10, step {named[3]}, Per" in read(page).text


def test_a_page_leads_back_and_its_words_do_not_claim_presence():
    page = timeline_page(
        GOLDEN, title="bells-7", links={"all records": "/", "<next>": "/page/a?x='1'&y"}
    )
    assert "<title>bells-7</title>" in page and '<a href="/">all records</a>' in page
    assert "&lt;next&gt;" in page and "present" not in read(page).text.lower()


# ---- comparison


def test_leaks_inventions_and_omissions_stand_in_their_column():
    reference = make_context(
        "AB", [("", {"A": "One. Two.", "B": "Two."}, {"A": "sings"}), ("", {"A": "A sings"}, {})]
    )
    generated = make_context(
        "AB",
        [
            ("", {"A": "One. Nine."}, {"A": "sings"}),
            ("", {"A": "A sings", "B": "A sings. One."}, {}),
        ],
    )
    reader = read(comparison_html(generated, reference))
    assert [reader.classes.count(kind) - 1 for kind in ("leak", "invention", "omission")] == [
        2,
        1,
        2,
    ]
    assert "precision 0.400, recall 0.500, F1 0.444" in reader.text


def test_steps_are_paired_by_their_actions():
    def record(*deeds):
        return ContextTable.of(
            make_context("A", [("", {}, {"A": deed} if deed else {}) for deed in deeds])
        )

    assert _paired_steps(record("x", "y", ""), record("x", "extra", "y", "")) == [
        (0, 0),
        (None, 1),
        (1, 2),
        (2, 3),
    ]
    assert (
        _paired_steps(record("x"), record()) == [(0, None)]
        and _paired_steps(record(), record()) == []
    )


# ---- hostile and broken records


@pytest.mark.parametrize("text", HOSTILE)
def test_everything_stays_text(text):
    context = make_context(
        [text, "B"],
        [
            (text, {text: text, "B": text}, {text: text}),
            (text, {"B": "<same_as_last_action />"}, {"B": text}),
        ],
    )
    context.steps[0].timestep = text
    context.steps[1].actions[text + "?"] = text
    read(timeline_page(context, context, title=text, source=text))
    read(Timeline(context)._repr_html_())
    read(context._repr_html_())
    timeline_figure(context).canvas.draw()
    controls = Timeline(context, context).widget()
    controls.load(text)
    controls.load(text, as_reference=True)
    read(controls.actions.value)
    read(controls.status.value)
    json.dumps(viewer_data(context, context))


@pytest.mark.parametrize(
    "context",
    [
        Context(agents_names=[], socialized_context=[]),
        make_context("A", []),
        make_context("AA", [("", {}, {"A": "x"})]),
        make_context("AB", [("", {}, {})]).model_copy(update={"agents_names": ["C"]}),
    ],
)
def test_broken_records_are_shown_with_their_violations(context):
    reader = read(timeline_page(context))
    for found in violations(context):
        assert found.told(step_names(context)) in reader.text
    assert Timeline(context).widget().tabs.titles == TABS
    timeline_figure(context).canvas.draw()


# ---- the picture


def test_the_picture_holds_names_texts_and_marks():
    figure = timeline_figure(GOLDEN, columns=2)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"world", "Ida", "Per", "Moa", "0", "3"} <= set(texts) and "hides the bell" in texts
    assert figure.get_size_inches()[0] * figure.dpi <= 700
    frames = [patch.get_edgecolor() for patch in figure.axes[0].patches]
    assert len(frames) == 4 * 4 and frames.count(frames[0]) == 4 * 4 - 1


def test_a_long_record_is_cut_and_says_so():
    record = make_context("A", [("word " * 200, {}, {})] * 20)
    texts = [text.get_text() for text in timeline_figure(record, steps=6, most=3).axes[0].texts]
    assert "14 more steps" in texts and sum(text.endswith("…") for text in texts) == 6


# ---- loading


def test_stories_and_every_shape_of_json_are_read(tmp_path):
    told = (
        "Mia entered the shed.\nOla entered the shed.\nThe saw is in the crate.\nOla "
        "left the shed.\n"
        "Mia moved the saw to the drum."
    )
    exact = to_context(read_story(told))
    dumped = exact.model_dump(include={"agents_names", "socialized_context"})
    for text in (
        told,
        json.dumps(dumped),
        json.dumps(exact.to_lists()),
        json.dumps({"index": 3, "socialized_context": dumped}),
        json.dumps({"simulations": [dumped]}),
    ):
        assert load_text(text) == (exact, [])
    assert load_text(json.dumps({"simulations": [dumped] * 2}))[1] == [
        "Showing the first of 2 simulations."
    ]


def test_a_story_that_contradicts_itself_is_shown_and_says_where():
    context, notes = load_text(
        "Mia entered the shed.\nOla entered the shed.\nThe saw is in the crate.\nOla "
        "left the shed.\nOla moved the saw to the drum."
    )
    assert context and [note.partition(":")[0] for note in notes] == [
        "Sentence 5 contradicts what was told before"
    ]
    controls = Timeline(GOLDEN).widget()
    controls.load(
        "Mia entered the shed.\nThe saw is in the crate.\nMia left the shed.\nMia "
        "moved the saw to the drum."
    )
    assert (
        "Sentence 4 contradicts" in controls.status.value
        and "could not" not in controls.status.value
    )


@pytest.mark.parametrize(
    "text, note",
    [
        ("", "Nothing was pasted"),
        ("   ", "Nothing was pasted"),
        ("[1]", "expected an object"),
        ('{"agents_names": []', "not JSON"),
        (
            '{"agents_names": ["A"], "socialized_context": [{"timestep": "0", '
            '"observations": {}, "actions": {}}]}',
            "step 0: state is missing",
        ),
        ('{"simulations": []}', "no simulations"),
        ("Once upon a time.", "Sentence 1 was not understood"),
        (
            "Mia entered the shed.\nThe saw is in the crate.\nMia juggled the saw.",
            "Sentence 3 was not understood",
        ),
        ("/etc/passwd", "not understood"),
    ],
)
def test_what_cannot_be_read_is_named(text, note):
    context, notes = load_text(text)
    assert context is None and note in "\n".join(notes)


# ---- the widget


def test_chips_and_boxes_choose_what_is_shown():
    controls = Timeline(GOLDEN).widget()

    def shown():
        return read(controls.actions.value)

    assert shown().classes.count("card") == 4
    assert {"state", "own"} <= set(shown().classes) and "everyone" not in shown().classes
    controls.chips["Per"].value = False
    assert shown().classes.count("card") == 2
    assert "leaves the barn" not in shown().text.replace("Per leaves the barn", "")
    controls.toggles["everyone"].value = True
    assert "own" not in shown().classes and shown().classes.count("everyone") == 2 + 3
    controls.toggles["state"].value = controls.toggles["everyone"].value = controls.toggles[
        "own"
    ].value = False
    assert not {"state", "own", "everyone"} & set(shown().classes)


def test_steps_memories_and_violations_in_their_tabs():
    controls = Timeline(GOLDEN).widget()
    assert [title.split(" · ")[0] for title in controls.steps.titles] == ["0", "1", "2", "3"]
    assert controls.steps.titles[3].endswith("⚠ 1")
    assert controls.steps.selected_index is None
    assert "Moa perceives nothing" in read(controls.steps.children[0].value).text
    controls.who.value = "Moa"
    assert read(controls.memory.value).text.strip() == "stepperceived2A man comes by."
    assert "I10" in controls.tabs.children[TABS.index("Perception")].value
    assert "Nora" not in controls.tabs.children[TABS.index("Compare")].value


def test_new_data_reset_every_control():
    controls = Timeline(GOLDEN, GOLDEN).widget()
    controls.chips["Ida"].value, controls.steps.selected_index, controls.who.value = False, 2, "Per"
    controls.toggles["everyone"].value = True
    controls.pasted.value = "Mia entered the shed.\nMia exited the shed."
    controls.tabs.selected_index = TABS.index("Load")
    controls.show.click()
    assert (
        list(controls.chips) == ["Mia"]
        and controls.chips["Mia"].value
        and not controls.toggles["everyone"].value
    )
    assert (
        controls.tabs.selected_index == 0
        and controls.steps.selected_index is None
        and controls.who.value == "Mia"
    )
    assert read(controls.actions.value).classes.count("card") == 2 and controls.reference is None
    assert "could not" not in controls.status.value


def test_a_reference_can_be_pasted_and_a_fault_leaves_what_is_shown():
    controls = Timeline(GOLDEN).widget()
    controls.pasted.value = GOLDEN.model_dump_json()
    controls.compare.click()
    assert controls.tabs.selected_index == TABS.index("Compare")
    assert "F1 1.000" in controls.tabs.children[TABS.index("Compare")].value
    controls.load("{")
    assert "could not be shown" in controls.status.value
    assert controls.context == GOLDEN and list(controls.chips) == GOLDEN.agents


# ---- in a browser


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium or Chrome: apt install chromium")
def test_a_browser_draws_the_page_and_its_chips_hide(tmp_path):
    from PIL import Image

    def colours(name: str, page: str) -> dict:
        "Count the pixels of each colour"
        (tmp_path / f"{name}.html").write_text(page, "utf-8")
        command = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=700,2400",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--screenshot={tmp_path / name}.png",
            (tmp_path / f"{name}.html").as_uri(),
        ]
        subprocess.run(command, capture_output=True, timeout=600, check=True)
        return {
            colour: n
            for n, colour in Image.open(tmp_path / f"{name}.png").convert("RGB").getcolors(1 << 24)
        }

    page = timeline_page(GOLDEN)
    blue, green, violet, red = (37, 99, 235), (5, 150, 105), (124, 58, 237), (185, 28, 28)
    drawn, without_first = (
        colours("all", page),
        colours("some", page.replace('id="agent0" checked="checked"', 'id="agent0"')),
    )
    assert {blue, green, violet, red} <= drawn.keys(), "three agents and one frame"
    assert without_first[blue] < drawn[blue] and without_first[green] == drawn[green], (
        "two faces and names less"
    )


def test_the_served_list_counts_as_people_do_and_names_every_column(tmp_path):
    good = {"socialized_context": GOLDEN.model_dump(), "story": "A bell."}
    for i in (10, 2, 1):
        (tmp_path / f"tale-{i}.json").write_text(json.dumps(good))
    bad = GOLDEN.model_copy(deep=True)
    bad.steps[1].observations.popitem()
    (tmp_path / "tale-3.json").write_text(
        json.dumps(good | {"socialized_context": bad.model_dump()})
    )
    (tmp_path / "tale-11.json").write_text("{")
    viewer = _Viewer(_context_files([str(tmp_path)]))
    page = viewer.answer("/")[2]
    assert json.loads(viewer.answer("/list.json")[2]) == [f"tale-{i}" for i in (1, 2, 3, 10, 11)]
    heads, *rows = (
        [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd]\b.*?</t[hd]>", row)]
        for row in page.split("<tr")[1:]
    )
    assert (
        all(heads)
        and {len(row) for row in (heads, *rows)} == {7}
        and [row[0] for row in rows] == [f"tale-{i}" for i in (1, 2, 3, 10, 11)]
    )
    assert {v.code for v in violations(bad)} == set(rows[2][-1].split(", ")) and "not JSON" in rows[
        4
    ][-1]
    assert (
        '/page/tale-1"' in viewer.answer("/page/tale-2")[2]
        and "/page/tale-3" in viewer.answer("/page/tale-2")[2]
    )
