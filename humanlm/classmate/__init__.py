"""Classmate chain of thought: reward reasoning that leads another model to the right answer.

Input: tasks with verifiers, classmates and monitors. Output: a trained model, and a measure of how
well others can follow its reasoning. A sandbox runs the programs that models write. Start with
`nbs/50_classmate.ipynb`."""

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
