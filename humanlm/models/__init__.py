"""Weights and prompts: build or load a model, generate texts, compute their probabilities.

`humanlm.clients` asks chat models of providers, and can also ask a model in this process."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .checkpoints import load_model, make_model, save_model
    from .generation import generate

__getattr__, __dir__ = lazy_names(__name__, {
    "checkpoints": ["load_model", "make_model", "save_model"],
    "generation": ["generate"],
})
