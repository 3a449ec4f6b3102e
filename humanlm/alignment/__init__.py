"""HumanLM: align a model with a person's states and replies.

Start with `nbs/30_grpo.ipynb`."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .contract import ModelChoice, load_policy
    from .evaluation import EvalConfig, evaluate
    from .grpo import alignment_method
    from .likelihood import LikelihoodReward
    from .simulator import Simulator, SimulatorClient

__getattr__, __dir__ = lazy_names(__name__, {
    "contract": ["ModelChoice", "load_policy"],
    "evaluation": ["EvalConfig", "evaluate"],
    "grpo": ["alignment_method"],
    "likelihood": ["LikelihoodReward"],
    "simulator": ["Simulator", "SimulatorClient"],
})
