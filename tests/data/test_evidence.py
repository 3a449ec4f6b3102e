"Evidence lies before what it helps to predict, message by message; shares are exact."

import json
import os
import random
from pathlib import Path

import late_evidence
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from humanlm.core.basics import DataError, write_jsonl
from humanlm.core.grammar import parse
from humanlm.core.records import load_examples
from humanlm.data.build import GROUPS, build
from humanlm.data.dataset import check_leakage

DATA = Path(os.environ.get("HUMANLM_DATA", "missing"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="HUMANLM_DATA names no folder")
COLUMNS = dict(thread="room", id="nr", user="who", text="say", parents="re", time="at")
WORDS = (
    "tea rain bike shed garden street lamp early late quiet loud never always maybe thanks "
    "fix paint wait"
).split()


def overlapping(seed=0, threads=40, people=8, lines=12, unit=1, ordered=True):
    "A log of discussions beside each other; `unit`: seconds that its clock can tell apart"
    rng, rows = random.Random(seed), []
    for t in range(threads):
        at, who, numbers = (
            1_600_000_000 + rng.randrange(threads * 21600),
            rng.randrange(people),
            list(range(lines)),
        )
        if not ordered:
            rng.shuffle(numbers)
        for i in range(lines):
            who = (who + rng.randrange(people)) % people  # sometimes the same person goes on
            rows.append(
                {
                    "room": f"r{t}",
                    "nr": numbers[i],
                    "who": f"p_{who}",
                    "say": " ".join(rng.choices(WORDS, k=8)) + f" {t} {i}",
                    "re": numbers[rng.randrange(i)] if i else None,
                    "at": at // unit * unit,
                }
            )
            at += rng.randrange(30, 86400)
    return rows


def settings(tmp, rows, name="out", persona=None, **values):
    if persona is None:
        persona = {}
    write_jsonl(tmp / f"{name}.jsonl", rows)
    build = {
        "source": "threads",
        "path": str(tmp / f"{name}.jsonl"),
        "out": str(tmp / name),
        "columns": COLUMNS,
        "min_comments": 2,
        "known_users": False,
        "test_frac": 0.2,
        "sets": ["sft"],
    } | values
    groups = {"build": build, "persona": {"pseudonyms": False} | persona}
    return parse(
        GROUPS,
        [
            f"--{g}.{k}={v if isinstance(v, str) else json.dumps(v)}"
            for g, part in groups.items()
            for k, v in part.items()
        ],
    )


def counted(tmp, name, columns=COLUMNS):
    return late_evidence.late_evidence(
        tmp / f"{name}.jsonl", tmp / name, columns["thread"], columns["id"], columns["time"]
    )


# ---- a log


@pytest.mark.parametrize("unit", [1, 3600, 86400])
def test_threads_that_overlap_leak_no_evidence_from_the_future(tmp_path, unit):
    built = build(settings(tmp_path, overlapping(unit=unit)))
    rows, late = counted(tmp_path, "out")
    assert rows == sum(built.rows.values()) > 150 and late == []
    assert (
        "row with evidence that is not earlier than its reply, by the times of "
        f"messages (of {rows}) | 0 |" in built.card
    )
    assert check_leakage(load_examples(built.folder)) == []


@hypothesis_settings(max_examples=8, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    threads=st.integers(10, 20),
    people=st.integers(3, 6),
    unit=st.sampled_from([1, 600, 20000, 86400]),
    ordered=st.booleans(),
)
def test_whatever_the_log_evidence_is_earlier(
    tmp_path_factory, seed, threads, people, unit, ordered
):
    tmp = tmp_path_factory.mktemp("log")
    try:
        build(
            settings(
                tmp, overlapping(seed, threads, people, 8, unit, ordered), persona={"least": 0}
            )
        )
    except DataError as e:
        assert str(e).startswith("No row is left for training")
        assume(False)
    assert counted(tmp, "out")[1] == []


def test_a_long_turn_is_known_only_when_its_last_line_was_written(tmp_path):
    "Ada goes on in room a after she has answered in room b: her turn is not earlier than that"
    rows = [
        {"room": room, "nr": nr, "who": who, "say": f"{say} in {room}{nr}", "re": re, "at": at}
        for room, nr, who, say, re, at in [
            ("a", 0, "bob", "what now", None, 10),
            ("a", 1, "ada", "well", 0, 20),
            ("a", 2, "ada", "and more", 1, 40),
            ("b", 0, "bob", "and here", None, 15),
            ("b", 1, "ada", "yes", 0, 30),
            ("c", 0, "bob", "later", None, 50),
            ("c", 1, "ada", "good", 0, 60),
            ("d", 0, "bob", "last", None, 70),
            ("d", 1, "ada", "fine", 0, 80),
        ]
    ]
    examples = load_examples(
        build(settings(tmp_path, rows, persona={"history": 1}, test_frac=0.0, val_frac=0.0)).folder
    )
    evidence = {e.id: e.persona.evidence_ids for e in examples if e.user_id == "ada"}
    assert evidence == {"c/1": ("a/1",), "d/1": ("a/1",)}  # b/1 began before a/1 ended


def test_lines_without_a_time_are_neither_evidence_nor_predicted(tmp_path):
    rows = [r | ({"at": None} if i % 7 == 3 else {}) for i, r in enumerate(overlapping())]
    built = build(settings(tmp_path, rows))
    undated, told = (
        {f"{r['room']}/{r['nr']}" for r in rows if r["at"] is None},
        json.loads((built.folder / "build.json").read_text()),
    )
    used = {i for e in load_examples(built.folder) for i in (e.id, *e.persona.evidence_ids)}
    assert not used & undated and told["met"]["undated line"] >= len(undated) == 69
    assert sum(told["fates"].values()) + sum(told["met"].values()) == len(rows)


# ---- shares


# ---- long evidence


# ---- one moment
