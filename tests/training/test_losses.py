"""The losses of self-distillation give the worked numbers, hold the teacher constant, leave failed
follow-ups alone, and never hold all logits."""

import math

import pytest
import torch
from loss_forms import policy_loss, token_shares
from torch.utils._python_dispatch import TorchDispatchMode

from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.models.logps import CompletionStates, chosen_logps, completion_states, token_logps
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


def test_one_sampled_token_gives_the_gradient_of_the_divergence_in_the_mean():
    def sampled(word):
        return gradient(
            lambda z: policy_loss(
                chosen_logps(z, torch.tensor([word]))[None],
                token_signal(
                    *(chosen_logps(x, torch.tensor([word]))[None] for x in (Q, P)),
                    torch.ones(1, 1).bool(),
                ),
                torch.ones(1, 1),
            ),
            P,
        )[1]

    each = torch.stack([sampled(word) for word in range(4)])
    exact = gradient(lambda z: divergence(z, Q).sum(), P)[1]
    close(P[0].exp() @ each, exact)
    close(torch.tensor([0.1, 0.1, 0.7, 0.1]) @ each, (0.080472, -0.076009, -0.003347, -0.001116))


def test_sequence_log_ratio_of_a_bayesian_teacher_is_the_reward_in_the_mean():
    reward, prior, policy = (
        torch.tensor([[0.2, -0.5], [1.0, 0.3]]).double(),
        torch.tensor([0.4, 0.6]).double(),
        torch.tensor([0.7, 0.3]).double(),
    )  # [y, o], p(o), p(y)
    weight = prior * reward.exp()
    z = weight.sum(1, keepdim=True)
    follows = weight / z
    ratio = (follows / (policy @ follows)).log()  # posterior / policy = p(o|y) / p(o)
    hindsight = policy.log()[:, None] + ratio
    found = token_signal(hindsight, policy.log()[:, None].expand(2, 2), torch.ones(2, 2).bool())
    close(found, ratio, 1e-6)
    close(hindsight.exp().sum(0), [1.0, 1.0], 1e-9)


def test_one_context_twice_gives_no_signal_and_no_gradient():
    for options in ({}, {"centre": True}, {"shape": "tanh"}, {"shape": "scale"}, {"clip": 0.1}):
        assert token_signal(PLAIN, PLAIN, MASK, **options).abs().max() == 0, options
    z = torch.randn(5, 9)
    for form in ((1,), (0,), (0.5,), (1, 3), (1, 3, False)):
        value, grad = gradient(lambda x: divergence(x[0], z, *form).sum(), z[None])
        assert abs(value) < 1e-6 and grad.abs().max() < 1e-6, form


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
        {"shape": "scale"},
        {"shape": "tanh", "clip": 0.5},
        {"centre": True, "clip": 0.1, "skip": 1},
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


class Largest(TorchDispatchMode):
    "Notes the most numbers that any tensor made inside the block has"

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor):
                self.most = max(self.most, x.numel())
        return out


@pytest.mark.parametrize("vocabulary", [2000, 8000])
def test_neither_way_holds_more_than_one_chunk_of_logits(vocabulary):
    torch.manual_seed(0)
    head, n, chunk = torch.nn.Linear(8, vocabulary, bias=False), 64, 4

    def known():
        return CompletionStates(
            head, torch.randn(n, 8, requires_grad=True), torch.arange(n), torch.ones(1, n).bool()
        )

    student, teacher, kept = known(), known(), []

    def topk(z, q):
        return divergence(z, q, 1, 20)

    def keep(x):
        kept.append((x.data_ptr(), x.numel()))
        return x

    with Largest() as watch:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            loss = in_chunks(topk, student, [(teacher, 1.0)], chunk=chunk).sum()
        loss.backward()
    assert watch.most == vocabulary * 8, (
        "the largest tensor is the head and its gradient; a chunk of logits is half of "
        "it, all of them are eight times as much"
    )
    other = sum(size for size in dict(kept).values() if size != vocabulary * 8)
    assert other <= 3 * n * 8 + 3 * n, "what waits for the way back are states, not logits"
    exact = torch.autograd.grad(
        topk(head(student.states), head(teacher.states)).sum(), [student.states, head.weight]
    )
    close(student.states.grad, exact[0])
    close(head.weight.grad, exact[1], 1e-5)


@pytest.fixture(scope="module")
def tiny():
    made = make_model(
        ModelConfig(vocab=400, hidden=32, heads=2, kv_heads=2, mlp=48), ["a short text"]
    )
    prompts, replies = [[5, 6, 7, 8], [9], [5, 6]], [[10, 11], [12, 13, 14, 15], [16]]
    return made.model, prompts, replies


def test_states_of_mixed_lengths_equal_one_reply_at_a_time(tiny):
    model, prompts, replies = tiny
    with torch.no_grad():
        small, whole = (
            completion_states(model, prompts, replies, batch_tokens=size) for size in (1, 1000)
        )
    known = completion_states(model, prompts, replies)
    assert known.states.requires_grad and not whole.states.requires_grad
    assert whole.ids.tolist() == [i for reply in replies for i in reply] and whole.mask.sum(
        1
    ).tolist() == [2, 4, 1]
    for found in (small, whole, known):
        logits = found.head(found.states)
        alone = torch.cat(
            [
                model(torch.tensor([p + r])).logits[0, len(p) - 1 : -1]
                for p, r in zip(prompts, replies)
            ]
        )
        close(logits, alone, 1e-4)
    with torch.no_grad():
        close(
            chosen_logps(logits, known.ids),
            token_logps(model, prompts, replies).logps[known.mask],
            1e-5,
        )


def test_states_of_a_wrapped_model_come_out_of_its_own_forward_pass(tiny):
    model, prompts, replies = tiny

    class Wrapped(
        torch.nn.Module
    ):  # as DistributedDataParallel wraps: no config, the model in `module`
        calls = 0

        def __init__(self):
            super().__init__()
            self.module = model

        def forward(self, **asked):
            self.calls += 1
            return self.module(**asked)

    wrapped = Wrapped()
    known, own = (
        completion_states(wrapped, prompts, replies),
        completion_states(model, prompts, replies),
    )
    assert wrapped.calls == 1 and torch.equal(known.states, own.states)
    assert not model.base_model._forward_hooks, "nobody goes on listening"
    with torch.no_grad():
        completion_states(wrapped, prompts, replies)
    assert wrapped.calls == 1, "without gradients there is nothing to join"
    loss = in_chunks(divergence, known, [(own, 1.0)], temperature=0.7).sum()
    assert abs(loss.item()) < 1e-5


def test_half_precision_is_computed_in_float32():
    z, q = (torch.randn(4, 1000) * 3).bfloat16(), (torch.randn(4, 1000) * 3).bfloat16()
    for form in ((1,), (0,), (0.5,), (1, 20), (1, 20, False)):
        found = divergence(z, q, *form)
        assert found.dtype == torch.float32
        assert torch.equal(found, divergence(z.float(), q.float(), *form)), form
    assert (
        chosen_logps(z, torch.arange(4)).dtype
        == token_signal(HINDSIGHT.half(), PLAIN.half(), MASK).dtype
        == torch.float32
    )
