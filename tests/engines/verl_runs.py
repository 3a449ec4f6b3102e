"""Runs of the verl engine on a CPU, through Ray: minutes each, by constraints-verl.txt.

python -m pytest tests/engines/verl_runs.py
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

pytest.importorskip("verl")
from leftovers import MARK, left, nobody_left
from server import serving

from humanlm.core.basics import read_jsonl, to_json
from humanlm.evaluation.index import load_trajectories
from humanlm.models.checkpoints import load_model

pytestmark = pytest.mark.verl
ROOT = Path(__file__).resolve().parents[2]
ON_CPU = [
    "--run.engine",
    "verl",
    "--verl.device",
    "cpu",
]
SMALL = ["--rollout.num_prompts", "2", "--rollout.group_size", "4", "--trainer.save_steps", "1"]
CLASSMATE = [
    "--config",
    str(ROOT / "configs/classmate-mini.yaml"),
    "--sft.lesson_steps",
    "40",
    "--sft.reader_steps",
    "40",
    "--tasks.test_n",
    "4",
]
SDPO = [
    "--config",
    str(ROOT / "configs/sdpo-mini.yaml"),
    "--user.tastes",
    "[casual]",
    "--sdpo.teacher",
    "ema",
    "--sft.lesson_steps",
    "40",
    "--prompts.test_n",
    "4",
    "--rollout.num_prompts",
    "8",
    "--trainer.save_steps",
    "1",
]
GYMS = [
    "--config",
    str(ROOT / "configs/gyms-mini.yaml"),
    "--sft.lesson_steps",
    "60",
    "--gyms.test_n",
    "4",
]
HUMANLM = [
    "--config",
    str(ROOT / "configs/humanlm-mini.yaml"),
    "--run.methods",
    "[humanlm-composed]",
    "--run.token_budget",
    "null",
    "--data.max_test",
    "2",
    "--world.users",
    "24",
    "--sft.lesson_steps",
    "150",
    "--sft.polite_steps",
    "0",
    "--sft.faithful_steps",
    "0",
]


def started(folder: Path, mark: str, *argv: str, engine=ON_CPU) -> subprocess.Popen:
    out = open(folder / "out.txt", "w")
    env = {**os.environ, MARK: mark, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    return subprocess.Popen(
        [sys.executable, "-m", "humanlm.train", *argv, *engine],
        cwd=folder,
        env=env,
        stdout=out,
        stderr=subprocess.STDOUT,
    )


def trained(folder: Path, *argv: str, code: int = 0, engine=ON_CPU) -> str:
    mark = uuid4().hex
    running = started(folder, mark, *argv, engine=engine)
    try:
        assert running.wait(1800) == code, (folder / "out.txt").read_text()[-3000:]
    finally:
        running.kill()  # one that takes too long must not slow down the next
    assert nobody_left(mark)
    return (folder / "out.txt").read_text()


def lines(run: Path, stage: str) -> list[dict]:
    return [row for row in read_jsonl(run / "metrics.jsonl") if row["stage"] == stage]


def moved(run: Path, start: str, end: str) -> float:
    a, b = (load_model(run / "models" / name).model.state_dict() for name in (start, end))
    return max((a[name] - b[name]).abs().max().item() for name in a)


def same_after(folder: Path, *names: str) -> float:
    "Check that two runs wrote the same texts and moved to the same weights; their distance"
    texts = [
        [
            t.text
            for t in load_trajectories(
                folder / "runs" / name / "trajectories" / "classmate" / "step-000000-0.parquet"
            )
        ]
        for name in names
    ]
    one, two = (
        load_model(folder / "runs" / name / "models" / "classmate").model.state_dict()
        for name in names
    )
    apart = max((one[name] - two[name]).abs().max().item() for name in one)
    assert texts[0] == texts[1] and apart < 1e-5 < 1e-4 < moved(
        folder / "runs" / names[1], "cold-start", "classmate"
    )
    return apart


@pytest.mark.parametrize(
    "argv, stage, groups, steps",
    [
        (CLASSMATE + SMALL, "classmate", [4, 4], 2),
        (HUMANLM + SMALL + ["--rollout.reply_share", "0.5"], "humanlm-composed", [4, 4], 4),
        (SDPO, "online", [1] * 8, 2),
        (GYMS + SMALL, "gyms", [4, 4], 2),
    ],
    ids=["classmate", "humanlm", "sdpo", "gyms"],
)
def test_a_few_steps_train_and_leave_nobody_behind(argv, stage, groups, steps, tmp_path):
    trained(tmp_path, *argv, "--run.name", "few", "--trainer.max_steps", str(steps))
    run = tmp_path / "runs" / "few"
    found = lines(run, stage)
    print(to_json(found), moved(run, "cold-start", stage))
    assert [row["step"] for row in found] == [*range(1, steps + 1)] and all(
        row["verl/probs_correlation"] > 0.99999 and row["verl/probs_difference"] < 1e-5
        for row in found
    )
    assert (
        sum(row["grad_norm"] > 0 for row in found) >= 2
        and 0 < moved(run, "cold-start", stage) < 0.1
        and (run / "results.json").exists()
    )
    if stage == "humanlm-composed":
        assert any("reward/response" in row and row["grad_norm"] > 0 for row in found)
    for step in range(steps):
        done = [
            t.group
            for t in load_trajectories(run / "trajectories" / stage / f"step-{step:06d}-0.parquet")
        ]
        assert done == [number for number, size in enumerate(groups) for _ in range(size)]


def workers(mark: str) -> list[int]:
    return [
        int(place.name)
        for place in Path("/proc").glob("[0-9]*")
        if b"WorkerDict" in _command(place) and f"{MARK}={mark}".encode() in _environment(place)
    ]


def after_its_first_checkpoint(running: subprocess.Popen, stage: Path) -> None:
    "Wait until a run has written a whole checkpoint of a stage"
    end, first = time.monotonic() + 600, stage / "latest_checkpointed_iteration.txt"
    while not first.exists() and time.monotonic() < end and running.poll() is None:
        time.sleep(0.2)
    assert first.exists()


def trains_on_the_same_rows_as_a_whole_run(folder: Path, run: str, *argv: str) -> None:
    "Check that a resumed run asked in each of three steps what one asks that was never stopped"
    whole = folder / "whole"
    whole.mkdir()
    trained(whole, *argv)
    for step in range(3):
        rows = [
            [
                t.row_id
                for t in load_trajectories(
                    place
                    / "runs"
                    / run
                    / "trajectories"
                    / "classmate"
                    / f"step-{step:06d}-0.parquet"
                )
            ]
            for place in (folder, whole)
        ]
        assert rows[0] == rows[1]
    assert [row["step"] for row in lines(folder / "runs" / run, "classmate")][-1] == 3


def test_a_process_killed_in_training_ends_the_run_which_goes_on_with_the_rows_that_were_next(
    tmp_path,
):
    argv, mark = [*CLASSMATE, *SMALL, "--run.name", "hurt", "--trainer.max_steps", "3"], uuid4().hex
    running = started(tmp_path, mark, *argv)
    after_its_first_checkpoint(running, tmp_path / "runs/hurt/checkpoints/classmate")
    victims = workers(mark)
    assert victims
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    assert running.wait(180) == 2 and nobody_left(mark)
    said = (tmp_path / "out.txt").read_text()
    print(said[-600:])
    assert (
        "verl ended with an error: one of its processes was killed" in said
        and "Traceback" not in said
    )
    trained(tmp_path, *argv, "--resume")
    trains_on_the_same_rows_as_a_whole_run(tmp_path, "hurt", *argv)


def _command(place):
    try:
        return (place / "cmdline").read_bytes()
    except OSError:
        return b""


def _environment(place):
    try:
        return (place / "environ").read_bytes()
    except OSError:
        return b""


def test_a_killed_run_leaves_nobody_and_goes_on_with_the_rows_that_were_next(tmp_path):
    argv, mark = (
        [*CLASSMATE, *SMALL, "--run.name", "killed", "--trainer.max_steps", "3"],
        uuid4().hex,
    )
    running = started(tmp_path, mark, *argv)
    after_its_first_checkpoint(running, tmp_path / "runs/killed/checkpoints/classmate")
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert nobody_left(mark)
    trained(tmp_path, *argv, "--resume")
    trains_on_the_same_rows_as_a_whole_run(tmp_path, "killed", *argv)


@pytest.mark.parametrize("whom", ["run", "worker"])
def test_after_a_kill_no_judged_reply_is_asked_again(whom, tmp_path):
    with serving() as server:
        argv = [
            *HUMANLM,
            *SMALL,
            "--run.name",
            "paid",
            "--trainer.max_steps",
            "3",
            "--judge.model",
            "vllm/mine",
            "--judge.base_url",
            server.url,
            "--judge.concurrency",
            "4",
            "--judge.cache",
            "replies",
            "--rollout.reply_share",
            "0",
        ]  # states alone: every verdict on them can be read
        mark, run = uuid4().hex, tmp_path / "runs" / "paid"
        running = started(tmp_path, mark, *argv)
        after_its_first_checkpoint(running, run / "checkpoints/humanlm-composed")
        before, end = server.stats()["requests"], time.monotonic() + 600
        while (
            server.stats()["requests"] < before + 1
            and time.monotonic() < end
            and running.poll() is None
        ):
            time.sleep(0.01)
        time.sleep(0.3)  # until its answer lies in the cache
        if whom == "run":
            running.send_signal(signal.SIGKILL)
        else:
            for pid in workers(mark):
                os.kill(pid, signal.SIGKILL)
        assert running.wait(180) == (-signal.SIGKILL if whom == "run" else 2)
        killed = server.stats()
        assert nobody_left(mark)
        trained(tmp_path, *argv, "--resume")
        found = server.stats()
    print(whom, dict(killed), dict(found), lines(run, "humanlm-composed"))
    assert before < killed["requests"] <= found["requests"] == found["distinct"], (
        "with a cache what was answered is never asked again"
    )
    assert not any(row["judge/no_score"] for row in lines(run, "humanlm-composed"))
    assert [row["step"] for row in lines(run, "humanlm-composed")][-1] == 3


def test_a_ctrl_c_ends_everything(tmp_path):
    mark = uuid4().hex
    running = started(
        tmp_path, mark, *CLASSMATE, *SMALL, "--run.name", "stopped", "--trainer.max_steps", "3"
    )
    end = time.monotonic() + 600
    while (
        not any("raylet" in command for command in left(mark))
        and time.monotonic() < end
        and running.poll() is None
    ):
        time.sleep(0.2)
    time.sleep(5)
    running.send_signal(signal.SIGINT)
    assert running.wait(120) == 130 and nobody_left(mark)


def test_two_processes_train_what_one_trains(tmp_path):
    for processes in ("1", "2"):
        trained(
            tmp_path,
            *CLASSMATE,
            *SMALL,
            "--run.name",
            processes,
            "--trainer.max_steps",
            "2",
            "--verl.gpus",
            processes,
        )
    print(same_after(tmp_path, "1", "2"))


def test_a_token_budget_ends_a_stage_with_the_weights_of_its_last_step(tmp_path):
    said = trained(
        tmp_path,
        *CLASSMATE,
        *SMALL,
        "--run.name",
        "short",
        "--trainer.max_steps",
        "30",
        "--run.token_budget",
        "150",
    )
    found = lines(tmp_path / "runs" / "short", "classmate")
    tokens = [row["tokens/generated"] + row.get("tokens/others", 0) for row in found]
    print(tokens, said[-200:])
    assert (
        sum(tokens[:-1]) < 150 <= sum(tokens)
        and 0 < moved(tmp_path / "runs" / "short", "cold-start", "classmate") < 0.1
    )


def test_a_recipe_of_ones_own_learns(tmp_path):
    "The toy of sixteen steps: a score of 1 for naming an animal"
    (tmp_path / "toy.py").write_text(
        "import my_recipe\nfrom my_recipe import Animals\ncounted = my_recipe.animals\n"
        "def named(texts): return [min(1.0, n) for n in "
        "counted(texts)]\nmy_recipe.animals = named\nclass Toy(Animals): pass\n"
    )
    shutil.copy(ROOT / "nbs" / "howto" / "my_recipe.py", tmp_path)
    trained(
        tmp_path,
        "--run.recipe",
        "toy:Toy",
        "--run.name",
        "zoo",
        "--trainer.max_steps",
        "16",
        "--trainer.save_strategy",
        "no",
    )
    rewards = [row["reward"] for row in lines(tmp_path / "runs" / "zoo", "animals")]
    print(rewards)
    assert rewards[0] < 0.5 and sum(rewards[-3:]) / 3 > 0.9


def test_a_critic_makes_advantages_of_rewards_where_they_fall_due(tmp_path):
    trained(
        tmp_path,
        *CLASSMATE,
        *SMALL,
        "--run.name",
        "gae",
        "--trainer.max_steps",
        "2",
        "--classmate.estimator",
        "gae",
    )
    run = tmp_path / "runs" / "gae"
    measured = [
        row["data"]
        for file in sorted((run / "verl").glob("classmate-*.jsonl"))
        for row in read_jsonl(file)
    ]
    print(
        [
            {
                name: value
                for name, value in row.items()
                if (name.startswith("critic/") and "/mean" in name)
                or name in ("critic/vf_loss", "critic/lr")
            }
            for row in measured
        ]
    )
    assert [row["step"] for row in lines(run, "classmate")] == [1, 2] and 0 < moved(
        run, "cold-start", "classmate"
    ) < 0.1
    assert all(
        abs(row["critic/advantages/mean"]) < 1e-3 and row["critic/vf_loss"] > 0 for row in measured
    )
    for step, row in enumerate(measured):
        earned = [
            sum(t.rewards.values())
            for t in load_trajectories(
                run / "trajectories" / "classmate" / f"step-{step:06d}-0.parquet"
            )
        ]
        assert sum(earned) > 0 and row["critic/score/mean"] == pytest.approx(
            sum(earned) / len(earned), rel=1e-6
        )
