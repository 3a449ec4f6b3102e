"""The same methods on many machines.

Start with `nbs/engines/03_launch.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .launch import LaunchConfig, launch_commands

__getattr__, __dir__ = lazy_names(__name__, {"launch": ["LaunchConfig", "launch_commands"]})
