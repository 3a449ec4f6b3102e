"""Gradients of the losses by enumeration and finite differences, a step in portions of any size,
and how much of the logits is in memory at once."""

from itertools import product

import pytest
import torch

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
