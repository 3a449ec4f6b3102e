"""What was measured of each unit, and results of any system with their intervals.

It scores nothing itself."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .measured import Measurement, Results, load_results, save_results

__getattr__, __dir__ = lazy_names(__name__, {
    "measured": ["Measurement", "Results", "load_results", "save_results"],
})
