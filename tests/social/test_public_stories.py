"""The simulator on the complete public files. They may not be shipped, so each test needs its file
below HUMANLM_DATA and is skipped where it is missing."""

import ast
import csv
import hashlib
import io
import json
import os
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from humanlm.social.answers import answer
from humanlm.social.generation import read_tomi
from humanlm.social.language import plain, read_question
from humanlm.social.world import read_story
from humanlm.tom.sets import HITOM_100

DATA = os.environ.get("HUMANLM_DATA", "")
FILES = {  # name → SHA-256 of the published file
    "tomi_balanced_story_types.zip": "d8389ecf09749b4a49c56752a8ce44af"
    "ac8c3d363391b5c29c8fa7032613ece6",
    "Hi-ToM_data.json": "1c4077bbcdf815b91dbb791b60dbce3920a98bd63317954ebf94a532d43cd573",
    "Percept-ToMi.csv": "e13bfed059f4790ff38456ccb9cfb1d4c56a8d6fc6439d1a413af435ddfa9c40",
}


def public(name, where=""):
    "The public file, in HUMANLM_DATA or at most two folders below; the test is skipped without it"
    where = where or DATA
    found = (
        [path for pattern in ("", "*/", "*/*/") for path in Path(where).glob(pattern + name)]
        if where
        else []
    )
    if not found:
        pytest.skip(f"{name} is not in {where or '(HUMANLM_DATA is not set)'} or two folders below")
    return found[0]


def sha(data):
    return hashlib.sha256(data).hexdigest()


# ---- counting, for the public files and for our own


def unpacked(path, folder):
    "Tales of all splits of a ToMi archive"
    with zipfile.ZipFile(path) as archive:
        names = [
            name
            for name in archive.namelist()
            if name.endswith((".txt", ".trace")) and not Path(name).name.startswith(".")
        ]
        for name in names:
            Path(folder, name.replace("/", "_")).write_bytes(archive.read(name))
    files = [Path(folder, name.replace("/", "_")) for name in names if name.endswith(".txt")]
    assert all(file.with_suffix(".trace").exists() for file in files)
    return {file.stem: read_tomi(file) for file in files}


def kind_of(text):
    asked = read_question(text)
    return {"initial": "memory", "reality": "reality"}.get(asked.kind) or f"order {asked.order}"


def tomi_counts(tales, policy):
    "Right answers by kind of question"
    return Counter(
        kind_of(asked.text)
        for tale in tales
        for asked in tale.questions
        if answer(tale.story, asked.text, policy).text == asked.answer
    )


def hitom_misses(rows, policy="principled"):
    "Rows on which simulator and label differ"
    return [
        row
        for row in rows
        if answer(read_story(row["story"]), row["question"], policy).text != row["answer"]
    ]


def renamed(data):
    "The file with its gold column named as the runner names it"
    head, _, rest = data.partition(b"\n")
    cells = head.rstrip(b"\r").split(b",")
    return (
        b",".join(b"correct_answer" if cell == b"answer" else cell for cell in cells)
        + head[len(head.rstrip(b"\r")) :]
        + b"\n"
        + rest
    )


def percept_rows(data):
    "Story, question, right answer and kind of question of each row"
    rows = csv.DictReader(io.StringIO(data.decode("utf-8"), newline=""))
    return [
        (ast.literal_eval(row["story"]), row["question"], row["correct_answer"], row["qTypeRaw"])
        for row in rows
    ]


# ---- the public files


def test_tomi_archive(tmp_path):
    path = public("tomi_balanced_story_types.zip")
    assert sha(path.read_bytes()) == FILES[path.name]
    splits = unpacked(path, tmp_path)
    assert [sum(len(tale.questions) for tale in tales) for tales in splits.values()] == [5994] * 3
    tales = [tale for split in splits.values() for tale in split]
    assert not any(tale.story.unknown for tale in tales)
    assert tomi_counts(tales, "as_shipped") == {
        "memory": 2997,
        "reality": 2997,
        "order 1": 5994,
        "order 2": 5994,
    }  # 17,982 of 17,982
    assert tomi_counts(tales, "principled") == {
        "memory": 2997,
        "reality": 2997,
        "order 1": 5994,
        "order 2": 4526,
    }


def test_tomi_misses_are_faulty_labels_only(tmp_path):
    path = public("tomi_balanced_story_types.zip")
    tales = [tale for split in unpacked(path, tmp_path).values() for tale in split]
    missed = Counter(
        asked.kind[-6:]
        for tale in tales
        for asked in tale.questions
        if answer(tale.story, asked.text).text != asked.answer
    )
    assert missed == {"no_tom": 5994 - 4526}


@pytest.fixture(scope="module")
def hitom():
    path = public("Hi-ToM_data.json")
    assert sha(path.read_bytes()) == FILES[path.name]
    rows = json.loads(path.read_text())["data"]
    return {kind: [row for row in rows if row["prompting_type"] == kind] for kind in ("CoTP", "VP")}


ODD = {241, 242, 261, 262, 281, 285, 292, 296, 742, 758, 762, 774, 778, 782, 794, 857, 881}


def test_hitom_chain_of_thought_half(hitom):
    missed = hitom_misses(hitom["CoTP"])
    assert len(hitom["CoTP"]) == 600 and sorted(row["sample_id"] for row in missed) == sorted(ODD)
    assert [120 - sum(row["question_order"] == order for row in missed) for order in range(5)] == [
        120,
        120,
        115,
        115,
        113,
    ]  # 583 in all


def test_hitom_vanilla_half(hitom):
    missed = hitom_misses(hitom["VP"])
    assert len(hitom["VP"]) == 600 and len(missed) == 600 - 470
    assert [120 - sum(row["question_order"] == order for row in missed) for order in range(5)] == [
        120,
        120,
        90,
        75,
        65,
    ]
    assert hitom_misses(hitom["VP"], "as_shipped") == []


def test_hitom_published_hundred(hitom):
    rows = [row for row in hitom["CoTP"] if row["sample_id"] in HITOM_100]
    assert [sum(row["question_order"] == order for row in rows) for order in range(5)] == [
        21,
        21,
        15,
        23,
        20,
    ] and hitom_misses(rows) == []


def test_percept_tomi():
    path = public("Percept-ToMi.csv")
    data = renamed(path.read_bytes())
    assert (len(data), sha(data)) == (802_159, FILES[path.name])
    rows = percept_rows(data)
    assert (
        Counter(kind for *_, kind in rows) == dict.fromkeys({kind for *_, kind in rows}, 75)
        and len(rows) == 600
    )
    assert [row for row in rows if answer(read_story(row[0]), row[1]).text != plain(row[2])] == []
    assert not any(read_story(story).unknown for story, *_ in rows)
