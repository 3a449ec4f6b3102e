"Hindsight in our trainer beside plain torch, row by row, in double precision; two processes."

import copy
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
import warm
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.models.generation import cut_completion
from humanlm.sdpo.hindsight import (
    TEMPLATE,
    AssistantReply,
    Followup,
    Interaction,
    SDPOConfig,
)
from humanlm.sdpo.method import logged_row, offline, online, sdpo_method
from humanlm.sdpo.users import Reaction
from humanlm.training.method import ask_row
from humanlm.training.trainer import MethodTrainer, trainer_args

pytestmark = pytest.mark.numbers
OPENINGS = [
    "a short one",
    "tell me about tea, please",
    "Why do cats sleep so much during the day?",
    "list three towns",
    "hi",
    "what is left of it? Say it once more",
]
REPLIES = [
    "no idea",
    "Tea is made of leaves, hot water and time.",
    "They hunt at night.",
    "Oslo, Rome",
    "Hello there, how are you today?",
    "It all is gone",
]
FOLLOWUPS = [
    "Shorter please!",
    "thanks a lot, that is what I wanted to know about it",
    "Hm.",
    "And with less of that tone",
    "no",
    "Why so long an answer to this?",
]
ENDED = [True, False, True, True, False, True]  # the others were cut
HISTORY = (
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "and then"},
)
MESSAGES = [
    (*(HISTORY if i % 3 == 2 else ()), {"role": "user", "content": text})
    for i, text in enumerate(OPENINGS)
]
STEP, MOST = 4, 24


@dataclass
class Case:
    "What is trained: interactions in the order of training, and how"

    config: SDPOConfig
    temperature: float = 1.0
    loss_type: str = "grpo"
    side: str = "left"
    same_pad: bool = False
    form: str = "online"
    steps: int = 2
    options: dict = field(default_factory=dict)
    asked: list = field(default_factory=lambda: list(zip(MESSAGES, REPLIES, ENDED, FOLLOWUPS)) * 2)


@pytest.fixture(scope="module")
def made():
    return small()


def small():
    torch.set_num_threads(1)
    texts = [*OPENINGS, *REPLIES, *FOLLOWUPS, TEMPLATE]
    made = make_model(
        ModelConfig(template="chatml", vocab=400, hidden=32, heads=2, kv_heads=2, mlp=64), texts
    )
    for matrix in (p for p in made.model.parameters() if p.ndim > 1):
        matrix.data.mul_(0.2 / 0.06)  # so that tokens differ in probability
    return made


def end(tokenizer):
    return tokenizer.convert_tokens_to_ids("<|im_end|>")


def reply_ids(tokenizer, text, ended):
    return tokenizer(text, add_special_tokens=False)["input_ids"] + [end(tokenizer)] * ended


def context(tokenizer, messages, *said):
    "Write a context by hand"
    contents = [m["content"] for m in messages]
    if said:
        contents[-1] += TEMPLATE + said[0]
    text = (
        "".join(
            f"<|im_start|>{m['role']}\n{c.strip()}<|im_end|>\n" for m, c in zip(messages, contents)
        )
        + "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    return tokenizer(text, add_special_tokens=False)["input_ids"]


class Scripted:
    "A user whose words were written down before"

    name = "scripted"

    def __init__(self, words):
        self.words = words

    async def __call__(self, exchanges):
        found = [self.words[e.messages[-1]["content"], e.reply] for e in exchanges]
        return [Reaction(text, "" if text is not None else "no answer") for text in found]


class Watch(TrainerCallback):
    "Keep weights and gradients before every step of the optimiser, and weights after it"

    def __init__(self):
        self.before, self.gradients, self.after = [], [], []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.before.append(copy.deepcopy(model.state_dict()))
        self.gradients.append(
            {
                n: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                for n, p in model.named_parameters()
                if p.requires_grad
            }
        )

    def on_optimizer_step(self, args, state, control, model=None, **_):
        self.after.append(copy.deepcopy(model.state_dict()))


def tokenizer_of(made, case):
    tokenizer = copy.deepcopy(made.tokenizer)
    tokenizer.padding_side = case.side
    if case.same_pad:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def row_of(tokenizer, i, messages, reply, ended, followup, form):
    if form == "online":
        return ask_row("", f"row-{i}", MOST) | {"prompt": list(messages), "speaker": ""}
    known = (
        tuple(reply_ids(tokenizer, reply, ended)) if i % 2 else None
    )  # drawn ids for every second one
    said = AssistantReply(reply, known, finish_reason="stop" if ended else "length")
    return logged_row(
        Interaction(f"row-{i}", messages, said, Followup(followup)), tokenizer, 200, MOST
    )


def train(made, case, out, resume=None, records=None, **changed):
    "Train in our trainer; it, its method and what was seen on the way"
    tokenizer, model = tokenizer_of(made, case), copy.deepcopy(made.model)
    asked, steps = case.asked[: STEP * case.steps], case.steps
    rows = [row_of(tokenizer, i, *each, case.form) for i, each in enumerate(asked)]
    words = {(messages[-1]["content"], reply): followup for messages, reply, _, followup in asked}
    method = sdpo_method(
        case.config,
        online(Scripted(words)) if case.form == "online" else offline(),
        model,
        tokenizer,
        200,
    )
    options = (
        dict(
            optim="sgd",
            learning_rate=0.5,
            lr_scheduler_type="constant",
            warmup_steps=0,
            max_grad_norm=0.0,
            save_strategy="no",
            temperature=case.temperature,
            loss_type=case.loss_type,
        )
        | case.options
        | changed
    )
    t = MethodTrainer(
        model,
        tokenizer,
        method,
        rows,
        trainer_args(options, out, STEP, 1, steps, MOST, 3),
        records,
        [watch := Watch()],
        200,
    )
    written = {
        tuple(t.policy.prompt_ids(row)): reply_ids(tokenizer, reply, ended)
        for row, (_, reply, ended, _) in zip(rows, asked)
    }

    def write(rows, *_):
        prompts = [t.policy.prompt_ids(row) for row in rows]
        return [
            cut_completion(tokenizer, written[tuple(p)], r["stop"], r["max_tokens"], prompt_ids=p)
            for r, p in zip(rows, prompts)
        ]

    t.policy.write = write
    compute, watch.losses = t._compute_loss, []

    def noted(*given):
        found = compute(*given)
        watch.losses.append(found.item())
        return found

    t._compute_loss = noted
    t.train(resume_from_checkpoint=resume)
    return t, method, watch


# ---- the same in plain torch


def double(made, state):
    model = copy.deepcopy(made.model)
    model.load_state_dict(state)
    return model.double()


def logits(model, before, written, temperature):
    return model(torch.tensor([before + written])).logits[0, len(before) - 1 : -1] / temperature


def compared(ours, theirs, c):
    "The divergence at each position, word by word"
    p, q = ours.softmax(-1), theirs.softmax(-1)
    if c.form == "topk":
        chosen = p.topk(c.topk).indices
        p, q = p.gather(-1, chosen), q.gather(-1, chosen)
        p, q = (torch.cat([x, 1 - x.sum(-1, keepdim=True)], -1) for x in (p, q))

    def kl(a, b):
        return (a * (a / b).log()).sum(-1)

    if c.alpha in (0, 1):
        return kl(p, q) if c.alpha == 1 else kl(q, p)
    m = (1 - c.alpha) * p + c.alpha * q
    return (1 - c.alpha) * kl(p, m) + c.alpha * kl(q, m)


def pushed(ours, theirs, ids, c):
    "The loss at each position of the sampled form"
    logps, hindsight = (x.log_softmax(-1)[torch.arange(len(ids)), ids] for x in (ours, theirs))
    signal = (hindsight - logps).detach()
    if c.centre:
        signal = signal - signal.mean()
    return -signal * (logps - logps.detach()).exp()


def by_hand(made, case, asked, live, teachers, start=None, max_length=MOST, beta=0.0):
    "Loss and gradients; asked: messages, reply, whether it ended, hindsight or None, contrast"
    tokenizer, c, model = tokenizer_of(made, case), case.config, double(made, live)
    teachers, found, lengths = [(double(made, state), share) for state, share in teachers], [], []
    for messages, reply, ended, *said in asked:
        plain, ids = context(tokenizer, messages), reply_ids(tokenizer, reply, ended)
        ours = logits(model, plain, ids, case.temperature)
        each, lengths = torch.zeros(len(ids), dtype=torch.double), [*lengths, len(ids)]
        if said[0] is not None:
            told = [context(tokenizer, messages, text) for text in said]
            signs = [(told[0], 1)] if len(told) == 1 else [(told[0], 1), (told[1], -1), (plain, 1)]
            with torch.no_grad():
                theirs = sum(
                    share * sign * logits(m, ids_, ids, case.temperature)
                    for ids_, sign in signs
                    for m, share in teachers
                )
            each = (
                pushed(ours, theirs, torch.tensor(ids), c)
                if c.is_sampled
                else compared(ours, theirs, c)
            )
            each = each * (torch.arange(len(ids)) >= c.skip)
        if beta:
            with torch.no_grad():
                first = logits(double(made, start), plain, ids, case.temperature)
            gap = (first.log_softmax(-1) - ours.log_softmax(-1))[
                torch.arange(len(ids)), torch.tensor(ids)
            ]
            logps = ours.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]
            each = (
                each + beta * (gap.exp() - gap - 1) * (logps - logps.detach()).exp()
            )  # the token was drawn, and its share moves too
        found.append(each)
    total = {
        "grpo": lambda: sum(x.mean() for x in found) / len(found),
        "dapo": lambda: sum(x.sum() for x in found) / sum(lengths),
        "dr_grpo": lambda: sum(x.sum() for x in found) / (len(found) * max_length),
    }[case.loss_type]()
    if total.requires_grad:
        total.backward()
    return total.item(), {
        n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()
    }


def flat(gradients):
    return torch.cat([gradients[n].double().flatten() for n in sorted(gradients)])


def assert_same(found, expected, least=1e-4, tolerance=1e-5):
    found, expected = flat(found), flat(expected)
    assert expected.norm() > least, "a gradient of nothing would be equal whatever is computed"
    assert (found - expected).norm() <= tolerance * expected.norm(), (
        (found - expected).norm() / expected.norm()
    ).item()


def with_contrast(asked, kind):
    "Put the words of the contrast behind each follow-up"
    if kind == "none":
        return asked
    return [(*each, "") for each in asked]


def teachers_at(case, first, live, watch):
    "The teacher's weights at the second step"
    rate = case.config.rate
    running = {n: w + rate * (live[n] - w) for n, w in first.items()}
    return {
        "live": [(live, 1)],
        "frozen": [(first, 1)],
        "trust": [(first, 1 - rate), (live, rate)],
        "ema": [(running, 1)],
    }[case.config.teacher]


def SDPO(**options):
    return SDPOConfig(**{"rate": 0.3} | options)


CASES = {
    "sampled": Case(SDPO()),
    "sampled, live, dapo": Case(SDPO(teacher="live"), 0.7, "dapo"),
    "centred": Case(SDPO(centre=True), 0.7),
    "centred, live, pad is eos": Case(
        SDPO(centre=True, teacher="live"), same_pad=True, loss_type="dr_grpo"
    ),
    "first token left out": Case(SDPO(skip=1), 0.7),
    "sampled, trust, right": Case(SDPO(teacher="trust"), 0.7, side="right"),
    "sampled, less an empty one, live": Case(SDPO(contrast="empty", teacher="live")),
    "topk": Case(SDPO(form="topk", topk=12), 0.7),
    "topk, live, dapo": Case(SDPO(form="topk", topk=12, teacher="live"), loss_type="dapo"),
    "topk, mixture, pad is eos, right": Case(
        SDPO(form="topk", topk=12, alpha=0.5), side="right", same_pad=True
    ),
    "topk, ema, first token left out": Case(
        SDPO(form="topk", topk=12, teacher="ema", skip=1), loss_type="dr_grpo"
    ),
    "full, forward, live": Case(SDPO(form="full", alpha=0.0, teacher="live"), 0.7, side="right"),
    "full, mixture, less an empty one": Case(
        SDPO(form="full", alpha=0.5, contrast="empty"), same_pad=True
    ),
}


@pytest.mark.parametrize(
    "name, form",
    [
        (name, form)
        for i, name in enumerate(CASES)
        for form in ("online", "offline")
        if i % 6 == 0 or (i % 2 == 0) == (form == "online")
    ],
)
def test_loss_and_gradient_of_the_second_step_are_those_of_plain_torch(made, tmp_path, name, form):
    case = replace(CASES[name], form=form)
    _t, _, watch = train(made, case, tmp_path)
    first, live = watch.before
    asked = with_contrast(case.asked[STEP : 2 * STEP], case.config.contrast)
    loss, expected = by_hand(made, case, asked, live, teachers_at(case, first, live, watch))
    assert_same(watch.gradients[1], expected)
    assert watch.losses[1] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert max((live[n] - first[n]).abs().max() for n in first) > 1e-3, "the teachers differ by now"


SHARED = [
    (MESSAGES[i // 2], REPLIES[i], ENDED[i], FOLLOWUPS[i // 2 if i < 4 else i]) for i in range(6)
]
SHARED += [(MESSAGES[3], text, True, FOLLOWUPS[3]) for text in REPLIES[:2]]


# ---- what moves nothing

BAD = {
    "no_follow-up": ("it works", True, None),
    "empty_follow-up": ("it works", True, " \n"),
    "empty_reply": ("", True, "say something"),
    "follow-up_too_long": ("it works", True, "and on " * 300),
}


@pytest.mark.parametrize(
    "reason, config",
    [
        *((reason, SDPO()) for reason in BAD),
        ("no_follow-up", SDPO(centre=True, contrast="empty")),
        ("empty_reply", SDPO(form="topk", topk=12, contrast="empty")),
        ("follow-up_too_long", SDPO(form="full")),
    ],
)
def test_what_teaches_nothing_moves_nothing_and_is_counted(made, tmp_path, reason, config):
    reply, ended, said = BAD[reason]
    good, bad = (
        CASES["sampled"].asked[:3],
        (({"role": "user", "content": "something else"},), reply, ended, said),
    )
    case = Case(config, 0.7, steps=1, asked=[good[0], bad, *good[1:]])
    t, _, watch = train(made, case, tmp_path)
    asked = with_contrast(good, config.contrast)
    silent = (*bad[:3], None)
    loss, expected = by_hand(
        made, case, [asked[0], silent, *asked[1:]], watch.before[0], [(watch.before[0], 1)]
    )
    assert_same(watch.gradients[0], expected)
    assert watch.losses[0] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert t.state.log_history[0][f"skipped/{reason}"] == 0.25


# ---- teachers


def saved(teacher, folder):
    return load_file(teacher.save(folder / "now.safetensors"))


def test_a_running_mean_is_the_closed_form_and_goes_on_after_a_stop(made, tmp_path):
    case = Case(
        SDPO(teacher="ema"),
        steps=4,
        asked=CASES["sampled"].asked * 2,
        options=dict(save_strategy="steps", save_steps=2),
    )
    _t, method, watch = train(made, case, tmp_path / "whole")
    rate, found = case.config.rate, saved(method.memory, tmp_path)
    for name, weights in found.items():
        expected = (1 - rate) ** 4 * made.model.state_dict()[name].double()
        for i, state in enumerate(watch.after):
            expected = expected + rate * (1 - rate) ** (3 - i) * state[name].double()
        torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=1e-5)
    _again, resumed, after = train(
        made, case, tmp_path / "again", resume=str(tmp_path / "whole" / "checkpoint-2")
    )
    assert len(after.losses) == 2 and after.losses == watch.losses[2:]
    for name, weights in saved(resumed.memory, tmp_path).items():
        assert torch.equal(weights, found[name])


@pytest.mark.parametrize("read", ["online", "offline"])
def test_a_penalty_has_the_gradient_of_the_distance_from_the_start(made, tmp_path, read):
    case = Case(SDPO(), 0.7, "dapo", form=read)
    watch = train(made, case, tmp_path, beta=0.5)[2]
    first, live = watch.before
    asked = case.asked[STEP : 2 * STEP]
    loss, expected = by_hand(made, case, asked, live, [(first, 1)], first, beta=0.5)
    _, without = by_hand(made, case, asked, live, [(first, 1)])
    assert_same(watch.gradients[1], expected)
    assert watch.losses[1] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert (flat(expected) - flat(without)).norm() > 1e-2 * flat(expected).norm()


# ---- two processes

TOGETHER = {name: CASES[name] for name in ("sampled", "sampled, less an empty one, live")}
TOGETHER["topk, live, dapo"] = replace(CASES["topk, live, dapo"], form="offline", asked=SHARED)


def main(out):
    "Train some cases and leave their weights"
    for i, case in enumerate(TOGETHER.values()):
        t, _, watch = train(small(), case, out / "run")
        if t.accelerator.is_main_process:
            save_file(
                {
                    n: p.detach().clone()
                    for n, p in watch.after[-1].items()
                    if n != "lm_head.weight"
                },
                out / f"{i}.safetensors",
            )
            (out / f"{i}.json").write_text(
                json.dumps([row.get("loss") for row in t.state.log_history])
            )


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    "Folders of what one process and two have left"
    folder = tmp_path_factory.mktemp("processes")
    for name in "12":
        (folder / name).mkdir()
    main(folder / "1")
    for done in warm.together(2, __file__, folder / "2"):
        assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.long
@pytest.mark.parametrize("i", range(len(TOGETHER)), ids=TOGETHER)
def test_two_processes_take_the_steps_of_one(processes, i):
    one, two = (load_file(processes / n / f"{i}.safetensors") for n in "12")
    start = small().model.state_dict()
    for key in one:
        torch.testing.assert_close(two[key], one[key], atol=2e-6, rtol=1e-5)
    assert max((one[key] - start[key]).abs().max() for key in one) > 1e-3
    losses = [json.loads((processes / n / f"{i}.json").read_text())[:2] for n in "12"]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
