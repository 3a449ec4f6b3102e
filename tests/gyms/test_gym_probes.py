"Probes of reward hacking: what a policy might do in place of its task is not paid."

import json
import re
from dataclasses import replace

import pytest

from humanlm.core.basics import run_sync
from humanlm.gyms.intention import _IntentionTask, _MissingDetail
from humanlm.gyms.persuade import MEASURES
from humanlm.gyms.protocol import (
    KINDS,
    Environment,
    GymConfig,
    ToolCall,
    find_gym,
    gym_names,
    play_through,
)
from humanlm.gyms.recipe import PARTS

ALL = pytest.mark.parametrize("name", gym_names())


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
    "template": 0.3,
    "advice": 0.3,
    "persuade": 0.17,
}  # any answer counts 0.3; a number is a guess; a long text moves an easy listener by a step


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

WRONG = {"function": "-9999", "search": "nobody at all", "telepathy": "xyzzy"}


@pytest.mark.parametrize("name", WRONG)
def test_hacking_by_guesses_ends_after_three(name):
    gym = find_gym(name)
    task = gym.tasks(1, 0)[0]
    env = say(gym.play(task), *[ToolCall("answer", WRONG[name])] * 9)
    assert env.stop == "done" and len(env.turns) == 3 and env.score == 0
    assert not any(secret in turn.feedback for turn in env.turns for secret in task.secrets)


@pytest.mark.parametrize("off", [0, 1e-7, 0.4])
def test_hacking_by_a_probe_beside_the_test_tells_nothing(off):
    gym = find_gym("function")
    task = gym.tasks(1, 0)[0]
    [turn] = say(
        gym.play(task),
        ToolCall("action", " ".join([f"{task.test[0] + off:.7f}", *map(str, task.test[1:])])),
    ).turns
    assert turn.fault and f"{task.expected:g}" not in turn.feedback.replace(
        " ".join(map(str, task.test)), ""
    )
    published = say(
        gym.play(task, GymConfig(compat="userrl")),
        ToolCall("action", " ".join([f"{task.test[0] + 1e-7:.7f}", *map(str, task.test[1:])])),
    )
    assert "the result is" in published.turns[0].feedback, "as published, it does"


def test_hacking_by_a_stance_that_swings_is_paid_once():
    gym = find_gym("persuade")
    swings = [{"reply": "Well.", "stance": stance} for stance in ("Neutral", "Strongly Agree") * 4]

    def play(**settings):
        return say(
            gym.play(
                gym.tasks(1, 0)[0], replace(gym.config, **settings), answering("listener", *swings)
            ),
            *[f"[answer] argument {i}" for i in range(8)],
        )

    assert play().score == 0.5 and play(compat="userrl").score == 2


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


def test_hacking_by_a_user_who_would_tell_everything_has_nothing_to_tell():
    seen = []

    async def user(env, role, payload):
        return seen.append(json.dumps(payload)) or {"response": "All I know: " + seen[-1]}

    [turn] = say(
        find_gym("intention").play(REQUEST, user=user), "[action] How much may the budget be?"
    ).turns
    assert len(seen) == 1 and not any(word in turn.feedback for word in ("diet", "Vegan")), (
        "the user is told only what was asked for"
    )


# ---- line 8: a desk that talks


@pytest.mark.parametrize(
    "said",
    [
        "[action] Everything is done. Goodbye!",
        "[action] ###STOP###",
        '[answer] {"name": "transfer_to_human_agents", "arguments": {"summary": "done"}}',
        "[finish]",
    ],
)
def test_hacking_by_claims_at_the_desk_changes_no_order(said):
    gym = find_gym("tau")
    tasks = [task for task in gym.tasks(40, 0) if task.actions]
    assert len(tasks) > 20 and all(say(gym.play(task), *[said] * 20).score == 0 for task in tasks)


# ---- line 10: what a part of a run shares with another


def drawn(name, part, count=200):
    return find_gym(name).tasks(count, PARTS[part])


def test_hacking_by_heart_no_claim_of_the_evaluation_occurs_in_training():
    claims = {part: {task.claim for task in drawn("persuade", part)} for part in PARTS}
    measures = {
        part: {measure for measure in MEASURES if any(measure in claim for claim in found)}
        for part, found in claims.items()
    }
    for part in ("train", "valid"):
        assert claims[part].isdisjoint(claims["test"]) and measures[part].isdisjoint(
            measures["test"]
        )


def test_hacking_by_heart_no_component_of_a_trip_occurs_in_two_parts():
    found = [{one for task in drawn("travel", part) for one in task.components} for part in PARTS]
    assert sum(map(len, found)) == len(set().union(*found))


@pytest.mark.parametrize("name", ["advice", "appeal"])
def test_hacking_by_heart_no_person_and_no_topic_of_the_evaluation_occurs_in_training(name):
    for part in ("train", "valid"):
        known, tested = drawn(name, part), drawn(name, "test")
        assert {task.person.traits for task in known}.isdisjoint(
            task.person.traits for task in tested
        )
        topics = [
            {
                target
                for task in tasks
                for target in (
                    [option[0] for option in task.options]
                    if name == "advice"
                    else [task.target, task.aside]
                )
            }
            for tasks in (known, tested)
        ]
        assert topics[0].isdisjoint(topics[1])


@ALL
def test_hacking_by_heart_no_task_occurs_in_two_parts(name):
    def content(task):
        return re.sub(
            rf"{name}-\d+-\d+|\bu\d+-\d+|small/\d+\.\d+", "", repr(task)
        )  # without ids, which name the part

    found = [
        {content(task) for task in drawn(name, part, count)}
        for part, count in (("train", 200), ("valid", 40), ("test", 40))
    ]
    assert sum(map(len, found)) == len(set().union(*found)) == 280
