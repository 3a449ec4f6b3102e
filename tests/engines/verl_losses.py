"""The loss of one update as TRL's trainer and as verl's actor compute it, on the same tokens.

In an environment that has both (constraints-verl.txt), without Ray.

python -m pytest tests/engines/verl_losses.py -s
"""

import pytest
import torch

pytest.importorskip("verl")
import test_verl_step as step

from experiments import prefixes  # noqa: F401  adds the mode prefix-chaining
from humanlm.engines.settings import Job, overrides
from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.training.run import read_settings

pytestmark = pytest.mark.verl
B, P, T, CAP, PARTS = (
    8,
    5,
    7,
    12,
    2,
)  # rows, tokens of prompts and completions, longest completion, portions of an update


@pytest.fixture(scope="module")
def model():
    return make_model(
        ModelConfig(hidden=32, layers=1, heads=2, kv_heads=2, head_dim=16, mlp=64, vocab=330),
        ["a few words to learn letters from"] * 3,
    )


@pytest.fixture(scope="module")
def rows():
    "Tokens with gaps, and log-probabilities so far apart that clipping and KL are at work"
    torch.manual_seed(1)
    ends = torch.tensor([7, 3, 5, 7, 2, 6, 4, 1])
    there = (torch.arange(T) < ends[:, None]).long()
    own = there.clone()
    own[0, 2:4] = own[3, 1] = 0
    return {
        "prompt_ids": torch.randint(5, 200, (B, P)),
        "prompt_mask": torch.ones(B, P, dtype=torch.long),
        "completion_ids": torch.randint(5, 200, (B, T)),
        "completion_mask": there,
        "tool_mask": own,
        "advantages": 0.5 + torch.randn(B, T),
        "apart": 0.4 * torch.randn(B, T),
        "from_start": 0.6 * torch.randn(B, T),
    }


def trl_trainer(model, tokenizer, options, folder):
    from humanlm.training.method import Method, TextReward, ask_row, group_advantage
    from humanlm.training.rollouts import single_turn
    from humanlm.training.trainer import MethodTrainer, trainer_args

    args = trainer_args(
        {
            "per_device_train_batch_size": B // PARTS,
            "gradient_accumulation_steps": PARTS,
            "steps_per_generation": PARTS,
            **options,
        },
        folder,
        4,
        2,
        1,
        CAP,
    )
    trainer = MethodTrainer(
        model,
        tokenizer,
        Method(single_turn(), group_advantage([1.0]), TextReward(lambda texts: [0.0] * len(texts))),
        [ask_row("a", str(i)) for i in range(4)],
        args,
    )
    trainer.current_gradient_accumulation_steps = PARTS
    return trainer


def logps_of(trainer, part):
    ids, mask = (
        torch.cat([part[f"prompt_{what}"], part[f"completion_{what}"]], 1)
        for what in ("ids", "mask")
    )
    return trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, T)[0]


def gradient(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def portions(rows):
    return [
        {name: x[i : i + B // PARTS] for name, x in rows.items()} for i in range(0, B, B // PARTS)
    ]


def by_trl(trainer, rows, more=0):
    "Loss and gradient of an update by the trainer; `more`: tokens of the step's other updates"
    trainer.model.train()
    total = 0.0
    for part in portions(rows):
        now = logps_of(trainer, part).detach()
        inputs = part | {
            "old_per_token_logps": now + part["apart"],
            "ref_per_token_logps": now + part["from_start"],
            "num_items_in_batch": (rows["completion_mask"] * rows["tool_mask"]).sum() + more,
        }
        total = total + trainer._compute_loss(trainer.model, inputs)
    return total.detach(), gradient(trainer.model, total)


def actor_settings(options, tmp_path):
    from humanlm.engines.cluster import composed

    argv = [
        "--run.recipe",
        "classmate",
        "--run.engine",
        "verl",
        "--verl.device",
        "cpu",
        "--rollout.num_prompts",
        "4",
        "--rollout.group_size",
        "2",
        *(
            word
            for name, value in options.items()
            for word in (f"--trainer.{name}", str(value).lower())
        ),
    ]
    settings = read_settings(argv)[1]
    config = composed(overrides(settings, Job(str(tmp_path), "ROWS", "OUT", "stage", CAP, 1)))
    from verl.utils.config import omega_conf_to_dataclass

    return omega_conf_to_dataclass(config.actor_rollout_ref.actor)


def by_verl(trainer, rows, actor):
    "Loss and gradient of an update by the functions that verl's actor calls"
    from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty

    own = rows["completion_mask"] * rows["tool_mask"]
    actor.global_batch_info.update(
        dp_size=1,
        batch_num_tokens=own.sum(),
        global_batch_size=B,
        loss_scale_factor=actor.loss_scale_factor,
    )
    total = 0.0
    for part in portions(rows):
        logps, mask = logps_of(trainer, part), (part["completion_mask"] * part["tool_mask"]).bool()
        loss, _ = get_policy_loss_fn("vanilla")(
            old_log_prob=logps.detach() + part["apart"],
            log_prob=logps,
            advantages=part["advantages"],
            response_mask=mask,
            loss_agg_mode=actor.loss_agg_mode,
            config=actor,
        )
        if actor.use_kl_loss:
            kl = kl_penalty(
                logprob=logps,
                ref_logprob=logps.detach() + part["from_start"],
                kl_penalty=actor.kl_loss_type,
            )
            loss = loss + actor.kl_loss_coef * agg_loss(
                loss_mat=kl,
                loss_mask=mask,
                loss_agg_mode=actor.loss_agg_mode,
                **actor.global_batch_info,
            )
        total = total + loss
    return total.detach(), gradient(trainer.model, total)


def apart(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("high", [None, 0.28])
@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo"])
def test_a_loss_and_its_gradient_are_equal(loss, high, beta, model, rows, tmp_path):
    options = {"loss_type": loss, "epsilon": 0.2, "beta": beta, "use_bias_correction_kl": False} | (
        {"epsilon_high": high} if high else {}
    )
    trainer = trl_trainer(*model, options, tmp_path)
    (ours, own), (theirs, other) = (
        by_trl(trainer, rows),
        by_verl(trainer, rows, actor_settings(options, tmp_path)),
    )
    print(
        f"{loss:8} beta {beta:.1f} high {high}: loss {ours:.6f}, apart "
        f"{apart(theirs, ours):.1e}, gradient {apart(other, own):.1e}"
    )
    assert apart(theirs, ours) < 1e-6 and apart(other, own) < 1e-6


def test_the_bound_of_ratios_where_the_advantage_is_negative_is_the_same(model, rows, tmp_path):
    options = {"loss_type": "dapo", "epsilon": 0.2}
    free, bound = (trl_trainer(*model, options | more, tmp_path) for more in ({}, {"delta": 1.5}))
    (ours, own), (theirs, other) = (
        by_trl(bound, rows),
        by_verl(bound, rows, actor_settings(options | {"delta": 1.5}, tmp_path)),
    )
    assert apart(theirs, ours) < 1e-6 and apart(other, own) < 1e-6 < 1e-2 < apart(
        own, by_trl(free, rows)[1]
    )


def test_the_kl_term_differs_where_trl_weighs_it(model, rows, tmp_path):
    options = {"loss_type": "dapo", "epsilon": 0.2, "beta": 0.1}
    trainer = trl_trainer(*model, options, tmp_path)
    for name, old in {
        "other weights wrote": rows["apart"],
        "the same weights wrote": torch.zeros(B, T),
    }.items():
        asked = rows | {"apart": old}
        (ours, own), (theirs, other) = (
            by_trl(trainer, asked),
            by_verl(
                trainer,
                asked,
                actor_settings(options | {"use_bias_correction_kl": False}, tmp_path),
            ),
        )
        print(
            f"use_bias_correction_kl true (TRL's default), {name}: loss {ours:.4f} and "
            f"{theirs:.4f}, gradients apart {apart(other, own):.3f}"
        )
        assert apart(other, own) > 1e-3


def test_verls_critic_makes_the_worked_advantages_of_rewards_where_they_fall_due():
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    from humanlm.classmate.method import token_rewards

    main, ends = torch.tensor([8, 4, 6, 6, 2, 2, 5, 3.0]), torch.tensor([6, 5, 4, 6, 3, 6, 6, 5])
    mask = torch.arange(6) < ends[:, None]
    rewards = token_rewards(main, torch.full((8,), torch.nan), mask, mask)
    found, _ = compute_gae_advantage_return(rewards, torch.zeros(8, 6), mask.float(), 1.0, 1.0)
    assert found[0].tolist() == pytest.approx([1.6441] * 6, abs=1e-4) and found[
        1, :5
    ].tolist() == pytest.approx([-0.3240] * 5, abs=1e-4)


MODES = ["response-only", "joint", "separate-rewards", "prefix-chaining", "humanlm-composed"]


@pytest.mark.parametrize(
    "argv",
    [[*step.HUMANLM, f"[{mode}]", "--reward.extra", "own:even"] for mode in MODES],
    ids=MODES,
)
def test_rewards_and_advantages_of_every_other_method_are_those_of_the_trainer(
    argv, tmp_path, monkeypatch
):
    "`test_verl_step.py` asks it of four recipes; `gae` needs a critic, which verl alone has"
    (tmp_path / "own.py").write_text(
        "def even(trajectories): return [sum(i % 2 for i in t.completion_ids) / "
        "len(t.completion_ids) for t in trajectories]"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    step.test_rewards_and_advantages_of_a_recipes_step_are_those_of_the_trainer(
        argv, tmp_path, monkeypatch
    )
