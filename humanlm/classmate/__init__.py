"""Classmate chain of thought: reasoning is paid for when another model can answer with it.

Start with `nbs/50_classmate.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .classmates import Classmate, ClassmateAnswers, ReasoningView, ask_classmates
    from .code import code_verifier
    from .method import classmate_method
    from .monitoring import BlindMonitor, InformedMonitor, monitor_metrics, monitorability
    from .reasoning import Keep, Marks, ReasoningReader, token_pieces
    from .rewards import classmate_advantages, pooled_rewards
    from .tasks import ReasoningTask, read_tasks
    from .verifiers import AnswerVerdict, Case, RewardModel, make_verifier

__getattr__, __dir__ = lazy_names(__name__, {
    "classmates": ["Classmate", "ClassmateAnswers", "ReasoningView", "ask_classmates"],
    "code": ["code_verifier"],
    "method": ["classmate_method"],
    "monitoring": ["BlindMonitor", "InformedMonitor", "monitor_metrics", "monitorability"],
    "reasoning": ["Keep", "Marks", "ReasoningReader", "token_pieces"],
    "rewards": ["classmate_advantages", "pooled_rewards"],
    "tasks": ["ReasoningTask", "read_tasks"],
    "verifiers": ["AnswerVerdict", "Case", "RewardModel", "make_verifier"],
})
