"""People and what they wrote: messages, personas, examples and their splits.

Start with `nbs/00_data.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .records import Example, Message, Persona, Thread, load_examples, save_examples
    from .splits import check_leakage, split_by_context
    from .trajectory import Score, Trajectory, load_trajectories, save_trajectories

__getattr__, __dir__ = lazy_names(__name__, {
    "records": ["Example", "Message", "Persona", "Thread", "load_examples", "save_examples"],
    "splits": ["check_leakage", "split_by_context"],
    "trajectory": ["Score", "Trajectory", "load_trajectories", "save_trajectories"],
})
