"""Simulated users studied: any systems side by side on the same held-out rows.

`humanlm eval` uses it for HumanLM."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .comparison import compare_systems
    from .tasks import Comparison, prepare

__getattr__, __dir__ = lazy_names(__name__, {
    "comparison": ["compare_systems"],
    "tasks": ["Comparison", "prepare"],
})
