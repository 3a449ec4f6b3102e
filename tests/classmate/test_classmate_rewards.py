"Advantages of both rewards are those of the worked example; what is not known teaches nothing."

import math
import random
import statistics

import pytest
import torch

from humanlm.classmate.classmates import CONDITIONS, ESTIMATORS, PLACEMENTS
from humanlm.classmate.method import (
    _conditioned,
    classmate_advantages,
    token_rewards,
)

MAIN = torch.tensor([8, 4, 6, 6, 2, 2, 5, 3], dtype=torch.float64)
CLASSMATE = torch.tensor([7, 3, 3, 7, 1, 4, 4, 3], dtype=torch.float64)
GROUPS = torch.tensor([0] * 4 + [1] * 4)
MASK = torch.arange(6) < torch.tensor([6, 5, 4, 6, 3, 6, 6, 5])[:, None]
SHOWN = torch.zeros(8, 6, dtype=torch.bool)
SHOWN[:, 1:3] = True


def advantages(estimator, main=MAIN, classmate=CLASSMATE, **more):
    return classmate_advantages(main, classmate, GROUPS, SHOWN, MASK, estimator, **more)


@pytest.mark.parametrize(
    "estimator, more, row, expected",
    [
        ("grpo", {}, 0, [1.0954] * 6),
        ("grpo", {"scale": False}, 0, [4] * 6),
        ("drgrpo", {}, 0, [4] * 6),
        ("grpo_main_classmate_separated", {}, 0, [1.2247, 2.0908, 2.0908, 1.2247, 1.2247, 1.2247]),
        ("grpo_main_classmate_separated", {}, 2, [0, -0.8660, -0.8660, 0, 0, 0]),
        ("grpo_main_classmate_separated", {"placement": "all"}, 0, [2.0908] * 6),
        ("grpo_main_classmate_separated", {"placement": "all"}, 2, [-0.8660] * 4 + [0] * 2),
        ("gdpo_partial", {}, 0, [1.2247, 1.2610, 1.2610, 1.2247, 1.2247, 1.2247]),
        ("gdpo", {"placement": "all"}, 0, [1.2610] * 6),
        ("gdpo_partial", {"scale": False}, 0, [2, 1.3896, 1.3896, 2, 2, 2]),
        ("grpo_w_classmate", {}, 0, [1.2247, 1.0954, 1.0954, 1.2247, 1.2247, 1.2247]),
        ("grpo_w_classmate", {}, 2, [0, -0.5477, -0.5477, 0, 0, 0]),
        ("grpo_w_classmate", {"placement": "all"}, 0, [1.0954] * 6),
        ("grpo_w_classmate", {"scale": False}, 0, [2, 4, 4, 2, 2, 2]),
        ("rloo", {}, 0, [2.6667, 5.3333, 5.3333, 2.6667, 2.6667, 2.6667]),
    ],
)
def test_the_worked_numbers(estimator, more, row, expected):
    assert advantages(estimator, **more)[row].tolist() == pytest.approx(expected, abs=1e-4)


def test_rewards_for_a_critic_stand_where_they_fall_due_and_are_the_worked_ones():
    assert token_rewards(MAIN, CLASSMATE, SHOWN, MASK)[:3].tolist() == [
        [0, 0, 7, 0, 0, 8],
        [0, 0, 3, 0, 4, 0],
        [0, 0, 3, 6, 0, 0],
    ]
    assert token_rewards(MAIN, CLASSMATE, SHOWN, MASK, "all")[0].tolist() == [0, 0, 0, 0, 0, 15]
    felt = (
        token_rewards(MAIN, torch.full((8,), math.nan), SHOWN, MASK).flip(1).cumsum(1).flip(1)[MASK]
    )  # gae with values of zero, gamma and lambda 1
    white = (felt - felt.mean()) / felt.std()
    assert white[0].item() == pytest.approx(1.6441, abs=1e-4) and white[6].item() == pytest.approx(
        -0.3240, abs=1e-4
    )


def published_gdpo(main, classmate, groups, shown, mask, scale, placement):
    "Compute the published formula; a row alone in its group gets 0, as everywhere here"

    def normal(values):
        deviation = statistics.stdev(values) + 1e-6 if scale else 1.0
        return [(value - statistics.mean(values)) / deviation for value in values]

    m, c = [0.0] * len(main), [0.0] * len(main)
    for group in {*groups}:
        rows = [i for i, g in enumerate(groups) if g == group]
        if len(rows) > 1:
            for x, rewards in ((m, main), (c, classmate)):
                for i, value in zip(rows, normal([rewards[i] for i in rows])):
                    x[i] = value
    u = [a + b for a, b in zip(m, c)]
    center = statistics.mean(u)
    deviation = statistics.stdev(u) if len(u) > 1 else 0.0
    z = [(x - center) / (deviation + 1e-6) for x in u]
    return [
        [
            (z[i] if s or placement == "all" else m[i]) * r
            for s, r in zip(shown[i].tolist(), mask[i].tolist())
        ]
        for i in range(len(main))
    ]


def degenerate(kind, main, classmate):
    "Make rewards [B] degenerate"
    return {
        "as drawn": (main, classmate),
        "all equal": (torch.full_like(main, 0.7), torch.full_like(main, 0.1)),
        "opposed": (main, -main),
        "shares of one": (main, 1 - main),
        "classmate equal": (main, torch.full_like(main, 0.3)),
        "main equal": (torch.full_like(main, 0.3), classmate),
    }[kind]


KINDS = ("as drawn", "all equal", "opposed", "shares of one", "classmate equal", "main equal")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gdpo_equals_the_published_one_on_batches_of_every_kind(dtype):
    draw = random.Random(40)
    for trial in range(120):
        rows, width = draw.choice([1, 2, 4, 8, 12]), draw.choice([1, 5])
        groups = draw.choices(range(draw.choice([1, 2, rows])), k=rows)
        values = draw.choice([[0, 1], [0.1, 0.3, 0.7], [-3, 0, 8], [i / 64 for i in range(64)]])
        main, classmate = degenerate(
            KINDS[trial % len(KINDS)],
            *torch.tensor([draw.choices(values, k=rows) for _ in "mc"], dtype=dtype),
        )
        shown, mask = (
            torch.tensor([draw.choices([True, False], k=width) for _ in range(rows)])
            for _ in range(2)
        )
        scale, placement = draw.choice([True, False]), draw.choice(PLACEMENTS)
        found = classmate_advantages(main, classmate, groups, shown, mask, "gdpo", placement, scale)
        expected = torch.tensor(
            published_gdpo(
                main.tolist(), classmate.tolist(), groups, shown, mask.long(), scale, placement
            ),
            dtype=dtype,
        )
        assert found.dtype == dtype and torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_what_is_not_known_teaches_nothing_and_moves_nobody(estimator, placement):
    main, classmate = MAIN.clone(), CLASSMATE.clone()
    main[3], classmate[6] = math.nan, math.nan
    found = advantages(estimator, main, classmate, placement=placement)
    assert found.isfinite().all() and found[3].eq(0).all() and found[~MASK].eq(0).all()
    kept = [0, 1, 2, 4, 5, 6, 7]
    alone = classmate_advantages(
        main[kept], classmate[kept], GROUPS[kept], SHOWN[kept], MASK[kept], estimator, placement
    )
    assert torch.allclose(found[kept], alone), "a row without a score is as good as absent"
    everything = advantages(estimator, torch.full((8,), math.nan), classmate, placement=placement)
    assert everything.eq(0).all()


def test_conditions_follow_the_answer_and_not_the_gold():
    main, classmate = torch.tensor([1.0, 0.0, -1.0, math.nan]), torch.tensor([0.5, 0.5, 0.5, 0.5])
    found = {name: _conditioned(classmate, main, name, 2.0).tolist() for name in CONDITIONS}
    assert found == {
        "always": [1.0] * 4,
        "no_classmate": [0.0] * 4,
        "no_classmate_when_main_incorrect": pytest.approx([1.0, 0.0, 0.0, math.nan], nan_ok=True),
        "neg_classmate_when_main_incorrect": pytest.approx(
            [1.0, -1.0, -1.0, math.nan], nan_ok=True
        ),
    }
