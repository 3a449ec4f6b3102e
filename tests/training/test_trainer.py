"""What reaches the loss, what is left out of it, and how a run of the trainer stops and goes on."""

import copy
import itertools
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from trl import GRPOTrainer

from humanlm.alignment.grpo import _batch_metrics
from humanlm.core.records import sample_examples
from humanlm.core.trajectory import Trajectory
from humanlm.evaluation.index import load_trajectories
from humanlm.hierarchy.prompts import HierarchyConfig, closing, make_rows, opening
from humanlm.models.checkpoints import add_adapter, load_model, make_model, save_model
from humanlm.models.config import ModelConfig
from humanlm.models.generation import generate
from humanlm.models.logps import token_logps
from humanlm.rewards.judges import RuleJudge
from humanlm.rewards.reward import AlignmentReward, requests_by_row
from humanlm.rewards.scoring import JudgeError
from humanlm.training.advantages import group_advantages
from humanlm.training.method import Method
from humanlm.training.rollouts import single_turn
from humanlm.training.sampling import group_index, repeat_rows
from humanlm.training.shares import token_counts
from humanlm.training.trainer import (
    MethodTrainer,
    TokenBudget,
    TrainerError,
    _logged_tokens,
    latest_checkpoint,
    trainer_args,
)

EXAMPLES = sample_examples()[:6]
CONFIG = HierarchyConfig(levels=["stance", "response"], state_tokens=6, response_tokens=9)
ROWS = make_rows(EXAMPLES, CONFIG, ["stance"])
TAGS = [tag(level) for level in CONFIG.load().names for tag in (opening, closing)]
PLAIN_SGD = dict(
    optim="sgd",
    learning_rate=1.0,
    lr_scheduler_type="constant",
    warmup_steps=0,
    max_grad_norm=0.0,
    save_strategy="no",
)


@pytest.fixture(scope="module")
def made():
    torch.set_num_threads(1)
    texts = [text for e in EXAMPLES for text in (e.reply, *(m.content for m in e.context))]
    return make_model(ModelConfig(vocab=600, hidden=32, heads=2, kv_heads=2, mlp=64), texts, TAGS)


class Told:
    "A reward whose values were written down before: [B, R]"

    def __init__(self, values, weights=(1.0,)):
        self.values = np.asarray(values, float).reshape(-1, len(weights))
        self.names, self.weights = tuple(f"part{i}" for i in range(len(weights))), weights

    async def __call__(self, trajectories):
        return self.values, trajectories


class EvenTokens:
    "The share of even token numbers"

    names, weights = ("even",), (1.0,)

    async def __call__(self, trajectories):
        return np.array(
            [[np.mean(np.array(t.completion_ids) % 2 == 0)] for t in trajectories]
        ), trajectories


def written(completions, masks=None):
    "A rollout that writes given token ids"

    async def rollout(rows, policy):
        masked = masks or [[True] * len(ids) for ids in completions]
        return [
            Trajectory(
                f"{r['row_id']}/{i}",
                r["row_id"],
                g,
                0,
                r["level"],
                (),
                policy.prompt_ids(r),
                ids,
                mask,
            )
            for i, (r, g, ids, mask) in enumerate(
                zip(rows, group_index(rows), completions, masked, strict=True)
            )
        ]

    return rollout


def by_group(batch):
    return group_advantages(batch.rewards[:, 0], batch.groups)


def measured(batch):
    return _batch_metrics(batch, [1.0] + [0.0] * (batch.rewards.shape[1] - 1))


def trainer(made, method, out, steps=1, options=None, rows=ROWS, prompts=2, group=4, **kw):
    model, tokenizer = made
    args = trainer_args(options or PLAIN_SGD, out, prompts, group, steps, 9, seed=3)
    order = [rows[i % len(rows)] for i in range(prompts * steps)]
    return MethodTrainer(copy.deepcopy(model), tokenizer, method, order, args, **kw)


def losses(t):
    return [(row["step"], row["loss"]) for row in t.state.log_history if "loss" in row]


COMPLETIONS = [
    [30, 31, 32],
    [33, 34],
    [35, 36, 37, 38],
    [39],
    [40, 41],
    [42, 43, 44],
    [45, 46, 47, 48, 49],
    [50, 51],
]
T = max(map(len, COMPLETIONS))
WRITTEN = torch.tensor([[i < len(ids) for i in range(T)] for ids in COMPLETIONS])
MASKS = [[i != 1 for i in range(len(ids))] for ids in COMPLETIONS]


def gradient_step(made, out, advantages, mask, loss_type="dapo"):
    "The parameters after one step of gradient ascent on sum(advantage * log-probability)"
    model, prompts = copy.deepcopy(made.model).train(), repeat_rows(ROWS[:2], 4)
    policy = trainer(made, Method(None, None, Told([0])), out).policy
    logps = token_logps(model, [policy.prompt_ids(r) for r in prompts], COMPLETIONS).logps
    each = advantages * logps * mask
    objective = (
        each.sum() / mask.sum() if loss_type == "dapo" else (each.sum(1) / mask.sum(1)).mean()
    )
    objective.backward()
    return {name: (p + p.grad).detach() for name, p in model.named_parameters()}


def assert_same(model, expected, atol=2e-5):
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], atol=atol, rtol=1e-4)


@pytest.mark.numbers
@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
@pytest.mark.parametrize("per_token", [True, False])
def test_advantages_reach_the_loss_as_they_are(made, tmp_path, per_token, loss_type):
    torch.manual_seed(0)
    advantages = torch.randn(8, T) if per_token else torch.randn(8)
    method = Method(written(COMPLETIONS), lambda batch: advantages, Told(np.arange(8)))
    t = trainer(made, method, tmp_path, options=PLAIN_SGD | {"loss_type": loss_type})
    t.train()
    column = advantages if per_token else advantages[:, None]
    assert_same(t.model, gradient_step(made, tmp_path, column, WRITTEN, loss_type))
    kept = [t.advantage for t in t.trajectories]
    assert (
        kept == pytest.approx(advantages.tolist())
        if not per_token
        else [len(a) for a in kept] == [len(c) for c in COMPLETIONS]
    )


@pytest.mark.numbers
def test_tokens_of_others_are_read_but_not_trained(made, tmp_path):
    seen, advantages = [], torch.randn(8, T)

    def advantage(batch):
        seen.append(batch.mask)
        return advantages

    t = trainer(made, Method(written(COMPLETIONS, MASKS), advantage, Told(np.arange(8))), tmp_path)
    t.train()
    mask = torch.tensor([row + [False] * (T - len(row)) for row in MASKS])
    assert seen[0].tolist() == mask.tolist()
    assert_same(t.model, gradient_step(made, tmp_path, advantages, mask))
    assert (
        _logged_tokens(t.state.log_history)
        == int(mask.sum())
        == token_counts(t.trajectories)["tokens/generated"]
    )


@pytest.mark.numbers
def test_one_number_per_completion_trains_like_plain_trl(made, tmp_path):
    rewards, (model, tokenizer) = [0.1, 0.9, 0.4, 0.4, 1.0, 0.0, 0.3, 0.8], made
    ours = trainer(
        made,
        Method(
            written(COMPLETIONS),
            lambda b: group_advantages(b.rewards[:, 0], b.groups, eps=1e-4),
            Told(rewards),
        ),
        tmp_path,
    )
    ours.train()
    prompts = [ours.policy.prompt_ids(r) for r in repeat_rows(ROWS[:2], 4)]
    plain = GRPOTrainer(
        copy.deepcopy(model),
        lambda completions, **_: rewards,
        ours.args,
        Dataset.from_dict({"prompt": ["a", "b"]}),
        processing_class=tokenizer,
        rollout_func=lambda *_: {
            "prompt_ids": prompts,
            "completion_ids": COMPLETIONS,
            "logprobs": None,
        },
    )
    plain.train()
    assert_same(ours.model, dict(plain.model.named_parameters()), atol=1e-6)
    np.testing.assert_allclose(
        losses(ours), losses(plain), atol=1e-6
    )  # two paths through the arithmetic: float32 rounds them apart
    assert all(abs(loss) > 1e-3 for _, loss in losses(plain)), (
        "losses near zero would agree whatever they are"
    )


@pytest.mark.numbers
def test_what_has_no_score_has_no_weight(made, tmp_path):
    rewards = [0.0, math.nan, 1.0, 0.5, 1.0, 0.0, math.nan, math.nan]
    t = trainer(
        made, Method(written(COMPLETIONS), by_group, Told(rewards), metrics=measured), tmp_path
    )
    t.train()
    half, one = 1 / math.sqrt(2), 1.0
    expected = [
        -one,
        0,
        one,
        0,
        half,
        -half,
        0,
        0,
    ]  # by hand: deviations 0.5 and sqrt(0.5) over those with a score
    assert [x.advantage for x in t.trajectories] == pytest.approx(expected, abs=1e-5)
    assert_same(t.model, gradient_step(made, tmp_path, torch.tensor(expected)[:, None], WRITTEN))
    assert t.state.log_history[0]["judge/no_score"] == 3 / 8 and t.state.log_history[0][
        "reward/stance"
    ] == pytest.approx(0.5)


class Halting(RuleJudge):
    "The rule judge, until its line goes dead"

    name = "halting"

    def __init__(self, good):
        super().__init__()
        self.left = good

    async def __call__(self, request):
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("the line is dead")
        return await super().__call__(request)


class Sampled:
    "Judge what a random model samples: its tokens stand in for a description"

    names, weights = ("alignment",), (1.0,)

    def __init__(self, reward):
        self.reward = reward

    async def __call__(self, trajectories):
        said = [
            replace(
                t,
                parse_status="ok",
                fields={t.level: f"likes token {' and '.join(map(str, t.completion_ids))}"},
            )
            for t in trajectories
        ]
        return await self.reward(said)


@pytest.mark.numbers
def test_a_run_that_a_judge_stopped_goes_on_as_if_nothing_had_happened(made, tmp_path):
    def run(out, good, resume=None):
        reward = AlignmentReward(
            Halting(good), requests_by_row(ROWS, EXAMPLES), max_failed_share=0.4
        )
        t = trainer(
            made,
            Method(single_turn(), by_group, Sampled(reward)),
            tmp_path / out,
            6,
            dict(learning_rate=1e-2, save_steps=4),
            rows=ROWS * 8,
        )
        t.train(resume_from_checkpoint=resume)
        return t

    whole = run("a", good=99)
    with pytest.raises(JudgeError) as e:
        run("b", good=6)  # two groups a step: down from step 3 on
    assert e.value.__notes__ == [f"A resumed run goes on from {tmp_path / 'b' / 'checkpoint-3'}."]
    again = run("b", good=99, resume=latest_checkpoint(tmp_path / "b"))
    assert (
        losses(again) == losses(whole)
        and again.state.num_input_tokens_seen == whole.state.num_input_tokens_seen
    )
    assert_same(again.model, dict(whole.model.named_parameters()), atol=0)


ADAM = dict(learning_rate=1e-2, save_steps=2)


@pytest.mark.numbers
@pytest.mark.parametrize(
    "cycle",
    [{}, {"steps_per_generation": 2}, {"gradient_accumulation_steps": 2}],
    ids=["plain", "two steps", "accumulated"],
)
def test_a_resumed_run_repeats_the_losses(made, tmp_path, cycle):
    toy = Method(single_turn(), by_group, EvenTokens())

    def run(out, rows):
        return trainer(
            made, toy, tmp_path / out, 6, ADAM | cycle, records=tmp_path / f"t-{out}", rows=rows
        )

    rows = ROWS * 8
    whole = run("a", rows)
    whole.train()
    for at in (2, 4):
        again = run("b", rows)
        again.train(resume_from_checkpoint=str(tmp_path / "a" / f"checkpoint-{at}"))
        assert losses(again) == losses(whole)
        assert_same(again.model, dict(whole.model.named_parameters()), atol=0)
    steps = {
        p.name: [t.completion_ids for t in load_trajectories(p)]
        for p in (tmp_path / "t-a").iterdir()
    }
    repeated = {
        p.name: [t.completion_ids for t in load_trajectories(p)]
        for p in (tmp_path / "t-b").iterdir()
    }
    assert repeated.items() <= steps.items() and len(repeated) >= 2


@pytest.mark.numbers
@pytest.mark.parametrize(
    "options", [{}, {"gradient_checkpointing": True}], ids=["plain", "gradient checkpointing"]
)
def test_a_resumed_adapter_repeats_the_losses_and_leaves_its_base_alone(made, tmp_path, options):
    base, toy = save_model(*made, tmp_path / "base"), Method(single_turn(), by_group, EvenTokens())

    def run(out, resume=None):
        model = add_adapter(load_model(base, device="cpu").model, ModelConfig(lora_rank=4), base)
        t = trainer((model, made.tokenizer), toy, tmp_path / out, 6, ADAM | options, rows=ROWS * 8)
        t.train(resume_from_checkpoint=resume)
        return t

    whole = run("a")
    for at in (2, 4):
        again = run("b", str(tmp_path / "a" / f"checkpoint-{at}"))
        assert losses(again) == losses(whole)
        assert_same(again.model, dict(whole.model.named_parameters()), atol=0)
    moved = {n: p for n, p in whole.model.named_parameters() if "lora_B" in n}
    assert moved and all(p.abs().max() > 0 for p in moved.values())
    assert Path(latest_checkpoint(tmp_path / "a")).name == "checkpoint-6"
    for name, weight in made.model.named_parameters():
        kept = dict(whole.model.get_base_model().named_parameters())
        assert torch.equal(
            kept.get(name, kept.get(name.replace(".weight", ".base_layer.weight"))), weight
        )


def test_a_token_budget_survives_a_resume(made, tmp_path):
    toy = Method(single_turn(), by_group, EvenTokens())

    def run(out, budget):
        return trainer(made, toy, tmp_path / out, 8, ADAM, callbacks=[TokenBudget(budget)])

    whole = run("a", 200)
    whole.train()
    spent = np.cumsum([row["tokens/generated"] for row in whole.state.log_history if "loss" in row])
    assert spent[-1] >= 200 > spent[-2] and 2 < len(spent) < 8
    again = run("b", 200)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert losses(again) == losses(whole)


@pytest.fixture(scope="module")
def checkpoints(made, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    trainer(made, Method(single_turn(), by_group, EvenTokens()), out, 4, ADAM).train()
    return out


def cut(path):
    path.write_bytes(path.read_bytes()[:-40])


BREAKS = {
    "random state cut off": lambda folder: cut(folder / "rng_state.pth"),
    "state is no JSON": lambda folder: (folder / "trainer_state.json").write_text('{"step'),
    "no state yet": lambda folder: (folder / "trainer_state.json").unlink(),
}


@pytest.mark.parametrize("fault", BREAKS)
def test_the_newest_whole_checkpoint_counts(checkpoints, tmp_path, fault):
    shutil.copytree(checkpoints, tmp_path / "c")
    assert Path(latest_checkpoint(tmp_path / "c")).name == "checkpoint-4"
    BREAKS[fault](tmp_path / "c" / "checkpoint-4")
    assert Path(latest_checkpoint(tmp_path / "c")).name == "checkpoint-2"
    BREAKS[fault](tmp_path / "c" / "checkpoint-2")
    assert latest_checkpoint(tmp_path / "c") is None
    assert not list((tmp_path / "c").iterdir())


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"learning_rat": 1},
            "Unknown option of the group 'trainer' 'learning_rat'.*Did you mean 'learning_rate'",
        ),
        ({"lr_scheduler_type": "wobbly"}, "TRL refuses .*wobbly"),
    ],
)
def test_options_that_cannot_be_are_named(tmp_path, options, message):
    with pytest.raises(TrainerError, match=message):
        trainer_args(options, tmp_path, 2, 4, 6, 9)


class StandInEngine:
    "What TRL's vLLM engine offers, played by the model itself"

    max_completion_length, generation_kwargs = 9, {"stop": ["###"]}
    temperature, top_k, top_p = 1.0, 0, 1.0

    def __init__(self, trainer):
        self.trainer, self.asked, self.synced = trainer, [], 0

    def sync_weights(self):
        self.synced += 1

    def generate(self, prompts, images, num_generations, profiler=None):
        self.asked.append((self.max_completion_length, self.generation_kwargs))
        groups = prompts[::num_generations]
        assert prompts == [p for p in groups for _ in range(num_generations)], (
            "vLLM's server answers whole groups"
        )
        found = generate(
            self.trainer.model,
            self.trainer._tokenizer,
            prompts,
            self.max_completion_length,
            temperature=self.temperature,
            seed=len(self.asked),
        )
        return prompts, [c.ids for c in found], [[[lp] for lp in c.logps] for c in found], None


def test_the_vllm_engine_gets_caps_and_stop_strings_and_its_logps_reach_the_loss(made, tmp_path):
    t = trainer(made, Method(single_turn(), by_group, EvenTokens()), tmp_path, steps=2)
    t.use_vllm, t.vllm_generation, t._last_loaded_step = True, StandInEngine(t), -1
    t.train()
    assert (
        t.vllm_generation.asked == [(6, {"stop": ["###", "</stance>"]})] * 2
        and t.vllm_generation.synced == 2
    )
    assert (t.vllm_generation.max_completion_length, t.vllm_generation.generation_kwargs) == (
        9,
        {"stop": ["###"]},
    )
    assert all(len(x.logps) == len(x.completion_ids) for x in t.trajectories)
    assert any("sampling" in name for name in t.state.log_history[0]), (
        "TRL compares vLLM's log-probabilities with the model's"
    )


def test_a_method_without_a_reward_trains_and_logs_no_score(made, tmp_path):
    advantages, seen = torch.randn(8), []

    def advantage(batch):
        seen.append(batch.rewards.shape)
        return advantages

    t = trainer(made, Method(written(COMPLETIONS), advantage), tmp_path)
    t.train()
    assert seen == [(8, 0)] and not [
        name
        for name in t.state.log_history[0]
        if name.startswith(("reward", "frac_reward", "judge"))
    ]
    assert_same(t.model, gradient_step(made, tmp_path, advantages[:, None], WRITTEN))


def divergence(model, t):
    "Reverse KL to a teacher over the whole vocabulary, per token"
    ids, mask = (
        torch.cat([t["prompt_ids"], t["completion_ids"]], 1),
        torch.cat([t["prompt_mask"], t["completion_mask"]], 1),
    )
    logits = model(input_ids=ids, attention_mask=mask).logits[
        :, -t["completion_ids"].shape[1] - 1 : -1
    ]
    own = logits.log_softmax(-1)
    return ((own.exp() * (own - t["teacher"])).sum(-1) * t["weights"]).sum()


# bnpo takes a mean over each part of the batch: with several parts another number by its definition
@pytest.mark.numbers
@pytest.mark.parametrize(
    "loss_type, gathered", [*itertools.product(["dapo", "grpo", "dr_grpo"], [1, 2, 4]), ("bnpo", 1)]
)
def test_a_loss_of_the_method_is_averaged_like_the_rest_however_the_batch_is_cut(
    made, tmp_path, loss_type, gathered
):
    torch.manual_seed(0)
    teacher = torch.randn(8, T, len(made.tokenizer)).log_softmax(-1)
    options = PLAIN_SGD | {
        "loss_type": loss_type,
        "gradient_accumulation_steps": gathered,
        "per_device_train_batch_size": 8 // gathered,
    }
    t = trainer(
        made,
        Method(
            written(COMPLETIONS),
            lambda batch: (torch.zeros(8), {"teacher": teacher}),
            loss=divergence,
        ),
        tmp_path,
        options=options,
    )
    t.train()
    model, total = copy.deepcopy(made.model).train(), 0.0
    prompts = [t.policy.prompt_ids(r) for r in repeat_rows(ROWS[:2], 4)]
    for i, (p, c) in enumerate(zip(prompts, COMPLETIONS)):
        own = model(torch.tensor([p + c])).logits[0, len(p) - 1 : -1].log_softmax(-1)
        each = (own.exp() * (own - teacher[i, : len(c)])).sum(-1)
        total = total + each.sum() / {"grpo": 8 * len(c), "dr_grpo": 8 * 9}.get(
            loss_type, WRITTEN.sum()
        )
    total.backward()
    assert_same(t.model, {name: (p - p.grad).detach() for name, p in model.named_parameters()})


def test_tokens_of_a_second_model_count_in_the_budget(made, tmp_path):
    async def rollout(rows, policy):
        return [replace(t, usage={"tokens_out": 50}) for t in await single_turn()(rows, policy)]

    t = trainer(
        made,
        Method(rollout, by_group, EvenTokens()),
        tmp_path,
        steps=8,
        options=ADAM,
        callbacks=[TokenBudget(600)],
    )
    t.train()
    line = t.state.log_history[0]
    assert (
        line["tokens/others"] == 400
        and t.state.global_step == 2
        and _logged_tokens([line]) == 400 + line["tokens/generated"]
    )
