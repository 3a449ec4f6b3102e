"""Thoughts that are given to a model, and what replies take from them."""

import math

import numpy as np
import pytest

from humanlm.alignment.thoughts import _follows
from humanlm.hierarchy.composed import written
from humanlm.worlds.states import States


def test_a_reply_made_from_dice_follows_its_thought_and_another_does_not():
    import random

    rng = random.Random(0)
    pairs = []
    for _ in range(40):
        states = States.uniform("the night tram", rng)
        thought = written(states.describe(rng))
        pairs += [
            (
                _follows(thought, states.reply(rng)),
                _follows(thought, States.uniform("the night tram", rng).reply(rng)),
            )
        ]
    own, other = (
        [v for pair in pairs for v in pair[i].values() if not math.isnan(v)] for i in (0, 1)
    )
    assert set(own) == {1.0}
    assert np.mean(other) < 0.4


@pytest.mark.parametrize(
    "thought",
    ["", "<value>", "<value></think>", "<nothing>here", "<value>purple", "a < b > c", "<" * 1000],
)
def test_broken_thoughts_agree_with_nothing(thought):
    assert all(math.isnan(v) for v in _follows(thought, "frugal is the right way.").values())
