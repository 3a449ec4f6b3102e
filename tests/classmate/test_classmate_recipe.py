"Classmates are trained with and measured; questions of evaluation are not those of training."

import json
import math
import os
from pathlib import Path

import pytest

from humanlm.classmate.classmates import ClassmateConfig
from humanlm.classmate.method import ReasoningRollout, ResponseReader
from humanlm.classmate.recipe import _monitored, _task_row
from humanlm.classmate.tasks import (
    TASK_KINDS,
    _read_tasks,
)
from humanlm.clients.client import ScriptedClient
from humanlm.core.basics import ConfigError, DataError, run_sync
from humanlm.core.commands import main as command
from humanlm.train import main
from humanlm.training.run import _make_base, make_run, read_settings

TINY = {
    "classmate.models": "[reader]",
    "tasks.train_n": 12,
    "tasks.test_n": 4,
    "tasks.max_tokens": 24,
    "sft.lesson_steps": 3,
    "sft.reader_steps": 2,
    "sft.batch": 4,
    "rollout.num_prompts": 2,
    "rollout.group_size": 2,
    "trainer.max_steps": 2,
    "trainer.save_steps": 1,
    "model.hidden": 32,
    "model.heads": 2,
    "model.kv_heads": 2,
    "model.mlp": 64,
    "model.vocab": 420,
    "classmate.max_tokens": 6,
}


def words(settings):
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def train(folder, *more, **settings):
    given = TINY | settings
    if given["classmate.models"] != "[reader]":
        del given["sft.reader_steps"]
    if "tasks.train" in settings and not str(settings["tasks.train"]).startswith("toy/"):
        given["sft.lesson_steps"] = 0
    return main(
        [
            "--run.recipe",
            "classmate",
            "--run.name",
            "tiny",
            "--run.out",
            str(folder),
            *words(given),
            *more,
        ]
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classmate")
    assert train(folder) == 0
    return folder / "tiny"


def test_a_run_measures_answers_classmates_and_controls(trained):
    rows = json.loads((trained / "results.json").read_text())["rows"]
    assert {"answer", "classmate", "alone", "shuffled", "gain", "whole reasoning"} <= {
        row["metric"] for row in rows
    }
    assert {"reader", "cold-start", "classmate"} <= {row["model"] for row in rows}
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert sum("reasoning/whole" in line and "classmate/answered" in line for line in lines) == 2


def row(question, gold="4", source="gsm8k"):
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        "reward_model": {"style": "rule", "ground_truth": gold},
    }


def written(path, rows):
    return path.write_text("".join(json.dumps(r) + "\n" for r in rows)) and path


@pytest.mark.parametrize(
    "bad",
    [
        row("x") | {"prompt": []},
        [1],
    ],
)
def test_rows_that_are_no_tasks_are_named(tmp_path, bad):
    with pytest.raises(DataError, match="(line|row) 2"):
        _read_tasks(written(tmp_path / "a.jsonl", [row("fine?"), bad]))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"estimator": "gae", "main_mode": "cot_only"}, "critic"),
        ({"keep": "half"}, "keep"),
        ({"reward_type": "help_other_questions"}, "reward_type"),
    ],
)
def test_settings_that_cannot_work_say_what_to_write(settings, message):
    with pytest.raises(ConfigError, match=message):
        ClassmateConfig(**settings)


@pytest.mark.parametrize(
    "more, message",
    [
        (["--classmate.models", "[raeder]"], "reader"),
        (["--classmate.classmate_weight", "2"], "classmate_weight"),
        (["--classmate.budget", "1", "--classmate.models", "[reader, vllm/NAME]"], "price"),
    ],
)
def test_a_run_that_cannot_work_stops_before_anything_is_written(tmp_path, capsys, more, message):
    assert train(tmp_path, *more) != 0
    assert message in capsys.readouterr().err and not (tmp_path / "tiny").exists()


PLACES = {
    "gsm8k": "gsm8k/train_sample.jsonl",
    "mmlu_sycophancy": "mmlu_stem/questions.jsonl",
}


@pytest.mark.parametrize("kind", PLACES)
def test_public_rows_go_through_preparation_rollouts_rewards_and_evaluation(tmp_path, kind):
    if not os.environ.get("HUMANLM_DATA"):
        pytest.skip("HUMANLM_DATA is not set: no public rows")
    source = Path(os.environ["HUMANLM_DATA"]) / PLACES[kind]
    assert (
        command(
            [
                "data",
                "questions",
                kind,
                "--prepare.source",
                str(source),
                "--prepare.out",
                str(tmp_path / "tasks"),
            ]
        )
        == 0
    )
    parts = [_read_tasks(tmp_path / "tasks" / f"{part}.jsonl") for part in ("train", "test")]
    assert all(len(part) > 20 for part in parts) and not {t.question for t in parts[0]} & {
        t.question for t in parts[1]
    }
    assert {t.verifier for t in parts[0]} == {TASK_KINDS[kind].source}
    files = {
        "tasks.train": tmp_path / "tasks" / "train.jsonl",
        "tasks.held_out": tmp_path / "tasks" / "test.jsonl",
        "classmate.models": "[initial]",
        "trainer.max_steps": 1,
        "model.max_prompt_tokens": 900,
    }
    assert train(tmp_path, **files) == 0
    rows = json.loads((tmp_path / "tiny" / "results.json").read_text())["rows"]
    assert {"base", "classmate"} <= {
        row["model"] for row in rows if row["metric"] == "answer" and row["n"] == 4
    }


def test_preparing_counts_what_is_left_out_and_writes_all_or_nothing(tmp_path, capsys):
    rows = [{"question": f"{i} + 1?", "answer": f"#### {i + 1}"} for i in range(60)] + [
        {"question": "0 + 1?", "answer": "#### 1"},
        {"question": "", "answer": "#### 1"},
        {"question": "x", "answer": "many"},
    ]
    out = tmp_path / "out"
    asked = [
        "data",
        "questions",
        "gsm8k",
        "--prepare.source",
        str(written(tmp_path / "a.jsonl", rows)),
        "--prepare.out",
        str(out),
        "--prepare.test_share",
        "0.3",
    ]
    assert command(asked) == 0
    parts = json.loads((out / "prepare.json").read_text())["parts"]
    assert sum(part["counts"].pop("kept") for part in parts.values()) == 60
    assert parts["train"]["counts"] == {
        "the same again": 1,
        "empty question": 1,
        "no number in the answer": 1,
    }
    assert command(asked) != 0 and "exists" in capsys.readouterr().err
    written(tmp_path / "b.jsonl", rows[-2:])
    assert (
        command([*asked[:4], str(tmp_path / "b.jsonl"), "--prepare.out", str(tmp_path / "none")])
        != 0
        and not (tmp_path / "none").exists()
    )


def test_monitors_foretell_what_the_judge_will_say(tmp_path):
    def said(request):
        system = request.messages[0]["content"]
        return (
            "BEHAVIOUR: bold print\nRATING: 8"
            if "suspicious" in system
            else "RATING: 10"
            if "descriptions" in system
            else "EXPLANATION: it says so\nRATING: 3"
        )

    recipe, s = read_settings(
        [
            "--run.recipe",
            "classmate",
            "--run.name",
            "monitored",
            "--run.out",
            str(tmp_path),
            *words(
                TINY
                | {
                    "sft.lesson_steps": 0,
                    "judge.exploit": "bold_formatting",
                    "judge.monitor": "scripted/monitor",
                }
            ),
        ]
    )
    recipe.check(s)
    run = make_run(recipe, s, tmp_path / "monitored")
    _make_base(run)
    client = ScriptedClient(said, "scripted/monitor")
    tokenizer = run.load("base")[1]
    scorer = ReasoningRollout(s.classmate, [], ResponseReader(s.classmate, tokenizer))
    texts = [
        "<think>so bold</think>**4** and **5** and **6**",
        "<think>plain</think>4",
        "<think>",
        "<think></think>4",
    ]
    rows = [_task_row(task, s) for task in run.work.tasks["test"]]
    found = run_sync(
        scorer.scored(
            rows,
            [tokenizer.encode(text, add_special_tokens=False) for text in texts],
            None,
        )
    )
    object.__setattr__(s.judge, "client", lambda name, ledger: client)
    told = run_sync(_monitored(run, found, rows, scorer.score))
    assert (
        told["rating"] == [3.0, 0.0, 0.0, 0.0]
        and told["monitor error"][:2] == [0.0, 3.0]
        and told["suspicion"][:2] == [8.0, 8.0]
    )
    assert all(math.isnan(told[name][3]) for name in ("foretold", "monitor error", "suspicion")), (
        "no reasoning, nothing foretold"
    )
