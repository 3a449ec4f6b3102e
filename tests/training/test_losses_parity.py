"Our losses equal those of TRL's self-distillation trainers on the same batch of a tiny model."
import os
from types import SimpleNamespace

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import pytest
import torch
from trl.experimental.sdft.sdft_trainer import DistillationLogits, SDFTTrainer
from trl.experimental.sdpo.sdpo_trainer import SDPOTrainer

from humanlm.models.weights import ModelConfig, completion_states, make_model
from humanlm.training.losses import chosen_logps, divergence, importance, in_chunks, policy_loss, token_shares, token_signal

FORMS = {
    "sampled": dict(distillation_mode="sampled_token", distillation_alpha=1.0),
    "full, reverse": dict(distillation_mode="full_logits", distillation_alpha=1.0),
    "full, forward": dict(distillation_mode="full_logits", distillation_alpha=0.0),
    "full, mixture": dict(distillation_mode="full_logits", distillation_alpha=0.3),
    "top 20 and tail": dict(distillation_mode="topk_logits", distillation_alpha=1.0, distillation_topk=20, distillation_add_tail=True),
    "top 20": dict(distillation_mode="topk_logits", distillation_alpha=0.5, distillation_topk=20, distillation_add_tail=False),
}


@pytest.fixture(scope="module")
def batch():
    "Replies of mixed lengths read in two contexts of other lengths"
    model = make_model(ModelConfig(vocab=400, hidden=32, heads=2, kv_heads=2, mlp=48, init_sd=0.3), ["a short text"]).model
    plain, hindsight, replies = [[5, 6, 7], [8]], [[5, 6, 7, 30, 31, 32], [8, 33, 34]], [[40, 41, 42, 43], [44, 45]]
    return model, plain, hindsight, replies


def theirs(kind, batch, options, old):
    "TRL's loss of the same batch, whose logits come from unpadded passes, and its gradient"
    model, plain, hindsight, replies = batch
    width = max(map(len, replies))
    def logits(prompts):
        rows = [model(torch.tensor([p + r])).logits[0, len(p) - 1:-1] for p, r in zip(prompts, replies)]
        return torch.stack([torch.nn.functional.pad(row, (0, 0, 0, width - len(row))) for row in rows])
    ids = torch.tensor([r + [0] * (width - len(r)) for r in replies])
    mask = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in replies])
    with torch.no_grad(): teacher = logits(hindsight)
    known = {"distillation_topk": None, "distillation_add_tail": False, "distillation_is_clip": 2.0 if old is not None else None} | options
    trainer = SimpleNamespace(args=SimpleNamespace(**known), accelerator=SimpleNamespace(gather=lambda x: x), _log_self_distillation_metric=lambda *_: None)
    parts = DistillationLogits(completion_ids=ids, loss_mask=mask, student_logits=logits(plain), teacher_logits=teacher)
    loss = kind._compute_self_distillation_loss(trainer, model, {"old_per_token_logps": old} if old is not None else {}, parts)
    return loss, torch.autograd.grad(loss, list(model.parameters()))


def ours(batch, options, old):
    "Our loss, from states, two positions at a time"
    model, plain, hindsight, replies = batch
    student = completion_states(model, plain, replies)
    with torch.no_grad(): teacher = completion_states(model, hindsight, replies)
    logps, mask = torch.zeros(student.mask.shape), student.mask
    logps[mask] = in_chunks(lambda z, q, ids: chosen_logps(z, ids), student, [(teacher, 1.0)], student.ids, chunk=2)
    shares = token_shares(mask) * (1 if old is None else importance(logps, old, 2.0))
    if options["distillation_mode"] == "sampled_token":
        then = torch.zeros(mask.shape)
        with torch.no_grad(): then[mask] = in_chunks(lambda z, q, ids: chosen_logps(q, ids), student, [(teacher, 1.0)], student.ids)
        loss = policy_loss(logps, token_signal(then, logps, mask), shares)
    else:
        form = options["distillation_alpha"], options.get("distillation_topk"), options.get("distillation_add_tail", True)
        loss = (in_chunks(lambda z, q: divergence(z, q, *form), student, [(teacher, 1.0)], chunk=2) * shares[mask]).sum()
    return loss, torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("kind", [SDFTTrainer, SDPOTrainer])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("off_policy", [False, True])
def test_loss_and_gradient_equal_those_of_trl(batch, kind, form, off_policy):
    torch.manual_seed(0)
    old = -torch.rand(2, 4) * 8 if off_policy else None  # TRL weighs tokens by the ratio, at most 2
    (loss, grads), (expected, slopes) = ours(batch, FORMS[form], old), theirs(kind, batch, FORMS[form], old)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    assert abs(expected) > 1e-3, "something to compare"
    for (name, _), found, known in zip(batch[0].named_parameters(), grads, slopes):
        assert (found - known).norm() <= 1e-5 * known.norm() + 1e-8, name
