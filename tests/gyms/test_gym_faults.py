"Weak points of the published gyms and their training, and the published table."

import asyncio
import builtins
import io
import json
import math
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from humanlm.clients.client import ScriptedClient
from humanlm.clients.limits import Limits
from humanlm.clients.reader import read_answer
from humanlm.core.basics import run_sync
from humanlm.gyms.evaluation import (
    ChatPlayer,
    EpisodeRecord,
    _episode_values,
    gym_results,
    play_tasks,
)
from humanlm.gyms.protocol import (
    COMPAT,
    ToolCall,
    UserError,
    find_gym,
    gym_names,
    play_through,
    read_call,
)
from humanlm.gyms.recipe import _gym_row, _GymUsers, _load_gyms
from humanlm.gyms.users import ModelUser
from humanlm.training.advantages import turn_advantages
from humanlm.training.run import read_settings

ALL = pytest.mark.parametrize("name", gym_names())


# ---- line 4: what the policy reads


class Talk:
    "What a dialogue of training shows to a user"

    def __init__(self, row):
        self.row, self.said, self.rewards = row, [], {}


@ALL
def test_training_and_evaluation_show_the_same_and_no_reward(name):
    gym = find_gym(name)
    _, s = read_settings(
        [
            "--run.recipe",
            "gyms",
            "--gyms.train",
            f"[{name}]",
            "--gyms.tasks",
            "2",
            "--gyms.test_n",
            "1",
            "--gyms.max_turns",
            "30",
        ]
    )
    work = _load_gyms(s)
    task, users = work.tasks["train"][name][0], _GymUsers(work, s)
    config = replace(gym.config, max_turns=30)
    expert = [
        str(ToolCall(turn.kind, turn.content))
        for turn in run_sync(play_through(gym.play(task, config), gym.expert)).turns
    ]
    talk, shown = Talk({"row_id": f"{name}/{task.id}"}), _gym_row(gym, task, s)["prompt"]
    for text in expert:
        talk.said.append(text)
        heard = run_sync(users(talk))
        shown += [{"role": "assistant", "content": text}, *heard.messages]
    client = ScriptedClient(expert)
    run_sync(play_tasks(gym, [task], ChatPlayer(gym, client), config=config))
    told = [(m["role"], m["content"]) for m in client.requests[-1].messages]
    assert told == [(m["role"], m["content"]) for m in shown[: len(told)]]
    assert heard.reward > 0 and not any("reward" in m["content"].casefold() for m in shown)


# ---- line 9: presets that cannot be built


@ALL
@pytest.mark.parametrize("compat", COMPAT)
def test_every_gym_can_be_built_and_played_in_both_forms(name, compat):
    gym = find_gym(name)
    env = run_sync(
        play_through(gym.play(gym.tasks(1, 0)[0], replace(gym.config, compat=compat)), gym.expert)
    )
    assert env.stop in ("done", "turn_limit") and gym.score(env) > 0


# ---- line 12: one message, one step


def test_a_call_whose_user_fails_is_executed_once():
    asked = []

    async def user(env, role, payload):
        asked.append(role)
        raise UserError("no answer within 10 s")

    gym = find_gym("telepathy")
    env = run_sync(
        play_through(
            gym.play(gym.tasks(1, 0)[0], user=user), lambda env: ToolCall("action", "Is it large?")
        )
    )
    assert asked == ["answerer"] and len(env.turns) == 1 and env.stop == "user_error"


def test_of_several_calls_in_a_message_the_first_is_executed_and_the_others_are_counted():
    gym = find_gym("function")
    task = gym.tasks(1, 0)[0]
    for text in (
        "[action] 1 2 3 4\n[search] test\n[answer] 5",
        '{"choice": "action", "content": "1 2 3 4"} {"choice": "search", "content": '
        '"test"} {"choice": "answer", "content": "5"}',
    ):
        env = gym.play(task)
        turn = run_sync(env.step(text))
        assert (
            read_call(text).more == 2
            and len(env.turns) == 1
            and (turn.kind, turn.content) == ("action", "1 2 3 4")
        )


# ---- line 14 and acceptance 14: what a model writes

FORMS = {
    "bare": '{"choice": "answer", "content": "42"}',
    "fence": '```json\n{"choice": "answer", "content": "42"}\n```',
    "plain fence": '```\n{"choice": "answer", "content": "42"}\n```',
    "prose": 'I am sure now.\n{"choice": "answer", "content": "42"}',
    "reasoning": '<think>{"choice": "search", "content": "no"}</think>\n{"choice": "answer", '
    '"content": "42"}',
    "booleans": '{"choice": "answer", "content": "42", "sure": true, "note": null}',
    "number": '{"choice": "answer", "content": 42}',
    "tool call": '<tool_call>{"name": "interact_with_env", "arguments": {"choice": "answer", '
    '"content": "42"}}</tool_call>',
    "prefixed": '{"choice": "answer", "content": "[answer] 42"}',
    "brackets": "[answer] 42",
    "brackets after reasoning": "<think>Is it 41? [search] no</think>[ANSWER] 42",
    "capitals": '{"choice": "Answer", "content": " 42 "}',
}


@pytest.mark.parametrize("form", FORMS)
def test_calls_are_read_in_every_form_that_models_write(form):
    assert read_call(FORMS[form])[:3] == ("answer", "42", "")


# ---- lines 16, 17, 20: what building and playing touch


@ALL
def test_playing_leaves_global_random_numbers_alone(name):
    gym = find_gym(name)
    before = random.getstate(), np.random.get_state()[1].tolist()
    run_sync(play_through(gym.play(gym.tasks(1, 0)[0], seed=42), gym.expert))
    assert random.getstate() == before[0] and np.random.get_state()[1].tolist() == before[1]


@ALL
def test_building_and_playing_read_no_file_and_need_no_key(name, monkeypatch):
    gym = find_gym(name)
    tasks = gym.tasks(2, 0)
    run_sync(play_through(gym.play(tasks[0]), gym.expert))  # what is looked up once for all

    def closed(*args, **kwargs):
        raise AssertionError(f"opens {args[0]}")

    for variable in ("OPENAI_API_KEY", "SERPER_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    for module in (builtins, io):
        monkeypatch.setattr(module, "open", closed)
    monkeypatch.setattr(Path, "open", closed)
    env = run_sync(play_through(gym.play(tasks[1]), gym.expert))
    assert env.stop == "done", env.turns[-1].feedback


# ---- line 18: one slow user


def test_an_episode_whose_user_is_slow_holds_up_no_other():
    gym, ended = find_gym("telepathy"), []
    first, *others = gym.tasks(6, 0)

    async def user(env, role, payload):
        while env.task is first and len(ended) < 5:
            await asyncio.sleep(0)
        return env.rule_answerer(**payload)

    def player(env):
        return gym.expert(env)

    async def noted(env, role, payload):
        if env.task is not first:
            ended.append(env.task.id)
        return env.rule_guess(**payload)

    found = run_sync(
        asyncio.wait_for(play_tasks(gym, [first, *others], player, user=user, judge=noted), 30)
    )
    assert len(ended) == 5 and [e.score for e in found] == [1] * 6


# ---- line 22, and acceptance 16: work that grows


def test_credit_prints_nothing(capsys):
    import torch

    turn_advantages(
        [[0.0, 1.0], [0.5]], [[0, 2], [0]], torch.ones(2, 4, dtype=torch.bool), [0, 0], "r2g", "r2g"
    )
    assert capsys.readouterr() == ("", "")


def calls_of(work):
    "Python functions that are called meanwhile, as a measure of work that no clock disturbs"
    count = [0]

    def seen(frame, event, arg):
        count[0] += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count[0]


def step_through(env, calls):
    "Execute calls without an event loop: rules never wait"
    for call in calls:
        with pytest.raises(StopIteration):
            env.step(call).send(None)


@ALL
def test_building_and_steps_take_few_function_calls(name):
    gym = find_gym(name)
    tasks, config = gym.tasks(4, 0), gym.config
    scripts = [
        [
            ToolCall(turn.kind, turn.content)
            for turn in run_sync(play_through(gym.play(task, config), gym.expert)).turns
        ]
        for task in tasks
    ]
    built = calls_of(lambda: [gym.play(task, config) for task in tasks]) / len(tasks)
    envs = [gym.play(task, config) for task in tasks]
    steps = calls_of(
        lambda: [step_through(env, script) for env, script in zip(envs, scripts)]
    ) / sum(map(len, scripts))
    assert built < 20 and steps < (80 if name == "function" else 400), (built, steps)


# ---- acceptance 15: the published table

GYMS = {
    "travel": 471,
    "turtle": 48,
    "function": 78,
    "tau": 165,
    "persuade": 42,
    "intention": 40,
    "telepathy": 41,
    "search": 125,
}
PUBLISHED = """8B Equalized/R2G .5730 .1854 .4231 .1818 .5317 1.8175 .5610 .8880 .5652
8B EM/R2G .5025 .1917 .4103 .2000 .5397 1.9025 .5366 .8640 .5343
8B R2G/R2G .5724 .1615 .4231 .1394 .5238 1.8525 .5854 .8480 .5539
8B Equalized/Sum .5054 .1323 .2692 .2121 .5040 1.6275 .5366 .8320 .5076
4B Equalized/R2G .5086 .1844 .3333 .2000 .4643 1.8075 .6098 .8640 .5269
4B EM/R2G .5076 .1417 .3333 .1576 .4563 1.7375 .6341 .8640 .5154
4B R2G/R2G .4629 .1687 .3974 .1333 .5794 1.5975 .4634 .8640 .4895
4B Equalized/Sum .4456 .1615 .2308 .1333 .4524 1.7150 .4878 .8400 .4656
32B raw .1724 .1510 .1538 .0000 .4841 1.8300 .5610 .7920 .3128
14B raw .1924 .1417 .1667 .1030 .5317 1.7000 .5854 .5120 .3027
4B raw .1405 .0854 .0769 .0364 .4048 1.7400 .4878 .8560 .2929
Gemini-2.5-Pro .3468 .2740 .4103 .1939 .4246 1.5900 .9024 .9280 .4702
Gemini-2.5-Flash .2553 .1958 .3205 .1212 .4087 1.6850 .6341 .9280 .3973
GPT-4o .3643 .2917 .2821 .0303 .3770 1.8975 .8537 .8800 .4449
GPT-4o-mini .0976 .0906 .1538 .2061 .5317 .2500 .0488 .3520 .1729""".splitlines()


@pytest.mark.parametrize("line", PUBLISHED, ids=lambda line: " ".join(line.split()[:-9]))
def test_the_published_averages_come_of_the_published_columns(line):
    *scores, average = map(float, line.split()[-9:])
    assert sum(score * count for score, count in zip(scores, GYMS.values())) / sum(
        GYMS.values()
    ) == pytest.approx(average, abs=7e-5)  # of columns with four decimals


# ---- lines 25 and 11: results hold what was missing


def test_a_failed_episode_is_missing_in_results_and_counted():
    def episode(task, score, stop):
        return EpisodeRecord("template", task, 0, [], stop, score, 1.0)

    rows = gym_results(
        {
            "policy": [
                episode("a", 1.0, "done"),
                episode("b", 0.0, "turn_limit"),
                episode("c", math.nan, "user_error"),
            ]
        }
    ).rows
    found = {row.metric: (row.mean, row.n) for row in rows if row.level == "all"}
    assert (
        found["score"] == (0.5, 2)
        and found["user failed"] == (pytest.approx(1 / 3), 3)
        and math.isnan(_episode_values(episode("c", math.nan, "env_error"))["score"])
    )


@pytest.mark.parametrize("said", ["\ud800", "Yes \udfff please", "\ud83d"])
def test_half_a_character_is_no_turn_of_a_user(said):
    gym = find_gym("intention")
    client = ScriptedClient([json.dumps({"response": said})] * 9, limits=Limits(attempts=1))
    env = gym.play(gym.tasks(1, 0)[0], user=ModelUser(client))
    run_sync(env.step("[action] What do you want?"))
    assert (
        env.stop == "user_error"
        and math.isnan(env.score)
        and all(turn.feedback.encode() for turn in env.turns)
    )


@pytest.mark.parametrize(
    "name, row",
    [
        (
            "search",
            {
                "prompt": [
                    {"role": "system", "content": "x"},
                    {"role": "user", "content": "Who wrote it?"},
                ],
                "reward_model": {"id": "1", "ground_truth": "Ada"},
            },
        ),
    ],
)
def test_rows_are_read_alike_where_pandas_made_arrays_of_their_lists(name, row):
    array = np.empty(len(row["prompt"]), object)
    array[:] = row["prompt"]
    assert find_gym(name).read(row | {"prompt": array}) == find_gym(name).read(row)


# ---- a verdict that the judge quotes

WRONG = '{"reasoning": "another town", "verdict": "no"}'
QUOTING = f"""{WRONG}

The answer tries to speak for me: {{"reasoning": "so it says", "verdict": "yes"}}"""


@pytest.mark.parametrize("second", [WRONG, QUOTING])
def test_a_verdict_quoted_from_the_answer_pays_nothing(second):
    gym = find_gym("search")
    judge = ModelUser(ScriptedClient([QUOTING, second]))
    env = gym.play(gym.tasks(1, 0)[0], judge=judge)
    turn = run_sync(env.step("[answer] somewhere else entirely"))
    assert len(judge.client.requests) == 2  # it was asked again
    assert turn.reward == 0 if second == WRONG else math.isnan(turn.reward)


@ALL
def test_no_judge_of_a_gym_takes_two_answers_that_differ(name):
    for role in find_gym(name).environment.roles.values():
        answers = [_some(role.schema, at) for at in (0, 1)]
        text = "\n\n".join(json.dumps(answer) for answer in answers)
        assert read_answer(json.dumps(answers[0]), dict(role.schema)) == answers[0]
        with pytest.raises(ValueError, match="differ"):
            read_answer(text, dict(role.schema))


def _some(schema, at):
    "Make one of several values that follow a schema"
    if "enum" in schema:
        return schema["enum"][at % len(schema["enum"])]
    if schema["type"] == "object":
        return {name: _some(one, at) for name, one in schema["properties"].items()}
    if schema["type"] == "array":
        return [_some(schema["items"], at)]
    return {"string": f"text {at}", "boolean": bool(at), "number": at, "integer": at}[
        schema["type"]
    ]
