"""Gyms: tasks in which a model talks to a simulated user or uses tools, over several turns.

Input: a policy and tasks. Output: episodes with a reward for each turn, for training and evaluation.
Your own gym is one class. Start with `nbs/70_gyms.ipynb`."""

from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .conformance import gym_problems
    from .protocol import Environment, Feedback, Gym, GymConfig, GymTask, find_gym

__getattr__, __dir__ = lazy_names(__name__, {
    "conformance": ["gym_problems"],
    "protocol": ["Environment", "Feedback", "Gym", "GymConfig", "GymTask", "find_gym"],
})
