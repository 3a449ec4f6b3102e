"""How far simulated users are from people: in what they write, whether anybody could tell, and how alike they are among themselves.

It needs texts alone, of any source."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .dialogues import Conversation, FidelityConfig, read_dialogues

__getattr__, __dir__ = lazy_names(__name__, {
    "dialogues": ["Conversation", "FidelityConfig", "read_dialogues"],
})
