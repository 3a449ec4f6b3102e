"""The estimate of a step's time (humanlm.hardware.performance) against the clock, on a CPU: four sizes, one thread.

    python bench/performance.py        # two minutes

Three numbers are read off: from the wide model the operations a second while it learns, from the small and the wide one together what starting a layer takes for a written token and the speed of memory while it writes. The rest is predicted: seconds
of writing (transformers) and of a pass forward and back with an update of AdamW. Of four repeats the fastest counts. Printed: measured, predicted, and their ratio; 1.00 by making where a number was read off.
"""

import sys
import time

import numpy as np
import torch

from humanlm.hardware.memory import Load, PlanConfig, Shape
from humanlm.hardware.performance import Efficiency, Speed, step_estimate
from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig

SIZES = {
    "small": (128, 2, 32, 64),
    "wide": (512, 2, 32, 64),
    "deep and long": (256, 6, 96, 96),
    "long": (512, 2, 32, 192),
}  # hidden, layers, tokens of the prompt, of the completion
ROWS, REPEATS = 8, 4


def fastest(work):
    def once():
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    work()
    return min(once() for _ in range(REPEATS))


def measured(hidden, layers, prompt, completion):
    "Seconds of writing and of an update"
    config = ModelConfig(
        hidden=hidden,
        layers=layers,
        heads=hidden // 32,
        kv_heads=hidden // 32,
        head_dim=32,
        mlp=4 * hidden,
        vocab=600,
        threads=1,
    )
    model, _tokenizer = make_model(
        config, ["some words to learn letters and pairs of letters from"] * 50
    )
    shape = Shape(
        hidden,
        layers,
        hidden // 32,
        hidden // 32,
        32,
        4 * hidden,
        model.get_input_embeddings().weight.shape[0],
        True,
    )
    assert shape.weights == sum(p.numel() for p in model.parameters())
    ids = torch.randint(5, 200, (ROWS, prompt + completion))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6)
    model.generation_config.eos_token_id = None

    def write():
        with torch.no_grad():
            model.generate(
                ids[:, :prompt],
                attention_mask=torch.ones(ROWS, prompt, dtype=torch.long),
                do_sample=True,
                max_new_tokens=completion,
                min_new_tokens=completion,
                pad_token_id=0,
            )

    def learn():
        logits = model(ids).logits[:, prompt - 1 : -1]
        torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), ids[:, prompt:].flatten()
        ).backward()
        optimiser.step()
        optimiser.zero_grad()

    return shape, fastest(write), fastest(learn)


def main():
    torch.set_num_threads(1)
    found = {name: measured(*size) for name, size in SIZES.items()}
    (small, briefly, _), (wide, writes, learns) = found["small"], found["wide"]
    flops = (
        (6 * wide.weights + 6 * wide.layers * wide.heads * wide.head_dim * 96) * ROWS * 96 / learns
    )
    moved = [
        [
            4 * shape.weights + 8 * ROWS * shape.layers * shape.kv_heads * shape.head_dim * 64,
            shape.layers,
        ]
        for shape in (small, wide)
    ]  # bytes and layers for a written token
    spent = [
        (seconds - 2 * shape.weights * ROWS * 32 / flops) / 64
        for shape, seconds in ((small, briefly), (wide, writes))
    ]
    byte, layer = np.linalg.solve(moved, spent)
    memory = 1 / byte
    print(
        f"read off: {layer * 1e6:.0f} microseconds a layer and token, "
        f"{memory / 1e9:.1f} GB/s, {flops / 1e9:.0f} billion operations a second\n\n"
        f"{'':16}{'weights':>12}  {'writes, s':>10} {'predicted':>10} {'ratio':>6}  "
        f"{'learns, s':>10} {'predicted':>10} {'ratio':>6}"
    )
    for name, (shape, writes, learns) in found.items():
        _, _, prompt, completion = SIZES[name]
        step = step_estimate(
            shape,
            Load(1, False, ROWS, ROWS, prompt, completion, 4, checkpoints=False),
            PlanConfig(completion_tokens=completion, mean_tokens=completion, requests=0),
            Speed(flops, memory, 1.0),
            reached=Efficiency(1.0, 1.0, 1.0, 1.0, eager=layer),
        )
        said = (
            step.seconds["reads"] + step.seconds["writes"],
            step.seconds["learns"] + step.seconds["updates"],
        )
        print(
            f"{name:16}{shape.weights:>12,}  {writes:>10.3f} {said[0]:>10.3f} "
            f"{writes / said[0]:>6.2f}  {learns:>10.3f} {said[1]:>10.3f} "
            f"{learns / said[1]:>6.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
