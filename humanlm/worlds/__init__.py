"""A synthetic world whose true states are known: people, posts and replies.

Its oracle judges without error. A smaller toy world has requests and replies."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .mini import SyntheticWorld, WorldConfig, make_world

__getattr__, __dir__ = lazy_names(__name__, {
    "mini": ["SyntheticWorld", "WorldConfig", "make_world"],
})
