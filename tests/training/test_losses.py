"""The losses of self-distillation give the worked numbers, hold the teacher constant, leave failed
follow-ups alone, and never hold all logits."""

import math

import pytest
import torch
from loss_forms import policy_loss, token_shares

from humanlm.models.logps import CompletionStates
from humanlm.training.losses import (
    _logp_divergence,
    divergence,
    importance,
    in_chunks,
    token_signal,
)

PLAIN, HINDSIGHT, MASK = (
    torch.tensor([[-1.0, -2.0, -0.5]]),
    torch.tensor([[-0.5, -3.0, -0.4]]),
    torch.ones(1, 3).bool(),
)
P, Q = (torch.tensor([row]).log() for row in ([0.5, 0.3, 0.15, 0.05], [0.2, 0.6, 0.15, 0.05]))


def close(found, expected, eps=1e-6):
    torch.testing.assert_close(
        torch.as_tensor(found), torch.as_tensor(expected), atol=eps, rtol=0, check_dtype=False
    )


def gradient(loss, at):
    x = at.clone().requires_grad_()
    value = loss(x)
    return value.detach(), torch.autograd.grad(value, x)[0][0]


@pytest.mark.parametrize(
    "centre, old, moved, value, slope",
    [
        (False, None, {}, -0.483333, (-0.166667, 0.333333, -0.033333)),
        (True, PLAIN, {}, 0.0, (-0.211111, 0.288889, -0.077778)),
        (True, PLAIN, {0: -0.7}, -0.042222, (0, 0.288889, -0.077778)),
        (True, PLAIN, {1: -2.4}, -0.057778, (-0.211111, 0, -0.077778)),
    ],
)
def test_three_tokens_give_the_worked_loss_and_gradient(centre, old, moved, value, slope):
    signal, now = token_signal(HINDSIGHT, PLAIN, MASK, centre=centre), PLAIN.clone()
    close(signal, [[19 / 30, -26 / 30, 7 / 30]] if centre else [[0.5, -1.0, 0.1]])
    for i, x in moved.items():
        now[0, i] = x
    found, grad = gradient(lambda logps: policy_loss(logps, signal, token_shares(MASK), old), now)
    close(found, value)
    close(grad, slope)


def test_four_words_give_the_worked_divergences_and_gradient():
    for form, expected in {
        (1,): 0.250201,
        (0,): 0.232630,
        (0.5,): 0.058692,
        (1, 2): 0.250201,
        (1, 2, False): 0.312752,
    }.items():
        close(divergence(P, Q, *form), [expected])
    mixture = (P.exp() + Q.exp()).log() - math.log(2)
    close(
        [_logp_divergence(P, mixture, 1).item(), _logp_divergence(Q, mixture, 1).item()],
        [0.056698, 0.060686],
    )
    close(
        gradient(lambda z: divergence(z, Q).sum(), P)[1],
        (0.333045, -0.283005, -0.037530, -0.012510),
    )
    assert 0 < divergence(P, Q, 0.01) < 0.0024, "the mixture goes to 0 at its ends"


def test_no_gradient_reaches_the_teacher_nor_the_advantage():
    student, teacher, reading = (x.clone().requires_grad_() for x in (P, Q, PLAIN))
    for form in ((1,), (0,), (0.5,), (1, 2), (1, 2, False)):
        assert (
            torch.autograd.grad(
                divergence(student, teacher, *form).sum(), [student, teacher], allow_unused=True
            )[1]
            is None
        ), form
    assert not token_signal(HINDSIGHT.clone().requires_grad_(), reading, MASK).requires_grad
    assert not importance(reading, PLAIN).requires_grad
    head = torch.nn.Linear(4, 9)

    def known():
        return CompletionStates(
            head, torch.randn(3, 4, requires_grad=True), torch.arange(3), torch.ones(1, 3).bool()
        )

    ours, theirs = known(), known()
    grads = torch.autograd.grad(
        in_chunks(divergence, ours, [(theirs, 1.0)], chunk=2).sum(),
        [ours.states, theirs.states],
        allow_unused=True,
    )
    assert grads[0].abs().sum() > 0 and grads[1] is None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"centre": True},
        {"centre": True, "skip": 1},
    ],
)
def test_a_failed_follow_up_and_padding_get_exactly_zero_and_change_nobody_else(options):
    torch.manual_seed(0)
    hindsight, plain, mask = torch.randn(4, 5), torch.randn(4, 5), torch.ones(4, 5).bool()
    mask[2, 3:] = False
    alone = token_signal(hindsight, plain, mask, **options)
    hindsight[1], hindsight[2, 3:] = (
        math.nan,
        math.nan,
    )  # a user that failed; padding without a number
    found = token_signal(hindsight, plain, mask, **options)
    assert found[1].tolist() == [0.0] * 5 and found[2, 3:].tolist() == [0.0] * 2
    assert torch.equal(found[[0, 2, 3]], alone[[0, 2, 3]])
    assert policy_loss(plain, found, token_shares(mask)).isfinite()
