"""Prompts that go on where an earlier call ended give the tokens that they would give without
anything kept, and read less."""

import random

import pytest
import torch

from humanlm.models.checkpoints import make_model
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
    return make_model(
        ModelConfig(vocab=360, hidden=32, heads=2, kv_heads=request.param, mlp=48, init_sd=0.3),
        TEXTS,
    )


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


def test_a_row_goes_on_from_its_own_end_only(made):
    prefixes, prompt = Prefixes(), list(range(60, 100))
    (first,) = generate(made.model, made.tokenizer, [prompt], 5, temperature=0, prefixes=prefixes)
    ((known, _),) = prefixes.find([(*prompt, *first.ids, 100)])
    assert known == 44 and not prefixes.rows, (
        "all but the last token, which was never read; what is gone on with is given away"
    )
    generate(made.model, made.tokenizer, [prompt], 5, temperature=0, prefixes=prefixes)
    assert [n for n, _ in prefixes.find([tuple(prompt[:20]), (*prompt[:30], 7), (1, 2)])] == [
        20,
        30,
        0,
    ] and len(prefixes.rows) == 1, "somebody else may still go on"


def test_the_oldest_are_forgotten_where_room_ends(made):
    prefixes = Prefixes(most=1)
    assert (
        dialogue(made, prefixes, 0, temperature=0) == dialogue(made, None, 0, temperature=0)
        and not prefixes.rows
    )
    roomy = Prefixes()
    generate(made.model, made.tokenizer, [[60 + i] * 10 for i in range(5)], 3, prefixes=roomy)
    size = sum(x.nbytes for row in roomy.rows.values() for pair in row for x in pair)
    tight = Prefixes(most=size // 2)
    generate(made.model, made.tokenizer, [[60 + i] * 10 for i in range(5)], 3, prefixes=tight)
    assert 1 <= len(tight.rows) < 5 and set(tight.rows) <= set(roomy.rows)


def test_models_with_other_caches_read_everything():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    made = make_model(ModelConfig(vocab=360, hidden=32, heads=2, kv_heads=2, mlp=48), TEXTS)
    shape = Qwen3Config(
        **made.model.config.to_dict()
        | {
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 0,
            "layer_types": ["sliding_attention"] * 2,
        }
    )
    sliding, prefixes = made._replace(model=Qwen3ForCausalLM(shape).eval()), Prefixes()
    kept, plain = (
        dialogue(sliding, prefixes, 1, temperature=0),
        dialogue(sliding, None, 1, temperature=0),
    )
    assert kept == plain and not prefixes.rows
