"""From logs of conversations to training sets on disk.

Each page is one step: sources, split, evidence, personas, rows, sets, card."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .build import BuildConfig, Built
    from .personas import PersonaConfig
    from .selection import SelectConfig
    from .sets import SetsConfig

__getattr__, __dir__ = lazy_names(__name__, {
    "build": ["BuildConfig", "Built"],
    "personas": ["PersonaConfig"],
    "selection": ["SelectConfig"],
    "sets": ["SetsConfig"],
})
