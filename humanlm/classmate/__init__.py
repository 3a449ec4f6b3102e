"""Classmate chain of thought: reasoning is paid for when another model can answer with it.

Start with `nbs/50_classmate.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .classmates import Classmate, ReasoningView, ask_classmates
    from .method import classmate_method
    from .monitoring import BlindMonitor, InformedMonitor, monitorability
    from .rewards import classmate_advantages
    from .tasks import read_tasks
    from .verifiers import Case, make_verifier

__getattr__, __dir__ = lazy_names(__name__, {
    "classmates": ["Classmate", "ReasoningView", "ask_classmates"],
    "method": ["classmate_method"],
    "monitoring": ["BlindMonitor", "InformedMonitor", "monitorability"],
    "rewards": ["classmate_advantages"],
    "tasks": ["read_tasks"],
    "verifiers": ["Case", "make_verifier"],
})
