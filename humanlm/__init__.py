"""Train, serve and evaluate simulated users: language models that answer as a particular person would.

The rooms below hold the parts, from `core` up; `humanlm --help` lists the commands."""
__version__ = "0.1.0"
from typing import TYPE_CHECKING

from .core.plugins import lazy_names

if TYPE_CHECKING:
    from .alignment.evaluation import evaluate
    from .alignment.simulator import Simulator
    from .clients.names import client
    from .core.records import Example, Persona
    from .rewards.judge_settings import make_judge
    from .training.run import fit

__getattr__, __dir__ = lazy_names(__name__, {
    "alignment.evaluation": ["evaluate"],
    "alignment.simulator": ["Simulator"],
    "clients.names": ["client"],
    "core.records": ["Example", "Persona"],
    "rewards.judge_settings": ["make_judge"],
    "training.run": ["fit"],
})
