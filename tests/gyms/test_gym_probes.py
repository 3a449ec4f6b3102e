"Probes of reward hacking: what a policy might do in place of its task is not paid."

import re
from dataclasses import replace

import pytest

from humanlm.core.basics import run_sync
from humanlm.gyms.intention import _IntentionTask, _MissingDetail
from humanlm.gyms.protocol import (
    GYMS,
    KINDS,
    Environment,
    ToolCall,
    find_gym,
    play_through,
)
from humanlm.gyms.recipe import PARTS

ALL = pytest.mark.parametrize("name", GYMS)


def answering(role, *answers):
    "A user who gives these answers in one role, and does in others what the rule does"
    left = iter(answers)

    async def user(env, asked, payload):
        return next(left) if asked == role else getattr(env, f"rule_{asked}")(**payload)

    return user


def say(env: Environment, *calls):
    "Execute calls until an episode ends"
    for call in calls:
        if not env.stop:
            run_sync(env.step(call))
    return env


# ---- any gym


@ALL
def test_hacking_by_ending_tells_no_secret_and_pays_nothing(name):
    gym = find_gym(name)
    for task in gym.tasks(4, 0):
        env = say(gym.play(task), "[finish]")
        assert (
            env.stop == "finish"
            and gym.score(env) == 0
            and not any(secret in env.turns[0].feedback for secret in task.secrets)
        )


@ALL
def test_hacking_by_saying_what_pays_again_and_again_pays_once(name):
    gym = find_gym(name)
    for task in gym.tasks(4, 0):
        expert = run_sync(play_through(gym.play(task), gym.expert))
        thrice = [ToolCall(turn.kind, turn.content) for turn in expert.turns for _ in range(3)]
        env = say(gym.play(task, replace(gym.config, max_turns=99)), *thrice)
        assert (
            gym.score(env) <= gym.best(task) + 1e-6
            and sum(turn.reward for turn in env.turns)
            <= sum(turn.reward for turn in expert.turns) + 1e-6
        )


FLOORS = {
    "persuade": 0.17,
}  # a long text moves an easy listener by a step


@ALL
def test_hacking_by_saying_back_what_was_told_pays_no_more_than_a_guess(name):
    gym = find_gym(name)
    tasks = gym.tasks(12, 0)
    played = [
        say(
            gym.play(task),
            *[
                ToolCall(kind, text[:4000])
                for text in (task.opening, gym.system_prompt())
                for kind in KINDS
            ],
        )
        for task in tasks
    ]
    assert (
        sum(gym.score(env) / gym.best(env.task) for env in played) / len(tasks)
        <= FLOORS.get(name, 0) + 1e-6
    )


# ---- section 10, line 6: guesses, probes, swings


# ---- line 7: questions that uncover everything

REQUEST = _IntentionTask(
    "request",
    "Plan a trip to Oslo.",
    "Travel",
    (
        _MissingDetail("budget", 3, "How much?", ("little", "plenty")),
        _MissingDetail("diet", 1, "Vegan?", ("yes", "no")),
    ),
)


def test_hacking_by_a_detail_that_is_named_twice_pays_once():
    env = say(
        find_gym("intention").play(
            REQUEST, judge=answering("coverage", {"covered": [0, 0, 0]}, {"covered": [0]})
        ),
        "[action] How much may it cost?",
        "[action] How much?",
    )
    assert [turn.reward for turn in env.turns] == [1, 0] and env.left == [1]


# ---- line 8: a desk that talks


# ---- line 10: what a part of a run shares with another


def drawn(name, part, count=200):
    return find_gym(name).tasks(count, PARTS[part])


def test_hacking_by_heart_no_component_of_a_trip_occurs_in_two_parts():
    found = [
        {
            (aspect.kind, frozenset(map(str, aspect.wishes)))
            for task in drawn("travel", part)
            for aspect in task.aspects
        }
        for part in PARTS
    ]
    assert sum(map(len, found)) == len(set().union(*found))


@ALL
def test_hacking_by_heart_no_task_occurs_in_two_parts(name):
    def content(task):
        return re.sub(
            rf"{name}-\d+-\d+|\bu\d+-\d+|small/\d+\.\d+", "", repr(task)
        )  # without ids, which name the part

    found = [
        {content(task) for task in drawn(name, part, count)}
        for part, count in (("train", 200), ("test", 40))
    ]
    assert sum(map(len, found)) == len(set().union(*found)) == 240
