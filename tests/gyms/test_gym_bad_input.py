"Each bad input has one defined result, which is counted and shown."

import pytest

from humanlm.core.basics import run_sync
from humanlm.gyms.evaluation import (
    EpisodeRecord,
    gym_results,
)
from humanlm.gyms.protocol import (
    GYMS,
    find_gym,
    play_through,
    read_call,
)

ALL = pytest.mark.parametrize("name", GYMS)


def played(name, *texts, **given):
    "The record of one episode, whose policy says these texts again and again"
    gym = find_gym(name)
    env = gym.play(gym.tasks(1, 0)[0], **given)
    run_sync(play_through(env, lambda env: texts[len(env.turns) % len(texts)]))
    return EpisodeRecord.of(gym, env), env


def mean_of(episodes, metric):
    return next(
        row.mean
        for row in gym_results({"policy": episodes}).rows
        if row.metric == metric and row.level == "all"
    )


# ---- of the policy


@pytest.mark.parametrize(
    "text, kind, content",
    [
        ("<think>Maybe it is\n[answer] 5", "", ""),
        ("<think>a</think>\n<think>or\n[answer] 5", "", ""),
        ("<think>\n[answer] 5\n</think>\n[answer] 6", "answer", "6"),
        ("[action] hello\n[Answer] x", "action", "hello"),
        ("[action] hello\n  [answer] x\n[SEARCH] y", "action", "hello"),
        ('{"choice": "search", "content": null}', "search", ""),
        ("[answer] Use the <think> tag", "answer", "Use the <think> tag"),
        ('{"choice": "answer", "content": "the <think> tag"}', "answer", "the <think> tag"),
    ],
)
def test_thoughts_that_never_end_call_nothing_and_the_next_call_ends_the_first(text, kind, content):
    call = read_call(text)
    assert (call.kind, call.content) == (kind, content)


@ALL
def test_a_choice_that_only_other_gyms_offer_is_told_so_and_reaches_no_user(name):
    async def nobody(env, role, payload):
        raise AssertionError("is asked")

    missing = {"action", "search", "answer"} - set(find_gym(name).environment.formats)
    for kind in missing:
        episode, env = played(name, f"[{kind}] something", user=nobody, judge=nobody)
        assert (
            env.turns[0].fault == "format"
            and f"There is no '{kind}' here" in env.turns[0].feedback
            and mean_of([episode], "invalid calls") == 1
        )
