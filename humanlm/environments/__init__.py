"""The gyms themselves, a page each: what is asked, its rules, its tools, one played episode.

`humanlm.gyms.find_gym` finds them by name; start with `nbs/70_gyms.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .people import PolitePerson

__getattr__, __dir__ = lazy_names(__name__, {
    "people": ["PolitePerson"],
})
