"""Latent states of a person: their definitions, prompts for them, and a parser of answers.

Start with `nbs/10_hierarchy.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .levels import HIERARCHY, Dimension, Hierarchy, load_hierarchy, variants
    from .parsing import parse
    from .prompts import HierarchyConfig, make_rows

__getattr__, __dir__ = lazy_names(__name__, {
    "levels": ["HIERARCHY", "Dimension", "Hierarchy", "load_hierarchy", "variants"],
    "parsing": ["parse"],
    "prompts": ["HierarchyConfig", "make_rows"],
})
