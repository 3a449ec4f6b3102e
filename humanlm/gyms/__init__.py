"""Gyms: worlds with a user in them, in which a model gets something done over several turns.

Start with `nbs/70_gyms.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .protocol import Environment, Feedback, Gym, GymConfig, GymTask, find_gym, gym_problems

__getattr__, __dir__ = lazy_names(__name__, {
    "protocol": ["Environment", "Feedback", "Gym", "GymConfig", "GymTask", "find_gym", "gym_problems"],
})
