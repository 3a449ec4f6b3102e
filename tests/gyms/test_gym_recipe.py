"Gyms are trained on, evaluated and gone on with as one run."

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import pytest
import warm

from humanlm.core.basics import HumanLMError, run_sync
from humanlm.core.trajectory import Trajectory, Turn
from humanlm.evaluation.index import load_trajectories
from humanlm.gyms.conformance import gym_problems
from humanlm.gyms.evaluation import _episode_values, load_episodes, play_tasks
from humanlm.gyms.monitor import GymMonitor
from humanlm.gyms.protocol import (
    GYMS,
    Environment,
    Feedback,
    Gym,
    GymTask,
    ToolCall,
    UserError,
    find_gym,
)
from humanlm.gyms.recipe import _train_gyms
from humanlm.train import main
from humanlm.training.policies import RolloutError
from humanlm.training.run import _make_base, make_run, read_settings

ROOT = Path(__file__).resolve().parents[2]

TINY = {
    "gyms.train": "[telepathy]",
    "gyms.held_out": "[persuade]",
    "gyms.tasks": 6,
    "gyms.test_n": 3,
    "gyms.max_turns": 3,
    "gyms.turn_tokens": 12,
    "gyms.max_tokens": 90,
    "gyms.system": "false",
    "sft.lesson_steps": 3,
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
}


def train(folder, *more):
    return main(
        [
            "--run.recipe",
            "gyms",
            "--run.name",
            "tiny",
            "--run.out",
            str(folder),
            *(word for name, value in TINY.items() for word in (f"--{name}", str(value))),
            *more,
        ]
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gyms")
    assert train(folder) == 0
    return folder / "tiny"


def test_a_run_trains_on_one_gym_and_measures_two(trained):
    rows = json.loads((trained / "results.json").read_text())["rows"]
    found = {(row["model"], row["level"]): row for row in rows if row["metric"] == "score"}
    assert {"cold-start", "gyms", "expert", "chance"} <= {model for model, _ in found}
    assert found["expert", "telepathy"]["mean"] == found["expert", "persuade"]["mean"] == 1


def dialogue(text="[action] go north", tokens=10, surprise=0.5, paid=0.0, row="a"):
    "A dialogue of one message, its tokens and how unlikely each of them was"
    turns = (Turn("policy", text, (0, tokens)), Turn("user", "I see.", (tokens, tokens + 2)))
    return Trajectory(
        "a",
        row,
        0,
        0,
        "response",
        turns,
        [1],
        [2] * (tokens + 2),
        [True] * tokens + [False] * 2,
        [-surprise] * tokens + [0.0] * 2,
        parse_status="turn_limit",
        rewards={"share": paid},
    )


def steps(monitor, *batches):
    return [monitor.learn(monitor.note(batch)) for batch in batches]


def test_a_policy_that_never_writes_a_call_stops_the_run():
    monitor, silent = GymMonitor(patience=3), [dialogue("well")]
    assert [step["dialogue/invalid"] for step in steps(monitor, silent, silent)] == [1, 1]
    with pytest.raises(RolloutError, match="held no call"):
        steps(monitor, silent)


@pytest.mark.parametrize(
    "collapsed, said",
    [
        ({"tokens": 1}, "length 1.0000 where it was 10.0000"),
        ({"surprise": 0.01}, "entropy 0.0100 where it was 0.5000"),
    ],
)
def test_a_policy_that_shrinks_or_repeats_itself_and_earns_no_more_stops_the_run(
    tmp_path, collapsed, said
):
    monitor = GymMonitor(patience=3)
    found = steps(monitor, *[[dialogue(paid=0.2), dialogue(paid=0.4)]] * 4)[0]
    assert (found["dialogue/length"], found["dialogue/entropy"], found["stop/turn_limit"]) == (
        10,
        pytest.approx(0.5),
        1,
    )
    steps(monitor, *[[dialogue(paid=0.1, **collapsed)]] * 2)
    again = GymMonitor(patience=3)  # a resumed run
    again.load(monitor.save(tmp_path / monitor.file))
    for each in (monitor, again):
        with pytest.raises(RolloutError, match=said):
            steps(each, [dialogue(paid=0.1, **collapsed)])


def test_a_policy_that_is_brief_and_sure_since_it_earns_more_goes_on():
    monitor = GymMonitor(patience=3)
    steps(
        monitor, *[[dialogue(paid=0.2)]] * 3, *[[dialogue(tokens=1, surprise=0.001, paid=0.9)]] * 9
    )
    with pytest.raises(RolloutError, match="earned no more"):
        steps(monitor, *[[dialogue(tokens=1, surprise=0.001, paid=0.0)]] * 3)


def test_the_published_split_is_kept(monkeypatch):
    monkeypatch.setenv("MULTITURN_MODEL_NAME", "Qwen/Qwen3-32B")
    assert {name for name in GYMS if find_gym(name).held_out} == {
        "intention",
        "telepathy",
        "search",
    }
    _, published = read_settings(["--config", str(ROOT / "configs" / "gyms" / "userrl.yaml")])
    assert {*published.gyms.held_out} == {
        "intention",
        "telepathy",
        "search",
    }


# ---- tasks by success


def begin(folder, *more):
    "Train on rewards alone, without a cold start and an evaluation; where the run lies"
    words = [
        word
        for name, value in (TINY | {"sft.lesson_steps": 0, "gyms.held_out": "[]"}).items()
        for word in (f"--{name}", str(value))
    ]
    recipe, s = read_settings(
        ["--run.recipe", "gyms", "--run.name", "short", "--run.out", str(folder), *words, *more]
    )
    recipe.check(s)
    run = make_run(recipe, s, folder / "short")
    _make_base(run)
    _train_gyms(run, "gyms", *run.load("base", trains=True))
    return said(folder)


def said(folder):
    return sorted(
        load_trajectories(folder / "short" / "trajectories" / "gyms"),
        key=lambda t: (t.step, t.group, t.id),
    )


class LuckyEnvironment(Environment):
    "Pays by the letters of whatever is said, and always in the first three tasks"

    async def step(self, call):
        return await super().step(ToolCall("action", f"say {call}"))

    async def on_action(self, content):
        return Feedback(
            "so be it",
            float(crc32(content.encode()) % 2 or self.task.id[-2:] in ("-0", "-1", "-2")),
        )


@dataclass(frozen=True)
class LuckyTask(GymTask):
    @property
    def opening(self):
        return f"say something about {self.id}"


lucky = Gym(
    "lucky",
    LuckyEnvironment,
    lambda n, seed: [LuckyTask(f"{seed}-{i}") for i in range(n)],
    lambda env: ToolCall("answer", "this"),
    best=lambda task: 2.0,
    about="Luck pays.",
)
LUCKY = [
    "--gyms.train",
    "[test_gym_recipe:lucky]",
    "--gyms.turn_tokens",
    "6",
    "--gyms.max_turns",
    "2",
    "--gyms.tasks",
    "12",
    "--rollout.group_size",
    "4",
]


def test_a_resumed_run_plays_what_a_whole_one_does(tmp_path):
    asked = [*LUCKY, "--gyms.tasks", "6", "--trainer.max_steps", "6", "--trainer.save_steps", "3"]
    whole = begin(tmp_path / "whole", *asked)
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "short" / "checkpoints" / "gyms" / "checkpoint-6")
    again = begin(tmp_path / "again", *asked)
    assert (
        len(whole) == 48
        and [t.row_id for t in again] == [t.row_id for t in whole]
        and [t.completion_ids for t in again] == [t.completion_ids for t in whole]
    )


TWO = """
import sys, torch
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_gym_recipe import LUCKY, begin
torch.set_num_threads(1)
begin(Path({out!r}), *LUCKY, "--credit.credit", "em", "--trainer.max_steps", "2")
torch.distributed.destroy_process_group()
"""


def test_two_processes_play_the_dialogues_of_one_and_push_them_alike(tmp_path):
    one = begin(
        tmp_path / "one",
        *LUCKY,
        "--credit.credit",
        "em",
        "--trainer.max_steps",
        "2",
    )
    (tmp_path / "two.py").write_text(
        TWO.format(out=str(tmp_path / "two"), tests=str(Path(__file__).parent))
    )
    for done in warm.together(2, tmp_path / "two.py"):
        assert done.returncode == 0, done.stderr[-3000:]
    two = said(tmp_path / "two")
    assert len(one) == len(two) == 16
    for name in ("id", "group", "row_id", "completion_ids", "parse_status"):
        assert [getattr(t, name) for t in one] == [getattr(t, name) for t in two], name
    assert [
        (t.rewards, [turn.reward for turn in t.turns if turn.role == "policy"]) for t in one
    ] == [(t.rewards, [turn.reward for turn in t.turns if turn.role == "policy"]) for t in two]
    assert any(any(t.advantage) for t in one)
    for t, other in zip(one, two):
        assert t.advantage == pytest.approx(other.advantage, abs=1e-5)


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--gyms.train", "[nope]"], "nope"),
    ],
)
def test_a_plan_refuses_what_a_run_could_not_play(flags, said):
    recipe, s = read_settings(["--run.recipe", "gyms", *flags])
    with pytest.raises(HumanLMError, match=said):
        recipe.check(s)


def test_a_failed_user_is_no_score_and_the_episode_is_played_again(tmp_path):
    gym, path = find_gym("telepathy"), tmp_path / "episodes.jsonl"

    async def nobody(env, role, payload):
        raise UserError("nobody is there")

    def ask(env):
        return ToolCall("action", "Is it large?")

    failed = run_sync(play_tasks(gym, gym.tasks(2, 0), ask, user=nobody, path=path))
    assert [e.stop for e in failed] == ["user_error"] * 2 and all(
        math.isnan(e.score) for e in failed
    )
    values = _episode_values(failed[0])
    assert (
        math.isnan(values["share"]) and math.isnan(values["turns"]) and values["user failed"] == 1
    )
    again = run_sync(play_tasks(gym, gym.tasks(2, 0), gym.expert, path=path))
    assert [e.score for e in again] == [1, 1] and [e.stop for e in load_episodes(path)] == [
        "done"
    ] * 2


def test_a_gym_that_fails_is_told_from_a_policy_that_does():
    gym = find_gym("telepathy")
    play = gym.play(gym.tasks(1, 0)[0])
    play.on_action = lambda content: 1 / 0
    turn = run_sync(play.step("[action] x"))
    assert (
        play.stop == "env_error" and math.isnan(play.score) and "ZeroDivisionError" in turn.feedback
    )


def test_the_published_settings_make_a_plan(monkeypatch):
    monkeypatch.setenv("MULTITURN_MODEL_NAME", "Qwen/Qwen3-32B")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    recipe, s = read_settings(["--config", str(ROOT / "configs" / "gyms" / "userrl.yaml")])
    recipe.check(s)
    assert s.user.named() == ("vllm/Qwen/Qwen3-32B", "http://localhost:8000/v1")
    plan = "\n".join(recipe.plan(s))
    assert (
        "1024 completions a step" in plan
        and "8 updates a step" in plan
        and "equalized by r2g, gamma 0.8" in plan
        and plan.count("vllm/Qwen/Qwen3-32B at http://localhost:8000") == 2
    )
    spelt = s.changed(credit={"score": "mean", "credit": "em"})
    assert "em by mean, gamma" in "\n".join(recipe.plan(spelt))


@pytest.mark.parametrize("name", GYMS)
def test_every_gym_passes_the_suite(name):
    assert run_sync(gym_problems(find_gym(name), odd=400)) == []
