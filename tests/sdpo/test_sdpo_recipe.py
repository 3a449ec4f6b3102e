"The recipe of SDPO: plans without torch, phases, logs, resumes, users that fail."

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import warm
import yaml
from safetensors.torch import load_file

from humanlm.core.basics import read_jsonl, write_jsonl
from humanlm.evaluation.index import load_trajectories
from humanlm.evaluation.measured import load_measured, load_results
from humanlm.sdpo.hindsight import AssistantReply, Followup, Interaction
from humanlm.sdpo.users import Reaction
from humanlm.training.run import fit, read_settings

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "run": {"recipe": "sdpo"},
    "model": {"hidden": 32, "heads": 2, "kv_heads": 2, "mlp": 64, "vocab": 420},
    "sft": {"lesson_steps": 4, "batch": 8},
    "prompts": {"test_n": 6, "max_tokens": 16},
    "rollout": {"num_prompts": 4},
    "user": {"tastes": ["casual", "short"], "steps_each": 4},
    "sdpo": {"teacher": "ema"},
    "trainer": {"save_steps": 2, "logging_steps": 1},
}


def settings(folder, **groups):
    "The small settings with changes, as a file"
    found = {
        name: SMALL.get(name, {}) | groups.get(name, {}) for name in SMALL.keys() | groups.keys()
    }
    found["run"] |= {"out": str(folder / "runs"), "name": found["run"].get("name", "small")}
    path = folder / f"{found['run']['name']}.yaml"
    path.write_text(yaml.safe_dump(found), "utf-8")
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdpo")
    done = warm.run("-m", "humanlm.train", "--config", settings(folder), cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def logged(run, stage):
    return [
        row for row in read_jsonl(run / "metrics.jsonl") if row["stage"] == stage and "loss" in row
    ]


def weights(run, name):
    return load_file(run / "models" / name / "model.safetensors")


def test_a_plan_needs_no_torch_and_says_calls_and_cost(tmp_path):
    code = (
        "import sys; from humanlm.train import main; code = main(sys.argv[1:]); "
        "print('torch' in sys.modules, 'transformers' in sys.modules); sys.exit(code)"
    )
    file = settings(
        tmp_path,
        user={"model": "anthropic/claude-haiku-4-5", "tastes": ["no_emojis"], "steps_each": 0},
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--config", str(file), "--dry-run"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "False False" in done.stdout
        and "400 reactions" in done.stdout
        and "at most 400 calls" in done.stdout
        and "$" in done.stdout
    )


def test_each_taste_is_a_stage_that_begins_where_the_one_before_ended(small):
    folder, _said = small
    run = folder / "runs" / "small"
    assert {p.name for p in (run / "models").iterdir()} == {
        "base",
        "cold-start",
        "online-1-casual",
        "online-2-short",
    }
    assert {r.model for r in load_results(run / "results.json").rows} == {
        "base",
        "cold-start",
        "online-1-casual",
        "online-2-short",
    }
    rows = load_measured(run / "measured" / "online-2-short.jsonl")
    assert (
        len(rows) == 6
        and set(rows[0].values) == {"preference", "win rate", "words", "kept content"}
        and set(rows[0].values["win rate"]) == {"casual", "short"}
    )
    first = load_trajectories(run / "trajectories" / "online-2-short" / "step-000000-0.parquet")
    assert all(t.turns[-1].role == "followup" for t in first if t.text.strip())


@pytest.mark.parametrize("kept", [2, None])
def test_a_killed_phase_goes_on_with_its_teacher_and_ends_with_the_same_weights(
    small, kept, tmp_path
):
    folder = small[0]
    run = folder / "runs" / "small"
    before = weights(run, "online-1-casual")
    again = tmp_path / "runs" / "small"
    shutil.copytree(run, again)
    for path in (
        again / "models" / "online-1-casual",
        again / "models" / "online-2-short",
        again / "measured",
        again / "replies",
    ):
        shutil.rmtree(path)
    for path in (again / "checkpoints" / "online-1-casual").glob("checkpoint-*"):
        if kept is None or int(path.name.split("-")[1]) > kept:
            shutil.rmtree(path)
    (again / "results.json").unlink()
    (again / "run.json").write_text(
        json.dumps(json.loads((again / "run.json").read_text()) | {"state": "started"})
    )
    done = warm.run("-m", "humanlm.train", "--config", settings(tmp_path), "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(torch.equal(x, before[key]) for key, x in weights(again, "online-1-casual").items())


def test_logs_are_learned_from_and_what_cannot_be_used_is_counted(tmp_path):
    asked = ({"role": "user", "content": "Any advice about a tea?"},)
    middle = (
        {"role": "user", "content": "Hello."},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Any advice?"},
    )
    rows = [
        Interaction(
            f"i{i}",
            asked,
            AssistantReply(f"You can keep the tea {i} times."),
            Followup("Too short, say more."),
        )
        for i in range(12)
    ]
    rows += [
        Interaction("empty", asked, AssistantReply("You can."), Followup(" \n")),
        Interaction("no reply", asked, AssistantReply(""), Followup("Well?")),
        Interaction("middle", middle, AssistantReply("You can."), Followup("More.")),
        Interaction("long", asked, AssistantReply("You can."), Followup("more " * 400)),
    ]
    file = write_jsonl(tmp_path / "logs.jsonl", rows)
    run = fit(
        settings(
            tmp_path,
            run={"methods": ["offline"]},
            prompts={"train": str(file), "max_tokens": 16},
            user={"model": "rule/short", "tastes": [], "steps_each": 0},
            sdpo={"form": "topk", "topk": 5, "teacher": "frozen"},
            trainer={"max_steps": 3, "logging_steps": 1},
        )
    )
    assert json.loads((run / "run.json").read_text())["skipped"] == {
        "empty follow-up": 1,
        "empty reply": 1,
        "system message in the middle": 1,
        "follow-up too long": 1,
    }
    ids = {
        t.row_id
        for file in (run / "trajectories" / "offline").glob("*.parquet")
        for t in load_trajectories(file)
    }
    assert ids <= {f"i{i}" for i in range(12)} and ids
    assert sum(row["tokens/generated"] for row in logged(run, "offline")) == 0, (
        "what others wrote spends no budget"
    )


class Failing:
    "A user who fails every other time"

    name = "failing"

    async def __call__(self, exchanges):
        return [
            Reaction(None, "no answer") if i % 2 else Reaction("Say it in fewer words.")
            for i, _ in enumerate(exchanges)
        ]


def test_a_user_who_fails_in_the_middle_of_a_step_moves_nothing_and_is_counted(tmp_path):
    run = fit(
        settings(
            tmp_path,
            user={"tastes": [], "steps_each": 0},
            preference={"tastes": ["short"]},
            trainer={"max_steps": 2, "logging_steps": 1},
        ),
        user=Failing(),
    )
    rows = logged(run, "online")
    assert all(row["skipped/no_follow-up"] >= 0.25 for row in rows)
    first = load_trajectories(sorted((run / "trajectories" / "online").glob("*.parquet"))[0])
    failed = [t for t in first if "user: no answer" in t.errors]
    assert failed and all(not any(t.advantage) for t in failed), "a failed follow-up has no push"


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--sdpo.teacher", "frosen"], "Did you mean 'frozen'"),
        (["--sdpo.form", "topk", "--trainer.beta", "0.1"], "Leave trainer.beta out"),
        (["--prompts.train", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_written(flags, said, tmp_path):
    done = warm.run(
        "-m", "humanlm.train", "--run.recipe", "sdpo", *flags, "--dry-run", cwd=tmp_path
    )
    assert done.returncode == 2 and said in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["tldr", "helpsteer2-readme"])
def test_the_published_settings_stand_in_the_files(name):
    _, s = read_settings(["--config", str(ROOT / "configs" / "sdpo" / f"{name}.yaml")])
    assert (
        s.trainer["learning_rate"],
        s.rollout.temperature,
        s.rollout.group_size,
        s.sdpo.teacher,
        s.sdpo.centre,
    ) == (5e-6, 1.0, 1, "live", True)
    assert (
        s.trainer["optim"],
        s.trainer["loss_type"],
        s.trainer["beta"],
        s.run.seed,
        s.prompts.test_n,
    ) == ("adamw_torch", "grpo", 0.0, 42, 256)
