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
from halves import parts, stop_in_the_first
from trl import GRPOTrainer

from humanlm.alignment.grpo import _batch_metrics
from humanlm.alignment.modes import _PrefixMap, training_rows
from humanlm.core.records import sample_examples
from humanlm.core.trajectory import Completion, Score, Trajectory, load_trajectories
from humanlm.hierarchy.levels import Hierarchy
from humanlm.hierarchy.prompts import HierarchyConfig, closing, make_rows, opening
from humanlm.models.checkpoints import add_adapter, load_model, make_model, save_model
from humanlm.models.config import ModelConfig
from humanlm.models.generation import generate
from humanlm.models.logps import token_logps
from humanlm.rewards.judges import RuleJudge
from humanlm.rewards.reward import AlignmentReward, requests_by_row
from humanlm.rewards.scoring import JudgeError
from humanlm.training.advantages import group_advantages
from humanlm.training.checkpoints import (
    TokenBudget,
    _logged_tokens,
    latest_checkpoint,
)
from humanlm.training.method import Method
from humanlm.training.options import TrainerError, trainer_args
from humanlm.training.rollouts import single_turn
from humanlm.training.sampling import Sampling, group_index, repeat_rows
from humanlm.training.shares import generated_tokens
from humanlm.training.trainer import MethodTrainer

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


# ---- the loss

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
        _logged_tokens(t.state.log_history) == int(mask.sum()) == generated_tokens(t.trajectories)
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


def test_levels_share_a_batch_and_keep_their_own_caps(made, tmp_path):
    rows = [
        *make_rows(EXAMPLES[:1], CONFIG, ["stance"]),
        *make_rows(EXAMPLES[:1], CONFIG, ["response"]),
    ]
    t = trainer(
        made, Method(single_turn(), by_group, EvenTokens(), metrics=measured), tmp_path, rows=rows
    )
    t.train()
    longest = {
        level: max(len(x.completion_ids) for x in t.trajectories if x.level == level)
        for level in CONFIG.load().names
    }
    assert longest["stance"] <= 6 and 6 < longest["response"] <= 9
    assert {"reward/stance", "reward/response"} <= t.state.log_history[0].keys()


# ---- scores that are missing


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


# ---- estimators


# ---- a judge that fails


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


def well_formed(rows):
    "Completions that parse, so that the judge is asked"

    async def rollout(rows, policy):
        policy.generate = lambda asked, sampling=None: _answers(asked, policy)
        return await single_turn()(rows, policy)

    return rollout


async def _answers(rows, policy):
    texts = [
        f"{opening(r['level'])}likes it {'a lot ' * (i % 3)}{closing(r['level'])}"
        for i, r in enumerate(rows)
    ]
    return [
        Completion(policy.tokenizer.encode(text), text, "stop", policy.prompt_ids(r))
        for r, text in zip(rows, texts)
    ]


def test_a_failing_judge_stops_the_run_and_leaves_whole_files(made, tmp_path):
    reward = AlignmentReward(Halting(2), requests_by_row(ROWS, EXAMPLES), max_failed_share=0.5)
    t = trainer(
        made,
        Method(well_formed(ROWS), by_group, reward),
        tmp_path / "c",
        steps=3,
        records=tmp_path / "t",
    )
    with pytest.raises(
        JudgeError,
        match=r"'halting' failed on 8 of 8 candidates \(limit 50%\).*line is dead.*and resume",
    ):
        t.train()
    assert [p.name for p in (tmp_path / "t").iterdir()] == ["step-000000-0.parquet"]
    assert len(load_trajectories(tmp_path / "t")) == 8


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
    assert e.value.__notes__ == [
        f"Stopped after step 3; a resumed run goes on from {tmp_path / 'b' / 'checkpoint-3'}."
    ]
    again = run("b", good=99, resume=latest_checkpoint(tmp_path / "b"))
    assert (
        losses(again) == losses(whole)
        and again.state.num_input_tokens_seen == whole.state.num_input_tokens_seen
    )
    assert_same(again.model, dict(whole.model.named_parameters()), atol=0)


def test_a_judge_that_fails_seldom_is_left_out(made, tmp_path):
    reward = AlignmentReward(
        Halting(1), requests_by_row(ROWS, EXAMPLES), concurrency=1, max_failed_share=0.5
    )
    t = trainer(made, Method(well_formed(ROWS), by_group, reward), tmp_path)
    t.train()
    assert [math.isnan(x.scores["stance"].value) for x in t.trajectories] == [False] * 4 + [
        True
    ] * 4
    assert {x.advantage for x in t.trajectories[4:]} == {0.0} and all(
        "judge failed" in x.errors[0] for x in t.trajectories[4:]
    )


# ---- stopping and going on

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


# ---- broken checkpoints


@pytest.fixture(scope="module")
def checkpoints(made, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    trainer(made, Method(single_turn(), by_group, EvenTokens()), out, 4, ADAM).train()
    return out


def cut(path):
    path.write_bytes(path.read_bytes()[:-40])


BREAKS = {
    "weights cut off": lambda folder: cut(folder / "model.safetensors"),
    "optimizer cut off": lambda folder: cut(folder / "optimizer.pt"),
    "random state cut off": lambda folder: cut(folder / "rng_state.pth"),
    "no scheduler": lambda folder: (folder / "scheduler.pt").unlink(),
    "state is no JSON": lambda folder: (folder / "trainer_state.json").write_text('{"step'),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
}


@pytest.mark.parametrize("fault", BREAKS)
def test_the_newest_whole_checkpoint_counts(checkpoints, tmp_path, fault):
    shutil.copytree(checkpoints, tmp_path / "c")
    assert Path(latest_checkpoint(tmp_path / "c")).name == "checkpoint-4"
    BREAKS[fault](tmp_path / "c" / "checkpoint-4")
    assert Path(latest_checkpoint(tmp_path / "c")).name == "checkpoint-2"
    BREAKS[fault](tmp_path / "c" / "checkpoint-2")
    assert latest_checkpoint(tmp_path / "c") is None
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "broken-checkpoint-2",
        "broken-checkpoint-4",
    ]


def test_a_first_checkpoint_cut_off_at_any_moment_moves_aside_and_its_stage_starts_again(
    checkpoints, tmp_path, capsys
):
    count = len(parts(checkpoints / "checkpoint-2"))
    for at, share in [(at, share) for at in range(count) for share in (0.0, 0.5, 0.95)]:
        shutil.copytree(checkpoints, tmp_path / "c", dirs_exist_ok=True)
        first = stop_in_the_first(tmp_path / "c", at, share)
        left = {path.name: path.read_bytes() for path in first.iterdir()}
        assert latest_checkpoint(tmp_path / "c") is None, (at, share)
        aside = first.with_name("broken-checkpoint-2")  # in place of the one before
        assert {
            path.name: path.read_bytes() for path in aside.iterdir()
        } == left and not first.exists()
        assert "broken-checkpoint-2 now, and the stage starts again" in capsys.readouterr().out
    assert count > 8 and latest_checkpoint(tmp_path / "c") is None and capsys.readouterr().out == ""
    first.mkdir()
    assert latest_checkpoint(tmp_path / "c") is None and not list(aside.iterdir())


# ---- options


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"learning_rat": 1},
            "Unknown option of the group 'trainer' 'learning_rat'.*Did you mean 'learning_rate'",
        ),
        ({"learning_rate": "quick"}, "trainer.learning_rate must be a number, got 'quick'"),
        ({"shuffle_dataset": "maybe"}, "must be true or false"),
        ({"lr_scheduler_type": "wobbly"}, "TRL refuses .*wobbly"),
        ({"save_steps": 3, "steps_per_generation": 2}, "Use 2 or a multiple"),
    ],
)
def test_options_that_cannot_be_are_named(tmp_path, options, message):
    with pytest.raises(TrainerError, match=message):
        trainer_args(options, tmp_path, 2, 4, 6, 9)


# ---- what a method remembers


class EvenTexts:
    "Whatever was sampled counts as readable, and is worth its share of even token numbers"

    names, weights = ("alignment",), (1.0,)

    async def __call__(self, trajectories):
        worth = [np.mean(np.array(t.completion_ids) % 2 == 0) for t in trajectories]
        told = [
            replace(
                t,
                fields={t.level: f"tokens {t.completion_ids}"},
                scores={t.level: Score(t.id, float(v), "scored", "")},
            )
            for t, v in zip(trajectories, worth)
        ]
        return np.array(worth)[:, None], told


CHAINED = replace(CONFIG, asks="together")


def chained(made, out, steps=8, **kw):
    "A trainer with prefix chaining; every other step asks for the second level"
    rows = training_rows(EXAMPLES, CHAINED, "prefix-chaining")
    levels = [replace(d, threshold=d.threshold and 0.5) for d in CHAINED.load()]
    memory = _PrefixMap(Hierarchy(levels), rows)
    method = Method(single_turn(prepare=memory.prepare), by_group, EvenTexts(), memory)
    n = len(EXAMPLES)
    order = [rows[(i % 2) * n + (2 * i + j) % n] for i in range(steps) for j in range(2)]
    return trainer(
        made,
        method,
        out,
        steps,
        dict(learning_rate=1e-2, save_steps=3),
        rows=order,
        records=out / "t",
        **kw,
    )


@pytest.mark.numbers
@pytest.mark.parametrize("at", [3, 6])
def test_prefix_chaining_resumed_in_the_middle_is_as_if_nothing_had_happened(made, tmp_path, at):
    whole = chained(made, tmp_path / "a")
    whole.train()
    again = chained(made, tmp_path / "b")
    again.train(resume_from_checkpoint=str(tmp_path / "a" / f"checkpoint-{at}"))
    assert (
        losses(again) == losses(whole)
        and again.method.memory.entries == whole.method.memory.entries
    )
    assert_same(again.model, dict(whole.model.named_parameters()), atol=0)
    kept = {x.id: (x.prompt_ids, x.completion_ids) for x in load_trajectories(tmp_path / "a" / "t")}
    repeated = {
        x.id: (x.prompt_ids, x.completion_ids) for x in load_trajectories(tmp_path / "b" / "t")
    }
    assert len(repeated) == (8 - at) * 8 and repeated.items() <= kept.items()


def test_a_stopped_run_leaves_its_map_too(made, tmp_path):
    t = chained(made, tmp_path)
    good, calls = t.method.reward, []

    async def reward(trajectories):
        calls.append(1)
        if len(calls) > 4:
            raise TrainerError("the judge is down")
        return await good(trajectories)

    reward.names, reward.weights = good.names, good.weights
    t.method = t.method._replace(reward=reward)
    with pytest.raises(TrainerError) as e:
        t.train()
    assert "checkpoint-4" in e.value.__notes__[0]
    whole, again = chained(made, tmp_path / "a"), chained(made, tmp_path / "b")
    whole.train()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert losses(again) == losses(whole)


# ---- the real reply among the candidates


# ---- engines and number formats


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


def test_a_rollout_draws_in_training_as_its_sampling_says(made, tmp_path):
    "ReMax compares with the likeliest response; draws of a seed come back"
    texts = {}

    async def rollout(rows, policy):
        for name, sampling in (
            ("greedy", Sampling(temperature=0)),
            ("again", Sampling(temperature=0)),
            ("one", Sampling(top_k=1)),
            ("drawn", None),
        ):
            texts[name] = [c.ids for c in await policy.generate(rows, sampling)]
        return await written([[30], [31, 32]] * 4)(rows, policy)

    method = Method(rollout, by_group, EvenTokens())
    t = trainer(made, method, tmp_path, options=PLAIN_SGD)
    t.train()
    rows, stops = t.batch_rows, [row["stop"] for row in t.batch_rows]
    asked = [ROWS[i % len(ROWS)] for i in (0, 0, 0, 0, 1, 1, 1, 1)]
    prompts = [t.policy.prompt_ids(row) for row in asked]
    likeliest = [c.ids for c in generate(*made, prompts, 6, stops, temperature=0)]
    assert [row["row_id"] for row in rows] == [row["row_id"] for row in asked]
    assert texts["greedy"] == texts["again"] == texts["one"] == likeliest != texts["drawn"]


@pytest.mark.parametrize(
    "options, every",
    [
        ({}, 25),
        ({"num_iterations": 2}, 24),
        ({"num_iterations": 3}, 24),
        ({"steps_per_generation": 4}, 24),
        ({"steps_per_generation": 2, "num_iterations": 40}, 80),
        ({"gradient_accumulation_steps": 4}, 25),
        ({"num_iterations": 2, "save_steps": 10}, 10),
        ({"num_iterations": 2, "save_strategy": "no"}, 24),
    ],
)
def test_checkpoints_that_nobody_asked_for_end_a_cycle(tmp_path, options, every):
    args = trainer_args(options, tmp_path, 2, 4, 100, 9)
    assert args.save_steps == every


def test_a_checkpoint_within_a_cycle_is_refused_by_the_name_of_its_setting(tmp_path):
    with pytest.raises(TrainerError, match="trainer.save_steps"):
        trainer_args({"num_iterations": 2, "save_steps": 5}, tmp_path, 2, 4, 100, 9)


# ---- what other systems ask of the seam


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


@pytest.mark.numbers
def test_a_group_of_one_trains_with_a_push_of_its_own(made, tmp_path):
    advantages = torch.randn(2, 3)
    t = trainer(made, Method(written(COMPLETIONS[:2]), lambda batch: advantages), tmp_path, group=1)
    t.train()
    assert (
        t.args.num_generations,
        t.args.per_device_train_batch_size,
        t.args.generation_batch_size,
    ) == (1, 2, 2)
    model, prompts = copy.deepcopy(made.model), [t.policy.prompt_ids(r) for r in ROWS[:2]]
    found = token_logps(model, prompts, COMPLETIONS[:2])
    ((advantages * found.logps).sum() / found.mask.sum()).backward()
    assert_same(t.model, {name: (p + p.grad).detach() for name, p in model.named_parameters()})


@pytest.mark.numbers
def test_a_penalty_needs_no_place_that_the_model_came_from(made, tmp_path):
    t = trainer(
        made,
        Method(written(COMPLETIONS), by_group, Told(np.arange(8))),
        tmp_path,
        steps=2,
        options=PLAIN_SGD | {"beta": 0.5},
    )
    assert not made.model.config._name_or_path
    t.train()
    assert_same(t.ref_model, dict(made.model.named_parameters()), atol=0)
    kl = [row["kl"] for row in t.state.log_history if "kl" in row]
    assert abs(kl[0]) < 1e-6 < kl[1], "the reference stays where the model began"


@pytest.mark.numbers
def test_under_an_adapter_the_reference_is_its_start_on_the_same_weights_and_no_copy(
    made, tmp_path
):
    base, options = (
        save_model(*made, tmp_path / "base"),
        PLAIN_SGD | {"beta": 0.5, "save_strategy": "steps", "save_steps": 1},
    )
    first = save_model(
        add_adapter(load_model(base, device="cpu").model, ModelConfig(lora_rank=4), base),
        made.tokenizer,
        tmp_path / "first",
    )
    t = trainer(
        (load_model(first, device="cpu").model, made.tokenizer),
        Method(written(COMPLETIONS), by_group, Told(np.arange(8))),
        tmp_path / "run",
        steps=2,
        options=options,
        rows=ROWS[:2],
    )
    frozen = sum(p.numel() for n, p in t.model.named_parameters() if "lora" not in n)
    t.train()
    assert t.ref_model is None and frozen == sum(p.numel() for p in made.model.parameters())
    asked = [t.policy.prompt_ids(row) for row in repeat_rows(ROWS[:2], 4)]
    moved = load_model(first, device="cpu").model
    moved.load_adapter(str(tmp_path / "run" / "checkpoint-1"), "default")
    was, now = (
        token_logps(model, asked, COMPLETIONS).logps.detach() for model in (made.model, moved)
    )
    by_hand = ((was - now).exp() - (was - now) - 1)[WRITTEN].mean().item()
    kl = [row["kl"] for row in t.state.log_history if "kl" in row]
    assert kl == pytest.approx([0, by_hand], abs=1e-6) and by_hand > 1e-4
    saved = save_model(t.model, made.tokenizer, tmp_path / "last")
    assert (
        sorted(path.name for path in saved.glob("**/*.safetensors"))
        == ["adapter_model.safetensors"]
        and not (saved / "ref").exists()
    )


# ---- tensors and losses of a method


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


def test_tensors_of_an_advantage_stay_with_their_rows(made, tmp_path):
    seen = []

    def loss(model, t):
        seen.extend(zip(t["number"].tolist(), t["completion_mask"].sum(1).tolist()))
        return 0.0

    options = PLAIN_SGD | {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 2}
    trainer(
        made,
        Method(
            written(COMPLETIONS), lambda b: (torch.zeros(8), {"number": torch.arange(8)}), loss=loss
        ),
        tmp_path,
        options=options,
    ).train()
    assert sorted(seen) == [(i, len(c)) for i, c in enumerate(COMPLETIONS)]


class Teacher:
    "Follows the weights slowly, and is saved with them"

    file = "teacher.pt"

    def __init__(self, model):
        self.weights = {n: p.detach().clone() for n, p in model.named_parameters()}

    def follow(self, model):
        for n, p in model.named_parameters():
            self.weights[n].lerp_(p.detach(), 0.5)

    def note(self, trajectories):
        return []

    def learn(self, notes):
        return {}

    def save(self, path):
        torch.save(self.weights, path)

    def load(self, path):
        self.weights = torch.load(path)


@pytest.mark.numbers
@pytest.mark.parametrize("gathered", [1, 2])
def test_a_teacher_follows_every_step_of_the_optimiser_and_a_resume(made, tmp_path, gathered):
    options = dict(
        learning_rate=1e-2,
        save_steps=2,
        gradient_accumulation_steps=gathered,
        per_device_train_batch_size=8 // gathered,
    )

    def run(out, resume=None):
        teacher, seen = Teacher(made.model), []
        follow = teacher.follow
        teacher.follow = lambda model: (
            seen.append(copy.deepcopy(model.state_dict())) or follow(model)
        )
        t = trainer(
            made,
            Method(single_turn(), by_group, EvenTokens(), teacher),
            tmp_path / out,
            4,
            options,
            rows=ROWS * 4,
        )
        t.train(resume_from_checkpoint=resume)
        return teacher, seen

    teacher, seen = run("a")
    name = next(iter(teacher.weights))
    expected = dict(made.model.named_parameters())[name].detach()
    for state in seen:
        expected = expected.lerp(state[name], 0.5)
    assert len(seen) == 4 and torch.equal(teacher.weights[name], expected)
    again, _ = run("b", str(tmp_path / "a" / "checkpoint-2"))
    for name, weights in teacher.weights.items():
        assert torch.equal(weights, again.weights[name])


# ---- tokens of second models


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
