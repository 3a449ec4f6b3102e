"""Training on many machines: verl runs the steps of a recipe on Ray.

`--run.engine verl` chooses this engine. Start with `nbs/75_engines.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .settings import VerlConfig, overrides

__getattr__, __dir__ = lazy_names(__name__, {"settings": ["VerlConfig", "overrides"]})
