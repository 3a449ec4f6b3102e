"Rows and dialogues as UserRL released them: played, trained on, begun with."

import gzip
import json

import pytest

from humanlm.core.basics import run_sync
from humanlm.core.commands import main as gyms
from humanlm.gyms.protocol import find_gym, play_through
from humanlm.gyms.rows import read_gym_rows
from humanlm.train import main

STORY = {
    "judgment": "Yes",
    "new_title": "The Quiet Lighthouse",
    "new_surface": "A keeper turns off the lamp and sleeps well.",
    "new_bottom": "The keeper learned that the sea was mined, and no ship sails past it any more.",
    "evaluation": [{"statement": "The keeper learned that the sea was mined.", "score": 1.0}],
}
WISH = ["hotel", "room view", "wants to see the sea", "hints at water", "x"]
STAY = {
    "scenario": "...",
    "initial_description": "I need a hotel in Oslo on May 3.",
    "dimensions": ["hotel"],
    "wanted_num": [1],
    "hotel": {
        "preferences": [WISH, ["hotel", "room type", "wants a suite", "hints at space", "x"]],
        "correct_ids": ["H3", "H1"],
        "best_id": "H3",
        "options": {
            "correct": [
                {
                    "id": "H3",
                    "cost": 90,
                    "stars": 4,
                    "near": ["sea"],
                    "type": "correct",
                    "reason": "",
                },
                {"id": "H1", "cost": 99, "stars": 3, "near": [], "type": "correct", "reason": ""},
            ],
            "wrong": [{"id": "H2", "cost": 50, "stars": 5, "near": [], "type": "wrong"}],
            "noise": [],
        },
        "arguments": {"city": "Oslo", "check_in": "May 3"},
    },
}
FILES = {
    "functions.json": [
        {
            "id": f"f{n}",
            "rule": "a + b * c - d",
            "test_case": [n, 2, 3, 4],
            "expected_result": n + 2.0,
        }
        for n in range(1, 21)
    ],
    "all_intentions_test.json": [
        {
            "id": "i1",
            "category": "Home",
            "task": "Repaint a room.",
            "missing_details": [
                {
                    "description": "Room size",
                    "importance": "3",
                    "inquiry": "How large is the room?",
                    "options": ["small"],
                }
            ],
        }
    ],
    "all_stories_refined.json": {"901": STORY},
    "travelgym_data_22.json": {"hotel:2-29": STAY},
}


def row(source, split="test", opening="I am ready.", **kept):
    return {
        "data_source": f"interact_{source}",
        "prompt": [{"role": "system", "content": "..."}, {"role": "user", "content": opening}],
        "reward_model": {"style": "rule", "ground_truth": "", **kept},
        "extra_info": {"split": split, "index": 0},
    }


ROWS = [
    *(row("function", "train" if n < 19 else "test", id=f"f{n}") for n in range(1, 21)),
    row("intention", id="i1"),
    row("turtlegym", title=STORY["new_title"], surface="...", bottom="..."),
    row("travelgym", opening=STAY["initial_description"], id="hotel:2-29", ground_truth="['H3']"),
]


def write_json(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table))


@pytest.fixture
def tree(tmp_path, monkeypatch):
    "UserRL and tau-bench as they are cloned, with few rows"
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, table in FILES.items():
        write_json(tmp_path / "UserRL/gyms/AnyGym/anygym/data" / name, table)
    (tmp_path / "UserRL/data").mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "UserRL/data/test.parquet")
    monkeypatch.setenv("HUMANLM_DATA", str(tmp_path))
    return tmp_path / "UserRL"


def test_released_rows_play_with_the_released_task_files(tree):
    found = read_gym_rows(tree / "data/test.parquet")
    assert {name: len(own) for name, own in found.tasks.items()} == {
        "function": 20,
        "intention": 1,
        "turtle": 1,
        "travel": 1,
    } and not found.left_out.counts
    for name, tasks in found.tasks.items():
        gym = find_gym(name)
        env = run_sync(play_through(gym.play(tasks[0]), gym.expert))
        assert gym.score(env) == gym.best(tasks[0]), name
    assert env.stop == "done" and found.tasks["travel"][0].released


DIALOGUES = [
    {
        "conversations": [
            {"from": "human", "value": "I am ready."},
            {
                "from": "gpt",
                "value": '<think>\nSmall.\n</think>\n\n<tool_call>\n{"name": "interact_with_env", '
                '"arguments": {"choice": "action", "content": "1 2 3 5"}}\n</tool_call>',
            },
            {"from": "observation", "value": "The result is 2."},
            {"from": "gpt", "value": "[answer] 2"},
        ],
        "system": "You act in a world.",
        "tools": "[]",
    }
]
TINY = """--run.recipe gyms --run.name tiny --gyms.train [function] --gyms.held_out [intention]
--gyms.test_n 2 --gyms.max_turns 2 --gyms.turn_tokens 12 --gyms.max_tokens 90 --sft.lesson_steps 2
--sft.batch 4 --rollout.num_prompts 2 --rollout.group_size 2 --trainer.max_steps 1
--model.hidden 32 --model.heads 2 --model.kv_heads 2 --model.mlp 64 --model.vocab 420
--model.max_prompt_tokens 2000""".split()


@pytest.mark.parametrize("kind", ["released", "own"])
def test_a_run_begins_with_dialogues_and_trains_on_rows(tree, tmp_path, capsys, kind):
    path = tree / "sft/merged_gym_sft.json"
    if kind == "released":
        write_json(path, DIALOGUES)
    else:
        words = ["data", "lessons", "--lessons.gyms", "function"]
        path = tmp_path / "lessons"
        assert gyms([*words, "--lessons.out", str(path)]) == 0
    rows = ["--gyms.rows", str(tree / "data/test.parquet"), "--gyms.lessons", str(path)]
    assert main([*TINY, *rows, "--run.out", str(tmp_path / "runs")]) == 0
    out = capsys.readouterr().out
    assert "cold-start: step 2 of 2" in out and "gyms: step 1 of 1" in out
    kept = json.loads((tmp_path / "runs/tiny/results.json").read_text())
    held = {line["level"]: line["n"] for line in kept["rows"] if line["model"] == "gyms"}
    assert held["function"] == 2 and held["intention"] == 1
    assert main([*TINY, *rows, "--run.out", str(tmp_path / "other"), "--dry-run"]) == 0
    assert (
        "18 for training in function; held out: 2 of function, 1 of intention"
        in capsys.readouterr().out
    )


def test_a_plan_counts_dialogues_and_a_wrong_file_stops_it(tree, tmp_path, capsys):
    rows = ["--gyms.rows", str(tree / "data/test.parquet"), "--dry-run"]
    path = tmp_path / "merged_gym_sft.json.gz"
    path.write_bytes(gzip.compress(json.dumps(DIALOGUES).encode()))
    assert main([*TINY, *rows, "--gyms.lessons", str(path)]) == 0
    assert f"{path}: 1 dialogues" in capsys.readouterr().out
    for bad, why in [
        (b"\x1f\x8bnone", "Cannot read"),
        (gzip.compress(b'[{"from": 1}]'), "no turn"),
    ]:
        path.write_bytes(bad)
        assert main([*TINY, *rows, "--gyms.lessons", str(path)]) == 2
        assert why in capsys.readouterr().err
    assert main([*TINY, *rows, "--gyms.lessons", str(tree / "data")]) == 2
    assert "holds no turn" in capsys.readouterr().err
