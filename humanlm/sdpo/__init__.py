"""SDPO: learn from the user's next message.

Start with `nbs/40_sdpo.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .hindsight import Interaction, SDPOConfig, hindsight_messages, read_interactions
    from .method import sdpo_method, signals
    from .styles import STYLES, TASTES, measures
    from .users import make_user

__getattr__, __dir__ = lazy_names(__name__, {
    "hindsight": ["Interaction", "SDPOConfig", "hindsight_messages", "read_interactions"],
    "method": ["sdpo_method", "signals"],
    "styles": ["STYLES", "TASTES", "measures"],
    "users": ["make_user"],
})
