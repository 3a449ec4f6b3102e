"""Gyms as environments of Gymnasium and TRL, and environments of others as gyms."""

import math
import string
import warnings
from dataclasses import dataclass

import pytest
from gymnasium.utils.env_checker import check_env

from humanlm.core.basics import DataError
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
from humanlm.serving.adapters import (
    gymnasium_env,
)


@dataclass(frozen=True)
class WordTask(GymTask):
    "A word to be found"

    word: str

    @property
    def opening(self):
        return "Which word do I mean?"

    @property
    def secrets(self):
        return (self.word,)


class WordEnvironment(Environment):
    "Echoes what is said, and knows a word"

    formats = {"action": "anything", "answer": "the word"}

    async def on_action(self, content):
        if content == "fail":
            raise UserError("nobody there")
        return Feedback(
            f"You said: {content}" * (1 + 5_000 * (content == "much")), parts={"heard": 1.0}
        )

    async def on_answer(self, content):
        gain = self.improved(float(content.lower() == self.task.word))
        return Feedback("Yes!" if gain else "No.", gain, done=gain > 0)


word = Gym(
    "word",
    WordEnvironment,
    lambda count, seed: [WordTask(f"word-{seed}-{i}", f"w{seed}x{i}") for i in range(count)],
    lambda env: ToolCall("answer", env.task.word),
    "The user thinks of a word.",
)


# ---- Gymnasium


def checked(env):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*not having a spec.*")
        check_env(env)


def test_every_gym_passes_the_checker_by_its_name():
    for name in GYMS:
        checked(gymnasium_env(find_gym(name)))


def test_every_text_is_an_action_and_every_observation_lies_in_its_space():
    env = gymnasium_env(word)
    env.reset(seed=0)
    for action in (
        "",
        "[action] much",
        "[action] \x00é漢" + "x" * 9_000,
        "[nothing] x",
        env.action_space.sample(),
    ):
        observation, reward, terminated, truncated, _info = env.step(action)
        assert (
            observation in env.observation_space
            and not terminated
            and not truncated
            and 0 <= reward <= 1
        )
    assert (
        "x" * 4001 not in env.action_space
        and 7 not in env.action_space
        and set(env.action_space.sample()) <= set(string.printable)
    )


def test_ends_are_told_apart_and_secrets_are_in_no_info():
    env = gymnasium_env(word)
    told = [env.reset(seed=5), env.step("[answer] no")]
    secret = env.play.task.word
    assert secret not in str(told)
    assert env.step(f"[answer] {secret}")[1:4] == (1.0, True, False)
    with pytest.raises(DataError, match="has ended"):
        env.step("[action] more")
    env.reset(seed=5)
    assert [env.step("[action] x")[2:4] for _ in range(16)][-2:] == [(False, False), (False, True)]
    env.reset(options={"task": "word-0-3"})
    _, reward, terminated, truncated, info = env.step("[action] fail")
    assert math.isnan(reward) and (terminated, truncated, info["stop"]) == (
        False,
        True,
        "user_error",
    )


# ---- TRL
