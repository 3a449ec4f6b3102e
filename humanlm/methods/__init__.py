"""What a method is: policies, rollouts, rewards, advantages, losses.

Nothing here trains; whoever fills in these shapes can be trained by any engine."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .advantages import decoupled_advantages, group_advantages, leave_one_out
    from .method import Batch, Method
    from .policies import Policy
    from .rollouts import single_turn
    from .sampling import RolloutConfig, Sampling

__getattr__, __dir__ = lazy_names(__name__, {
    "advantages": ["decoupled_advantages", "group_advantages", "leave_one_out"],
    "method": ["Batch", "Method"],
    "policies": ["Policy"],
    "rollouts": ["single_turn"],
    "sampling": ["RolloutConfig", "Sampling"],
})
