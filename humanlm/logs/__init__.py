"""Other people's logs, read into records: mailboxes, the six published formats, threads of any kind.

What is left out of a file is counted under a name, and no persona is written with the answer in view."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .replies import load_threads
    from .rows import RawRow, map_row

__getattr__, __dir__ = lazy_names(__name__, {
    "replies": ["load_threads"],
    "rows": ["RawRow", "map_row"],
})
