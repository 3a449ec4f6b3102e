"""Thoughts that are given to a model, and what replies take from them."""

import math

import numpy as np
import pytest

from humanlm.alignment.thoughts import _follows, _told_rows, written
from humanlm.hierarchy.prompts import HierarchyConfig, parts_text
from humanlm.worlds.mini import WorldConfig, make_world
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


def test_told_rows_hold_the_whole_thought_and_ask_for_the_reply():
    world = make_world(WorldConfig(users=24, replies_per_user=8))
    example = next(e for e in world.examples if e.split == "test")
    (row,) = _told_rows(
        [example], [{"belief": "luck decides most things"}], HierarchyConfig(thinking="hetero")
    )
    assert parts_text(row["prefix"]) == "<belief>luck decides most things</think>"
    assert row["thinking"] and row["level"] == "response"
