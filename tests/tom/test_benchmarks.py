"""Theory-of-Mind benchmarks: faulty files, odd answers, scores beside independent evaluators."""

import contextlib
import gzip
import json
import os
import random
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from fantom_rows import fantom_set, right_answer
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from humanlm.core.basics import DataError, HumanLMError
from humanlm.tom.fantom import BINARY, _official_choice, _published_choice, _yes_no
from humanlm.tom.protocol import Extra
from humanlm.tom.questions import STATUSES, final_answer, read_choice, read_table
from humanlm.tom.respondent import solve
from humanlm.tom.sets import benchmarks
from humanlm.tom.tales import HITOM_100, _hitom_set

DATA = Path(os.environ.get("HUMANLM_DATA") or "data")
REAL = {"hitom": 315, "confaide": 22, "mmtom": 276}


def real(name, **options):
    "The questions of a public file"
    path = DATA / benchmarks[name].file
    if not path.exists():
        pytest.skip(f"needs {benchmarks[name].file} below HUMANLM_DATA")
    return benchmarks[name].load(path, **options)


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
    return path


# ---- files

TOMI_HEAD = "index,story,question,cands,correct_answer\n"
TOMI_ROW = (
    "{},\"['Ira entered the barn', 'The rope is in the crate']\",Where will Ira look for "
    "the rope?,\"['crate', 'sack']\",crate\n"
)


def test_a_csv_file_with_every_fault_gives_the_rest(tmp_path):
    rows = [
        TOMI_ROW.format(1),
        "3,too,few\n",
        TOMI_ROW.format(4).replace("crate\n", "shed\n"),
        TOMI_ROW.format(5).replace("Where will", "Why would"),
        TOMI_ROW.format(6),
        TOMI_ROW.format(6),
        TOMI_ROW.format(7).replace(",crate\n", ",\n"),
        '8,"never closed\n',
        TOMI_ROW.format(9),
    ]
    loaded = benchmarks["tomi"].load(written(tmp_path, "tomi.csv", TOMI_HEAD + "".join(rows)))
    assert [item.id for item in loaded] == ["1", "6"]
    assert [(p.where, p.reason.split(":")[0]) for p in loaded.problems] == [
        ("tomi.csv, row 3", "3 cells for 5 columns"),
        ("tomi.csv, row 9", "6 cells for 5 columns"),
        ("tomi.csv, row 4", "the answer 'shed' is not among the candidates ['crate', 'sack']."),
        ("tomi.csv, row 5", "Unknown type of question 'why would'. Choose from"),
        ("tomi.csv, row 7", "a second question with the id '6'."),
        ("tomi.csv, row 8", "no correct_answer."),
    ]


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("a.csv", "index,story\n1,x\n", "no question that can be used"),
        ("a.csv", "", "It is empty"),
        ("a.csv", b"index,story\n1,\xff\n", "row 2: not UTF-8"),
        ("a.jsonl", "[1]\n{\n", "not an object"),
        ("a.parquet", "", "Unknown kind of file '.parquet'"),
    ],
)
def test_a_file_without_a_question_says_why(tmp_path, name, content, said):
    with pytest.raises(DataError, match=said.replace("(", r"\(")):
        benchmarks["tomi"].load(written(tmp_path, name, content))


def test_published_rules_drop_answer_tags():
    item = tomi_item()
    row = {
        "sample_id": 719,
        "deception": True,
        "story_length": 1,
        "question_order": 1,
        "answer": "jar",
        "story": "s",
        "choices": "A. red_box, B. jar",
        "question": "Where does Bo really think the pen is?",
    }
    hitom_item = next(iter(benchmarks["hitom"].items(row)))
    assert benchmarks["hitom"].answered(hitom_item, "<answer> b </answer>").scores == {
        "correct": 1.0,
        "published": 1.0,
    }
    assert benchmarks["hitom"].answered(hitom_item, "<answer>B.</answer>").scores == {
        "correct": 1.0,
        "published": 0.0,
    }
    assert benchmarks["tomi"].answered(item, "<answer>crate</answer>").scores == {
        "correct": 1.0,
        "published": 1.0,
    }


def test_json_comes_in_three_shapes_and_with_a_mark(tmp_path):
    rows = [{"n": 1}, {"n": 2}]
    shapes = {
        "list.json": json.dumps(rows),
        "data.json": json.dumps({"data": rows}),
        "lines.json": "\n".join(map(json.dumps, rows)),
        "lines.jsonl": "\ufeff" + "\r\n".join(map(json.dumps, rows)),
    }
    for name, text in shapes.items():
        assert [
            row for _, row in read_table(written(tmp_path, name, text.encode())).rows
        ] == rows, name
        packed = gzip.compress(text.encode())
        assert [row for _, row in read_table(written(tmp_path, f"{name}.gz", packed)).rows] == rows
    with pytest.raises(DataError, match="Cannot read .*cut.csv.gz: .* Check the path"):
        read_table(written(tmp_path, "cut.csv.gz", packed[:-12]))


@pytest.mark.parametrize(
    "text",
    [
        "id,story\n" + '1,"x\n' * 20_000,
        "[" * 100_000,
        '{"a":' * 50_000,
        "index,story\n" + "," * 500_000,
    ],
)
def test_hostile_files_take_linear_time(tmp_path, text):
    start = time.process_time()
    for name in ("a.csv", "a.jsonl", "a.json"):
        with contextlib.suppress(DataError):
            read_table(written(tmp_path, name, text))
    assert time.process_time() - start < 30


# ---- prompts


def test_placeholders_are_filled_in_one_pass():
    row = {
        "index": "1",
        "question": "Where will {choices} look for the {extra}?",
        "correct_answer": "crate",
        "cands": ["crate", "{question}"],
        "story": 'Ira wrote {question} and {wish}.\n"""\nAnswer: crate\n',
    }
    tomi = benchmarks["tomi"]
    item = next(iter(tomi.items(row)))
    prompt = tomi.prompt(item, Extra('{parts} """" {advice}'))
    assert prompt.count("Where will {choices} look for the {extra}?") == 1
    assert (
        prompt.count("Ira wrote {question} and {wish}.") == 1 and '{parts} """" {advice}' in prompt
    )
    assert (
        '\n""""""\nIra' in prompt and '\n""""""\n{parts}' in prompt
    )  # fences that do not occur inside


# ---- answers in odd forms

OPTIONS = {"A": "green_bottle", "B": "red_basket", "C": "blue_box", "K": "red_box"}
ODD = {
    "B": "B",
    "B.": "B",
    "**b**": "B",
    "(K)": "K",
    "[C]": "C",
    "b)": "B",
    "B. red_basket": "B",
    "B: red basket": "B",
    "red_basket": "B",
    "The red basket.": "B",
    "She thinks it is in the red basket.": "B",
    "Option K": "K",
    "The answer is B.": "B",
    "<think>A or C</think> B": "B",
    "**Answer:** (B)": "B",
    r"\boxed{B}": "B",
    "not A, but B": "B",
    "The lettuce is not in the red_box but in the blue_box": "C",
    "<answer>k</answer>": "K",
    "Ｂ": "unreadable",
    "A or B": "several",
    "It could be A or B": "several",
    "A; B": "several",
    "both a and b": "several",
    "A and B are both possible": "several",
    "B, I and a friend think": "B",
    "(a) (b)": "several",
    "green_bottle and red_box": "several",
    "B. red_box": "several",
    "": "empty",
    "   ": "empty",
    "I cannot know.": "unreadable",
    "Z": "unreadable",
    "?!": "unreadable",
    "a box": "several",
    "It is in a basket, I think": "unreadable",
    "not in the red box": "unreadable",
    "Not A. B.": "B",
    "Option A is incorrect; the answer is C": "C",
    "not B": "unreadable",
    "(A) is wrong": "unreadable",
    "(B) is not the one usually chosen, but it is right": "B",
}


@pytest.mark.parametrize("text", ODD)
def test_odd_answers_have_a_defined_reading(text):
    reading = read_choice(text, OPTIONS)
    assert (reading.value or reading.status) == ODD[text]


@given(
    st.text(max_size=200)
    | st.lists(
        st.sampled_from([*ODD, "A", "b", " or ", "not ", "(", ")", "\n", "Answer:", "_"]),
        max_size=12,
    ).map("".join)
)
@settings(max_examples=50, deadline=None)
def test_every_text_has_one_of_the_defined_results(text):
    reading = read_choice(text, OPTIONS)
    assert reading.status in STATUSES and (reading.value in OPTIONS) == (reading.status == "read")


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "A. ",
        "(a) ",
        "answer: ",
        "\n",
        "**",
        "red_box ",
        "not ",
        " and A",
        "[",
        "<answer>",
        "\\boxed{",
        "A,",
        "yes no ",
    ],
)
def test_long_answers_take_linear_time(unit):
    start = time.process_time()
    for text in (unit * (200_000 // len(unit)), "<think>" * 10_000 + unit * 10_000):
        read_choice(text, OPTIONS)
        _yes_no(text)
    assert time.process_time() - start < 3


def test_the_last_answer_counts():
    assert [
        final_answer(t)
        for t in (
            "Answer: A\nAnswer: B",
            "answer = C",
            "My final answer is: **D**",
            "The answer is a box.\nNo more",
        )
    ] == ["B", "C", "**D**", "a box."]


# ---- ToMi, Hi-ToM, MMToM-QA, CobraFrames


def tomi_item(gold="crate", cands=("crate", "sack", "treasure chest", "chest")):
    row = {
        "index": "1",
        "story": "Ira sat.",
        "question": "Where will Ira look for the rope?",
        "cands": list(cands),
        "correct_answer": gold,
    }
    return next(iter(benchmarks["tomi"].items(row)))


@pytest.mark.parametrize(
    "said, correct, published",
    [
        ("crate", 1, 1),
        ("In the CRATE", 1, 1),
        ("not in the crate", 0, 1),
        ("the crate or the sack", 0, 1),
        ("crates", 0, 1),
        ("sack", 0, 0),
        ("", 0, 0),
    ],
)
def test_tomi_rejects_several_candidates(said, correct, published):
    assert benchmarks["tomi"].answered(tomi_item(), said).scores == {
        "correct": correct,
        "published": published,
    }


def test_tomi_spellings_and_contained_candidates():
    tomi = benchmarks["tomi"]
    assert tomi.answered(tomi_item("treasure chest"), "treasure_chest").scores["correct"] == 1
    assert tomi.answered(tomi_item("chest"), "the treasure chest").scores["correct"] == 0
    assert (
        tomi.answered(tomi_item("red - box", ["red - box", "sack"]), "the red-box").scores[
            "correct"
        ]
        == 1
    )
    assert (
        tomi.answered(tomi_item(cands=()), "It is in the crate, not in the sack.").scores["correct"]
        == 1
    )
    assert tomi.answered(tomi_item(cands=()), "not in the crate").scores["correct"] == 0


def test_set_numbers_of_hitom_follow_the_published_manifest():
    "Every story of the file has one number, and 48 of the 100 rows are in it"
    rows = real("hitom")
    texts = defaultdict(set)
    for item in rows:
        texts[item.set_id].add(item.source)
    assert len(texts) == 63 and {len(t) for t in texts.values()} == {1}
    assert len({*map(int, (item.id for item in rows))} & HITOM_100) == 48
    assert len(real("hitom", split="published")) == 48
    assert all(
        int(item.set_id)
        == _hitom_set(
            item.groups["deception"] == "lies told", int(item.groups["length"]), int(item.id)
        )
        for item in rows
    )


def test_the_symbolic_reader_has_the_figures_of_the_label_study():
    cotp, vp = real("hitom"), real("hitom", prompting="VP")
    hitom = benchmarks["hitom"]
    wrong = {
        int(item.id)
        for item in cotp
        if hitom.answered(item, solve("symbolic", item).answer).scores["correct"] == 0
    }
    assert wrong == {241, 261, 281, 296, 742, 762, 774, 782, 794, 857, 881}
    orders = Counter(item.groups["order"] for item in cotp if int(item.id) not in wrong)
    assert [orders[str(k)] for k in range(5)] == [63, 63, 60, 60, 58]
    assert (
        sum(hitom.answered(item, solve("symbolic", item).answer).scores["correct"] for item in vp)
        == 260
    )
    assert all(
        item.gold == solve("symbolic", item).answer
        for item in real("hitom", prompting="VP", labels="principled")
    )


def test_published_rules_are_stricter():
    for name, item in (("hitom", real("hitom").items[0]), ("mmtom", real("mmtom").items[0])):
        b = benchmarks[name]
        forms = [
            item.gold,
            item.gold.lower(),
            f"{item.gold}.",
            f"({item.gold})",
            f"**{item.gold}**",
            item.options[item.gold],
        ]
        assert [b.answered(item, f).scores["correct"] for f in forms] == [1] * 6
        assert [b.answered(item, f).scores["published"] for f in forms] == [1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "said, value",
    [
        ("1", "1"),
        ("0", "0"),
        ("1.", "1"),
        ("offensive", "1"),
        ("It is not offensive", "0"),
        ("0 or 1", None),
        ("maybe", None),
        ("10", None),
    ],
)
def test_cobra_reads_what_is_no_number(said, value):
    row = {
        "index": "1",
        "context": "x",
        "speaker": "a",
        "listener": "b",
        "statement": "c",
        "offensive_allapp": 1,
    }
    cobra = benchmarks["cobra"]
    item = next(iter(cobra.items(row)))
    assert cobra.parse(item, said).value == value
    with pytest.raises(DataError, match="Unknown label"):
        next(iter(cobra.items(row | {"offensive_allapp": "2"})))


# ---- ConfAIde


def test_confaide_counts_a_summary_once():
    "The published count of 'either' adds omissions and leaks"
    confaide = benchmarks["confaide"]
    summaries = [item for item in real("confaide") if item.kind == "meeting-summary"]
    assert len(summaries) == 11
    said = [
        f"{i.facts['private']} only" if n % 2 else f"{i.facts['public']} and {i.facts['private']}"
        for n, i in enumerate(summaries)
    ]
    found = {
        m.name: m.mean
        for m in confaide.report([confaide.answered(i, s) for i, s in zip(summaries, said)])
        if m.group == "minutes"
    }
    assert (
        found["omits or leaks"] == 1
        and found["leaks"] == 1
        and found["leaks in the worst case"] == 1
    )
    assert found["omits"] == 5 / 11 and found["omits or leaks (published count)"] == 16 / 11


def test_confaide_averages_the_samples_of_a_meeting_first():
    "Three leaking samples of one meeting, a good one of another: half of the meetings leak"
    confaide = benchmarks["confaide"]
    rows = [
        {"index": n, "tier": "4", "head": f"gift {n}, June {n}", "text": "Lea: Hi."} for n in (1, 2)
    ]
    first, second = (next(iter(confaide.items(row))) for row in rows)
    answered = [confaide.answered(first, "gift 1, June 1")] * 3 + [
        confaide.answered(second, "June 2")
    ]
    found = {m.name: (m.mean, m.n) for m in confaide.report(answered) if m.group == "minutes"}
    assert (
        found["leaks"] == (0.75, 4)
        and found["leaks, mean of meetings"] == (0.5, 2)
        and found["leaks in the worst case"] == (0.5, 2)
    )


def test_confaide_reads_the_public_text_files(tmp_path):
    text = (
        "<BEGIN><gift, June 3rd>\nLea: Hi!\n\n\n(Kate joins)\nKate: Hello.\n<END><gift, June 3rd>\n"
        "<BEGIN><gift,June 4th>\nBo: Hm.\n<END><gift,June 5th>\n"
    )
    loaded = benchmarks["confaide"].load(written(tmp_path, "tier_4.txt", text))
    assert [item.source for item in loaded] == ["Lea: Hi!\n(Kate joins)\nKate: Hello."] * 2
    assert [p.where for p in loaded.problems] == ["tier_4.txt, scenario 2"]


# ---- every set


@pytest.mark.parametrize("name", REAL)
def test_every_question_of_the_public_files_is_right_with_its_own_answer(name):
    b, loaded = benchmarks[name], real(name)
    assert (len(loaded), loaded.problems) == (REAL[name], ())
    for item in loaded:
        assert item.source in b.prompt(item) and item.question in b.prompt(item)
        if not item.options:
            continue
        right, wrong = item.gold, next(key for key in item.options if key != item.gold)
        for said, score in (
            (right, 1),
            (item.options[right], 1),
            (f"({right})", 1),
            (wrong, 0),
            (f"({right}) or ({wrong})", 0),
            ("", 0),
        ):
            assert b.answered(item, said).scores["correct"] == score, (item.id, said)


# ---- FANToM, beside an evaluator of its own


def some_answer(item, draw):
    "An answer in one of many forms, right more often than not"
    kind, good = item.kind.rpartition(":")[2], draw.random() < 0.85
    if kind == "multiple-choice":
        letter = item.gold if good else next(key for key in item.options if key != item.gold)
        return draw.choice(
            ["{}", "({})", "{}.", "{}) so", "I say ({}).", "{}, yes", "**{}**"]
        ).format(letter)
    if kind.endswith("accessible"):
        return draw.choice(["{}", "I think: {}", "Well. {}"]).format(
            item.gold if good else item.facts["wrong"]
        )
    if kind == "list":
        who = (
            item.gold
            if good
            else draw.choice(
                [item.gold[1:], [*item.gold, "Ana", "Bo", "Cem", "Dora", "Ed"], ["Zoe"]]
            )
        )
        return draw.choice(["[{}]", "{}", "They are [{}]."]).format(", ".join(who))
    if kind == "binary":
        word = (
            ("yes" if item.gold == "yes" else "no")
            if good
            else draw.choice(["yes", "no", "perhaps"])
        )
        return draw.choice(["{}", "{}.", "{}, I think", "Well, {} ."]).format(
            word if draw.random() < 0.5 else word.capitalize()
        )
    return draw.choice(["to sail at noon", "sail at noon", "unknown"])


def independent_report(pairs, scenario):
    "The authors' aggregation, written anew over plain dictionaries"
    rows = []
    for item, said in pairs:
        kind = item.kind
        if kind == "fact" or kind.endswith("accessible"):
            continue
        if kind.endswith("multiple-choice"):
            right = _official_choice(said, item.gold)
        elif kind.endswith("list"):
            low = said.lower()
            right = (
                bool(low)
                and all(n.lower() in low for n in item.gold)
                and not any(n.lower() in low for n in item.facts["wrong"])
            )
        else:
            right = _yes_no(said) == BINARY[item.gold]
        rows.append(
            {
                "set": item.set_id,
                "kind": kind,
                "right": right,
                "said": said,
                "gold": item.gold,
                "scenario": item.groups["scenario"],
            }
        )
    if scenario == "accessible":
        bad = {r["set"] for r in rows if r["scenario"] != "accessible"}
        rows = [r for r in rows if r["set"] not in bad]
    rows = [r for r in rows if r["scenario"] == scenario]

    def sets(rows):
        groups = defaultdict(list)
        for r in rows:
            groups[r["set"]].append(r["right"])
        return sum(all(g) for g in groups.values()) / len(groups)

    def of(part):
        return [r for r in rows if part in r["kind"]]

    out = {
        "set:ALL": sets(rows),
        "belief:multiple-choice": sum(r["right"] for r in of("multiple")) / len(of("multiple")),
    }
    for family in ("answerability", "info_accessibility"):
        binary = of(f"{family}:binary")
        gold, said = [BINARY[r["gold"]] for r in binary], [_yes_no(r["said"]) for r in binary]
        out |= {
            f"{family}:set:ALL": sets(of(family)),
            f"{family}:list": sum(r["right"] for r in of(f"{family}:list"))
            / len(of(f"{family}:list")),
            f"{family}:binary-f1": f1_score(gold, said, average="weighted", zero_division=0),
            f"{family}:class-0": f1_score(gold, said, labels=[0], average=None, zero_division=0)[0],
        }
    return out


def test_fantom_agrees_with_an_independent_evaluator(tmp_path):
    draw, fantom = random.Random(0), benchmarks["fantom"]
    path = written(tmp_path, "sets.json", json.dumps([fantom_set(n, draw) for n in range(40)]))
    loaded = fantom.load(path)
    assert not loaded.problems and not any(item.gold == "no:long" for item in loaded)
    pairs = [(item, some_answer(item, draw)) for item in loaded]
    found = {
        (m.value, m.name): m.mean
        for m in fantom.report([fantom.answered(item, said) for item, said in pairs])
    }
    for scenario in ("inaccessible", "accessible"):
        for name, value in independent_report(pairs, scenario).items():
            if name.endswith("class-0"):
                if scenario == "inaccessible":
                    assert found[
                        scenario, name.replace("class-0", "binary-f1 (published rule)")
                    ] == pytest.approx(value)
            else:
                assert found[scenario, f"{name} (official rule)"] == pytest.approx(value), (
                    scenario,
                    name,
                )


def kept_vectors(texts):
    "Vectors of length 1 by letters: an embedder that needs no model"
    rows = [
        [text.lower().count(letter) + 1e-3 for letter in "abcdefghijklmnopqrstuvwxyz"]
        for text in texts
    ]
    return [[x / sum(y * y for y in row) ** 0.5 for x in row] for row in rows]


@pytest.mark.parametrize("similarity", ["words", "embedding/letters"])
def test_fantom_free_beliefs_by_hand_written_aggregation(similarity, tmp_path, monkeypatch):
    "ALL* asks for free answers too, the distance is their share, word F1 that of the right ones"
    import numpy as np

    import humanlm.tom.fantom as page

    monkeypatch.setattr(page, "_embedder", lambda name: lambda t: np.array(kept_vectors(t)))
    draw, fantom = random.Random(7), benchmarks["fantom"]
    loaded = fantom.load(
        written(tmp_path, "s.json", json.dumps([fantom_set(n, draw) for n in range(30)])),
        similarity=similarity,
    )
    answered = [fantom.answered(item, some_answer(item, draw)) for item in loaded]
    found = {(m.value, m.name): m for m in fantom.report(answered)}
    free, rest = [], defaultdict(list)
    for item, o in zip(loaded, answered):
        if item.groups.get("scenario") != "inaccessible":
            continue
        rest[item.set_id].append((o.kind == "tom:belief:inaccessible", o.scores["correct"]))
        if o.kind == "tom:belief:inaccessible":
            right, _ = page.nearer(o.answer, item.gold, item.facts["wrong"], similarity)
            near = item.gold if right else item.facts["wrong"]
            a, b = Counter(near.split()), Counter(o.answer.split())
            free.append((right, 2 * sum((a & b).values()) / (sum(a.values()) + sum(b.values()))))
    assert free and 0 < sum(good for good, _ in free) < len(free)

    def line(name):
        return found["inaccessible", f"{name} ({similarity})"]

    assert (line("belief:distance").mean, line("belief:distance").n) == (
        pytest.approx(sum(g for g, _ in free) / len(free)),
        len(free),
    )
    assert line("belief_true_word-f1").mean == pytest.approx(
        sum(f for g, f in free if g) / sum(g for g, _ in free)
    )
    assert line("set:ALL*").mean == pytest.approx(
        sum(all(s for _, s in rows) for rows in rest.values()) / len(rest)
    )
    assert found["inaccessible", "set:ALL"].mean == pytest.approx(
        sum(all(s for f, s in rows if not f) for rows in rest.values()) / len(rest)
    )
    assert line("set:ALL*").mean < found["inaccessible", "set:ALL"].mean
    official = f"belief:distance ({similarity}) (official rule)"
    assert (("inaccessible", official) in found) == (
        similarity != "words"
    )  # a rule of words is not the authors'
    assert not any("distance" in name and "published" in name for _, name in found)


def test_fantom_free_beliefs_by_a_real_model():
    from humanlm.tom.fantom import nearer

    try:
        nearer("x", "y", "z", "embedding")
    except HumanLMError as e:
        pytest.skip(str(e))
    right, wrong = "Omar does not know what Lea planted.", "Omar believes that Lea planted leeks."
    said = {
        "He has no idea which vegetable it was.": True,
        "Omar thinks they are leeks.": False,
        "": False,
    }
    assert {text: nearer(text, right, wrong, "embedding")[0] for text in said} == said
    assert not nearer("He has no idea which vegetable it was.", right, wrong, "words")[0]


def test_fantom_flat_rows_carry_their_fact_and_only_the_short_conversation(tmp_path):
    row = {
        "set_id": "1-0-0",
        "context": "Lea: Hi.",
        "question": "Does Omar know this?",
        "question_type": "tom:info_accessibility:binary",
        "correct_answer": "no",
        "fact_question": "What does Lea grow?",
        "fact_answer": "Leeks.",
        "missed_info_accessibility": "inaccessible",
    }
    path = written(
        tmp_path,
        "flat.jsonl",
        json.dumps(row) + "\n" + json.dumps(row | {"correct_answer": "error"}) + "\n",
    )
    item, unlabelled = benchmarks["fantom"].load(path)
    assert (
        item.question == "This is about: What does Lea grow? Leeks.\nDoes Omar know this?"
        and item.facts["character"] == "Omar"
    )
    assert benchmarks["fantom"].answered(unlabelled, "hm").scores == {
        "official": 1.0,
        "published": 1.0,
    }  # as published; ours has no score
    with pytest.raises(DataError, match="no full_context"):
        benchmarks["fantom"].load(path, context="full")


def test_fantom_parts_and_conversations(tmp_path):
    "One wrong answer costs its set, its part and its conversation"
    path = written(
        tmp_path, "s.json", json.dumps([fantom_set(n, random.Random(1)) for n in range(16)])
    )
    for context in ("short", "full"):
        loaded = benchmarks["fantom"].load(path, context=context)
        perfect = [benchmarks["fantom"].answered(item, right_answer(item)) for item in loaded]
        wrong = next(
            i
            for i, item in enumerate(loaded)
            if item.kind.endswith("binary") and item.groups["scenario"] == "inaccessible"
        )
        perfect[wrong] = benchmarks["fantom"].answered(loaded.items[wrong], "perhaps")
        found = {
            m.name: (m.n - round(m.mean * m.n), m.n)
            for m in benchmarks["fantom"].report(perfect)
            if m.value == "inaccessible" and ":ALL" in m.name
        }
        sets = {item.set_id for item in loaded if item.groups.get("scenario") == "inaccessible"}
        parts = {set_id.rpartition("-")[0] for set_id in sets}
        assert found["set:ALL"] == (1, len(sets)) and found["part:ALL"] == found[
            "part:ALL* (words)"
        ] == (1, len(parts))
        assert found.get("conversation:ALL") == (
            (1, len({p.partition("-")[0] for p in parts})) if context == "full" else None
        )


def test_fantom_choices_by_three_rules():
    options = {"a": "x", "b": "y"}
    expected = {
        "b": (1, 1, 0),
        "(b)": (1, 1, 1),
        "b)": (1, 1, 1),
        "b.": (1, 1, 1),
        "b:": (1, 1, 0),
        "b, so": (1, 1, 0),
        "B": (1, 1, 0),
        "I say (b)": (1, 1, 0),
        "**b**": (1, 0, 0),
        "(a) or (b)": (0, 1, 0),
        "not (b)": (0, 1, 0),
        "a": (0, 0, 0),
        "": (0, 0, 0),
    }
    for said, (ours, official, published) in expected.items():
        assert (
            read_choice(said, options).value == "b",
            _official_choice(said, "b"),
            _published_choice(said, "b"),
        ) == (ours, official, published), said


def test_fantom_keeps_long_questions_for_the_full_conversation(tmp_path):
    path = written(
        tmp_path, "sets.json", json.dumps([fantom_set(n, random.Random(n)) for n in range(20)])
    )
    short, full = benchmarks["fantom"].load(path), benchmarks["fantom"].load(path, context="full")
    long_ = sum(item.gold == "no:long" for item in full)
    assert len(full) - len(short) == long_ > 0
    assert {item.source.split()[0] for item in full} == {"Long"}


@pytest.mark.parametrize(
    "text", ["<think>Answer: A", "<thinking>\nAnswer: A\n", "x</think><think>A"]
)
def test_an_open_thought_is_no_answer_to_any_set(text):
    from humanlm.tom.questions import final_answer, read_choice, untagged

    assert final_answer(text) == "" == untagged(text)
    assert read_choice(text, {"A": "box", "B": "basket"}).status == "empty"
    assert read_choice(f"{text}</think>Answer: B", {"A": "box", "B": "basket"}).value == "B"
