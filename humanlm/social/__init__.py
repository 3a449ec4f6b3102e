"""Who saw what: social contexts of stories and dialogues, and what people believe because of them.

Start with `nbs/60_social_world.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .contexts import Context, make_context, read_context
    from .episodes import Episode, Scenario, run_episode, run_episodes
    from .parsing import Parse, Parser, parser
    from .stories import ask
    from .symbolic import Story, answer, read_story, to_context

__getattr__, __dir__ = lazy_names(__name__, {
    "contexts": ["Context", "make_context", "read_context"],
    "episodes": ["Episode", "Scenario", "run_episode", "run_episodes"],
    "parsing": ["Parse", "Parser", "parser"],
    "stories": ["ask"],
    "symbolic": ["Story", "answer", "read_story", "to_context"],
})
