"""What every room needs: errors, files, settings, runs, commands, statistics.

It knows nothing about people or models."""
# pyright: reportUnusedImport=false
from typing import TYPE_CHECKING

from .plugins import lazy_names

if TYPE_CHECKING:
    from .basics import ConfigError, DataError, HumanLMError
    from .commands import command, menu
    from .config import Settings
    from .grammar import parse
    from .runs import run_record
    from .stats import Bootstrap, Interval, mean_interval

__getattr__, __dir__ = lazy_names(__name__, {
    "basics": ["ConfigError", "DataError", "HumanLMError"],
    "commands": ["command", "menu"],
    "config": ["Settings"],
    "grammar": ["parse"],
    "runs": ["run_record"],
    "stats": ["Bootstrap", "Interval", "mean_interval"],
})
