"""The basis of every room: errors, files, settings, runs, commands and statistics.

This room imports no other room."""
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
