"""Theory-of-Mind question sets, and the answers of models.

Input: a published set, and a model, a parser or a rule. Output: answers, `Measurement`s and a report,
with and without social contexts. The command is `humanlm eval tom`. Start with `nbs/83_tom.ipynb`."""

from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .protocol import Benchmark
    from .sets import benchmarks

__getattr__, __dir__ = lazy_names(__name__, {
    "protocol": ["Benchmark"],
    "sets": ["benchmarks"],
})
