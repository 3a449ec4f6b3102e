"""Gyms: a simulated user, tools and a task, in which a model gets something done over several turns.

In: a policy and tasks. Out: episodes with rewards by turn, training and evaluation on them. A gym of
your own is one class. Start with `nbs/70_gyms.ipynb`."""

from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .conformance import gym_problems
    from .protocol import Environment, Feedback, Gym, GymConfig, GymTask, find_gym

__getattr__, __dir__ = lazy_names(__name__, {
    "conformance": ["gym_problems"],
    "protocol": ["Environment", "Feedback", "Gym", "GymConfig", "GymTask", "find_gym"],
})
