"""Ask any model, of your own or of a provider, by its name.

Prompts, answers, prices, caches and weights are here too."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .cache import DiskCache
    from .client import ChatReply, ChatRequest, LLMError, Ledger, ask, chat_all
    from .weights import ModelConfig, load_model, make_model

__getattr__, __dir__ = lazy_names(__name__, {
    "cache": ["DiskCache"],
    "client": ["ChatReply", "ChatRequest", "LLMError", "Ledger", "ask", "chat_all"],
    "weights": ["ModelConfig", "load_model", "make_model"],
})
