"""Classmate chain of thought: reasoning is paid for when another model can answer with it.

In: tasks with verifiers, classmates, monitors. Out: a trained model and how far its reasoning can be
followed. Programs of models run in a sandbox. Start with `nbs/50_classmate.ipynb`."""

from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .classmates import Classmate, ReasoningView, ask_classmates
    from .monitoring import monitorability
    from .programs import Sandbox
    from .method import classmate_advantages, classmate_method
    from .verifiers import Case, make_verifier

__getattr__, __dir__ = lazy_names(__name__, {
    "classmates": ["Classmate", "ReasoningView", "ask_classmates"],
    "method": ["classmate_advantages", "classmate_method"],
    "monitoring": ["monitorability"],
    "programs": ["Sandbox"],
    "verifiers": ["Case", "make_verifier"],
})
