"""What a model needs of machines: memory, seconds and money, and one model split over several processes.

The figures are arithmetic; nothing here asks for a GPU."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .memory import PlanConfig, memory_lines
    from .performance import step_estimate
    from .sharding import sharding_faults, whole_weights

__getattr__, __dir__ = lazy_names(__name__, {
    "memory": ["PlanConfig", "memory_lines"],
    "performance": ["step_estimate"],
    "sharding": ["sharding_faults", "whole_weights"],
})
