"""One of two processes that train in bfloat16 by ZeRO-3; started by `zero_runs.py`."""

import deepspeed
import torch

from humanlm.training.sharding import _exactly, whole, whole_weights

deepspeed.init_distributed("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(48, 48), torch.nn.ReLU(), torch.nn.Linear(48, 7))
before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
config = {
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {"enabled": True},
    "communication_data_type": "fp32",
    "data_types": {"grad_accum_dtype": "fp32"},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
}


def split(model, optimizer):
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def compare(least, most):
    found = whole_weights(model)
    if torch.distributed.get_rank() == 0:
        for name, weight in before.items():
            moved = (found[name] - weight).abs()
            assert found[name].dtype == torch.float32 and least <= moved.max() <= most, (
                name,
                moved.max(),
            )


for steps in (1, 2):  # trained twice, as lessons in two stretches are
    engine = _exactly(split)(
        model, torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
    )
    if steps == 1:
        compare(0, 0)
    for _ in range(steps):
        assert next(model.parameters()).dtype == torch.bfloat16
        engine.backward(engine(torch.randn(2, 48, dtype=torch.bfloat16)).float().pow(2).mean())
        engine.step()
compare(1e-7, 3.1e-6)
with whole(model):
    torch.testing.assert_close(model[0].weight.float(), before["0.weight"], atol=2e-3, rtol=0)
