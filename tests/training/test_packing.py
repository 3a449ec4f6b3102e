"Equal prompts are read once: the same numbers and gradients as row by row"

import copy
import os
import sys
from pathlib import Path

import pytest
import torch
import warm
from test_trainer import COMPLETIONS, PLAIN_SGD, ROWS, TAGS, by_group, trainer

from humanlm.core.trajectory import Trajectory
from humanlm.models.checkpoints import add_adapter, make_model, save_model
from humanlm.models.config import ModelConfig
from humanlm.training.method import Method
from humanlm.training.sampling import copy_index, group_index

VALUES = [1, 0, 0.5, 0.2, 0, 1, 0.3, 0.9]
WRITTEN = {row["row_id"]: COMPLETIONS[4 * i : 4 * i + 4] for i, row in enumerate(ROWS[:2])}
OPTIONS = {
    "plain": {},
    "reference": {"beta": 0.1},
    "old policy": {"num_iterations": 2, "max_steps": 2},
    "several updates": {"steps_per_generation": 2, "max_steps": 2},
    "accumulation": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    "LoRA": {"temperature": 0.7, "beta": 0.1, "lora": 4},
    "padding on the right": {"side": "right"},
    "states made again": {"gradient_checkpointing": True},
}


class Values:
    "A reward whose values were written down before, found by what was written"

    names, weights = ("value",), (1.0,)

    async def __call__(self, trajectories):
        return [[VALUES[COMPLETIONS.index(t.completion_ids)]] for t in trajectories], trajectories


async def rollout(rows, policy):
    "Write what was written down for each row, in whichever process"
    return [
        Trajectory(
            f"{row['row_id']}/{n}",
            row["row_id"],
            group,
            0,
            row["level"],
            (),
            policy.prompt_ids(row),
            ids := WRITTEN[row["row_id"]][n],
            [True] * len(ids),
        )
        for row, n, group in zip(rows, copy_index(rows), group_index(rows))
    ]


@pytest.fixture
def made():
    return tiny()


def tiny():
    torch.manual_seed(0)
    sizes = ModelConfig(vocab=600, hidden=32, heads=2, kv_heads=2, mlp=64)
    return make_model(sizes, ["the council votes on the night tram"], TAGS)


def adapted(made, rank, out):
    torch.manual_seed(0)
    base = save_model(*made, out / f"base-{os.environ.get('RANK', 0)}")
    net = add_adapter(copy.deepcopy(made[0]).double(), ModelConfig(lora_rank=rank), base)
    for name, weight in net.named_parameters():
        torch.nn.init.normal_(weight, std=0.1) if "lora" in name else None
    return net, made[1]


def movement(made, out, options, packs=None):
    "How far one training moves the weights, and how many tokens the model reads for it"
    tokenizer = copy.deepcopy(made[1])
    tokenizer.padding_side = options.get("side", "left")
    if rank := options.get("lora"):
        made = adapted(made, rank, out)
    options = PLAIN_SGD | {n: value for n, value in options.items() if n not in ("side", "lora")}
    made, read = (copy.deepcopy(made[0]).double(), tokenizer), []
    t = trainer(made, Method(rollout, by_group, Values()), out, options=options)
    if packs is not None:
        t.packs = packs
    models = [t.model, *filter(None, [t.ref_model])]
    for model in models:
        model.get_input_embeddings().register_forward_hook(
            lambda _, args, out: read.append(args[0].numel())
        )
    before = [w.detach().clone() for w in t.model.parameters() if w.requires_grad]
    t.train()
    after = [w.detach() for w in t.model.parameters() if w.requires_grad]
    return torch.cat([(a - b).flatten() for a, b in zip(after, before)]), sum(read)


def assert_near(found, expected, most=1e-5):
    assert expected.norm() > 0
    assert (found - expected).norm() <= most * expected.norm()


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_are_those_of_separate_rows(made, tmp_path, loss_type, name):
    options = OPTIONS[name] | {"loss_type": loss_type}
    moved, tokens = movement(made, tmp_path / "packed", options)  # as it is by default
    expected, every = movement(made, tmp_path / "rows", options, packs=False)
    assert_near(moved, expected)
    assert tokens < every


# ---- two processes

TOGETHER = ("plain", "reference", "accumulation", "LoRA")


def main(out):
    "Train in each of several processes, packed and by rows, and leave how the weights moved"
    for name in TOGETHER:
        options = dict(OPTIONS[name])
        if "gradient_accumulation_steps" in options:
            options["gradient_accumulation_steps"] //= 2  # of half as many rows
        for packs in (True, False):
            found = movement(tiny(), out / "run", options, packs)
            torch.save(found, out / f"{name}-{packs}-{os.environ.get('RANK', 0)}.pt")


def test_two_processes_move_as_one_by_rows(tmp_path):
    (tmp_path / "2").mkdir()
    for done in warm.together(2, __file__, tmp_path / "2"):
        assert done.returncode == 0, done.stderr[-3000:]
    for name in TOGETHER:
        expected, _ = movement(tiny(), tmp_path / "1", OPTIONS[name], packs=False)
        for rank in (0, 1):
            read = {}
            for packs in (True, False):
                moved, read[packs] = torch.load(tmp_path / "2" / f"{name}-{packs}-{rank}.pt")
                assert_near(moved, expected)
            assert read[True] < read[False]


# ---- where it is exact, and where not


SIZES = {"vocab_size": 600, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
