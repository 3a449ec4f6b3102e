"""What a step costs on one GPU, beside TRL and the plan of memory; SDPO, bits, attention.

    python bench/gpu.py [--out results/gpu.json] [--seconds 420]
    python bench/gpu.py --rehearse      # every line at tiny sizes, without a GPU too

Needs torch, transformers, accelerate; trl and peft, with datasets, dill, multiprocess, pandas,
pyarrow and xxhash, which TRL imports; fastcore and msgspec. Nothing is downloaded: models have the
sizes of Qwen3 and random weights. There are N = 4 prompts of P = 1500 tokens, and G = 8 completions
of C = 48 tokens of each. LoRA 16 trains beside weights in bfloat16, `full` changes weights in
float32; both compute in bfloat16 and checkpoint activations, for TRL as for us.

`update` is loss, gradients and optimizer; `step` also writes the completions. `shared` reads equal
prompts once, `rows` does not, `trl` is plain `trl.GRPOTrainer` on the same weights and ids. `ratio`
is how many times as fast as the arm `against`, over neighbouring rounds, `off` the difference from
TRL's gradients, of their norm, `rate` the tokens a second of N G (P + C), however often prompts are
read. `mfu` is the arithmetic of an update on tokens that are read, k W tokens + 12 pairs layers
heads head_dim, by seconds and `peak_flops`: W are the weights of linear layers (the head's for
completions only), k is 6, or 4 where they are frozen; pairs are those of a token with one it sees;
what is computed again does not count. The peak is the data sheet's, dense, in bfloat16, else that
of a product of two matrices (`matmul_flops`). `memory` is the most that torch held, `plan` what
`humanlm.training.memory` says of an update by rows, without its "else"; both in GiB.

Each part has its share of the time, the file is written after each line, and nothing runs on for
more than 10 s behind `--seconds`. null: not run, or not to be had; `reason` says why.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import warnings
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.nn.functional as F
from common import ROOT, Clock, Lines
from prefix import batch, gradients, trainer, update, write
from sdpo import FORMS, WORDS
from sdpo import measure as sdpo_seconds
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import AutoModelForCausalLM, Qwen3Config

from humanlm.models.bits import Span, span_logps
from humanlm.models.checkpoints import LoadedModel, add_adapter
from humanlm.models.config import ModelConfig, train_tokenizer
from humanlm.models.logps import _pack, token_logps
from humanlm.training.memory import GiB, Load, Shape, StagePlan, memory
from humanlm.training.run import keep_memory

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
PEAKS = {"H100 PCIe": 756, "H100": 989, "H200": 989, "A100": 312, "B200": 2250}  # TFLOP/s
TINY = ModelConfig(vocab=2048, hidden=64, heads=4, kv_heads=2, head_dim=16, mlp=128)
SIZES = {"0.6B": ModelConfig("Qwen/Qwen3-0.6B"), "8B": ModelConfig("Qwen/Qwen3-8B")}
FIELDS = "part model weights what arm against seconds ratio tokens rate mfu memory plan".split()
LIBRARIES = ("torch", "transformers", "accelerate", "trl", "peft")
SHAPE = (  # of Qwen3Config, in the order of `Shape`
    "hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "intermediate_size vocab_size tie_word_embeddings"
).split()
Clock = partial(Clock, torch.cuda.synchronize if GPU else lambda: None)
tokenizer = train_tokenizer([" ".join(WORDS)], 512, template="chatml")
rows_only = partial(patch, "humanlm.models.logps.can_pack", lambda _: False)


def make(config):
    "Make a model of random weights, with an adapter where the settings want one"
    sizes = dict(zip(SHAPE, Shape.of(config))) | {"max_position_embeddings": 8192}
    torch.manual_seed(0)
    with torch.device(DEVICE):  # without an end, so that all completions are equally long
        sizes = Qwen3Config(**sizes, pad_token_id=tokenizer.pad_token_id, eos_token_id=None)
        net = AutoModelForCausalLM.from_config(sizes, dtype=getattr(torch, config.dtype))
    net = add_adapter(net, config, config.name).train()
    for weight in (w for name, w in net.named_parameters() if "lora_B" in name):
        torch.nn.init.normal_(weight, std=0.02)
    return net


def flops(config, shape, packed):
    "Count the arithmetic of an update"
    s, (P, C, G, N) = Shape.of(config), shape
    read = P + G * C if packed else G * (P + C)
    pairs = P * P / 2 + G * (C * P + C * C / 2) if packed else G * (P + C) ** 2 / 2
    linear = s.layers * s.layer * read + s.vocab * s.hidden * G * C
    k = 4 if config.lora_rank else 6
    return N * (k * linear + 12 * pairs * s.layers * s.heads * s.head_dim)


def planned(config, shape):
    "Give the bytes that the plan expects of an update, but those that torch does not see"
    P, C, G, N = shape
    load = Load(StagePlan("bench", 1, N * G, C), N * G, N * G)
    parts = memory(replace(config, max_prompt_tokens=P), {}, load, 0)["learns"]
    return sum(parts.values()) - parts["else"]


def matmul_rate(n):
    x, seconds = torch.randn(n, n, device=DEVICE, dtype=torch.bfloat16), []
    for _ in range(5):
        with Clock() as clock:
            x @ x
        seconds.append(clock.wall)
    return 2 * n**3 / min(seconds)


def drawn(config, shape):
    "Draw N prompts, and G completions of each, of one length"
    P, C, G, N = shape
    ids = torch.randint(100, Shape.of(config).vocab, (N, P + G * C)).tolist()
    return [r[:P] for r in ids], [r[P + i * C :][:C] for r in ids for i in range(G)]


def training(bench, model, weights):
    "Updates and steps of one model, and peaks of memory"
    settings = {"lora_rank": 16, "dtype": "bfloat16"} if "LoRA" in weights else {"lora_rank": 0}
    config, (P, C, G, N) = replace(bench.sizes[model], **settings), bench.shape
    names, plan = {"model": model, "weights": weights}, planned(config, bench.shape)
    if plan > bench.head["gib"] * GiB:
        reason = f"the plan says {plan / GiB:.4g} GiB, and there are {bench.head['gib']:.4g}"
        return bench.line("training", **names, plan=plan / GiB, reason=reason)
    (prompts, completions), net, grads, rows = drawn(config, bench.shape), make(config), {}, {}
    for what, arm in ((w, a) for w in ("update", "step") for a in ("shared", "rows", "trl")):
        row = {"what": what, "arm": arm, "tokens": N * G * (P + C), "plan": plan / GiB}
        row |= {"against": "trl.GRPOTrainer", "peer": (what, "trl")} if arm != "trl" else {}
        if what == "update":
            row["work"] = flops(config, bench.shape, arm == "shared") / bench.head["peak_flops"]
        rows[what, arm] = row

    def turn(key):
        what, arm = key
        made = theirs if arm == "trl" else ours
        ours.packs = arm == "shared"
        torch.cuda.reset_peak_memory_stats() if GPU else None
        with Clock() as clock:
            written = write(made, prompts, C, G) if what == "step" else completions
            update(made, batch(prompts, written))
            made.optimizer.step()
        rows[key]["memory"] = torch.cuda.max_memory_allocated() / GiB if GPU else None
        if config.lora_rank and what == "update" and arm not in grads:
            grads[arm] = gradients(made).cpu()
            for each in grads if arm == "trl" else ():
                off = (grads[each] - grads[arm]).norm() / grads[arm].norm()
                rows[what, each]["off"] = off.item()
        return clock.wall

    with tempfile.TemporaryDirectory() as folder:
        options = {"dtype": "bfloat16", "gradient_checkpointing": True}
        ours, theirs = (
            trainer(kind, net, tokenizer, C, G, folder, **options) for kind in ("ours", "trl")
        )
        getattr(net, "activation_checkpointing_enable", net.gradient_checkpointing_enable)()
        ours.accelerator.prepare_model(net)  # computes in bfloat16, as in `train`
        theirs.optimizer = ours.create_optimizer()
        bench.compare("training", turn, rows, **names)


def sdpo(bench, model, weights):
    "A step without generation and user, beside the bare passes"
    options = SimpleNamespace(rows=8, steps=3 if bench.rounds == 1 else 6, reply=64)
    config = replace(bench.sizes[model], lora_rank=0)
    for form in ("sampled", "top 20"):
        make_both = partial(LoadedModel, tokenizer=tokenizer)
        ours, theirs = sdpo_seconds(FORMS[form], options, lambda _: make_both(make(config)))
        row = {"model": model, "weights": weights, "what": f"step, {form}"}
        row |= {"seconds": statistics.median(ours), "against": "bare passes"}
        bench.line("sdpo", **row, ratio=statistics.median(b / a for a, b in zip(ours, theirs)))


def bits(bench, model):
    "Replies scored, G after each prompt"
    config, (P, C, G, N) = replace(bench.sizes[model], dtype="bfloat16"), bench.shape
    (prompts, replies), net = drawn(config, bench.shape), make(config)
    spans = [Span(prompts[i // G], [], reply) for i, reply in enumerate(replies)]

    @torch.no_grad()
    def turn(arm):
        with Clock() as clock, nullcontext() if arm == "shared" else rows_only():
            span_logps(lambda *ids: token_logps(net, *ids).logps, spans)
        rows[arm]["rows_per_second"] = N * G / clock.wall
        return clock.wall

    rows = {arm: {"arm": arm, "tokens": N * G * (P + C)} for arm in ("shared", "rows")}
    rows["shared"] |= {"against": "rows", "peer": "rows"}
    bench.compare("bits", turn, rows, model=model)


def kernels(bench, model):
    "Which kernel sdpa takes, as the package calls it"
    config, plain = replace(bench.sizes[model], dtype="bfloat16"), F.scaled_dot_product_attention
    (prompts, replies), net, taken = drawn(config, bench.shape), make(config), set()

    def spy(*qkv, **options):
        choice = torch._fused_sdp_choice(*qkv, **options)
        taken.update(name for name, one in SDPBackend.__members__.items() if one.value == choice)
        return plain(*qkv, **options)

    for arm in ("shared", "rows"):
        taken.clear()
        with patch.object(F, "scaled_dot_product_attention", spy):
            with nullcontext() if arm == "shared" else rows_only():
                token_logps(net, prompts[:1] * 2, replies[:2])
        bench.line("kernels", model=model, arm=arm, what="sdpa takes", kernels=sorted(taken))


def attention(bench, model):
    "Attention of one layer over a packed row by each kernel, beside the same group in rows"
    s, (P, C, G, _) = Shape.of(bench.sizes[model]), bench.shape
    prompts, completions = drawn(bench.sizes[model], bench.shape)
    packed = _pack(prompts[:1] * G, completions[:G])
    parts, mask, L = packed.parts.to(DEVICE), packed.mask().to(DEVICE), packed.ids.shape[1]

    def sees(b, h, q, k):
        return ((parts[b, k] == 0) | (parts[b, q] == parts[b, k])) & (q >= k)

    def tensors(rows, length):  # on CPU without gradients, which FlexAttention lacks there
        shape, more = (rows, s.heads, length, s.head_dim), {"dtype": torch.bfloat16}
        return [torch.randn(shape, device=DEVICE, requires_grad=GPU, **more) for _ in "qkv"]

    one, whole = tensors(1, L), tensors(G, P + C)
    blocks = create_block_mask(sees, 1, None, L, L, device=DEVICE)
    flex = torch.compile(flex_attention) if GPU else flex_attention
    work = {
        "rows": lambda: F.scaled_dot_product_attention(*whole, is_causal=True),
        "mask": lambda: F.scaled_dot_product_attention(*one, attn_mask=mask),
        "FlexAttention": lambda: flex(*one, block_mask=blocks),
    }

    def turn(arm):
        with Clock() as clock:
            for _ in range(10):
                out = work[arm]()
                out.backward(torch.ones_like(out)) if GPU else None
        return clock.wall / 10

    rows = {arm: {"arm": arm} | {"against": "rows", "peer": "rows"} for arm in work}
    rows["rows"] = {"arm": "rows"}
    bench.compare("attention", turn, rows, model=model)


def about(args):
    "Say where, with what and on what it is measured"
    tiny, device = args.rehearse, torch.cuda.get_device_name() if GPU else "CPU"
    shape, rate = (40, 6, 4, 2) if tiny else (1500, 48, 8, 4), matmul_rate(256 if tiny else 8192)
    room = torch.cuda.mem_get_info()[1] / GiB if GPU else 1024
    commit = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return {
        "device": device,
        "gib": planned(replace(TINY, lora_rank=0), shape) / GiB if tiny else room,
        "peak_flops": next((peak * 1e12 for gpu, peak in PEAKS.items() if gpu in device), rate),
        "matmul_flops": rate,
        "versions": {name: sys.modules[name].__version__ for name in LIBRARIES},
        "commit": subprocess.run(commit, capture_output=True, text=True).stdout.strip(),
        "shape": dict(zip("PCGN", shape)),
        "rehearsal": tiny,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--seconds", type=float, default=420, help="of all parts together")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, into a temporary file")
    args = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    usual = Path(tempfile.gettempdir()) if args.rehearse else ROOT / "results"
    args.out = args.out or usual / "gpu.json"
    keep_memory()
    if args.rehearse:
        torch.set_num_threads(1)
    bench = Lines(args.out, FIELDS, about(args), args.seconds, 1 if args.rehearse else 3)
    bench.shape = tuple(bench.head["shape"].values())
    bench.sizes = {"tiny": TINY, "larger": replace(TINY, layers=3)} if args.rehearse else SIZES
    small, large = bench.sizes
    bench.run(30, kernels, small)
    bench.run(60, training, small, "LoRA 16")
    bench.run(60, training, small, "full")
    bench.run(150, training, large, "LoRA 16")
    bench.run(60, training, large, "full")
    bench.run(60, sdpo, small, "full")
    bench.run(30, bits, small)
    bench.run(40, bits, large)
    bench.run(60, attention, small)
    sys.exit(bench.failed)


if __name__ == "__main__":
    main()
