"""One step led for verl is one step of TRL's trainer: equal advantages on the same tokens."""

from dataclasses import replace

import pytest
import torch

from humanlm.core.basics import run_sync
from humanlm.engines.exchange import loop_results, take_step
from humanlm.engines.plugin import _carried
from humanlm.hierarchy.prompts import closing, markup, opening
from humanlm.training.advantages import estimators
from humanlm.training.method import (
    AdvantageConfig,
    Batch,
    Method,
    TextReward,
    ask_row,
    group_advantage,
)
from humanlm.training.policies import ScriptedPolicy
from humanlm.training.rollouts import single_turn
from humanlm.training.run import fit, read_settings
from humanlm.training.sampling import repeat_rows

ROWS = repeat_rows([ask_row("first", "a"), ask_row("second", "b")], 4)


def words(row, copy):
    return " ".join([row["row_id"]] * (copy + 1))


@pytest.mark.parametrize("name", estimators)
def test_advantages_through_verls_signature_are_those_of_the_trainer(name):
    method = Method(
        single_turn(),
        group_advantage([1.0], AdvantageConfig(name)),
        TextReward(lambda texts: [len(t) % 3 / 2 for t in texts]),
    )
    batch, found, _ = run_sync(take_step(method, ROWS, ScriptedPolicy(words)))
    results = loop_results(batch.trajectories, found)
    width = batch.mask.shape[1]

    def pad(key):
        return torch.tensor(
            [r[key] + [0] * (width - len(r[key])) for r in results], dtype=torch.float32
        )

    carried, _ = _carried(
        pad("token_scores"), pad("response_mask"), index=[t.row_id for t in batch.trajectories]
    )
    ours = found[:, None] * batch.mask
    assert torch.allclose(carried, ours, rtol=1e-6, atol=0)


class Compared(Exception):
    pass


HUMANLM = [
    "--config",
    "configs/humanlm-mini.yaml",
    "--world.users",
    "24",
    "--model.hidden",
    "32",
    "--model.heads",
    "2",
    "--model.kv_heads",
    "2",
    "--model.mlp",
    "64",
    "--sft.batch",
    "4",
    "--sft.lesson_steps",
    "2",
    "--sft.polite_steps",
    "0",
    "--sft.faithful_steps",
    "0",
    "--rollout.num_prompts",
    "4",
    "--rollout.group_size",
    "4",
    "--run.methods",
]


@pytest.mark.long
@pytest.mark.parametrize(
    "argv",
    [
        [
            "--config",
            "configs/classmate-mini.yaml",
            "--sft.lesson_steps",
            "40",
            "--sft.reader_steps",
            "10",
            "--rollout.num_prompts",
            "2",
            "--rollout.group_size",
            "4",
        ],
        [*HUMANLM, "[humanlm]"],
        [
            "--config",
            "configs/gyms-mini.yaml",
            "--gyms.tasks",
            "60",
            "--gyms.max_turns",
            "3",
            "--gyms.max_tokens",
            "400",
            "--sft.batch",
            "4",
            "--sft.lesson_steps",
            "20",
            "--rollout.num_prompts",
            "2",
            "--rollout.group_size",
            "4",
        ],
        [
            "--config",
            "configs/sdpo-mini.yaml",
            "--user.tastes",
            "[casual]",
            "--sft.lesson_steps",
            "10",
            "--rollout.num_prompts",
            "4",
        ],
    ],
    ids=["classmate", "humanlm", "gyms", "sdpo"],
)
def test_rewards_and_advantages_of_a_recipes_step_are_those_of_the_trainer(
    argv, tmp_path, monkeypatch
):
    from humanlm.training.trainer import MethodTrainer, _TrainerPolicy

    found, known, written = (
        {},
        MethodTrainer._generate_and_score_completions,
        _TrainerPolicy.generate,
    )

    async def every_other_is_right(policy, rows, sampling=None):
        "A model with so few lessons earns nothing: every other row says what the person did"
        told = await written(policy, rows, sampling)
        return [
            policy.given(
                row
                | {
                    "given": [
                        markup(opening(row["level"])),
                        {"type": "text", "text": row["ground_truth"]},
                        markup(closing(row["level"])),
                    ]
                }
            )
            if i % 2 and row.get("ground_truth")
            else one
            for i, (row, one) in enumerate(zip(rows, told, strict=True))
        ]

    def compared(self, inputs):
        known(self, inputs)
        theirs, values = self.trajectories, self.rewards

        async def again(rows, policy):
            ours = [replace(t, id=t.id.partition("/")[2]) for t in theirs]
            return ours if callable(self.method.reward) else (ours, values)  # asked again, or given

        found["values"] = torch.as_tensor(values, dtype=torch.float32)
        found["theirs"], found["step"] = (
            theirs,
            run_sync(take_step(self.method._replace(rollout=again), self.batch_rows, self.policy)),
        )
        raise Compared

    monkeypatch.setattr(MethodTrainer, "_generate_and_score_completions", compared)
    if argv[1] == "configs/humanlm-mini.yaml":
        monkeypatch.setattr(_TrainerPolicy, "generate", every_other_is_right)
    recipe, settings = read_settings([*argv, "--run.out", str(tmp_path)])
    with pytest.raises(Compared):
        fit(settings, recipe)
    assert torch.allclose(
        found["step"][0].rewards, found["values"], rtol=1e-6, atol=0, equal_nan=True
    )
    sizes = 0.0
    for a, b in zip(found["theirs"], found["step"][0].trajectories, strict=True):
        ours, others = (
            torch.as_tensor(t.advantage).expand(len(t.mask))[torch.tensor(t.mask)] for t in (a, b)
        )
        assert (
            torch.allclose(ours, others, rtol=1e-6, atol=2e-6)  # other rows beside them
            and a.rewards == b.rewards
            and a.group == b.group
        )
        sizes += ours.abs().sum().item()
    assert sizes > 0


@pytest.mark.long
def test_a_signal_led_for_verl_is_that_of_the_trainers_pass_where_log_probabilities_are_equal(
    tmp_path, monkeypatch
):
    from humanlm.sdpo.method import _SelfDistillation
    from humanlm.training.trainer import MethodTrainer

    found, known, signal = {}, MethodTrainer._compute_loss, _SelfDistillation.signal

    def compared(self, model, inputs):
        known(self, model, inputs)
        prompts, completions = (
            [
                ids[mask.bool()].tolist()
                for ids, mask in zip(inputs[f"{part}_ids"], inputs[f"{part}_mask"])
            ]
            for part in ("prompt", "completion")
        )
        place = {
            (tuple(prompt), tuple(written)): i
            for i, (prompt, written) in enumerate(zip(prompts, completions))
        }  # TRL shuffles the rows between rollout and pass
        found["order"] = [
            place[tuple(t.prompt_ids), tuple(t.completion_ids)] for t in self.trajectories
        ]
        theirs = [
            replace(t, id=t.id.partition("/")[2], logps=found["logps"][i, : len(t.mask)].tolist())
            for t, i in zip(self.trajectories, found["order"])
        ]

        async def again(rows, policy):
            return theirs, self.rewards

        found["theirs"], found["step"] = (
            inputs["advantages"][found["order"]],
            run_sync(take_step(self.method._replace(rollout=again), self.batch_rows, self.policy)),
        )
        raise Compared

    def noted(self, logps, inputs):
        if "prompt_ids" in inputs:
            found["logps"] = logps.clone()  # of the training pass, which has the prompts as tensors
        return signal(self, logps, inputs)

    monkeypatch.setattr(_SelfDistillation, "signal", noted)
    monkeypatch.setattr(MethodTrainer, "_compute_loss", compared)
    recipe, settings = read_settings(
        [
            "--config",
            "configs/sdpo-mini.yaml",
            "--user.tastes",
            "[casual]",
            "--sft.lesson_steps",
            "10",
            "--rollout.num_prompts",
            "4",
            "--trainer.gradient_accumulation_steps",
            "1",
            "--trainer.shuffle_dataset",
            "false",
            "--run.out",
            str(tmp_path),
        ]
    )
    with pytest.raises(Compared):
        fit(settings, recipe)
    assert sorted(found["order"]) == [0, 1, 2, 3] and found["theirs"].abs().max() > 0
    assert torch.allclose(found["step"][1], found["theirs"], rtol=1e-6, atol=0)


def test_rewards_for_a_critic_stay_where_they_fall_due_and_rows_without_do_not_count():
    from humanlm.classmate.method import token_rewards

    def due(batch: Batch):
        shown = batch.mask & (
            torch.arange(batch.mask.shape[1]) < batch.mask.sum(1, keepdim=True) - 1
        )
        found["due"] = token_rewards(
            batch.rewards[:, 0],
            torch.where(torch.arange(8) == 5, torch.nan, 0.5),
            shown,
            batch.mask,
        )
        found["due"][3] = torch.nan
        return found["due"]

    found = {}
    batch, rewards, _ = run_sync(
        take_step(
            Method(single_turn(), due, TextReward(lambda texts: [1.0] * len(texts)), critic=True),
            ROWS,
            ScriptedPolicy(words),
        )
    )
    results = loop_results(batch.trajectories, rewards)
    for i, result in enumerate(results):
        length = len(result["response_ids"])
        assert result["response_mask"] == ([0] * length if i == 3 else [1] * length)
        assert result["token_scores"] == (
            [0.0] * length if i == 3 else found["due"][i, :length].tolist()
        )
    assert (
        sum(results[0]["token_scores"]) == 1.5
        and results[0]["token_scores"][-1] == 1.0
        and sum(results[5]["token_scores"]) == 1.0
    )
