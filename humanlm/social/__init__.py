"""Social worlds: who perceives what in a text, and what each person therefore believes.

Input: stories and conversations. Output: `Context`s, answers by an exact simulator, and parsers
trained to write contexts. Simulated people act from their own memories. Start with
`nbs/60_social_world.ipynb`."""

from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .answers import answer, to_context
    from .contexts import Context
    from .parsing import parser
    from .world import read_story

__getattr__, __dir__ = lazy_names(__name__, {
    "answers": ["answer", "to_context"],
    "contexts": ["Context"],
    "parsing": ["parser"],
    "world": ["read_story"],
})
