"""Dialogues as one line of tokens: what is trained on, what follows a turn, where they end and
why, what turns earn, and how processes keep step."""

import math
from pathlib import Path

import pytest
import torch
import warm
from accelerate.utils import gather_object

from humanlm.clients.protocol import LLMError
from humanlm.core.basics import run_sync
from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.models.generation import Completion, generate
from humanlm.models.logps import token_logps
from humanlm.models.prompts import end_id, render
from humanlm.training.dialogues import (
    Heard,
    TokenDialogue,
    TurnReward,
    multi_turn,
    turn_advantage,
)
from humanlm.training.method import Batch, Method
from humanlm.training.policies import ModelPolicy
from humanlm.training.trainer import MethodTrainer, trainer_args

TEXTS = [
    f"is it a {a}? it is a {b}."
    for a in ("cat", "tram", "river")
    for b in ("dog", "bridge", "city")
] * 5
ROW = {
    "row_id": "guess:1",
    "level": "guess",
    "prompt": [{"role": "user", "content": "is it a cat?"}],
    "speaker": "",
    "thinking": None,
    "stop": (),
    "max_tokens": 60,
    "turn_tokens": 6,
}
DOG = [{"role": "user", "content": "it is a dog."}]


@pytest.fixture(scope="module")
def made():
    torch.set_num_threads(1)
    return make_model(
        ModelConfig(vocab=360, hidden=32, heads=2, kv_heads=2, mlp=48, template="chatml"), TEXTS
    )


def said(made, text, end=True):
    ids = made.tokenizer.encode(text) + [end_id(made.tokenizer)] * end
    return Completion(ids, text, "eos" if end else "length", (), [-0.5] * len(ids))


@pytest.mark.parametrize("end", [True, False])
def test_a_turn_that_was_cut_off_gets_an_end_that_is_not_trained_on(made, end):
    talk = TokenDialogue(ROW, ModelPolicy(*made))
    talk.write(said(made, "a tram", end))
    assert talk.hear(Heard(DOG))
    t, shown = talk.trajectory(), made.tokenizer.decode
    assert (
        shown(t.completion_ids)
        == "a tram<|im_end|>\n<|im_start|>user\nit is a dog.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (
        shown([i for i, own in zip(t.completion_ids, t.mask) if own])
        == "a tram" + "<|im_end|>" * end
    )


def test_the_next_prompt_is_everything_so_far_to_the_token(made):
    policy, odd = (
        ModelPolicy(*made),
        [
            *made.tokenizer.encode("a"),
            *made.tokenizer.encode(" tr"),
            *made.tokenizer.encode("am"),
            end_id(made.tokenizer),
        ],
    )
    talk = TokenDialogue(ROW, policy)
    talk.write(Completion(odd, "a tram", "eos"))
    talk.hear(Heard(DOG))
    asked = policy.prompt_ids(talk.asked())
    assert asked[: len(talk.prompt_ids) + len(odd)] == talk.prompt_ids + odd, (
        "the policy's own spelling stays"
    )
    again = render(
        made.tokenizer, [*ROW["prompt"], {"role": "assistant", "content": "a tram"}, *DOG], "", None
    )
    assert made.tokenizer.decode(asked) == made.tokenizer.decode(again)


def test_the_room_is_that_of_the_whole_dialogue(made):
    talk = TokenDialogue(ROW | {"max_tokens": 30}, ModelPolicy(*made))
    talk.write(said(made, "a tram"))
    assert talk.hear(Heard(DOG)) and talk.asked()["max_tokens"] == min(6, 30 - len(talk.ids))
    talk.write(said(made, "a", end=False))
    before = list(talk.ids)
    assert not talk.hear(Heard(DOG)) and talk.stop and talk.ids == before, (
        "an answer that leaves no room for a turn is not added"
    )


class Chosen(ModelPolicy):
    "Notes how many rows each call asks for"

    def __init__(self, *args):
        super().__init__(*args)
        self.calls = []

    def write(self, rows, sampling=None, prefixes=None):
        self.calls.append(len(rows))
        return super().write(rows, sampling, prefixes)


def test_only_open_dialogues_are_asked_again_and_all_keep_their_place(made):
    policy, ends = Chosen(*made), iter([True, False, True, False, True, True, False, False])

    async def answer(talk):
        return Heard(DOG if next(ends) else [])

    done = run_sync(multi_turn(answer, 4)([ROW | {"row_id": f"r{i}"} for i in range(4)], policy))
    assert (
        policy.calls == [4, 2, 2]
        and [len(t.turns) for t in done] == [5, 1, 5, 1]
        and [t.row_id for t in done] == ["r0", "r1", "r2", "r3"]
    )


# ---- what comes back to a turn


def dialogues(policy, answer, turns=3, rows=4, **changed):
    return run_sync(
        multi_turn(answer, turns)(
            [ROW | {"row_id": f"r{i}"} | changed for i in range(rows)], policy
        )
    )


def test_a_user_who_fails_ends_its_dialogue_without_a_score_and_nobody_elses(made):
    async def answer(talk):
        if talk.row["row_id"] == "r1" and len(talk.said) == 2:
            raise LLMError("timeout", "no answer within 10 s")
        return Heard(DOG, 0.5 if talk.row["row_id"] == "r0" else 0.0)

    found = dialogues(ModelPolicy(*made), answer, rows=3)
    assert [t.parse_status for t in found] == [
        "turn_limit",
        "user_error",
        "turn_limit",
    ] and "no answer within 10 s" in found[1].errors[0]
    values, found = run_sync(TurnReward()(found))
    assert values[0] == [1.5] and math.isnan(values[1][0]) and values[2] == [0]
    T = max(len(t.mask) for t in found)
    masks = torch.tensor([t.mask + [False] * (T - len(t.mask)) for t in found])
    pushed = turn_advantage()(Batch(None, torch.zeros(3), masks, found))
    assert (
        (pushed[1] == 0).all()
        and (pushed[0][masks[0]] > 0).all()
        and (pushed[2][masks[2]] < 0).all()
        and (pushed[~masks] == 0).all()
    )


# ---- in training


class Engine:
    "Stands in for vLLM: writes with the model and gives log-probabilities"

    max_completion_length, generation_kwargs, model = 60, None, None
    temperature, top_k, top_p = 1.0, 0, 1.0

    def __init__(self, trainer):
        self.trainer, self.n = trainer, 0

    def sync_weights(self):
        pass

    def generate(self, prompts, images, num_generations, profiler=None):
        self.n += 1
        assert len(set(gather_object([len(prompts)]))) == 1, (
            "vLLM's server deals answers out in equal shares"
        )
        found = generate(
            self.trainer.model,
            self.trainer._tokenizer,
            prompts,
            self.max_completion_length,
            seed=self.n,
        )
        return prompts, [c.ids for c in found], [[[lp] for lp in c.logps] for c in found], None


async def dog(talk):
    return Heard(DOG)


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_dialogue_is_trained_on_the_policys_own_tokens_only(made, tmp_path, engine):
    args = trainer_args(
        {
            "optim": "sgd",
            "learning_rate": 1.0,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0,
            "max_grad_norm": 0.0,
            "save_strategy": "no",
            "vllm_importance_sampling_correction": False,
        },
        tmp_path,
        1,
        2,
        1,
        60,
    )
    t = MethodTrainer(
        *made, Method(multi_turn(dog, 3), lambda batch: torch.tensor([1.0, -0.5])), [ROW], args
    )
    if engine == "vllm":
        t.use_vllm, t.vllm_generation, t._last_loaded_step = True, Engine(t), -1
    first = {n: p.detach().clone() for n, p in t.model.named_parameters()}
    t.train()
    assert all(len(x.turns) == 6 and x.logps is not None for x in t.trajectories)
    changed = {n: p.detach().clone() for n, p in t.model.named_parameters()}
    for n, p in t.model.named_parameters():
        p.data = first[n].clone().requires_grad_()
    found = token_logps(
        t.model, [x.prompt_ids for x in t.trajectories], [x.completion_ids for x in t.trajectories]
    )
    mask = torch.zeros_like(found.mask)
    for i, x in enumerate(t.trajectories):
        mask[i, : len(x.mask)] = torch.tensor(x.mask)
    t.model.zero_grad()
    ((torch.tensor([[1.0], [-0.5]]) * found.logps * mask).sum() / mask.sum()).backward()
    for n, p in t.model.named_parameters():
        torch.testing.assert_close(changed[n], p.detach() + p.grad, atol=2e-5, rtol=1e-4)


# ---- several processes

TWO = """
import os, sys, torch
from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.training.dialogues import Heard, _seeded, multi_turn
from humanlm.training.method import Method
from humanlm.training.policies import row_seeds
from humanlm.training.trainer import MethodTrainer, trainer_args
from humanlm.training.advantages import turn_advantages
sys.path.insert(0, {tests!r})
from test_dialogue import DOG, ROW, TEXTS, Engine

torch.set_num_threads(1)
config = ModelConfig(vocab=360, hidden=32, heads=2, kv_heads=2, mlp=48, template="chatml")
made = make_model(config, TEXTS)

async def answer(talk):
    "The first process is done after one turn, the second goes on"
    return Heard(DOG if talk.row["row_id"] == "b" else [])

args = trainer_args({{"save_strategy": "no"}}, {out!r}, 2, 2, 2, 60)
method = Method(multi_turn(answer, 3), lambda batch: torch.ones(2))
t = MethodTrainer(*made, method, [ROW | {{"row_id": name}} for name in "abab"], args)
if {vllm}: t.use_vllm, t.vllm_generation, t._last_loaded_step = True, Engine(t), -1
t.train()
process = t.accelerator.process_index
lengths = [6, 6] if t.trajectories[0].row_id == "b" else [1, 1]
assert [len(x.turns) for x in t.trajectories] == lengths, t.trajectories

whole = slice(0, 3) if process == 0 else slice(3, 6)
turns, one = [[.1, .5], [.2], [.9], [.0, .3], [.7], [.4, .4]], torch.zeros(6)  # one group
starts, mask = [[0, 3][:len(row)] for row in turns], torch.ones(6, 5).bool()
credited = turn_advantages(turns[whole], starts[whole], mask[whole], one[whole], "em", "r2g")
several = [None, None]
three = [ROW, ROW | {{"row_id": "c"}}, ROW]
seeds = [row["seed"] for row in _seeded(three, t.policy, None)]
torch.distributed.all_gather_object(several, (credited, seeds))
seeds = several[0][1] + several[1][1]
assert seeds == row_seeds(three * 2, t.policy) and len(set(seeds)) == 6, several
torch.distributed.destroy_process_group()
os.environ["WORLD_SIZE"] = "1"
alone = turn_advantages(turns, starts, mask, one, "em", "r2g")
assert torch.allclose(torch.cat([each for each, _ in several]), alone, atol=1e-6), several
open({out!r} + f"-{{process}}", "w").close()
"""


@pytest.mark.parametrize("vllm", [False, True], ids=["transformers", "vllm"])
def test_two_processes_keep_step_where_one_has_nothing_left_to_ask_and_scale_over_both(
    tmp_path, vllm
):
    script = tmp_path / "two.py"
    script.write_text(
        TWO.format(out=str(tmp_path / "c"), tests=str(Path(__file__).parent), vllm=vllm)
    )
    for done in warm.together(2, script):
        assert done.returncode == 0, done.stderr[-3000:]
    assert all((tmp_path / f"c-{i}").exists() for i in (0, 1))
