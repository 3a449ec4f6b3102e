"""One trainer for every method, supervised training, and runs from settings to a report.

Who brings a recipe needs nothing else to train."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .recipe import Recipe, Stage
    from .sft import train_sft
    from .stages import fit
    from .trainer import MethodTrainer

__getattr__, __dir__ = lazy_names(__name__, {
    "recipe": ["Recipe", "Stage"],
    "sft": ["train_sft"],
    "stages": ["fit"],
    "trainer": ["MethodTrainer"],
})
