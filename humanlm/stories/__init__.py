"""Who saw what in a story, and what people believe because of it, read without a model.

Start with `nbs/stories/01_contexts.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .answers import answer, to_context
    from .contexts import Context, make_context, read_context
    from .generation import ask, generate
    from .world import Story, coverage, read_story

__getattr__, __dir__ = lazy_names(__name__, {
    "answers": ["answer", "to_context"],
    "contexts": ["Context", "make_context", "read_context"],
    "generation": ["ask", "generate"],
    "world": ["Story", "coverage", "read_story"],
})
