"""Published benchmarks about other minds: their files, prompts, answers and measures.

`humanlm tom run` asks them."""
from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .protocol import Benchmark
    from .questions import BenchmarkItem
    from .sets import benchmarks

__getattr__, __dir__ = lazy_names(__name__, {
    "protocol": ["Benchmark"],
    "questions": ["BenchmarkItem"],
    "sets": ["benchmarks"],
})
