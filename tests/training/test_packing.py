"Equal prompts are read once: the same numbers and gradients as row by row"

import pytest
import torch
from test_trainer import COMPLETIONS, PLAIN_SGD, TAGS, Told, by_group, trainer, written

from humanlm.methods.method import Method
from humanlm.models.checkpoints import add_adapter, make_model, save_model
from humanlm.models.config import ModelConfig
from humanlm.models.logps import token_logps
from humanlm.models.packing import can_pack

VALUES = [1, 0, 0.5, 0.2, 0, 1, 0.3, 0.9]


@pytest.fixture
def made():
    sizes = ModelConfig(vocab=600, hidden=32, heads=2, kv_heads=2, mlp=64)
    return make_model(sizes, ["the council votes on the night tram"], TAGS)


def movement(made, out, options, packs, monkeypatch):
    "How far one training moves the weights"
    t = trainer(
        made, Method(written(COMPLETIONS), by_group, Told(VALUES)), out, options=PLAIN_SGD | options
    )
    monkeypatch.setattr(type(t), "packs", packs)
    before = [w.detach().clone() for w in t.model.parameters() if w.requires_grad]
    t.train()
    after = [w.detach() for w in t.model.parameters() if w.requires_grad]
    return torch.cat([(a - b).flatten() for a, b in zip(after, before)])


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beta": 0.1},
        {"num_iterations": 2, "max_steps": 2},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
        {"temperature": 0.7, "beta": 0.1, "lora": 4},
    ],
    ids=["plain", "reference", "old policy", "accumulation", "LoRA"],
)
def test_gradients_are_those_of_separate_rows(made, tmp_path, monkeypatch, loss_type, options):
    options = options | {"loss_type": loss_type}
    if rank := options.pop("lora", 0):
        base = save_model(*made, tmp_path / "base")
        config = ModelConfig(lora_rank=rank)
        net = add_adapter(type(made[0])(made[0].config).double(), config, base)
        for name, weight in net.named_parameters():
            torch.nn.init.normal_(weight, std=0.1) if "lora" in name else None
        made = (net, made[1])
    made = (made[0].double(), made[1])
    moves = [
        movement(made, tmp_path / str(packs), options, packs, monkeypatch)
        for packs in (True, False)
    ]
    assert moves[1].norm() > 0
    assert (moves[0] - moves[1]).norm() <= 1e-5 * moves[1].norm()


def test_packed_log_probabilities_are_those_of_rows_where_packing_is_exact(made):
    model, prompts = made[0].float(), [[5, 6, 7, 8]] * 5 + [[9, 3]] * 3
    assert can_pack(model)
    with torch.no_grad():
        packed = token_logps(model, prompts, COMPLETIONS, entropies=True)
        alone = [token_logps(model, [p], [c], entropies=True) for p, c in zip(prompts, COMPLETIONS)]
    for i, row in enumerate(alone):
        n = len(COMPLETIONS[i])
        torch.testing.assert_close(packed.logps[i, :n], row.logps[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(packed.entropies[i, :n], row.entropies[0], atol=1e-5, rtol=1e-5)
    model.config.layer_types = ["sliding_attention", "full_attention"]
    assert not can_pack(model)
