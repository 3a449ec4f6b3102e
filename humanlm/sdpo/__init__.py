"""SDPO: learn from what a user says next.

Start with `nbs/40_sdpo.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .styles import STYLES, TASTES, measures
    from .users import make_user

__getattr__, __dir__ = lazy_names(__name__, {
    "styles": ["STYLES", "TASTES", "measures"],
    "users": ["make_user"],
})
