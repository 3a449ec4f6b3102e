"""A step of SDPO without generation and user, against the passes it cannot do without.

    python bench/sdpo.py [--steps 12] [--rows 8] [--reply 64] [--hidden 256] [--positions 1024]

Ours is a whole step of the trainer on logged replies: rendering, scoring in hindsight, update,
optimiser included. The peer, on the same model, rows and tokens, without any trainer: a plain
forward pass with gradients over the replies, a forward pass in hindsight without, the backward pass
of the sampled loss. With a contrast the teacher reads three contexts, and so does the peer's. The
model has random weights and one CPU thread; CPU seconds change less than the clock when the machine
is busy. Medians, and the median of the ratios of neighbouring steps; the target is at most 1.25.
Then the memory that a divergence on the likeliest 20 words takes at its peak, above weights and
their gradients, for growing vocabularies: through `in_chunks`, and with all logits.
"""

import argparse
import multiprocessing
import random
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from common import median_ratio, ratio
from transformers import TrainerCallback

from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.models.logps import CompletionStates
from humanlm.sdpo.hindsight import (
    AssistantReply,
    Followup,
    Interaction,
    SDPOConfig,
    contexts,
)
from humanlm.sdpo.method import logged_row, offline, sdpo_method
from humanlm.training.losses import divergence, in_chunks
from humanlm.training.run import keep_memory
from humanlm.training.trainer import MethodTrainer, trainer_args

WORDS = (
    "the a tea train reads writes slowly answer question short long under garden because "
    "friend seven blue"
).split()
FORMS = {
    "sampled": {},
    "top 20": {"form": "topk"},
    "whole vocabulary": {"form": "full"},
    "sampled, live teacher": {"teacher": "live"},
    "sampled, contrast": {"contrast": "empty"},
    "top 20, contrast": {"form": "topk", "contrast": "empty"},
}


def spoken(rng, least, most):
    return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))


def interactions(count, reply, seed=0):
    "Made-up dialogues; replies of half to all of the length"
    rng = random.Random(seed)
    return [
        Interaction(
            str(i),
            ({"role": "user", "content": spoken(rng, 30, 90)},),
            AssistantReply(spoken(rng, reply // 2, reply)),
            Followup(spoken(rng, 4, 24)),
        )
        for i in range(count)
    ]


def now():
    "CPU seconds so far; of a GPU, wall seconds after all that it was given"
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


class Peer(TrainerCallback):
    "After each step of ours, does the bare passes over the same rows; clocks both"

    def __init__(self, model, batches):
        self.model, self.batches, self.ours, self.theirs = model, iter(batches), [], []
        self.computing = nullcontext  # in the number format of ours

    def on_train_begin(self, args, state, control, **_):
        self.began = now()

    def on_step_end(self, args, state, control, **_):
        self.ours.append(now() - self.began)
        began = now()
        plain, others, replies = next(self.batches)
        with self.computing():
            with torch.no_grad():
                reads = [self.logps(prompts, replies)[0] for prompts in others]
            logps, mask = self.logps(plain, replies)
        loss = -((sum(reads) / len(reads) - logps.detach()) * logps * mask).sum() / mask.sum()
        self.model.zero_grad()
        loss.backward()
        self.theirs.append(now() - began)
        self.began = now()

    def logps(self, prompts, replies):
        wide, T = max(map(len, prompts)), max(map(len, replies))
        ids = torch.tensor(
            [[0] * (wide - len(p)) + p + r + [0] * (T - len(r)) for p, r in zip(prompts, replies)]
        )
        mask = torch.tensor(
            [
                [0] * (wide - len(p)) + [1] * (len(p) + len(r)) + [0] * (T - len(r))
                for p, r in zip(prompts, replies)
            ]
        )
        ids, mask = ids.to(self.model.device), mask.to(self.model.device)
        logits = (
            self.model(input_ids=ids, attention_mask=mask, logits_to_keep=T + 1, use_cache=False)
            .logits[:, :-1]
            .float()
        )
        return logits.gather(-1, ids[:, wide:, None])[..., 0] - logits.logsumexp(-1), mask[:, wide:]


def small(args):
    "Make a model with random weights, and its tokenizer"
    config = ModelConfig(
        template="chatml",
        vocab=args.vocab,
        hidden=args.hidden,
        heads=8,
        kv_heads=8,
        head_dim=args.hidden // 8,
        mlp=3 * args.hidden,
        layers=args.layers,
    )
    return make_model(config, [" ".join(WORDS)])


def measure(form, args, make=small):
    "Take steps in turn; seconds of ours and of the peer"
    logs = interactions(args.rows * args.steps, args.reply)
    made = [make(args) for _ in range(2)]
    model, tokenizer = made[0]
    rows = [logged_row(i, tokenizer) for i in logs]
    batches, reads = [], 3 if "contrast" in form else 1
    for start in range(0, len(rows), args.rows):
        indices = range(start, start + args.rows)
        pairs = [contexts(tokenizer, logs[i].messages, logs[i].followup.text) for i in indices]
        plain, hindsight = ([list(ids) for ids in column] for column in zip(*pairs))
        batches.append(
            (
                plain,
                [hindsight, hindsight, plain][:reads],
                [list(rows[i]["reply_ids"]) for i in indices],
            )
        )
    peer = Peer(made[1].model.train(), batches)
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "learning_rate": 0.0,
            "save_strategy": "no",
            "per_device_train_batch_size": args.rows,
            "gradient_checkpointing": False,  # as the peer
        }
        trainer = MethodTrainer(
            model,
            tokenizer,
            sdpo_method(SDPOConfig(**form), offline(), model, tokenizer),
            rows,
            trainer_args(options, folder, args.rows, 1, args.steps, 2048),
            Path(folder) / "trajectories",
            [peer],
        )
        peer.computing = trainer.accelerator.autocast
        trainer.train()
    return peer.ours[2:], peer.theirs[2:]


def peak(vocabulary, positions, chunked, out):
    "Memory at its peak, in MB, above weights and their gradients; in a process of its own"
    torch.set_num_threads(1)
    keep, head = torch.randn(positions, 64), torch.nn.Linear(64, vocabulary, bias=False)
    head.weight.grad = torch.zeros_like(head.weight)

    def states():
        return CompletionStates(
            head,
            keep.clone().requires_grad_(),
            torch.zeros(positions).long(),
            torch.ones(1, positions).bool(),
        )

    Path("/proc/self/clear_refs").write_text(
        "5"
    )  # forget the peak so far, which includes that of the parent
    before = highest()
    losses = in_chunks(
        lambda z, q: divergence(z, q, 1.0, 20),
        states(),
        [(states(), 1.0)],
        chunk=None if chunked else positions,
    )
    losses.sum().backward()
    out.put(highest() - before)


def highest():
    "Peak of this process's memory, in MB, as Linux counts it"
    return (
        int(
            next(
                line
                for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith("VmHWM")
            ).split()[1]
        )
        / 1024
    )


def in_process(*arguments):
    spawn = multiprocessing.get_context("spawn")
    out = spawn.Queue()
    process = spawn.Process(target=peak, args=(*arguments, out))
    process.start()
    memory = out.get(timeout=600)
    process.join()
    return memory


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {
        "steps": 12,
        "rows": 8,
        "reply": 64,
        "hidden": 256,
        "layers": 4,
        "vocab": 2048,
        "positions": 1024,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument(
        "--forms",
        nargs="*",
        default=list(FORMS),
        help="which of: " + ", ".join(FORMS) + "; none: only memory",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()  # as the training command does
    if args.forms:
        print(f"{'form':<24} {'ours CPU s':>10} {'peer CPU s':>10} {'ratio':>6}")
    for name in args.forms:
        ours, theirs = measure(FORMS[name], args)
        print(
            f"{name:<24} {statistics.median(ours):>10.3f} "
            f"{statistics.median(theirs):>10.3f} {median_ratio(ours, theirs):>6.3f}",
            flush=True,
        )
        ratio(
            f"a step of SDPO, {name}",
            median_ratio(ours, theirs),
            "CPU time of the bare passes",
            "<= 1.25",
        )
    print(
        f"\n{'vocabulary':>10} {'in chunks, MB':>14} {'all at once, MB':>16}   "
        f"({args.positions} positions, float32)"
    )
    for vocabulary in (8192, 32768, 131072):
        each = [in_process(vocabulary, args.positions, chunked) for chunked in (True, False)]
        print(f"{vocabulary:>10} {each[0]:>14.0f} {each[1]:>16.0f}", flush=True)


if __name__ == "__main__":
    main()
