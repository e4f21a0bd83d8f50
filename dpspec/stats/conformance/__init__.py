"""Tests of an executed run against what was declared of it."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """What ``dpspec.stats.conformance`` held when it was a module, for plugins that import it from there."""
    return getattr(import_module("dpspec.stats.conformance.run_checks"), name)
