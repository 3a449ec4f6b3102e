"Gyms are trained on, evaluated and gone on with as one run."

import gc
import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import pytest
import warm

from humanlm.core.basics import ConfigError, HumanLMError, run_sync
from humanlm.data.trajectory import Trajectory, Turn, load_trajectories
from humanlm.gyms.conformance import gym_problems
from humanlm.gyms.evaluation import _episode_values, load_episodes, play_tasks
from humanlm.gyms.monitor import Curriculum, GymMonitor
from humanlm.gyms.protocol import (
    Environment,
    Feedback,
    Gym,
    GymTask,
    ToolCall,
    UserError,
    find_gym,
    gym_names,
)
from humanlm.gyms.recipe import PARTS, _GymUsers, _load_gyms, _train_gyms
from humanlm.methods.policies import RolloutError
from humanlm.train import main
from humanlm.training.run import read_settings
from humanlm.training.stages import _make_base, make_run

ROOT = Path(__file__).resolve().parents[2]

TINY = {
    "gyms.train": "[template]",
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
        ({"tokens": 1}, "messages had 1.0 tokens, where they had 10.0"),
        ({"surprise": 0.01}, "entropy of the policy was 0.0100 per token, where it was 0.5000"),
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


def test_a_policy_without_log_probabilities_or_pay_is_not_stopped_for_them():
    monitor = GymMonitor(patience=2)
    found = steps(
        monitor,
        *[[replace(dialogue(tokens=n, paid=math.nan), logps=None)] for n in (10, 10, 1, 1, 1)],
    )
    assert math.isnan(found[-1]["dialogue/entropy"]) and found[-1]["dialogue/length"] == 1


def test_an_environment_ends_with_its_dialogue():
    "One that was cut off must not go on in another dialogue"
    _, s = read_settings(
        [
            "--run.recipe",
            "gyms",
            "--gyms.train",
            "[template]",
            "--gyms.tasks",
            "2",
            "--gyms.test_n",
            "1",
        ]
    )
    users = _GymUsers(_load_gyms(s), s)

    class Talk:
        said = ["[action] hello"]

        def __init__(self, row):
            self.row, self.rewards = {"row_id": row}, {}

    first, other = (Talk(name) for name in list(users.tasks)[:2])
    run_sync(users(first)), run_sync(users(first)), run_sync(users(other))
    assert [len(users.playing[talk].turns) for talk in (first, other)] == [2, 1]
    del first, other
    gc.collect()
    assert len(users.playing) == 0 and not users.live


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"score": "su"}, "Did you mean 'sum'"),
        ({"credit": "equalised"}, "Did you mean 'equalized'"),
        ({"gamma": 1.5}, "between 0 and 1"),
        ({"compat": "verl"}, "userrl"),
    ],
)
def test_a_wrong_credit_is_refused_when_settings_are_read(wrong, said):
    words = [
        "--run.recipe",
        "gyms",
        *(word for name, value in wrong.items() for word in (f"--credit.{name}", str(value))),
    ]
    with pytest.raises(ConfigError, match=said):
        read_settings(words)


def test_names_of_credits_are_known_without_torch():
    code = (
        "import sys; from humanlm.methods.dialogues import CREDITS, CreditConfig; assert "
        "CreditConfig().credit in CREDITS and 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_published_split_is_kept_and_leaving_it_is_said():
    assert {name for name in gym_names() if find_gym(name).held_out} == {
        "intention",
        "telepathy",
        "search",
    }
    recipe, published = read_settings(["--config", str(ROOT / "configs" / "gyms" / "userrl.yaml")])
    assert {*published.gyms.held_out} == {
        "intention",
        "telepathy",
        "search",
    } and "never trained on" not in "\n".join(recipe.plan(published))
    taken = published.changed(
        gyms={"train": ["travel", "telepathy"], "held_out": ["intention"], "weights": {}}
    )
    assert "telepathy: never trained on in the published split" in recipe.plan(taken)[-1]


# ---- tasks by success


def rows_of(number):
    return [{"row_id": f"t{i}", "context_id": "template"} for i in range(number)]


def curriculum(rows, monitor, **gyms):
    _, s = read_settings(
        [
            "--run.recipe",
            "gyms",
            "--gyms.train",
            "[template]",
            "--rollout.num_prompts",
            "4",
            *(word for name, value in gyms.items() for word in (f"--gyms.{name}", value)),
        ]
    )
    return Curriculum(rows, 300, s.rollout.num_prompts, monitor, s.gyms.weights, s.run.seed)


def test_tasks_that_are_always_solved_or_never_get_rarer():
    rows, monitor = rows_of(12), GymMonitor()
    chosen = curriculum(rows, monitor)
    before = Counter(row["row_id"] for row in chosen)
    assert all(60 <= before[row["row_id"]] <= 145 for row in rows), (
        "100 of 1,200 each while nothing is known"
    )
    earned = {"t0": 1.0, "t1": 1.0, "t2": 0.0, **{f"t{i}": 0.5 for i in range(3, 9)}}
    steps(monitor, [dialogue(paid=paid, row=row) for row, paid in earned.items()])
    chosen.step = None
    after = Counter(row["row_id"] for row in chosen)
    assert (
        max(after[row] for row in ("t0", "t1", "t2"))
        < 30
        < 90
        < min(after[f"t{i}"] for i in range(3, 12))
    ), "unknown ones count like their gym"


def test_a_gym_that_is_solved_gives_way_to_one_that_is_not():
    rows, monitor = (
        [*rows_of(6), *({"row_id": f"f{i}", "context_id": "function"} for i in range(6))],
        GymMonitor(),
    )
    steps(monitor, [dialogue(paid=1.0, row="t0"), dialogue(paid=0.5, row="f0")])
    drawn = Counter(
        row["context_id"] for row in curriculum(rows, monitor, train="[template,function]")
    )
    assert drawn["function"] > 3 * drawn["template"] > 0


def test_what_tasks_earned_is_a_running_mean_that_failed_users_leave_alone():
    monitor = GymMonitor()
    steps(
        monitor,
        [dialogue(paid=1.0), dialogue(paid=0.0)],
        [dialogue(paid=2.0)],
        [dialogue(paid=math.nan), dialogue(paid=math.nan, row="b")],
    )
    assert monitor.rates == {"a": 0.75}


def test_a_step_asks_no_task_twice_unless_there_are_too_few():
    monitor = GymMonitor()
    assert all(
        len({row["row_id"] for row in curriculum(rows_of(5), monitor).draw(step)}) == 4
        for step in range(20)
    )
    assert {
        *Counter(row["row_id"] for row in curriculum(rows_of(2), monitor).draw(0)).values()
    } == {2}


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
    "Pays by the letters of whatever is said, so that a policy that knows nothing earns something, and always in the first three tasks"

    async def on_any(self, content):
        return Feedback(
            "so be it",
            float(crc32(content.encode()) % 2 or self.task.id[-2:] in ("-0", "-1", "-2")),
        )


LuckyEnvironment.handlers = dict.fromkeys(("", *LuckyEnvironment.handlers), LuckyEnvironment.on_any)


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


def test_a_resumed_run_asks_by_success_what_a_whole_one_does(tmp_path):
    by_success = [*LUCKY, "--gyms.curriculum", "success", "--gyms.tasks", "6"]
    whole = begin(tmp_path / "whole", *by_success, "--trainer.max_steps", "6")
    begin(tmp_path / "again", *by_success, "--trainer.max_steps", "3")
    again = begin(tmp_path / "again", *by_success, "--trainer.max_steps", "6")
    assert (
        len(whole) == 48
        and [t.row_id for t in again] == [t.row_id for t in whole]
        and [t.completion_ids for t in again] == [t.completion_ids for t in whole]
    )
    kept = json.loads(
        (
            tmp_path / "again" / "short" / "checkpoints" / "gyms" / "checkpoint-6" / "gyms.json"
        ).read_text()
    )
    assert (
        {*kept["rates"]} == {t.row_id for t in whole}
        and len({*kept["rates"].values()}) > 2
        and len(kept["first"]) == 6
    )
    rows = [{"row_id": f"lucky/{PARTS['train']}-{i}", "context_id": "lucky"} for i in range(6)]
    _, s = read_settings(["--run.recipe", "gyms", *LUCKY, "--rollout.num_prompts", "2"])
    asked = [{t.row_id for t in whole if t.step == step} for step in range(6)]
    blind = [
        {
            row["row_id"]
            for row in Curriculum(
                rows, 6, s.rollout.num_prompts, GymMonitor(), s.gyms.weights, s.run.seed
            ).draw(step)
        }
        for step in range(6)
    ]
    assert blind[0] == asked[0] and blind[3:] != asked[3:], (
        "what was earned before the stop had a say after it"
    )


TWO = """
import sys, torch
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_gym_recipe import LUCKY, begin
torch.set_num_threads(1)
begin(Path({out!r}), *LUCKY, "--gyms.curriculum", "success", "--credit.credit", "em", "--trainer.max_steps", "2")
torch.distributed.destroy_process_group()
"""


def test_two_processes_play_the_dialogues_of_one_and_push_them_alike(tmp_path):
    one = begin(
        tmp_path / "one",
        *LUCKY,
        "--gyms.curriculum",
        "success",
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
    kept = [
        (
            tmp_path / name / "short" / "checkpoints" / "gyms" / "checkpoint-2" / "gyms.json"
        ).read_text()
        for name in ("one", "two")
    ]
    assert json.loads(kept[0])["rates"] == json.loads(kept[1])["rates"]


# ---- information gain


def test_a_run_credits_turns_by_what_they_found_out(tmp_path):
    found = begin(
        tmp_path,
        "--credit.credit",
        "information-gain",
        "--credit.score",
        "sum",
        "--gyms.max_turns",
        "2",
    )
    lines = [
        json.loads(line) for line in (tmp_path / "short" / "metrics.jsonl").read_text().splitlines()
    ]
    assert (
        len(found) == 8
        and len([line for line in lines if "loss" in line]) == 2
        and all(isinstance(t.advantage, list) for t in found)
    )


@pytest.mark.parametrize("name", [name for name in gym_names() if find_gym(name).gold])
def test_the_right_call_of_a_task_earns_all_there_is(name):
    gym = find_gym(name)
    for task in gym.tasks(4, 0):
        play = gym.play(task)
        run_sync(play.step(str(gym.gold(task))))
        assert (
            gym.score(play) == pytest.approx(gym.best(task))
            and str(gym.gold(task)) not in gym.system_prompt() + task.opening
        )


def test_gains_are_refused_where_no_single_call_is_right():
    recipe, s = read_settings(
        [
            "--run.recipe",
            "gyms",
            "--gyms.train",
            "[template,household]",
            "--credit.credit",
            "information-gain",
        ]
    )
    with pytest.raises(
        ConfigError, match="credit information-gain asks .* and household has no single one"
    ):
        recipe.check(s)
    recipe.check(s.changed(gyms={"train": ["template", "function"]}))


@pytest.mark.parametrize(
    "flags, said",
    [
        (
            ["--gyms.train", "[travel]", "--user.model", "polite"],
            "polite plays person alone, and hinter is asked",
        ),
        (
            ["--gyms.train", "[advice]", "--gyms.held_out", "[turtle]", "--user.model", "polite"],
            "polite plays person alone, and answerer is asked",
        ),
        (["--user.model", "simulator/nope"], "no model lies in nope"),
        (
            ["--gyms.train", "[persuade]", "--gyms.tasks", "100000"],
            "persuade has 5600 tasks for a seed, and 100000 are wanted",
        ),
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
    gym = find_gym("template")
    play = gym.play(gym.tasks(1, 0)[0])
    play.handlers = {"action": lambda env, content: 1 / 0}
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
    )


@pytest.mark.parametrize("name", gym_names())
def test_every_gym_passes_the_suite(name):
    assert run_sync(gym_problems(find_gym(name), odd=400)) == []
