"""What a model needs of GPUs: memory by arithmetic, and one model split over several processes."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .memory import PlanConfig, memory_lines
    from .sharding import sharding_faults, whole_weights

__getattr__, __dir__ = lazy_names(__name__, {
    "memory": ["PlanConfig", "memory_lines"],
    "sharding": ["sharding_faults", "whole_weights"],
})
