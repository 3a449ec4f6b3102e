"""Programs of models, run against tests and contained.

Start with `nbs/sandbox/02_programs.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .programs import ProgramScore, Sandbox, SandboxClient, SandboxConfig

__getattr__, __dir__ = lazy_names(__name__, {"programs": ["ProgramScore", "Sandbox", "SandboxClient", "SandboxConfig"]})
