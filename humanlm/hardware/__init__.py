"""What a model needs of machines: memory, seconds and money, and one model split over several processes.

The figures are arithmetic; nothing here asks for a GPU."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .memory import PlanConfig, memory
    from .performance import step_estimate
    from .sharding import whole

__getattr__, __dir__ = lazy_names(__name__, {
    "memory": ["PlanConfig", "memory"],
    "performance": ["step_estimate"],
    "sharding": ["whole"],
})
