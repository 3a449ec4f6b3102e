"""Every number of the published arithmetic, gradients by enumeration, and how much of the logits is in memory at once."""
import math
import weakref
from itertools import product

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import humanlm.models.weights
from humanlm.core.basics import HumanLMError
from humanlm.models.weights import CompletionStates
from humanlm.training.losses import (
    blend, chosen_logps, divergence, importance, in_chunks, kl_estimate, logp_divergence, policy_loss, support, token_shares, token_signal,
    two_views,
)

PLAIN, HINDSIGHT, ALL = torch.tensor([[-1.0, -2.0, -0.5]]), torch.tensor([[-0.5, -3.0, -0.4]]), torch.ones(1, 3, dtype=torch.bool)
STUDENT, TEACHER = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), torch.tensor([[0.2, 0.6, 0.15, 0.05]]).log()
FORMS = [dict(alpha=a, topk=k, tail=tail) for a, (k, tail) in product((1.0, 0.0, 0.5, 0.2), ((None, True), (2, True), (2, False)))]


def is_close(found, expected, atol=1e-6): torch.testing.assert_close(found, torch.as_tensor(expected).to(found), atol=atol, rtol=0)


def slope(of, at):
    "Value and gradient of a function of one tensor"
    at = at.detach().clone().requires_grad_()
    value = of(at)
    return value.detach(), torch.autograd.grad(value.sum(), at)[0]


# ---- the numbers

def test_one_sample_form_in_numbers():
    signal = token_signal(HINDSIGHT, PLAIN, ALL)
    is_close(signal, [[0.5, -1.0, 0.1]])
    is_close(signal.mean(), -0.133333)
    value, gradient = slope(lambda l: policy_loss(l, signal, token_shares(ALL)), PLAIN)
    is_close(value, -0.483333)
    is_close(gradient, [[-0.166667, 0.333333, -0.033333]])


@pytest.mark.parametrize("moved, loss, gradient", [
    (PLAIN, 0.0, [-0.211111, 0.288889, -0.077778]),
    (torch.tensor([[-0.7, -2.0, -0.5]]), -0.042222, [0.0, 0.288889, -0.077778]),
    (torch.tensor([[-1.0, -2.4, -0.5]]), -0.057778, [-0.211111, 0.0, -0.077778])])
def test_centred_form_with_ratios_in_numbers(moved, loss, gradient):
    signal = token_signal(HINDSIGHT, PLAIN, ALL, centre=True)
    is_close(signal, [[0.633333, -0.866667, 0.233333]])
    value, found = slope(lambda l: policy_loss(l, signal, token_shares(ALL), PLAIN), moved)
    is_close(value, loss)
    is_close(found, [gradient])


@pytest.mark.parametrize("options, expected", [
    (dict(alpha=1), 0.250201), (dict(alpha=0), 0.232630), (dict(alpha=0.5), 0.058692), (dict(alpha=1, topk=2), 0.250201),
    (dict(alpha=1, topk=2, tail=False), 0.312752), (dict(alpha=1, topk=9), 0.250201)])
def test_divergences_in_numbers(options, expected): is_close(divergence(STUDENT, TEACHER, **options), [expected])


def test_halves_of_the_mixture_and_its_ends_in_numbers():
    mixture = (STUDENT.exp() + TEACHER.exp()).log() - math.log(2)
    is_close(logp_divergence(STUDENT, mixture, 1), [0.056698])
    is_close(logp_divergence(TEACHER, mixture, 1), [0.060686])
    assert 0.002 < divergence(STUDENT, TEACHER, 0.01).item() < 0.0025, "the mixture does not go over into either KL"


def test_gradient_of_the_reverse_divergence_in_numbers():
    is_close(slope(lambda z: divergence(z, TEACHER), STUDENT)[1], [[0.333045, -0.283005, -0.037530, -0.012510]])


# ---- gradients by enumeration

def sampled_gradient(drawn):
    "The mean gradient along the logits of the one-sample form, of tokens drawn with these probabilities"
    found = torch.zeros_like(STUDENT)
    for token, share in enumerate(drawn):
        ids = torch.tensor([token])
        signal = token_signal(chosen_logps(TEACHER, ids)[:, None], chosen_logps(STUDENT, ids)[:, None], ALL[:, :1])
        found += share * slope(lambda z: policy_loss(chosen_logps(z, ids)[:, None], signal, token_shares(ALL[:, :1])), STUDENT)[1]
    return found


def test_the_one_sample_form_has_the_gradient_of_the_divergence_where_the_policy_drew_and_not_where_a_log_did():
    is_close(sampled_gradient(STUDENT[0].exp()), slope(lambda z: divergence(z, TEACHER), STUDENT)[1])
    is_close(sampled_gradient(torch.tensor([0.1, 0.1, 0.7, 0.1])), [[0.080472, -0.076009, -0.003347, -0.001116]])


@pytest.mark.parametrize("options", FORMS)
def test_gradients_of_divergences_are_those_of_finite_differences(options):
    def at(z): return divergence(z, TEACHER, **options)
    found, step = slope(at, STUDENT)[1][0], 1e-2
    for i in range(4):
        shift = torch.zeros_like(STUDENT)
        shift[0, i] = step
        assert found[i].item() == pytest.approx(((at(STUDENT + shift) - at(STUDENT - shift)) / (2 * step)).item(), abs=2e-4)


def test_two_views_of_a_binary_token_disagree():
    is_close(torch.tensor(two_views()), [0.10918, -0.12656], atol=5e-6)


def test_the_two_views_are_the_gradients_of_our_losses():
    logits, policy, inside = torch.tensor([[0.0, math.log(0.1 / 0.9)]]), (0.9, 0.1), ALL[:, :1]
    sampled = fixed = 0.0
    for said in (0, 1):
        likely = torch.tensor([0.9 if said == token else 0.1 for token in (0, 1)])
        posterior, marginal = (logits.softmax(-1) * likely).log(), (logits.softmax(-1) * likely).sum().item()
        fixed -= marginal * slope(lambda z: divergence(z, posterior.log_softmax(-1)), logits)[1][0, 1].item()
        for token in (0, 1):
            ids = torch.tensor([token])
            signal = token_signal(chosen_logps(posterior, ids)[:, None], chosen_logps(logits, ids)[:, None], inside)
            gradient = slope(lambda z: policy_loss(chosen_logps(z, ids)[:, None], signal, token_shares(inside)), logits)[1][0, 1].item()
            sampled -= policy[token] * likely[token].item() * gradient
    assert (sampled, fixed) == pytest.approx((0.10918, -0.12656), abs=5e-6) == two_views()


def test_equal_contexts_push_nothing():
    assert token_signal(PLAIN, PLAIN, ALL).tolist() == [[0, 0, 0]]
    for options in FORMS:
        value, gradient = slope(lambda z: divergence(z, STUDENT, **options), STUDENT)
        is_close(value, [0.0])
        is_close(gradient, torch.zeros(1, 4))


@pytest.mark.parametrize("options", FORMS)
def test_a_teacher_gets_no_gradient(options):
    teacher, student = TEACHER.clone().requires_grad_(), STUDENT.clone().requires_grad_()
    divergence(student, teacher, **options).sum().backward()
    assert teacher.grad is None and student.grad.abs().sum() > 0


def test_signals_ratios_and_references_are_constants():
    tensors = [x.clone().requires_grad_() for x in (HINDSIGHT, PLAIN, PLAIN, PLAIN)]
    hindsight, plain, old, reference = tensors
    live = PLAIN.clone().requires_grad_()
    signal = token_signal(hindsight, plain, ALL, control=old)
    (policy_loss(live, signal, token_shares(ALL), old) + (importance(live, old) * kl_estimate(live, reference)).sum()).backward()
    assert all(x.grad is None for x in tensors) and not signal.requires_grad and live.grad.abs().sum() > 0


def test_a_penalty_pulls_towards_the_reference_and_not_at_random():
    value, gradient = slope(lambda l: kl_estimate(l, HINDSIGHT), PLAIN)
    gap = HINDSIGHT - PLAIN
    is_close(value, gap.exp() - gap - 1)
    is_close(gradient, 1 - gap.exp())
    assert (gradient.sign() == -gap.sign()).all() and (value > 0).all()


def test_a_penalty_on_drawn_tokens_has_the_divergence_and_with_the_ratio_its_gradient_in_the_mean():
    def drawn(z, ratio):
        logps = z.log_softmax(-1)
        return (STUDENT.exp() * kl_estimate(logps, TEACHER) * ((logps - logps.detach()).exp() if ratio else 1)).sum(-1)
    for found, expected in zip(slope(lambda z: drawn(z, True), STUDENT), slope(lambda z: divergence(z, TEACHER), STUDENT)): is_close(found, expected)
    assert (slope(lambda z: drawn(z, False), STUDENT)[1] - slope(lambda z: divergence(z, TEACHER), STUDENT)[1]).abs().max() > 0.03


# ---- number formats

def test_numbers_of_half_precision_are_compared_in_single():
    torch.manual_seed(0)
    student, teacher, ids = torch.randn(6, 50_000).bfloat16(), torch.randn(6, 50_000).bfloat16(), torch.arange(6)
    for options in (dict(alpha=1.0), dict(alpha=0.5, topk=100), dict(alpha=0.0, topk=20, tail=False)):
        value, gradient = slope(lambda z: divergence(z, teacher, **options), student)
        exact = slope(lambda z: divergence(z, teacher.float(), **options), student.float())
        assert value.dtype == torch.float32 and torch.equal(value, exact[0]) and torch.equal(gradient, exact[1].bfloat16())
    assert torch.equal(chosen_logps(student, ids), chosen_logps(student.float(), ids))
    assert torch.equal(blend([student, teacher], [0.9, 0.1]), blend([student.float(), teacher.float()], [0.9, 0.1]))
    signal = token_signal(HINDSIGHT.bfloat16(), PLAIN.bfloat16(), ALL)
    assert signal.dtype == torch.float32 and torch.equal(signal, HINDSIGHT.bfloat16().float() - PLAIN.bfloat16().float())


# ---- what is compared

def test_a_tail_bucket_makes_top_tokens_a_distribution_that_loses_at_most_what_it_lumps():
    torch.manual_seed(1)
    student, teacher = torch.randn(64, 40) * 2, torch.randn(64, 40) * 2
    whole = divergence(student, teacher)
    for k in (1, 3, 10, 39, 40, 99):
        for logps in support(student, teacher, k): is_close(logps.logsumexp(-1), torch.zeros(64), atol=1e-5)
        lumped = divergence(student, teacher, topk=k)
        assert (lumped <= whole + 1e-5).all() and (lumped >= -1e-6).all() and lumped.isfinite().all()
    is_close(divergence(student, teacher, topk=39), whole, atol=1e-4)


def test_top_tokens_alone_are_normalised_among_themselves_and_are_the_students():
    logps, other = support(STUDENT, TEACHER, 2, tail=False)
    is_close(logps.exp(), [[0.625, 0.375]])
    is_close(other.exp(), [[0.25, 0.75]])
    chosen = support(TEACHER, STUDENT, 1)[0]
    is_close(chosen.exp(), [[0.6, 0.4]])


def test_a_student_who_is_certain_leaves_an_empty_tail_and_finite_numbers():
    sure = torch.tensor([[90.0, 0.0, -20.0, 0.0]])
    for options in FORMS:
        value, gradient = slope(lambda z: divergence(z, TEACHER, **options), sure)
        assert value.isfinite().all() and gradient.isfinite().all(), options


# ---- the shape of a signal

ROWS = torch.tensor([[0.5, -4.0, 0.5, 1.0], [9.0, 1.0, -1.0, 7.0]])
WRITTEN = torch.tensor([[True] * 4, [False, True, True, False]])


@pytest.mark.parametrize("options, expected", [
    ({}, [[0.5, -4.0, 0.5, 1.0], [0, 1.0, -1.0, 0]]), (dict(clip=0.75), [[0.5, -0.75, 0.5, 0.75], [0, 0.75, -0.75, 0]]),
    (dict(skip=2), [[0, 0, 0.5, 1.0], [0, 0, -1.0, 0]]), (dict(centre=True), [[1.0, -3.5, 1.0, 1.5], [0, 1.0, -1.0, 0]]),
    (dict(centre=True, skip=1), [[0, -4.0 + 2.5 / 3, 0.5 + 2.5 / 3, 1.0 + 2.5 / 3], [0, 1.0, -1.0, 0]]),
    (dict(shape="scale"), [[1 / 3, -8 / 3, 1 / 3, 2 / 3], [0, 1.0, -1.0, 0]]),
    (dict(shape="scale", clip=2.0), [[1 / 3, -2.0, 1 / 3, 2 / 3], [0, 1.0, -1.0, 0]]),
    (dict(shape="tanh"), [[math.tanh(x) for x in (0.5, -4.0, 0.5, 1.0)], [0, math.tanh(1), -math.tanh(1), 0]]),
    (dict(shape="tanh", clip=2.0), [[2 * math.tanh(x / 2) for x in (0.5, -4.0, 0.5, 1.0)], [0, 2 * math.tanh(0.5), -2 * math.tanh(0.5), 0]]),
    (dict(skip=9), [[0.0] * 4] * 2)])
def test_shapes_of_a_signal(options, expected): is_close(token_signal(ROWS, torch.zeros(2, 4), WRITTEN, **options), expected)


def test_a_control_takes_the_place_of_the_plain_reading():
    is_close(token_signal(ROWS, torch.full((2, 4), 50.0), WRITTEN, control=torch.ones(2, 4)), [[-0.5, -5.0, -0.5, 0.0], [0, 0.0, -2.0, 0]])


@pytest.mark.parametrize("options", [{}, dict(centre=True), dict(shape="scale"), dict(shape="tanh"), dict(clip=1.0), dict(control=torch.zeros(2, 4))])
@pytest.mark.parametrize("lost", ["hindsight", "plain"])
def test_a_failed_followup_moves_exactly_nothing_and_leaves_the_others(lost, options):
    hindsight, plain = ROWS.clone(), torch.zeros(2, 4)
    if lost == "plain" and "control" in options: options = dict(control=plain.clone())
    broken = options.get("control", plain) if lost == "plain" else hindsight
    broken[0, 2] = math.nan
    found = token_signal(hindsight, plain, WRITTEN, **options)
    assert found[0].tolist() == [0, 0, 0, 0]
    assert torch.equal(found[1], token_signal(ROWS, torch.zeros(2, 4), WRITTEN, **options)[1]) and found[1].abs().sum() > 0


def test_what_stands_outside_the_mask_may_be_anything():
    found = token_signal(torch.where(WRITTEN, ROWS, math.nan), torch.where(WRITTEN, 0.0, math.inf), WRITTEN, centre=True)
    assert torch.equal(found, token_signal(ROWS, torch.zeros(2, 4), WRITTEN, centre=True))


def test_an_unknown_shape_or_aggregation_is_named():
    with pytest.raises(HumanLMError, match="shape"): token_signal(ROWS, ROWS, WRITTEN, shape="tan")
    with pytest.raises(HumanLMError, match="aggregation"): token_shares(WRITTEN, "sequences")


# ---- one step in portions

@pytest.mark.parametrize("aggregation, step", [("sequence", dict(rows=4)), ("token", dict(rows=4, tokens=11)), ("constant", dict(rows=4, length=9))])
@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [2, 2], [3, 1]])
def test_a_step_in_portions_has_the_loss_and_gradient_of_a_step_at_once(aggregation, step, sizes):
    torch.manual_seed(0)
    lengths, logps, signal = (5, 1, 3, 2), -torch.rand(4, 5), torch.randn(4, 5)
    mask = torch.tensor([[t < n for t in range(5)] for n in lengths])
    def at_once(l): return policy_loss(l, signal, token_shares(mask, aggregation, **step), logps)
    def in_portions(l): return sum(policy_loss(*(x[rows] for x in (l, signal)), token_shares(mask[rows], aggregation, **step), logps[rows])
                                   for rows in torch.arange(4).split(sizes))
    moved = logps + 0.3 * torch.randn(4, 5)
    for found, expected in zip(slope(in_portions, moved), slope(at_once, moved)): is_close(found, expected)
    assert torch.equal(token_shares(mask, aggregation, **{k: v for k, v in step.items() if k == "length"}), token_shares(mask, aggregation, **step))


def test_shares_say_whose_mean_is_taken():
    mask = torch.tensor([[True, True], [True, False]])
    is_close(token_shares(mask), [[0.25, 0.25], [0.5, 0]])
    is_close(token_shares(mask, "token"), [[1 / 3, 1 / 3], [1 / 3, 0]])
    is_close(token_shares(mask, "constant"), [[0.25, 0.25], [0.25, 0]])
    assert token_shares(torch.zeros(2, 2, dtype=torch.bool)).tolist() == [[0, 0], [0, 0]]


def test_weights_of_moved_tokens_are_bounded():
    moved, old = torch.tensor([-1.0, 0.0, -90.0]), torch.tensor([-1.0, -3.0, 0.0])
    is_close(importance(moved, old), [1.0, 2.0, math.exp(-20)])


# ---- chunks of logits

def states(positions, words, width=3, seed=0):
    torch.manual_seed(seed)
    head = torch.nn.Linear(width, words, bias=False)
    return CompletionStates(head, torch.randn(positions, width, requires_grad=True), torch.randint(words, (positions,)), torch.ones(1, positions, dtype=torch.bool))


CHOSEN = lambda ours, theirs, ids: chosen_logps(ours, ids) - (0 if theirs is None else chosen_logps(theirs, ids))  # noqa: E731
TOP = lambda ours, theirs, ids: divergence(ours, theirs, 0.5, 5)  # noqa: E731


@pytest.mark.parametrize("function, weights", [(TOP, [1.0]), (TOP, [0.9, 0.1]), (TOP, [1.0, -1.0, 1.0]), (CHOSEN, [1.0]), (CHOSEN, [])])
@pytest.mark.parametrize("chunk", [1, 4, 7, None])
def test_chunks_have_the_value_and_the_gradient_of_the_whole(function, weights, chunk):
    student, teachers = states(10, 30), [(states(10, 30, seed=i + 1), weight) for i, weight in enumerate(weights)]
    def whole():
        theirs = sum(weight * known.head(known.states) for known, weight in teachers) / 0.7 if teachers else None
        return function(student.head(student.states) / 0.7, theirs if theirs is None else theirs.detach(), student.ids)
    found = []
    for value in (in_chunks(function, student, teachers, student.ids, chunk=chunk, temperature=0.7), whole()):
        found.append([value.detach(), *torch.autograd.grad((value * torch.arange(10)).sum(), [student.states, student.head.weight])])
    for ours, theirs in zip(*found): torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert all(x.grad is None for known, _ in teachers for x in (known.states, known.head.weight))


class Held(TorchDispatchMode):
    "Count the numbers of tensors with one column per word that are alive at the same time"

    def __init__(self, words, positions):
        super().__init__()
        self.words, self.positions, self.known, self.now, self.peak = words, positions, set(), 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for x in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(x, torch.Tensor) and x.ndim == 2 and x.shape[1] == self.words and x.shape[0] in self.positions: self.hold(x.untyped_storage(), x.numel())
        return found

    def hold(self, storage, count):
        place = storage.data_ptr()
        if place in self.known: return
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
        if x.shape[-1:] == (words,) and x.shape[0] in sizes: saved.append(x.numel())
        return x

    with Held(words, sizes) as mode, torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        total = in_chunks(lambda a, b: divergence(a, b, 1.0, 5), student, [(teacher, 1.0)], **options).sum()
        total.backward()
    return mode.peak, sum(saved)


def test_logits_in_memory_are_those_of_one_chunk_whatever_the_vocabulary():
    found = {words: held(words, chunk=4) for words in (1_000, 8_000, 32_000)}
    chunks = {words: peak / (4 * words) for words, (peak, _) in found.items()}
    assert len(set(chunks.values())) == 1 and 1 <= chunks[1_000] <= 8, chunks
    assert all(saved == 0 for _, saved in found.values()), "no logits are kept between the two passes"
    assert held(8_000, chunk=64)[0] == 16 * found[8_000][0], "this is what all positions at once would take"


def test_with_a_fixed_memory_a_greater_vocabulary_takes_fewer_positions_at_a_time(monkeypatch):
    monkeypatch.setattr(humanlm.models.weights, "_LOGITS", 1 << 15)
    found = [held(words)[0] for words in (1 << 10, 1 << 12, 1 << 15)]
    assert found[0] == found[1] == found[2] <= 8 * (1 << 15)
    with torch.no_grad():
        student = states(64, 1 << 12)
        with Held(1 << 12, {8}) as mode: in_chunks(lambda ours, _: ours.logsumexp(-1), student, [])
        assert 0 < mode.peak <= 3 * (1 << 15)
