"""Social world models: parsers that write who saw what, what comes next, and people who act from their own memory.

Start with `nbs/60_social_world.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .episodes import ChatAgent, Foresight, Role, run_episode
    from .parsing import Parse, Parser, parser

__getattr__, __dir__ = lazy_names(__name__, {
    "episodes": ["ChatAgent", "Foresight", "Role", "run_episode"],
    "parsing": ["Parse", "Parser", "parser"],
})
