"""People and their messages: read files of many formats, and make training sets.

Input: mailboxes, exported chats, published files and tables of messages. Output: `Example`s with
personas, split by person, discussion or time, and rows for other trainers. Unusable rows are
counted. No persona contains the reply to predict. Start with `nbs/00_data.ipynb`."""

from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from ..core.records import Example, Message, Persona, Thread, load_examples
    from ..core.trajectory import Score, Trajectory

__getattr__, __dir__ = lazy_names(__name__, {
    "..core.records": ["Example", "Message", "Persona", "Thread", "load_examples"],
    "..core.trajectory": ["Score", "Trajectory"],
})
