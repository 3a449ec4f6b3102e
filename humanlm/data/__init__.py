"""People and what they wrote, read from any form.

In: mailboxes, exports of chats, published files, tables of messages. Out: `Example`s with personas,
split by person, discussion or time. What cannot be used is counted under a name, and no persona
says what is predicted. Start with `nbs/00_data.ipynb`."""

from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .records import Example, Message, Persona, Thread, load_examples, save_examples
    from .replies import load_threads
    from .rows import RawRow, map_row
    from .splits import check_leakage, split_by_context
    from .trajectory import Score, Trajectory, load_trajectories, save_trajectories

__getattr__, __dir__ = lazy_names(__name__, {
    "records": ["Example", "Message", "Persona", "Thread", "load_examples", "save_examples"],
    "replies": ["load_threads"],
    "rows": ["RawRow", "map_row"],
    "splits": ["check_leakage", "split_by_context"],
    "trajectory": ["Score", "Trajectory", "load_trajectories", "save_trajectories"],
})
