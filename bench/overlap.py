"""A GRPO step whose judge takes a fixed time: scored part by part while the next is written.

    python bench/overlap.py [--parts 4] [--steps 6] [--load 0.5 1 2]

The model of configs/humanlm-mini.yaml (random weights, one CPU thread) writes 8 prompts x 8
completions of 96 tokens. The judge sleeps: `load` times what writing a step at once takes, divided
over its 8 groups, one after another. Both arms take a step in turn in one process; printed are the
medians of the ratios of neighbouring steps, beside the best that could be: of P parts, the judge of
the last cannot be hidden, nor the writing of the first.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import in_turns, median_ratio, ratio

from humanlm.core.config import read_yaml
from humanlm.hierarchy.levels import LEVELS
from humanlm.hierarchy.prompts import HierarchyConfig, closing, make_rows, opening
from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.training.advantages import group_advantages
from humanlm.training.method import Method
from humanlm.training.options import trainer_args
from humanlm.training.rollouts import single_turn
from humanlm.training.run import keep_memory
from humanlm.training.shares import scored_in_parts
from humanlm.training.trainer import MethodTrainer
from humanlm.worlds.mini import WorldConfig, make_world

N, G, TOKENS = 8, 8, 96


class FixedJudge:
    "Scores groups one after another, each after so many seconds"

    names, weights, seconds = ("even",), (1.0,), 0.0

    async def __call__(self, trajectories):
        for _ in {t.group for t in trajectories}:
            await asyncio.sleep(self.seconds)
        return np.array(
            [[np.mean(np.array(t.completion_ids) % 2 == 0)] for t in trajectories]
        ), trajectories


def made_trainer(made, rows, parts, judge, steps):
    rollout = single_turn() if parts == 1 else scored_in_parts(single_turn(), judge, parts, G)
    options = {"learning_rate": 0.0, "save_strategy": "no"}
    args = trainer_args(options, tempfile.mkdtemp(), N, G, steps, TOKENS)
    return MethodTrainer(
        *made,
        Method(rollout, lambda batch: group_advantages(batch.rewards[:, 0], batch.groups), judge),
        rows,
        args,
    )


def rolled(trainer, rows):
    "Seconds until a step is written and scored"
    trainer.batch_rows = rows
    start = time.perf_counter()
    trainer.roll_out()
    trainer._calculate_rewards(None, None, None, None)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--load", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    own = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    config, world = (
        read_yaml(Path(__file__).resolve().parent.parent / "configs" / "humanlm-mini.yaml"),
        make_world(WorldConfig()),
    )
    texts = [
        text for e in world.examples[:400] for text in (e.reply, *(m.content for m in e.context))
    ]
    made = make_model(
        ModelConfig(**config.get("model", {})),
        texts,
        [tag(level) for level in LEVELS for tag in (opening, closing)],
    )
    rows = [
        row | {"stop": ()}
        for row in make_rows(world.examples[:N], HierarchyConfig(state_tokens=TOKENS), ["stance"])
    ]
    asked, judge = [row for row in rows for _ in range(G)], FixedJudge()
    arms = {parts: made_trainer(made, rows, parts, judge, 1) for parts in (1, own.parts)}
    for trainer in arms.values():
        rolled(trainer, asked)  # warm
    writes = min(rolled(arms[1], asked) for _ in range(3))
    parted = min(rolled(arms[own.parts], asked) for _ in range(3))
    print(
        f"writing a step: at once {writes:.2f} s, in {own.parts} parts {parted:.2f} s "
        f"({parted / writes:.2f} times)\n"
    )
    print(
        "| judge / writing | at once, s | in parts, s | ratio | best ratio |\n|---|---|---|---|---|"
    )
    for load in own.load:
        judge.seconds = load * writes / N
        found = in_turns(
            {
                parts: lambda trainer=trainer: rolled(trainer, asked)
                for parts, trainer in arms.items()
            },
            own.steps,
        )
        part, wait = parted / own.parts, load * writes / own.parts
        best = (part + (own.parts - 1) * max(part, wait) + wait) / (writes * (1 + load))
        ratio(
            f"a step in parts, judge {load:g} of writing",
            median_ratio(found[own.parts], found[1]),
            "time of the same at once",
        )
        print(
            f"| {load:g} | {np.median(found[1]):.2f} | "
            f"{np.median(found[own.parts]):.2f} | "
            f"{median_ratio(found[own.parts], found[1]):.2f} | {best:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
