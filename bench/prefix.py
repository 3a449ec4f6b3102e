"""A GRPO step of the pocket model with its prompt read once, against plain `trl.GRPOTrainer`.

    python bench/prefix.py [--shapes 160,24,8 600,48,8 1500,48,8] [--rounds 3] [--rows 8]

Both train LoRA 16 on SmolLM2-135M-Instruct in float32 on the same token ids: a prompt of P tokens
and G completions of C tokens. `update` is the loss and its gradients, `step` also writes the
completions, which never end early here. Ours and theirs take turns; prints medians, ratios of
neighbouring rounds, the largest difference of two gradients, and the peak of memory of an update,
each in a process of its own. At 1,500 tokens eight rows need more than 24 GB: give `--rows 4`, and
plain TRL takes them in two parts.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch
from common import Clock, in_turns, ratio
from datasets import Dataset
from trl import GRPOTrainer

from humanlm.models.checkpoints import add_adapter, load_model
from humanlm.models.config import ModelConfig
from humanlm.training.advantages import group_advantages
from humanlm.training.method import Method
from humanlm.training.rollouts import single_turn
from humanlm.training.run import keep_memory
from humanlm.training.trainer import MethodTrainer, trainer_args

ASKED = {(160, 24, 8): (3.3, 2.5), (600, 48, 8): (4.5, 3.5), (1500, 48, 8): (6, 4.5)}


def model(name):
    config = ModelConfig(name=name, lora_rank=16)
    net, tokenizer = load_model(name, "own")
    net = add_adapter(net, config, name)
    for weight in (w for n, w in net.named_parameters() if "lora_B" in n):
        torch.nn.init.normal_(weight, std=0.02, generator=torch.Generator().manual_seed(0))
    net.generation_config.eos_token_id = None  # all completions are equally long
    return net.train(), tokenizer


def trainer(kind, net, tokenizer, C, G, folder, dtype="float32", **more):
    "Ours or theirs, ready for an update"
    options = {"learning_rate": 0.0, "save_strategy": "no"} | more
    args = trainer_args(options, folder, 1, G, 1, C, dtype=dtype)
    if kind == "trl":
        rows = Dataset.from_dict({"prompt": ["a"]})
        made = GRPOTrainer(net, lambda **_: [0.0] * G, args, rows, processing_class=tokenizer)
        made.eos_token_ids = [-1]
        return made
    method = Method(
        single_turn(), lambda batch: group_advantages(batch.rewards[:, 0], batch.groups)
    )
    return MethodTrainer(net, tokenizer, method, [{"row_id": "0"}], args, max_prompt_tokens=8192)


def batch(prompts, completions):
    "The tensors of groups of equal size, as both trainers take them"
    G = len(completions) // len(prompts)
    ids = torch.tensor(prompts).repeat_interleave(G, 0)
    written = torch.tensor(completions)
    return {
        "prompt_ids": ids,
        "prompt_mask": torch.ones_like(ids),
        "completion_ids": written,
        "completion_mask": torch.ones_like(written),
        "advantages": torch.linspace(-1, 1, len(completions)),
        "num_items_in_batch": torch.tensor(float(written.numel())),
    }


def update(made, inputs, rows=None):
    "The gradients of a batch, of which plain TRL takes so many rows at once"
    made.model.zero_grad()
    G = len(inputs["prompt_ids"])
    rows = G if isinstance(made, MethodTrainer) else min(rows or G, G)
    made.current_gradient_accumulation_steps = G // rows
    inputs = {name: tensor.to(made.accelerator.device) for name, tensor in inputs.items()}
    for at in range(0, G, rows):
        part = {k: v[at : at + rows] if v.dim() else v for k, v in inputs.items()}
        made._compute_loss(made.model, part).backward()


def gradients(made):
    return torch.cat([w.grad.flatten() for w in made.model.parameters() if w.grad is not None])


def write(made, prompts, C, G):
    "Write a group for each prompt"
    copies = [prompt for prompt in prompts for _ in range(G)]
    if isinstance(made, MethodTrainer):
        row = {"max_tokens": C, "stop": [], "thinking": None}
        rows = [row | {"prompt_ids": prompt} for prompt in copies]
        with patch("humanlm.models.generation.end_ids", lambda *_: ()):
            return [c.ids for c in made.policy.write(rows)]
    return made._generate_single_turn(copies, None, {}, G)[0]


def measure(shape, name, rounds, rows):
    P, C, G = shape
    draw = torch.Generator().manual_seed(0)
    prompt, *completions = (
        torch.randint(100, 49000, (n,), generator=draw).tolist() for n in [P] + [C] * G
    )
    with tempfile.TemporaryDirectory() as folder:
        made = {kind: trainer(kind, *model(name), C, G, folder) for kind in ("ours", "trl")}
        grads, arms = {}, {}
        for kind, each in made.items():

            def updated(kind=kind, each=each):
                with Clock() as clock:
                    update(each, batch([prompt], completions), rows)
                    grads[kind] = gradients(each)
                return clock.wall

            def stepped(each=each):
                with Clock() as clock:
                    update(each, batch([prompt], write(each, [prompt], C, G)), rows)
                return clock.wall

            arms[kind, "update"], arms[kind, "step"] = updated, stepped
        for arm in arms.values():
            arm()
        seconds = in_turns(arms, rounds)
    off = (grads["ours"] - grads["trl"]).norm() / grads["trl"].norm()
    return seconds, off.item()


def peak(kind, shape, name, rows, out):
    "Put the bytes that an update adds to the loaded model into a queue"
    P, C, G = shape
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(kind, *model(name), C, G, folder)
        Path("/proc/self/clear_refs").write_text("5")  # loading took more than training may
        before = resident("VmRSS")
        update(made, batch([[7] * P], [[9] * C] * G), rows)
        out.put(resident("VmHWM") - before)


def resident(name):
    "Read how many bytes of memory this process holds, or held at most (Linux)"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def memory(kind, shape, name, rows):
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    process = context.Process(target=peak, args=(kind, shape, name, rows, out))
    process.start()
    peak_bytes = out.get()
    process.join()
    return peak_bytes / 2**30


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["160,24,8", "600,48,8", "1500,48,8"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--rows", type=int, default=8, help="that plain TRL takes at once")
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("THREADS", os.cpu_count() or 1)))
    keep_memory()
    print(f"{args.model}, LoRA 16, float32, {torch.get_num_threads()} CPU threads\n")
    print("P, C, G | part | ours s | trl s | times as fast")
    for shape in (tuple(map(int, text.split(","))) for text in args.shapes):
        seconds, off = measure(shape, args.model, args.rounds, args.rows)
        for place, part in enumerate(("update", "step")):
            ours, theirs = seconds["ours", part], seconds["trl", part]
            times = statistics.median(b / a for a, b in zip(ours, theirs))
            medians = [statistics.median(each) for each in (ours, theirs)]
            print(f"{shape} | {part} | {medians[0]:.2f} | {medians[1]:.2f} | {times:.2f}")
            bound = f">= {ASKED[shape][place]}" if shape in ASKED else ""
            ratio(f"{part} of {shape}, times as fast", times, "plain trl.GRPOTrainer", bound)
        ours, theirs = (memory(kind, shape, args.model, args.rows) for kind in ("ours", "trl"))
        print(f"{shape} | memory | {ours:.2f} GiB | {theirs:.2f} GiB | {theirs / ours:.2f}")
        print(f"{shape} | gradients differ by {off:.1e} of their norm\n")


if __name__ == "__main__":
    main()
