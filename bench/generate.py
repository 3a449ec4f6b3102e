"""Our batched generation against plain `model.generate` of transformers, in one process,
alternately.

    python bench/generate.py [--repeats 5] [--kv-heads 8]

Prints the median CPU seconds of both (one thread, so other jobs on the machine count little)
and their ratio. The model is the tiny default with random weights, which seldom ends by itself:
without a stop string nearly all rows reach their cap.
"""

import argparse
import statistics
import time

import torch
from common import ratio

from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.models.generation import generate
from humanlm.models.logps import pad_rows
from humanlm.models.prompts import render

TEXTS = [
    f"the council votes on the {a} {b}. it {c}. someone {s} the {a} {b}"
    for a in ("night", "early", "city", "river", "school")
    for b in ("tram", "market", "bridge", "tower", "festival")
    for c in ("cuts costs", "feeds the poor", "adds guards", "lifts the ban")
    for s in ("strongly supports", "flatly rejects")
]
PERSONA = (
    "most collects gadgets avoids ladders clips coupons heckles referees shakes visibly "
    "files receipts prints leaflets"
)


def prompts(tokenizer, distinct, copies):
    def message(text):
        return [
            {"role": "system", "content": f"politics, {PERSONA}."},
            {"role": "user", "name": "mila", "content": text},
        ]

    return [render(tokenizer, message(t)) for t in TEXTS[:distinct] for _ in range(copies)]


def plain(model, tokenizer, rows, tokens, stop):
    ids, mask = pad_rows(rows, left=True, fill=tokenizer.pad_token_id)
    extra = {"stop_strings": list(stop), "tokenizer": tokenizer} if stop else {}
    return model.generate(
        input_ids=ids,
        attention_mask=mask.long(),
        max_new_tokens=max(tokens),
        do_sample=True,
        top_k=0,
        **extra,
    )


def ours(model, tokenizer, rows, tokens, stop):
    return generate(model, tokenizer, rows, tokens, stop, seed=0)


def seconds(function, *args):
    start = time.process_time()
    function(*args)
    return time.process_time() - start


def compare(repeats, *args):
    times = {plain: [], ours: []}
    for _ in range(repeats + 1):
        for function, samples in times.items():
            samples.append(seconds(function, *args))
    return [statistics.median(samples[1:]) for samples in times.values()]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kv-heads", type=int, default=8)
    args = parser.parse_args()
    model, tokenizer = make_model(
        ModelConfig(kv_heads=args.kv_heads), TEXTS, ["<stance>", "</stance>"]
    )
    cases = [
        ("8 rows of 48 tokens", (8, 1), [48] * 8, ()),
        ("64 rows of 48 tokens", (64, 1), [48] * 64, ()),
        ("8 prompts x 8, 48 tokens", (8, 8), [48] * 64, ()),
        (
            "64 rows, caps 16 (6 of 7) and 48",
            (64, 1),
            [48 if i % 7 == 0 else 16 for i in range(64)],
            (),
        ),
        ("64 rows of 48, stop string 'tr'", (64, 1), [48] * 64, ("tr",)),
    ]
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} thread, kv_heads "
        f"{args.kv_heads}, median of {args.repeats}\n"
    )
    print(f"{'case':36} {'transformers s':>14} {'ours s':>8} {'ratio':>6}")
    for name, shape, tokens, stop in cases:
        a, b = compare(args.repeats, model, tokenizer, prompts(tokenizer, *shape), tokens, stop)
        print(f"{name:36} {a:14.3f} {b:8.3f} {a / b:6.2f}")
        ratio(f"generation, {name}", b / a, "CPU time of transformers' generate")


if __name__ == "__main__":
    main()
