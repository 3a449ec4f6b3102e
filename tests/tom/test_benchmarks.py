"""Theory-of-Mind benchmarks: faulty files, odd answers, scores beside independent evaluators."""

import contextlib
import json
import os
import random
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from fantom_rows import fantom_set
from sklearn.metrics import f1_score

from humanlm.core.basics import DataError
from humanlm.tom.answers import solve
from humanlm.tom.fantom import BINARY, _official_choice, _yes_no
from humanlm.tom.questions import read_choice, read_table
from humanlm.tom.sets import benchmarks

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


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("a.csv", "index,story\n1,x\n", "no question that can be used"),
        ("a.csv", "", "It is empty"),
        ("a.jsonl", "[1]\n{\n", "not a row"),
        ("a.txt.zip", "", "Unknown kind of file"),
    ],
)
def test_a_file_without_a_question_says_why(tmp_path, name, content, said):
    with pytest.raises(DataError, match=said.replace("(", r"\(")):
        benchmarks["tomi"].load(written(tmp_path, name, content))


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


# ---- answers in odd forms

OPTIONS = {"A": "green_bottle", "B": "red_basket", "C": "blue_box", "K": "red_box"}
ODD = {
    "B": "B",
    "(K)": "K",
    "B. red_basket": "B",
    "The red basket.": "B",
    "She thinks it is in the red basket.": "B",
    "<think>A or C</think> B": "B",
    r"\boxed{B}": "B",
    "not A, but B": "B",
    "The lettuce is not in the red_box but in the blue_box": "C",
    "<answer>k</answer>": "K",
    "Ｂ": "unreadable",
    "A or B": "several",
    "It could be A or B": "several",
    "B, I and a friend think": "B",
    "B. red_box": "several",
    "": "empty",
    "I cannot know.": "unreadable",
    "a box": "several",
    "Not A. B.": "B",
    "Option A is incorrect; the answer is C": "C",
    "not B": "unreadable",
    "(B) is not the one usually chosen, but it is right": "B",
}


@pytest.mark.parametrize("text", ODD)
def test_odd_answers_have_a_defined_reading(text):
    reading = read_choice(text, OPTIONS)
    assert (reading.value or reading.status) == ODD[text]


@pytest.mark.parametrize("unit", ["A. ", "answer: ", "not ", " and A", "<answer>", "\\boxed{"])
def test_long_answers_take_linear_time(unit):
    start = time.process_time()
    for text in (unit * (200_000 // len(unit)), "<think>" * 10_000 + unit * 10_000):
        read_choice(text, OPTIONS)
        _yes_no(text)
    assert time.process_time() - start < 3


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


def test_the_symbolic_reader_has_the_figures_of_the_label_study():
    cotp, vp = real("hitom"), real("hitom", prompting="VP")
    hitom = benchmarks["hitom"]
    wrong = {
        int(item.id)
        for item in cotp
        if hitom.answered(item, solve("symbolic", item)[0]).scores["correct"] == 0
    }
    assert wrong == {241, 261, 281, 296, 742, 762, 774, 782, 794, 857, 881}
    orders = Counter(item.groups["order"] for item in cotp if int(item.id) not in wrong)
    assert [orders[str(k)] for k in range(5)] == [63, 63, 60, 60, 58]
    assert (
        sum(hitom.answered(item, solve("symbolic", item)[0]).scores["correct"] for item in vp)
        == 260
    )


# ---- ConfAIde


def test_confaide_reads_the_public_text_files(tmp_path):
    text = (
        "<BEGIN><gift, June 3rd>\nLea: Hi!\n\n\n(Kate joins)\nKate: Hello.\n<END><gift, June 3rd>\n"
        "<BEGIN><gift,June 4th>\nBo: Hm.\n<END><gift,June 5th>\n"
    )
    loaded = benchmarks["confaide"].load(written(tmp_path, "tier_4.txt", text))
    assert [item.source for item in loaded] == ["Lea: Hi!\n(Kate joins)\nKate: Hello."] * 2
    assert [where for where, _ in loaded.problems] == ["tier_4.txt, scenario 2"]


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
            right, _ = page._nearer(o.answer, item.gold, item.facts["wrong"], similarity)
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
    assert item.question == "This is about: What does Lea grow? Leeks.\nDoes Omar know this?"
    assert benchmarks["fantom"].answered(unlabelled, "hm").scores == {
        "official": 1.0,
        "published": 1.0,
    }  # as published; ours has no score
