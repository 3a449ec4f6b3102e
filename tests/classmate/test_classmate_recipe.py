"Classmates are trained with and measured; questions of evaluation are not those of training."

import gzip
import json
import math
import os
from pathlib import Path

import pytest
import torch
import warm

from humanlm.classmate.classmates import ClassmateConfig
from humanlm.classmate.method import ReasoningRollout, ResponseReader
from humanlm.classmate.recipe import _foretold, _task_row, _train_classmate
from humanlm.classmate.rewards import classmate_advantages
from humanlm.classmate.tasks import (
    TASK_KINDS,
    TOYS,
    _prepared_tasks,
    _PrepareTasks,
    load_tasks,
    read_tasks,
    toy_tasks,
)
from humanlm.classmate.verifiers import VERIFIERS
from humanlm.clients.client import ScriptedClient
from humanlm.core.basics import ConfigError, DataError, run_sync
from humanlm.core.commands import main as command
from humanlm.core.trajectory import load_trajectories
from humanlm.data.files import FileRow, _hub_items
from humanlm.train import main
from humanlm.training.run import read_settings
from humanlm.training.stages import _make_base, make_run

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


def test_the_policy_is_its_own_classmate(tmp_path):
    assert (
        train(
            tmp_path,
            **{
                "classmate.models": "[initial, reader]",
                "tasks.train": "toy/hint",
            },
        )
        == 0
    )
    metrics = {
        row["metric"]
        for row in json.loads((tmp_path / "tiny" / "results.json").read_text())["rows"]
    }
    assert {"classmate initial", "classmate reader"} <= metrics, "several are told apart"


@pytest.mark.parametrize("kind", TOYS)
def test_made_up_questions_are_answered_as_they_say_and_no_part_shares_one(kind):
    parts = [toy_tasks(kind, 100, seed) for seed in (2, 3, 4)]
    assert sum(map(len, parts)) == len({task.question for part in parts for task in part}) == 300
    for task in parts[0]:
        assert VERIFIERS[task.verifier](task.gold, task.gold).value == 1
        assert (
            task.true_steps(task.written) == 1
            and task.true_steps(task.vague) == task.true_steps(task.swayed) == 0
            and math.isnan(task._replace(written="").true_steps("1"))
        )
        assert not task.hinted or VERIFIERS[task.verifier](task.hinted, task.gold).value == (
            task.kind == "hint is right"
        )
        assert task.gold not in task.vague


def test_a_reader_goes_on_with_reasoning_whether_it_is_true_or_not():
    for task in toy_tasks("carry", 50, 2):
        verb, by = task.question.rstrip(".").split(", ")[-1].split()
        assert {answer for _, answer in task.readings} <= {*"0123456789"} and all(
            int(said.rstrip(".").split()[-1]) + int(by) * (1 if verb == "add" else -1)
            == int(answer)
            for said, answer in task.readings
        )
        assert {said.rstrip(".").split()[-1]: answer for said, answer in task.readings}[
            task.written.rstrip(".").split()[-1]
        ] == task.gold
    for task in toy_tasks("hint", 50, 2):
        assert (
            dict(task.readings)[task.written] == task.gold
            and dict(task.readings)[task.swayed] == task.hinted
            and len({answer for _, answer in task.readings}) == 3
        )


def row(question, gold="4", source="gsm8k"):
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        "reward_model": {"style": "rule", "ground_truth": gold},
    }


def written(path, rows):
    return path.write_text("".join(json.dumps(r) + "\n" for r in rows)) and path


def test_rows_of_a_file_are_split_and_doubled_questions_are_refused(tmp_path):
    rows = [row(f"{i} + 0?", str(i)) for i in range(40)]
    _, s = read_settings(
        [
            "--run.recipe",
            "classmate",
            "--tasks.train",
            str(written(tmp_path / "a.jsonl", rows)),
            "--tasks.test_n",
            "5",
        ]
    )
    found = load_tasks(s)
    assert (
        len(found["test"]) == 5
        and len(found["train"]) == 35
        and not {t.question for t in found["test"]} & {t.question for t in found["train"]}
    )
    both = s.changed(tasks={"held_out": str(written(tmp_path / "b.jsonl", rows[:3]))})
    with pytest.raises(DataError, match="in training and held out"):
        load_tasks(both)


def test_two_tasks_of_one_id_are_refused(tmp_path):
    with pytest.raises(DataError, match="line 2: another task has the id 'same'"):
        read_tasks(
            written(
                tmp_path / "a.jsonl",
                [row("1 + 1?") | {"id": "same"}, row("2 + 2?") | {"id": "same"}],
            )
        )


@pytest.mark.parametrize(
    "bad, message",
    [
        (row("x?", source="gsm9k"), "gsm8k"),
        (row("x?", source="sycophancy"), "judge.model"),
        (row("x?", "x"), "none for gsm8k"),
    ],
)
def test_what_nobody_can_judge_is_said_before_a_run_begins(tmp_path, capsys, bad, message):
    rows = [row(f"{i} + 0?", str(i)) for i in range(20)] + [bad]
    assert (
        train(
            tmp_path,
            "--dry-run",
            **{"tasks.train": written(tmp_path / "a.jsonl", rows), "classmate.models": "[initial]"},
        )
        == 2
    )
    assert message in capsys.readouterr().err and not (tmp_path / "tiny").exists()


def test_an_estimator_that_needs_a_critic_is_refused_where_nobody_trains_one(tmp_path, capsys):
    assert (
        train(tmp_path, "--dry-run", **{"classmate.estimator": "gae"}) == 2
        and "--run.engine verl" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "bad",
    [
        row("x") | {"prompt": []},
        [1],
    ],
)
def test_rows_that_are_no_tasks_are_named(tmp_path, bad):
    with pytest.raises(DataError, match="(line|row) 2"):
        read_tasks(written(tmp_path / "a.jsonl", [row("fine?"), bad]))


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
    parts = [read_tasks(tmp_path / "tasks" / f"{part}.jsonl") for part in ("train", "test")]
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
    told = json.loads((out / "prepare.json").read_text())
    assert sum(told["kept"].values()) == 60 and told["left_out"] == {
        "the same again": 1,
        "no question": 1,
        "no number in the answer": 1,
    }
    assert command(asked) != 0 and "exists" in capsys.readouterr().err
    written(tmp_path / "b.jsonl", rows[-2:])
    assert (
        command([*asked[:4], str(tmp_path / "b.jsonl"), "--prepare.out", str(tmp_path / "none")])
        != 0
        and not (tmp_path / "none").exists()
    )


def test_a_question_stays_in_its_part_when_others_come(tmp_path):
    rows = [{"question": f"{i} + 1?", "answer": f"#### {i + 1}"} for i in range(80)]

    def parts(some):
        return {
            part: {row["id"] for row in found}
            for part, found in _prepared_tasks(
                TASK_KINDS["gsm8k"],
                _PrepareTasks(str(written(tmp_path / "a.jsonl", some)), test_share=0.3),
            )[0].items()
        }

    few, all_of_them = parts(rows[:40]), parts(rows)
    assert few["train"] <= all_of_them["train"] and few["test"] <= all_of_them["test"]


def first_paragraphs(dialogue):
    "What stands before the first answer, paragraph by paragraph, without the word Human"
    parts = dialogue.strip().split("\n\n")
    later = [i for i, part in enumerate(parts) if i and part.startswith(("Human:", "Assistant:"))]
    return "\n\n".join(parts[: later[0] if later else None]).removeprefix("Human:").strip()


@pytest.mark.parametrize(
    "form",
    [
        lambda row: row,  # harmless-base
        lambda row: {"transcript": row["chosen"], "rating": 3.0, "tags": None},  # red-team attempts
        lambda row: {"chosen": "\n\nAssistant:".join(row["chosen"].split("\n\nAssistant:")[:2])},
        lambda row: {"chosen": row["chosen"].split("\n\nAssistant:")[0]},
        lambda row: {"chosen": row["chosen"].lstrip()},
        lambda row: {"transcript": None, "chosen": row["chosen"].replace("\n", "\r\n")},
    ],
    ids=["whole", "transcript", "one turn", "no answer", "stripped", "Windows"],
)
def test_the_first_turn_of_every_dialogue_is_the_question(tmp_path, form):
    if not os.environ.get("HUMANLM_DATA"):
        pytest.skip("HUMANLM_DATA is not set: no public rows")
    source = Path(os.environ["HUMANLM_DATA"]) / "hh_rlhf_mild" / "examples.jsonl"
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    c = _PrepareTasks(str(written(tmp_path / "a.jsonl", map(form, rows))))
    parts, left = _prepared_tasks(TASK_KINDS["anthropic_hh_rlhf"], c)
    questions = [row["prompt"][0]["content"] for part in parts.values() for row in part]
    assert sorted(questions) == sorted({first_paragraphs(row["chosen"]) for row in rows})
    assert len(questions) == len(rows) and not left


@pytest.mark.parametrize(
    "dialogue, question",
    [
        ("\n\nHuman: One.\n\nTwo.\n\nAssistant: Yes.", "One.\n\nTwo."),
        ("\n\nHuman: One.\n\nHuman: Two.\n\nAssistant: Yes.", "One."),
        ("\n\nHuman: Is Human: a label?\n\nAssistant: Yes.", "Is Human: a label?"),
        ("\n\nAssistant: Hello.\n\nHuman: Hi.", "Hi."),
        ("\n\nHuman: \n\nAssistant: What?\n\nHuman: Later.", None),  # no first turn
        ("Somebody wrote this.", None),
    ],
)
def test_a_first_turn_ends_where_the_next_begins(tmp_path, dialogue, question):
    c = _PrepareTasks(str(written(tmp_path / "a.jsonl", [{"transcript": dialogue}])))
    parts, left = _prepared_tasks(TASK_KINDS["anthropic_hh_rlhf"], c)
    questions = [row["prompt"][0]["content"] for part in parts.values() for row in part]
    assert questions == ([question] if question else [])
    assert left == ({} if question else {"no turn of a person": 1})


def test_red_team_attempts_are_read_by_name_from_one_packed_list(tmp_path, monkeypatch):
    fields = {"num_params": "52B", "rating": 3.0, "task_description": "Ask.", "tags": None}
    rows = [
        {
            "transcript": "".join(
                f"\n\nHuman: Question {i}, turn {k}?\n\nAssistant: No." for k in range(1 + i % 3)
            ),
            "min_harmlessness_score_transcript": -0.5,
        }
        | fields
        for i in range(60)
    ]
    for folder, text in (
        ("red-team-attempts/red_team_attempts", json.dumps(rows, indent=2)),
        ("harmless-base/train", json.dumps({"chosen": "\n\nHuman: Hi.", "rejected": ""})),
    ):
        file = tmp_path / "set" / f"{folder}.jsonl.gz"
        file.parent.mkdir(parents=True)
        file.write_bytes(gzip.compress(text.encode()))

    def published(where, faults, *more):  # the Hub is out of reach here
        assert where == "Anthropic/hh-rlhf"
        yield from (FileRow(*row) for row in _hub_items(str(tmp_path / "set"), *more))

    kind, file = TASK_KINDS["anthropic_hh_rlhf"], tmp_path / "set" / "red-team-attempts"
    own, _ = _prepared_tasks(kind, _PrepareTasks(str(file / "red_team_attempts.jsonl.gz")))
    monkeypatch.setattr("humanlm.classmate.tasks.read_rows", published)
    parts, left = _prepared_tasks(kind, _PrepareTasks())
    questions = [row["prompt"][0]["content"] for part in parts.values() for row in part]
    assert sorted(questions) == sorted(f"Question {i}, turn 0?" for i in range(60)) and not left
    assert own == parts


def test_math_has_its_published_name_and_all_seven_areas(tmp_path, monkeypatch):
    rows = [
        {"problem": f"{i} + 1?", "type": area, "solution": f"\\boxed{{{i + 1}}}"}
        for i, area in enumerate(["Algebra", "Counting & Probability", "Number Theory"] * 20)
    ]
    source = written(tmp_path / "a.jsonl", rows)
    out = str(tmp_path / "tasks")
    asked = ["data", "questions", "hendrycks_math", "--prepare.source", str(source)]
    assert command([*asked, "--prepare.out", out]) == 0
    assert {task.verifier for task in read_tasks(f"{out}/train.jsonl")} == {"math"}

    some = ["algebra", "counting_and_probability"]
    parts, left = _prepared_tasks(
        TASK_KINDS["hendrycks_math"], _PrepareTasks(str(source), areas=some)
    )
    assert sum(map(len, parts.values())) == 40 and left == {"another area": 20}
    with pytest.raises(ConfigError, match="algebra"):
        _PrepareTasks(areas=["algebr"])

    def published(where, faults, splits, config, folder):  # the Hub is out of reach here
        row = {"problem": f"What is {config}?", "solution": "\\boxed{1}"}
        yield FileRow(f"{where}/{splits}", 1, row)

    monkeypatch.setattr("humanlm.classmate.tasks.read_rows", published)
    for c in (_PrepareTasks(), _PrepareTasks("EleutherAI/hendrycks_math")):
        parts, left = _prepared_tasks(TASK_KINDS["hendrycks_math"], c)
        assert sum(map(len, parts.values())) == 7 and not left


SHARED = {
    "classmate.models": "[initial]",
    "classmate.unfinished": "show",
    "classmate.estimator": "gdpo",
    "judge.verifier": "word_count",
    "sft.lesson_steps": 0,
    "rollout.num_prompts": 4,
    "rollout.group_size": 2,
}


def begin(folder):
    "Train on rewards alone, without lessons and an evaluation"
    recipe, s = read_settings(
        [
            "--run.recipe",
            "classmate",
            "--run.name",
            "short",
            "--run.out",
            str(folder),
            *words(
                {
                    name: value
                    for name, value in (TINY | SHARED).items()
                    if name != "sft.reader_steps"
                }
            ),
        ]
    )
    recipe.check(s)
    run = make_run(recipe, s, folder / "short")
    _make_base(run)
    _train_classmate(run, "classmate", *run.load("base", trains=True))


TWO = """
import sys, torch
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_classmate_recipe import begin
torch.set_num_threads(1)
begin(Path({out!r}))
torch.distributed.destroy_process_group()
"""


def test_two_processes_push_as_one_batch_would(tmp_path):
    (tmp_path / "two.py").write_text(
        TWO.format(out=str(tmp_path), tests=str(Path(__file__).parent))
    )
    for done in warm.together(2, tmp_path / "two.py"):
        assert done.returncode == 0, done.stderr[-3000:]
    every = load_trajectories(tmp_path / "short" / "trajectories" / "classmate")
    assert (
        len(every) == 16
        and len({t.id for t in every}) == 16
        and any(any(t.advantage) for t in every)
    )
    for step in {t.step for t in every}:
        own = [t for t in every if t.step == step]
        width = max(len(t.completion_ids) for t in own)

        def padded(rows):
            return torch.tensor([[*map(float, row), *[0.0] * (width - len(row))] for row in rows])

        rewards = torch.tensor(
            [[t.rewards["answer"], t.rewards["classmate"]] for t in own], dtype=torch.float64
        )
        found = classmate_advantages(
            rewards[:, 0],
            rewards[:, 1],
            torch.tensor([t.group for t in own]),
            padded([t.signals["shown"] for t in own]) > 0,
            padded([t.mask for t in own]) > 0,
            "gdpo",
        )
        for t, row in zip(own, found):
            assert t.advantage == pytest.approx(row[: len(t.completion_ids)].tolist(), abs=1e-4)


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
    tasks = run.work.tasks["test"]
    found = run_sync(
        scorer.scored(
            [_task_row(task, s) for task in tasks],
            [tokenizer.encode(text, add_special_tokens=False) for text in texts],
            None,
        )
    )
    object.__setattr__(s.judge, "client", lambda name, ledger: client)
    told = run_sync(_foretold(run, found, tasks, scorer.score))
    assert (
        told["rating"] == [3.0, 0.0, 0.0, 0.0]
        and told["monitor error"][:2] == [0.0, 3.0]
        and told["suspicion"][:2] == [8.0, 8.0]
    )
    assert all(math.isnan(told[name][3]) for name in ("foretold", "monitor error", "suspicion")), (
        "no reasoning, nothing foretold"
    )
