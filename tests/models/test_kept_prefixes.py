"""Prompts that go on where an earlier call ended give the tokens that they would give without
anything kept, and read less."""

import random

import pytest
import torch

from humanlm.models.checkpoints import LoadedModel, make_model
from humanlm.models.config import ModelConfig
from humanlm.models.generation import Prefixes, generate

TEXTS = [
    f"the council votes on the {a} {b}."
    for a in ("night", "city", "river")
    for b in ("tram", "market", "bridge")
] * 5


@pytest.fixture(scope="module", params=[2, 1], ids=["all heads", "grouped heads"])
def made(request):
    torch.set_num_threads(1)
    model, tokenizer = make_model(
        ModelConfig(vocab=360, hidden=32, heads=2, kv_heads=request.param, mlp=48), TEXTS
    )
    model.get_input_embeddings().weight.data.mul_(5)  # so that tokens differ in probability
    return LoadedModel(model, tokenizer)


def dialogue(made, prefixes, case, turns=4, rows=6, **options):
    "Rows that go on, end, change places and lose tokens; every completion"
    rng, read, found = random.Random(case), [], []
    hook = made.model.register_forward_pre_hook(
        lambda _, args, given: read.append(given["input_ids"].numel()), with_kwargs=True
    )
    prompts = [[rng.randrange(20, 250) for _ in range(rng.randint(1, 30))] for _ in range(rows - 2)]
    prompts += [list(prompts[0]), prompts[1] + [5]]  # a copy, and one that begins as another
    for _ in range(turns):
        caps = [rng.choice([3, 9, 14]) for _ in prompts]
        done = generate(made.model, made.tokenizer, prompts, caps, **options, prefixes=prefixes)
        found.append([c.ids for c in done])
        prompts = [
            [
                *p,
                *c.ids[: rng.choice([None, None, None, 2])],
                *(rng.randrange(20, 250) for _ in range(rng.randint(0, 7))),
            ]
            for p, c in zip(prompts, done)
        ]
        rng.shuffle(prompts)
        if len(prompts) > 3:
            prompts.pop()
    hook.remove()
    return found, sum(read)


@pytest.mark.parametrize("case", range(3))
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"seed": 3},
        {"temperature": 0, "stop": ("e",)},
        {"temperature": 0, "batch_size": 2},
        {"temperature": 0, "no_repeat_ngram": 2},
    ],
    ids=["greedy", "drawn", "stop string", "small batches", "no phrase twice"],
)
def test_the_tokens_are_those_of_reading_everything(made, options, case):
    kept, plain = dialogue(made, Prefixes(), case, **options), dialogue(made, None, case, **options)
    assert kept[0] == plain[0] and kept[1] < plain[1]
