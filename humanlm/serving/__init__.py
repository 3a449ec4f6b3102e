"""Use of a trained simulator: serve it over HTTP, talk to it, publish it on the Hub.

`humanlm serve`, `humanlm talk`, `humanlm study` and `humanlm push` use this room."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .card import HubConfig, model_card
    from .service import ServeConfig, Service, make_app, serving
    from .talk import Interview, Talk
    from .vllm import VLLMPolicy

__getattr__, __dir__ = lazy_names(__name__, {
    "card": ["HubConfig", "model_card"],
    "service": ["ServeConfig", "Service", "make_app", "serving"],
    "talk": ["Interview", "Talk"],
    "vllm": ["VLLMPolicy"],
})
