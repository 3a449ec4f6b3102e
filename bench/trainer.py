"""A GRPO step through our trainer against plain `trl.GRPOTrainer`, in one process, alternately.

    python bench/trainer.py [--steps 24] [--tokens 16 48]

Both train the model of configs/humanlm-mini.yaml (random weights, one CPU thread) on the same
prompts as the same token ids, with the same options of TRL, 8 prompts x 8 completions, and a reward
that looks at token numbers only. Ours also cuts, parses and writes the trajectories of every step.
The learning rate is 0, so that both keep writing texts of the same lengths. Each trainer runs in a
thread of its own and takes one step, then it is the other's turn; prints the medians of both and of
the ratios of neighbouring steps. CPU seconds are those of the whole process, and change less than
the clock when the machine is busy.
"""

import argparse
import contextlib
import gc
import io
import statistics
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from common import ratio
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from humanlm.core.config import read_yaml
from humanlm.hierarchy.levels import LEVELS
from humanlm.hierarchy.prompts import HierarchyConfig, closing, make_rows, opening
from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.models.prompts import render
from humanlm.training.advantages import group_advantages
from humanlm.training.method import Method
from humanlm.training.rollouts import single_turn
from humanlm.training.run import keep_memory
from humanlm.training.trainer import MethodTrainer, trainer_args
from humanlm.worlds.mini import WorldConfig, make_world

N, G = 8, 8
CONFIG = read_yaml(Path(__file__).resolve().parent.parent / "configs" / "humanlm-mini.yaml")


class EvenTokens:
    "Our reward: the share of even token numbers"

    names, weights = ("even",), (1.0,)

    async def __call__(self, trajectories):
        return np.array([[even(t.completion_ids)] for t in trajectories]), trajectories


def even(ids):
    return sum(i % 2 == 0 for i in ids) / len(ids)


def same_reward(completion_ids, **_):
    return [even(ids) for ids in completion_ids]


class Turns(TrainerCallback):
    "Lets two trainers take steps in turn, and times them"

    def __init__(self, mine, other):
        self.mine, self.other, self.seconds, self.cpu = mine, other, [], []

    def start(self):
        self.clock, self.cpu_clock = time.perf_counter(), time.process_time()

    def on_train_begin(self, args, state, control, **_):
        self.mine.acquire()
        self.start()

    def on_step_end(self, args, state, control, **_):
        self.seconds.append(time.perf_counter() - self.clock)
        self.cpu.append(time.process_time() - self.cpu_clock)
        self.other.release()
        self.mine.acquire()
        self.start()

    def on_train_end(self, args, state, control, **_):
        self.other.release()


def world_rows(tokens, steps, tokenizer, world):
    "Rows whose text reads back to the ids of their prompt: plain TRL then trains on the same ids"
    rows = make_rows(
        [e for e in world.examples if e.split == "train"],
        HierarchyConfig(response_tokens=tokens, state_tokens=tokens),
        ["stance"],
    )
    exact_rows = []
    for row in rows:
        ids = render(tokenizer, row["prompt"])
        row["text"] = tokenizer.decode(ids)
        if tokenizer(row["text"])["input_ids"] == ids:
            exact_rows.append(row)
        if len(exact_rows) == N * steps:
            return exact_rows
    raise SystemExit(f"only {len(exact_rows)} prompts read back to their ids; ask for fewer steps")


def trainers(tokens, steps, made, rows, folder):
    "Ours and the plain one, with their clocks"
    args = trainer_args({"learning_rate": 0.0, "save_strategy": "no"}, folder, N, G, steps, tokens)
    a, b = threading.Semaphore(1), threading.Semaphore(0)
    method = Method(
        single_turn(),
        lambda batch: group_advantages(batch.rewards[:, 0], batch.groups),
        EvenTokens(),
    )
    ours = MethodTrainer(
        *made(), method, rows, args, folder / "trajectories", [clock := Turns(a, b)]
    )
    model, tokenizer = made()
    plain = GRPOTrainer(
        model,
        same_reward,
        args,
        Dataset.from_dict({"prompt": [row["text"] for row in rows]}),
        processing_class=tokenizer,
        callbacks=[other := Turns(b, a)],
    )
    plain.remove_callback(PrinterCallback)
    return (ours, clock), (plain, other)


def run_together(*pairs):
    threads = [threading.Thread(target=trainer.train) for trainer, _ in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(tokens, steps, world):
    examples = [e for e in world.examples if e.split == "train"]
    texts = list(
        dict.fromkeys(
            t
            for e in examples
            for t in (e.persona.text, e.reply, e.context[0].content, *e.states.values())
        )
    )
    tags = [tag(level) for level in LEVELS for tag in (opening, closing)]

    def made():
        return make_model(ModelConfig(**CONFIG.get("model", {})), texts, tags)

    with tempfile.TemporaryDirectory() as folder:
        (ours, a), (plain, b) = trainers(
            tokens, steps, made, world_rows(tokens, steps, made().tokenizer, world), Path(folder)
        )
        gc.collect()
        run_together((ours, a), (plain, b))
        steps_stored = sum(1 for _ in (Path(folder) / "trajectories").iterdir())
    written = [
        statistics.fmean(
            row["completions/mean_length"] for row in t.state.log_history if "loss" in row
        )
        for t in (ours, plain)
    ]
    prompt = statistics.fmean(len(t.prompt_ids) for t in ours.trajectories)
    return a, b, written, steps_stored, prompt


def compare(ours, plain):
    "Medians of both, and of the ratios of neighbouring steps"
    return [
        *map(statistics.median, (ours, plain)),
        statistics.median(a / b for a, b in zip(ours, plain)),
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 48])
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()  # as the training command does
    world = make_world(WorldConfig())
    names = ", ".join(
        f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "trl")
    )
    print(
        f"{names}; {N} prompts x {G} completions, one CPU thread, medians of "
        f"{args.steps - 2} steps after 2\n"
    )
    print(
        f"{'new tokens':>10} {'prompt':>7} {'written (ours, trl)':>20} "
        f"{'ours CPU s':>11} {'trl CPU s':>10} {'ratio':>6} {'ours s':>8} {'trl s':>8} "
        f"{'ratio':>6}"
    )
    for tokens in args.tokens:
        with contextlib.redirect_stderr(io.StringIO()):
            a, b, written, steps_stored, prompt = measure(tokens, args.steps, world)
        cpu, wall = compare(a.cpu[2:], b.cpu[2:]), compare(a.seconds[2:], b.seconds[2:])
        print(
            f"{tokens:>10} {prompt:>7.0f} {written[0]:>12.1f}, {written[1]:>6.1f} "
            f"{cpu[0]:>11.3f} {cpu[1]:>10.3f} {cpu[2]:>6.3f}"
            f" {wall[0]:>8.3f} {wall[1]:>8.3f} {wall[2]:>6.3f}"
        )
        ratio(f"a GRPO step, {tokens} new tokens", cpu[2], "CPU time of plain trl.GRPOTrainer")
        if steps_stored != args.steps:
            print(f"{'':>10} only {steps_stored} of {args.steps} steps left trajectories")


if __name__ == "__main__":
    main()
