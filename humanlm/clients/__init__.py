"""Ask a chat model by its name: requests, replies, limits, costs and a cache.

The package of a provider is imported with its first question."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .client import chat_all
    from .ledger import Ledger
    from .names import ask

__getattr__, __dir__ = lazy_names(__name__, {
    "client": ["chat_all"],
    "ledger": ["Ledger"],
    "names": ["ask"],
})
