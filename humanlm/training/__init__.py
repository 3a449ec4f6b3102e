"""Methods and recipes, and one trainer for all methods.

Input: a recipe with a rollout, a reward, an advantage and perhaps a loss. Output: a trained model and
its run. A new recipe needs no other code. Start with `nbs/training/01_sampling.ipynb`."""

from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .advantages import group_advantages, leave_one_out
    from .memory import PlanConfig, memory_line
    from .method import Batch, Method
    from .policies import Policy
    from .recipe import Recipe, Stage
    from .rollouts import single_turn
    from .sampling import RolloutConfig, Sampling
    from .sft import train_sft
    from .sharding import whole_weights
    from .run import fit
    from .trainer import MethodTrainer

__getattr__, __dir__ = lazy_names(__name__, {
    "advantages": ["group_advantages", "leave_one_out"],
    "memory": ["PlanConfig", "memory_line"],
    "method": ["Batch", "Method"],
    "policies": ["Policy"],
    "recipe": ["Recipe", "Stage"],
    "rollouts": ["single_turn"],
    "sampling": ["RolloutConfig", "Sampling"],
    "sft": ["train_sft"],
    "sharding": ["whole_weights"],
    "run": ["fit"],
    "trainer": ["MethodTrainer"],
})
