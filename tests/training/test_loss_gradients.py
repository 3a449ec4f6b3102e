"""Gradients of the losses by enumeration and finite differences, a step in portions of any size,
and how much of the logits is in memory at once."""

import weakref
from itertools import product

import pytest
import torch
from loss_forms import policy_loss, token_shares
from torch.utils._python_dispatch import TorchDispatchMode

from humanlm.models.logps import CompletionStates, chosen_logps
from humanlm.training.losses import (
    divergence,
    in_chunks,
)

STUDENT, TEACHER = (
    torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(),
    torch.tensor([[0.2, 0.6, 0.15, 0.05]]).log(),
)
FORMS = [
    dict(alpha=a, topk=k, tail=tail)
    for a, (k, tail) in product((1.0, 0.0, 0.5, 0.2), ((None, True), (2, True), (2, False)))
]


def is_close(found, expected, atol=1e-6):
    torch.testing.assert_close(found, torch.as_tensor(expected).to(found), atol=atol, rtol=0)


def slope(of, at):
    "Value and gradient of a function of one tensor"
    at = at.detach().clone().requires_grad_()
    value = of(at)
    return value.detach(), torch.autograd.grad(value.sum(), at)[0]


@pytest.mark.parametrize("options", FORMS)
def test_gradients_of_divergences_are_those_of_finite_differences(options):
    def at(z):
        return divergence(z, TEACHER, **options)

    found, step = slope(at, STUDENT)[1][0], 1e-2
    for i in range(4):
        shift = torch.zeros_like(STUDENT)
        shift[0, i] = step
        assert found[i].item() == pytest.approx(
            ((at(STUDENT + shift) - at(STUDENT - shift)) / (2 * step)).item(), abs=2e-4
        )


@pytest.mark.parametrize(
    "aggregation, step",
    [
        ("sequence", dict(rows=4)),
        ("token", dict(rows=4, tokens=11)),
        ("constant", dict(rows=4, length=9)),
    ],
)
@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [2, 2], [3, 1]])
def test_a_step_in_portions_has_the_loss_and_gradient_of_a_step_at_once(aggregation, step, sizes):
    torch.manual_seed(0)
    lengths, logps, signal = (5, 1, 3, 2), -torch.rand(4, 5), torch.randn(4, 5)
    mask = torch.tensor([[t < n for t in range(5)] for n in lengths])

    def at_once(now):
        return policy_loss(now, signal, token_shares(mask, aggregation, **step), logps)

    def in_portions(now):
        return sum(
            policy_loss(
                *(x[rows] for x in (now, signal)),
                token_shares(mask[rows], aggregation, **step),
                logps[rows],
            )
            for rows in torch.arange(4).split(sizes)
        )

    moved = logps + 0.3 * torch.randn(4, 5)
    for found, expected in zip(slope(in_portions, moved), slope(at_once, moved)):
        is_close(found, expected)
    assert torch.equal(
        token_shares(mask, aggregation, **{k: v for k, v in step.items() if k == "length"}),
        token_shares(mask, aggregation, **step),
    )


def states(positions, words, width=3, seed=0):
    torch.manual_seed(seed)
    head = torch.nn.Linear(width, words, bias=False)
    return CompletionStates(
        head,
        torch.randn(positions, width, requires_grad=True),
        torch.randint(words, (positions,)),
        torch.ones(1, positions, dtype=torch.bool),
    )


def CHOSEN(ours, theirs, ids):
    return chosen_logps(ours, ids) - (0 if theirs is None else chosen_logps(theirs, ids))


def TOP(ours, theirs, ids):
    return divergence(ours, theirs, 0.5, 5)


@pytest.mark.parametrize(
    "function, weights",
    [(TOP, [1.0]), (TOP, [0.9, 0.1]), (TOP, [1.0, -1.0, 1.0]), (CHOSEN, [1.0]), (CHOSEN, [])],
)
@pytest.mark.parametrize("chunk", [1, 4, 7, None])
def test_chunks_have_the_value_and_the_gradient_of_the_whole(function, weights, chunk):
    student, teachers = (
        states(10, 30),
        [(states(10, 30, seed=i + 1), weight) for i, weight in enumerate(weights)],
    )

    def whole():
        theirs = (
            sum(weight * known.head(known.states) for known, weight in teachers) / 0.7
            if teachers
            else None
        )
        return function(
            student.head(student.states) / 0.7,
            theirs if theirs is None else theirs.detach(),
            student.ids,
        )

    found = []
    for value in (
        in_chunks(function, student, teachers, student.ids, chunk=chunk, temperature=0.7),
        whole(),
    ):
        found.append(
            [
                value.detach(),
                *torch.autograd.grad(
                    (value * torch.arange(10)).sum(), [student.states, student.head.weight]
                ),
            ]
        )
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert all(x.grad is None for known, _ in teachers for x in (known.states, known.head.weight))


class Held(TorchDispatchMode):
    "Count the numbers of tensors with one column per word that are alive at the same time"

    def __init__(self, words, positions):
        super().__init__()
        self.words, self.positions, self.known, self.now, self.peak = words, positions, set(), 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for x in found if isinstance(found, (tuple, list)) else [found]:
            if (
                isinstance(x, torch.Tensor)
                and x.ndim == 2
                and x.shape[1] == self.words
                and x.shape[0] in self.positions
            ):
                self.hold(x.untyped_storage(), x.numel())
        return found

    def hold(self, storage, count):
        place = storage.data_ptr()
        if place in self.known:
            return
        self.known.add(place)
        self.now += count
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.free, place, count)

    def free(self, place, count):
        self.known.discard(place)
        self.now -= count


def held(words, positions=64, **options):
    "The most numbers of logits in memory in a pass forward and back, and those kept between them"
    student, teacher, saved = states(positions, words), states(positions, words, seed=1), []
    sizes = {options.get("chunk") or student.chunk, positions}

    def note(x):
        if x.shape[-1:] == (words,) and x.shape[0] in sizes:
            saved.append(x.numel())
        return x

    with Held(words, sizes) as mode, torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        total = in_chunks(
            lambda a, b: divergence(a, b, 1.0, 5), student, [(teacher, 1.0)], **options
        ).sum()
        total.backward()
    return mode.peak, sum(saved)


def test_logits_in_memory_are_those_of_one_chunk_whatever_the_vocabulary():
    found = {words: held(words, chunk=4) for words in (1_000, 8_000, 32_000)}
    chunks = {words: peak / (4 * words) for words, (peak, _) in found.items()}
    assert len(set(chunks.values())) == 1 and 1 <= chunks[1_000] <= 8, chunks
    assert all(saved == 0 for _, saved in found.values()), (
        "no logits are kept between the two passes"
    )
    assert held(8_000, chunk=64)[0] == 16 * found[8_000][0], (
        "this is what all positions at once would take"
    )
