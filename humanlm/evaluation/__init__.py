"""Measurements of any system, results with intervals, and features of human texts.

Input: `Measurement`s and texts. Output: a results file, a comparison, a report and a viewer.
Start with `nbs/90_eval.ipynb`."""

from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .dialogues import Conversation, read_dialogues
    from .measured import Measurement, Results, load_results, save_results

__getattr__, __dir__ = lazy_names(__name__, {
    "dialogues": ["Conversation", "read_dialogues"],
    "measured": ["Measurement", "Results", "load_results", "save_results"],
})
