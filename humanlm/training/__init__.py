"""One trainer for every method: rollouts, rewards, advantages, losses.

Supervised training goes the same way."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .advantages import decoupled_advantages, group_advantages, leave_one_out
    from .rollout import Batch, Method, Policy, RolloutConfig, Sampling, single_turn
    from .recipe import Recipe, Stage
    from .run import fit
    from .sft import train_sft
    from .trainer import MethodTrainer

__getattr__, __dir__ = lazy_names(__name__, {
    "advantages": ["decoupled_advantages", "group_advantages", "leave_one_out"],
    "rollout": ["Batch", "Method", "Policy", "RolloutConfig", "Sampling", "single_turn"],
    "recipe": ["Recipe", "Stage"],
    "run": ["fit"],
    "sft": ["train_sft"],
    "trainer": ["MethodTrainer"],
})
