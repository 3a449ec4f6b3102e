"""How question sets are asked: ways to an answer, contexts, respondents, and runs with their reports.

`humanlm tom` is the command."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .answers import AnswerConfig
    from .respondent import solve

__getattr__, __dir__ = lazy_names(__name__, {
    "answers": ["AnswerConfig"],
    "respondent": ["solve"],
})
