"""Put a simulated user behind an OpenAI-compatible address.

Requests, answers and the web server are here, and vLLM where it is installed."""
from typing import TYPE_CHECKING

from ..core.lazy import lazy_names

if TYPE_CHECKING:
    from .protocol import ServeConfig
    from .service import Service, make_app, serving
    from .vllm import VLLMPolicy

__getattr__, __dir__ = lazy_names(__name__, {
    "protocol": ["ServeConfig"],
    "service": ["Service", "make_app", "serving"],
    "vllm": ["VLLMPolicy"],
})
