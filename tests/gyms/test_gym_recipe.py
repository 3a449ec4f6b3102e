"Gyms are trained on, evaluated and gone on with as one run."
import json
import math
from pathlib import Path

import pytest

from humanlm.core.basics import run_sync
from humanlm.gyms.evaluation import episode_values, load_episodes, play_tasks
from humanlm.gyms.protocol import Feedback, ToolCall, UserFailed, find_gym, gym_names, gym_problems
from humanlm.gyms.recipe import GymMonitor
from humanlm.train import main
from humanlm.training.rollout import RolloutError
from humanlm.training.run import read_settings

ROOT = Path(__file__).resolve().parents[2]

TINY = {"gyms.train": "[template]", "gyms.held_out": "[persuade]", "gyms.tasks": 6, "gyms.test_n": 3, "gyms.max_turns": 3, "gyms.turn_tokens": 12, "gyms.max_tokens": 90, "gyms.system": "false",
        "sft.lesson_steps": 3, "sft.batch": 4, "rollout.num_prompts": 2, "rollout.group_size": 2, "trainer.max_steps": 2, "trainer.save_steps": 1,
        "model.hidden": 32, "model.heads": 2, "model.kv_heads": 2, "model.mlp": 64, "model.vocab": 420}


def train(folder, *more):
    return main(["--run.recipe", "gyms", "--run.name", "tiny", "--run.out", str(folder), *(word for name, value in TINY.items() for word in (f"--{name}", str(value))), *more])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gyms")
    assert train(folder) == 0
    return folder / "tiny"


def test_a_run_trains_on_one_gym_and_measures_two(trained):
    rows = json.loads((trained / "results.json").read_text())["rows"]
    found = {(row["model"], row["level"]): row for row in rows if row["metric"] == "score"}
    assert {"cold-start", "gyms", "expert", "chance"} <= {model for model, _ in found}
    assert found["expert", "template"]["mean"] == found["expert", "persuade"]["mean"] == 1
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["stage"] == "gyms" and "dialogue/turns" in line]
    assert len(steps) == 2 and all(1 <= line["dialogue/turns"] <= 3 for line in steps)


def test_episodes_of_a_model_are_on_disk_and_say_how_they_ended(trained):
    episodes = load_episodes(trained / "episodes" / "gyms.jsonl")
    assert {e.gym for e in episodes} == {"template", "persuade"} and len(episodes) == 6
    assert all(e.stop and not math.isnan(e.score) for e in episodes)


def test_a_finished_run_is_not_trained_again(trained, capsys):
    before = (trained / "metrics.jsonl").read_text()
    assert train(trained.parent, "--resume") == 0
    assert (trained / "metrics.jsonl").read_text() == before


def test_a_policy_that_never_writes_a_call_stops_the_run():
    from humanlm.data.trajectory import Trajectory, Turn
    from humanlm.training.rollout import Batch
    silent = Trajectory("a", "a", 0, 0, "response", (Turn("policy", "well", (0, 1)),), [1], [2], [True], parse_status="turn_limit")
    monitor, batch = GymMonitor(patience=3), Batch(None, None, None, [silent])
    assert [monitor(batch)["dialogue/invalid"] for _ in range(2)] == [1, 1]
    with pytest.raises(RolloutError, match="held no call"): monitor(batch)


def test_a_failed_user_is_no_score_and_the_episode_is_played_again(tmp_path):
    gym, path = find_gym("telepathy"), tmp_path / "episodes.jsonl"

    async def nobody(env, role, payload): raise UserFailed("nobody is there")
    ask = lambda env: ToolCall("action", "Is it large?")
    failed = run_sync(play_tasks(gym, gym.tasks(2, 0), ask, user=nobody, path=path))
    assert [e.stop for e in failed] == ["user_error"] * 2 and all(math.isnan(e.score) for e in failed)
    values = episode_values(failed[0])
    assert math.isnan(values["share"]) and math.isnan(values["turns"]) and values["user failed"] == 1
    again = run_sync(play_tasks(gym, gym.tasks(2, 0), gym.expert, path=path))
    assert [e.score for e in again] == [1, 1] and [e.stop for e in load_episodes(path)] == ["done"] * 2


def test_a_gym_that_fails_is_told_from_a_policy_that_does():
    gym = find_gym("template")
    play = gym.play(gym.tasks(1, 0)[0])
    play.handlers = {"action": lambda env, content: 1 / 0}
    turn = run_sync(play.step("[action] x"))
    assert play.stop == "env_error" and math.isnan(play.score) and "ZeroDivisionError" in turn.feedback


def test_the_published_settings_make_a_plan(monkeypatch):
    monkeypatch.setenv("MULTITURN_MODEL_NAME", "Qwen/Qwen3-32B")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    recipe, s = read_settings(["--config", str(ROOT / "configs" / "gyms" / "userrl.yaml")])
    recipe.check(s)
    assert s.user.named() == ("vllm/Qwen/Qwen3-32B", "http://localhost:8000/v1")
    plan = "\n".join(recipe.plan(s))
    assert "1024 completions a step" in plan and "8 updates a step" in plan and "equalized by r2g, gamma 0.8" in plan


@pytest.mark.parametrize("name", gym_names())
def test_every_gym_passes_the_suite(name):
    assert run_sync(gym_problems(find_gym(name), odd=400)) == []
