"""People and what they wrote: read from any form, split, and made to training sets.

In: mailboxes, exports of chats, published files, tables of messages. Out: `Example`s with personas,
split by person, discussion or time, and rows for training. What cannot be used is counted under a
name, and no persona says what is predicted. Start with `nbs/00_data.ipynb`."""

from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from ..core.records import Example, Message, Persona, Thread, load_examples
    from ..core.trajectory import Score, Trajectory

__getattr__, __dir__ = lazy_names(__name__, {
    "..core.records": ["Example", "Message", "Persona", "Thread", "load_examples"],
    "..core.trajectory": ["Score", "Trajectory"],
})
