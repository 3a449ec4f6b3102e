"""A step of learning from follow-ups through our trainer against its bare passes in plain torch, in one process, step by step in turn.

    python bench/sdpo.py [--steps 4] [--sizes tiny small medium] [--forms 'topk, frozen']

Ours: a training step whose replies and follow-ups are there already, so what is left is rendering, scoring, the update and the trainer's
own costs, optimiser included. The peer: one pass over the replies in their plain contexts with gradients, one in hindsight without,
log-probabilities of the written tokens, and the way back; no optimiser, same rows, same padding, random weights. Prints the median CPU
seconds of both (those of the process, which change less than the clock on a busy machine), and the median of the ratios of neighbouring
steps. Aimed at are 1.25 for the sampled and the topk form of the medium model; a contrast needs two passes more than the peer takes.
Then the most bytes of the topk form's tensors behind the head at three vocabularies, forward and back, beside the logits of all positions.
"""
import argparse
import contextlib
import io
import statistics
import tempfile
import weakref
from importlib import metadata

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainerCallback

from common import Clock, median_ratio
from humanlm.models.weights import CompletionStates, ModelConfig, make_model
from humanlm.sdpo.hindsight import TEMPLATE, HindsightConfig, SDPOConfig, contexts
from humanlm.sdpo.method import online, sdpo_method
from humanlm.sdpo.users import Reaction
from humanlm.training.losses import divergence, in_chunks
from humanlm.training.methods import ask_row
from humanlm.training.run import keep_memory
from humanlm.training.trainer import MethodTrainer, trainer_args

ROWS, WORDS, SAID = 16, "the cat sat on a mat and asked for more tea while it rained all day in the old town".split(), "Shorter next time, please."
SIZES = {  # model, vocabulary, words of the prompt, tokens of the reply
    "tiny": (dict(hidden=64, layers=2, heads=4, kv_heads=4, mlp=192), 768, 30, 56),
    "small": (dict(hidden=256, layers=4, heads=4, kv_heads=4, mlp=768, head_dim=64), 2048, 50, 96),
    "medium": (dict(hidden=512, layers=8, heads=8, kv_heads=4, mlp=1536, head_dim=64), 8192, 80, 160),
}
ARMS = {
    "sampled, frozen": SDPOConfig(teacher="frozen"), "sampled, live": SDPOConfig(teacher="live"), "topk, frozen": SDPOConfig(form="topk", teacher="frozen"),
    "sampled, contrast": SDPOConfig(teacher="frozen", contrast="empty"),
}


class Same:
    "A user who always says the same"
    name = "same"

    async def __call__(self, exchanges): return [Reaction(SAID) for _ in exchanges]


def peer(model, plain, hindsight, replies):
    "The bare passes over padded rows"
    def logps(prompts):
        wide, long = max(map(len, prompts)), max(map(len, replies))
        ids = torch.tensor([[0] * (wide - len(p)) + p + r + [0] * (long - len(r)) for p, r in zip(prompts, replies)])
        mask = torch.tensor([[0] * (wide - len(p)) + [1] * (len(p) + len(r)) + [0] * (long - len(r)) for p, r in zip(prompts, replies)])
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=long + 1).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, ids[:, wide:, None])[..., 0]
    ours = logps(plain)
    with torch.no_grad(): signal = logps(hindsight) - ours.detach()
    (-(signal * ours).mean()).backward()
    model.zero_grad()


class InTurn(TrainerCallback):
    "Times each step of a trainer, and after it the peer"

    def __init__(self, work): self.work, self.ours, self.theirs, self.clock = work, [], [], None

    def start(self): self.clock = Clock().__enter__()

    def on_train_begin(self, args, state, control, **_): self.start()

    def on_step_end(self, args, state, control, **_):
        self.clock.__exit__()
        self.ours.append((self.clock.cpu, self.clock.wall))
        with Clock() as clock: self.work()
        self.theirs.append((clock.cpu, clock.wall))
        self.start()


def measure(size, config, steps):
    "CPU and wall seconds of our steps and of the peer's, but the first"
    shape, vocabulary, words, tokens = SIZES[size]
    torch.manual_seed(0)
    model, tokenizer = make_model(ModelConfig(template="chatml", vocab=400, **shape), [" ".join(WORDS), SAID, TEMPLATE])
    model.resize_token_embeddings(vocabulary, mean_resizing=False)
    asked = [[{"role": "user", "content": " ".join(WORDS[(i * 7 + j * 3) % len(WORDS)] for j in range(words - i % 8))}] for i in range(ROWS)]
    replies = torch.randint(300, 390, (ROWS, tokens)).tolist()
    rows = [ask_row("", f"row-{i}", tokens) | {"prompt": messages, "speaker": ""} for i, messages in enumerate(asked)] * (steps + 1)
    both = [contexts(tokenizer, messages, SAID, HindsightConfig()) for messages in asked]
    clock = InTurn(lambda: peer(model, [c.plain for c in both], [c.hindsight for c in both], replies))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        method = sdpo_method(config, online(lambda step: Same()), model, tokenizer)
        args = trainer_args({"learning_rate": 1e-6, "save_strategy": "no", "loss_type": "grpo"}, folder, ROWS, 1, steps + 1, tokens)
        trainer = MethodTrainer(model, tokenizer, method, rows, args, callbacks=[clock])
        trainer._generate_single_turn = lambda prompts, *_: (replies, None)
        trainer.train()
    context = statistics.fmean(len(c.plain) for c in both), statistics.fmean(len(c.hindsight) for c in both)
    return *zip(*clock.ours[1:]), *zip(*clock.theirs[1:]), context, tokens


class Held(TorchDispatchMode):
    "Follows the bytes of the tensors made inside the block, those of some shapes left out"

    def __init__(self, apart):
        super().__init__()
        self.apart, self.known, self.now, self.peak = apart, set(), 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for x in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(x, torch.Tensor) and tuple(x.shape) not in self.apart: self.hold(x.untyped_storage())
        return made

    def hold(self, storage):
        place, size = storage.data_ptr(), storage.nbytes()
        if place in self.known: return
        self.known.add(place)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.free, place, size)

    def free(self, place, size):
        self.known.discard(place)
        self.now -= size


def memory(vocabulary, positions=ROWS * 160, width=64):
    "Megabytes of the topk form at its peak, without the head and its gradient; those of one tensor of a chunk; and of all logits"
    head = torch.nn.Linear(width, vocabulary, bias=False)
    student, teacher = (CompletionStates(head, torch.randn(positions, width, requires_grad=True), torch.zeros(positions, dtype=torch.long), None) for _ in range(2))
    with Held({(vocabulary, width), (width, vocabulary)}) as held: in_chunks(lambda a, b: divergence(a, b, 1.0, 20), student, [(teacher, 1.0)]).sum().backward()
    return [x / 2**20 for x in (held.peak, min(student.chunk, positions) * vocabulary * 4, positions * vocabulary * 4)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=SIZES)
    parser.add_argument("--forms", nargs="*", default=list(ARMS), choices=ARMS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()  # as the training command does
    names = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "trl"))
    print(f"{names}; {ROWS} rows, one CPU thread, medians of {args.steps} steps after 1\n")
    print(f"{'size':>8} {'form':>18} {'prompt, hindsight, reply':>25} {'ours CPU s':>11} {'passes CPU s':>13} {'ratio':>6} {'ratio of the clock':>19}")
    for size in args.sizes:
        for name in args.forms:
            with contextlib.redirect_stderr(io.StringIO()): cpu, wall, other, clock, context, tokens = measure(size, ARMS[name], args.steps)
            lengths, (ours, theirs) = f"{context[0]:.0f}, {context[1]:.0f}, {tokens}", map(statistics.median, (cpu, other))
            print(f"{size:>8} {name:>18} {lengths:>25} {ours:>11.3f} {theirs:>13.3f} {median_ratio(cpu, other):>6.3f} {median_ratio(wall, clock):>19.3f}", flush=True)
    print(f"\n{'vocabulary':>10} {'topk, peak MB':>14} {'one chunk MB':>13} {'all logits MB':>14}")
    for vocabulary in (1 << 13, 1 << 15, 1 << 17):
        peak, chunk, whole = memory(vocabulary)
        print(f"{vocabulary:>10,} {peak:>14.0f} {chunk:>13.0f} {whole:>14.0f}", flush=True)


if __name__ == "__main__": main()
