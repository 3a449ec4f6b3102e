"""Public files as they are, with rows of our own; and sets that nobody may train on."""

import csv
import json
import random

import pytest
from fantom_rows import fantom_set
from sklearn.metrics import f1_score

from humanlm.clients.names import scripts
from humanlm.parsers import main as parsers
from humanlm.tom.command import main as tom
from humanlm.tom.questions import BenchmarkItem
from humanlm.tom.sets import benchmarks

BIGTOM = """Ama is a baker in a port. Ama wants to bake bread for the ships; she needs flour. \
She filled her jar with flour. Ama believes the jar holds flour. A mouse eats it all.
Ama sees the mouse at the jar.|Ama does not see the mouse.|Ama buys flour.|Ama lights the \
oven.|Does Ama believe the jar is full or empty?|Does Ama want bread?|What will Ama do?
Ama believes the jar is empty.|Ama wants bread.|Ama will buy flour.|Ama believes the jar is \
full.|Ama wants bread.|Ama will light the oven.
A gull lands outside.|Ama sees the gull.|Ama does not see the gull.|auto|0""".replace(
    "\n", "|"
).split("|")


def bigtom_file(folder):
    "Two templates in the published form: no head, `;` between the cells"
    with open(folder / "bigtom.csv", "w", newline="") as file:
        csv.writer(file, delimiter=";").writerows(
            [BIGTOM, [cell.replace("Ama", "Ola") for cell in BIGTOM]]
        )
    return folder / "bigtom.csv"


# ---- BigToM


def test_bigtoms_file_is_read_without_a_head(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(
        scripts, "first", lambda request: json.dumps({"reasoning": "", "answer": "a"})
    )
    path = bigtom_file(tmp_path)
    with open(path, newline="") as file:
        assert {len(cells) for cells in csv.reader(file, delimiter=";")} == {19}
    loaded = benchmarks["bigtom"].load(path)
    assert (len(loaded), loaded.problems) == (24, ())
    seen = next(item for item in loaded if item.id == "0-forward_belief-told-true_belief")
    assert (
        seen.source.endswith("A mouse eats it all. Ama sees the mouse at the jar.")
        and seen.options[seen.gold] == "Ama believes the jar is empty."
    )
    assert (
        tom(
            [
                "run",
                "bigtom",
                f"--tom.file={path}",
                f"--tom.out={tmp_path}/runs",
                "--model.name=scripted/first",
            ]
        )
        == 0
    )
    assert "24" in capsys.readouterr().out


# ---- sets for evaluation only

PLOT = {
    "mover": "Ira",
    "eoi": "plum",
    "original_place": "blue_bowl",
    "move_to_place": "Ira's_drawer",
    "observer": "Lea",
}
ASKS = [
    ("location-fo", "Where, precisely, does Lea think the plum is?", "blue_bowl"),
    ("location-so", "Does Ira think that Lea thinks the plum is where it was?", "No"),
    ("multihop-fo", "How would Lea see the fullness of the bowl?", "less full"),
    (
        "multihop-so",
        "How would Ira see the accessibility of the plum for Lea?",
        "more accessible|less accessible",
    ),
    (
        "multihop-fo",
        "What is the accessibility of the plum for Lea?",
        ["corrupted", "less accessible"],
    ),
    ("attitude", "As Lea, what is your attitude towards Ira's action?", "negative"),
]


def opentom_file(folder):
    rows = [
        {
            "plot": "…",
            "plot_info": PLOT,
            "preferences": {},
            "personality": "considerate",
            "observed": True,
            "narrative": f"Ira hid the plum. Lea saw it. {n // 6}",
            "question": dict(zip(("type", "question", "answer"), ASKS[n % 6])),
        }
        for n in range(12)
    ]
    (folder / "opentom.json").write_text(json.dumps(rows))
    return folder / "opentom.json"


def tombench_row(**more):
    return {
        "能力\nABILITY": "Belief: Location false beliefs",
        "序号\nINDEX": 1,
        "故事": "…",
        "问题": "…",
        "选项A": "…",
        "选项B": "…",
        "选项C": None,
        "选项D": None,
        "STORY": "Bo hid the cup.",
        "QUESTION": "Where will Al look?",
        "OPTION-A": "A. Shelf",
        "OPTION-B": "Box",
        "OPTION-C": float("nan"),
        "OPTION-D": float("nan"),
        "答案\nANSWER": "A. ",
    } | more


def tombench_folder(folder):
    (folder / "data").mkdir()
    rows = [
        tombench_row(),
        tombench_row(**{"QUESTION": "Where is it really?", "答案\nANSWER": "B"}),
        tombench_row(**{"OPTION-B": "shelf"}),
    ]
    (folder / "data/False Belief Task.jsonl").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    )
    (folder / "data/Hinting Task Test.jsonl").write_text(
        json.dumps(
            tombench_row(
                **{
                    "STORY": "Al coughs.",
                    "OPTION-C": "Lamp",
                    "OPTION-D": "Door",
                    "答案\nANSWER": "D",
                }
            )
        )
        + "\n"
    )
    return folder / "data"


def test_opentom_is_read_asked_and_measured_by_class(tmp_path):
    opentom = benchmarks["opentom"]
    loaded = opentom.load(opentom_file(tmp_path))
    assert [(item.kind, item.options[item.gold]) for item in loaded][:6] == [
        ("fine location", "blue bowl"),
        ("coarse location", "no"),
        ("fullness", "less full"),
        ("accessibility", "equally accessible"),
        ("accessibility", "less accessible"),
        ("attitude", "negative"),
    ]
    assert len(loaded) == 12 and not loaded.problems and len({item.set_id for item in loaded}) == 2
    draw = random.Random(0)
    items = [
        BenchmarkItem(
            str(n),
            "s",
            "story",
            "?",
            "fullness",
            draw.choice("aaaab"),
            dict(zip("abc", ("more full", "equally full", "less full"))),
            {"order": "first order"},
        )
        for n in range(60)
    ]
    said = [draw.choice("abc") for _ in items]
    macro = next(
        m
        for m in opentom.report([opentom.answered(item, text) for item, text in zip(items, said)])
        if m.name == "macro F1"
    )
    assert macro.mean == pytest.approx(
        f1_score([item.gold for item in items], said, average="macro", zero_division=0), abs=1e-9
    )


def test_tombench_is_read_from_a_folder_in_english(tmp_path):
    loaded = benchmarks["tombench"].load(tombench_folder(tmp_path))
    assert [
        (item.question, dict(item.options), item.gold, item.groups["task"]) for item in loaded
    ] == [
        ("Where will Al look?", {"A": "Shelf", "B": "Box"}, "A", "False Belief Task"),
        ("Where is it really?", {"A": "Shelf", "B": "Box"}, "B", "False Belief Task"),
        (
            "Where will Al look?",
            {"A": "Shelf", "B": "Box", "C": "Lamp", "D": "Door"},
            "D",
            "Hinting Task Test",
        ),
    ]
    assert [(p.where, p.reason) for p in loaded.problems] == [
        ("False Belief Task.jsonl, row 3", "two options are the same, or one is empty: 'shelf'.")
    ]


def contexts_of(name, path, folder, monkeypatch):
    "Let a scripted model write contexts of a set"
    record = {
        "agents_names": ["Ira", "Lea"],
        "socialized_context": [
            {
                "timestep": "0",
                "state": "none",
                "observations": ["Ira: none", "Lea: none"],
                "actions": ["Ira: none", "Lea: none"],
            }
        ],
    }
    monkeypatch.setitem(scripts, "writer", lambda request: json.dumps(record))
    assert (
        tom(
            [
                "contexts",
                name,
                f"--tom.file={path}",
                f"--tom.out={folder}/runs",
                "--parser.name=scripted/writer",
                "--tom.name=made",
            ]
        )
        == 0
    )
    return folder / "runs/made/files", folder / "runs/contexts"


def test_contexts_of_sets_for_evaluation_are_never_made_into_training_sets(
    tmp_path, capsys, monkeypatch
):
    made, stored = contexts_of("opentom", opentom_file(tmp_path), tmp_path, monkeypatch)
    for source in (made, stored):
        capsys.readouterr()
        assert parsers(["data", f"--parser.source={source}", f"--parser.out={tmp_path}/set"]) == 2
        said = capsys.readouterr().err
        assert (
            "is of OpenToM, whose authors ask never to train on it." in said
            and said.count("\n") == 1
        )
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    "name, row",
    [
        ("OpenToM", {"narrative": "…", "plot_info": PLOT, "question": {}}),
        ("ToMBench", tombench_row()),
        ("FANToM", fantom_set(0, random.Random(0))),
    ],
)
def test_rows_of_sets_for_evaluation_end_a_build(name, row, tmp_path, capsys):
    from humanlm.humanual import main as humanual

    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert (
        humanual(["build", f"--build.path={tmp_path}/rows.jsonl", f"--build.out={tmp_path}/out"])
        == 2
    )
    assert (
        f"rows.jsonl, row 1 is of {name}, whose authors ask to evaluate with it and "
        "never to train on it" in capsys.readouterr().err
    )


# ---- ToMi: a container and its own room

STORY = (
    "Ira entered the kitchen. Tom entered the kitchen. The rope is in the box. The box "
    "is in the kitchen. Tom exited the kitchen. Tom entered the garden. "
    "Ira moved the rope to the red_chest. The red_chest is in the kitchen."
)


@pytest.mark.parametrize(
    "cands", [["box", "red_chest", "kitchen"], ["box", "red_chest", "kitchen", "garden"], []]
)
@pytest.mark.parametrize(
    "said, right",
    [
        ("box", 1),
        ("the box in the kitchen", 1),
        ("kitchen, in the box", 1),
        ("The box, which is in the kitchen.", 1),
        ("the box in the garden", 0),
        ("the kitchen", 0),
        ("not in the box but in the kitchen", 0),
        ("the garden", 0),
    ],
)
def test_a_container_with_its_own_room_is_right_and_with_another_room_is_not(said, right, cands):
    row = {
        "index": "1",
        "story": STORY,
        "question": "Where will Tom look for the rope?",
        "cands": cands,
        "correct_answer": "box",
    }
    (item,) = benchmarks["tomi"].items(row)
    assert benchmarks["tomi"].answered(item, said).scores["correct"] == right


def test_two_containers_in_one_room_stay_two():
    row = {
        "index": "1",
        "story": STORY,
        "question": "Where is the rope really?",
        "cands": ["box", "red_chest", "kitchen"],
        "correct_answer": "red_chest",
    }
    (item,) = benchmarks["tomi"].items(row)
    said = {"the red chest in the kitchen": 1, "the red_chest or the box in the kitchen": 0}
    assert {
        text: benchmarks["tomi"].answered(item, text).scores["correct"] for text in said
    } == said
