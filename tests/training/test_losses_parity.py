"""Our losses of self-distillation beside those that TRL's own trainers of it compute, on the same
padded batch of a random model."""

from itertools import product

import pytest
import torch
from datasets import Dataset
from loss_forms import policy_loss, token_shares

from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.models.logps import chosen_logps, completion_states
from humanlm.training.losses import (
    divergence,
    importance,
    in_chunks,
    token_signal,
)

PROMPTS = [[30, 31, 32, 33, 34], [40, 41], [50, 51, 52]]
HINDSIGHT = [[*ids, 60 + i, 70, 71] for i, ids in enumerate(PROMPTS)]
REPLIES = [[80, 81, 82, 2], [83, 84], [85, 86, 87]]  # one ends by itself, two are cut
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def trainers(tmp_path_factory):
    "TRL's two trainers around one model; each with the weights of the moment as its teacher"
    from trl.experimental.sdft import SDFTConfig, SDFTTrainer
    from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

    torch.set_num_threads(1)
    made = make_model(
        ModelConfig(vocab=340, hidden=32, heads=2, kv_heads=2, mlp=64),
        ["a word or two of text"] * 2,
    )
    made.model.get_input_embeddings().weight.data.mul_(4)  # so that tokens differ in probability
    rows, folder = (
        Dataset.from_dict({"prompt": ["a"] * 2, "privileged_context": ["b"] * 2}),
        tmp_path_factory.mktemp("trl"),
    )
    shared = dict(
        output_dir=str(folder),
        use_cpu=True,
        report_to="none",
        teacher_model_kind="live",
        temperature=TEMPERATURE,
        per_device_train_batch_size=2,
        num_generations=2,
        disable_tqdm=True,
        gradient_accumulation_steps=1,
        bf16=False,
    )
    sdft = SDFTTrainer(
        made.model, SDFTConfig(**shared), train_dataset=rows, processing_class=made.tokenizer
    )
    sdpo = SDPOTrainer(
        made.model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=SDPOConfig(**shared),
        train_dataset=rows,
        processing_class=made.tokenizer,
    )
    return {"sdft": sdft, "sdpo": sdpo}


def padded(rows, left):
    width = max(map(len, rows))
    fill = [[0] * (width - len(row)) for row in rows]

    def join(row, gap):
        return gap + row if left else row + gap

    return torch.tensor([join(r, g) for r, g in zip(rows, fill)]), torch.tensor(
        [join([1] * len(r), g) for r, g in zip(rows, fill)]
    )


def theirs(trainer, skip, old, **options):
    "Value and gradients of TRL's distillation loss"
    for name, value in options.items():
        setattr(trainer.args, name, value)
    trainer.num_loss_tokens_to_skip = skip
    ids, mask = padded(REPLIES, left=False)
    (prompts, known), (told, seen) = padded(PROMPTS, left=True), padded(HINDSIGHT, left=True)
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": known,
        "completion_ids": ids,
        "completion_mask": mask,
        "teacher_input_ids": torch.cat([told, ids], 1),
        "teacher_attention_mask": torch.cat([seen, mask], 1),
    } | ({"old_per_token_logps": old} if old is not None else {})
    logits = trainer._compute_teacher_student_logits(trainer.model, trainer.teacher_model, inputs)
    return with_gradient(
        trainer.model, trainer._compute_self_distillation_loss(trainer.model, inputs, logits)
    )


def with_gradient(model, loss):
    return loss.detach(), torch.cat(
        [g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]
    )


def ours(model, function, skip, old):
    "Value and gradients of ours; the function is of logits, or None for the sampled token"
    student = completion_states(model, PROMPTS, REPLIES)
    with torch.no_grad():
        teacher = completion_states(model, HINDSIGHT, REPLIES)
    mask = student.mask & (torch.arange(student.mask.shape[1]) >= skip)

    def spread(x):
        return torch.zeros(mask.shape).masked_scatter(student.mask, x)

    def chosen(a, b, ids):
        return chosen_logps(a if b is None else b, ids)

    logps = spread(in_chunks(chosen, student, [], student.ids, temperature=TEMPERATURE))
    weights = token_shares(mask) * (1 if old is None else importance(logps, old))
    if function is None:
        with torch.no_grad():
            hindsight = spread(
                in_chunks(chosen, student, [(teacher, 1.0)], student.ids, temperature=TEMPERATURE)
            )
        return with_gradient(
            model,
            policy_loss(logps, token_signal(hindsight, logps, student.mask, skip=skip), weights),
        )
    return with_gradient(
        model,
        (
            weights
            * spread(
                in_chunks(function, student, [(teacher, 1.0)], chunk=2, temperature=TEMPERATURE)
            )
        ).sum(),
    )


def assert_equal(found, expected):
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-7)
    assert (found[1] - expected[1]).norm() <= 1e-5 * expected[1].norm() and expected[
        1
    ].norm() > 1e-3


@pytest.fixture(scope="module")
def old():
    return -4 + torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "name, skip, moved",
    [*product(["sdft"], [0, 2], [False, True]), ("sdpo", 0, False), ("sdpo", 0, True)],
)  # SDPO leaves no tokens out
def test_the_sampled_token_is_that_of_trl(trainers, old, name, skip, moved):
    before = old if moved else None
    expected = theirs(
        trainers[name],
        skip,
        before,
        distillation_mode="sampled_token",
        distillation_alpha=1.0,
        distillation_is_clip=2.0,
    )
    assert_equal(ours(trainers[name].model, None, skip, before), expected)


@pytest.mark.parametrize("name, alpha", [*product(["sdft", "sdpo"], [1.0, 0.0, 0.5, 0.3])])
def test_the_whole_vocabulary_is_that_of_trl(trainers, name, alpha):
    expected = theirs(
        trainers[name], 0, None, distillation_mode="full_logits", distillation_alpha=alpha
    )
    assert_equal(
        ours(trainers[name].model, lambda a, b: divergence(a, b, alpha), 0, None), expected
    )


@pytest.mark.parametrize(
    "name, alpha, tail, moved",
    [*product(["sdft", "sdpo"], [1.0, 0.0, 0.5], [True, False], [False, True])],
)
def test_top_tokens_are_those_of_trl(trainers, old, name, alpha, tail, moved):
    options = dict(
        distillation_mode="topk_logits",
        distillation_alpha=alpha,
        distillation_topk=20,
        distillation_add_tail=tail,
        distillation_is_clip=2.0,
    )
    before = old if moved else None
    expected = theirs(trainers[name], 0, before, **options)
    assert_equal(
        ours(trainers[name].model, lambda a, b: divergence(a, b, alpha, 20, tail), 0, before),
        expected,
    )
