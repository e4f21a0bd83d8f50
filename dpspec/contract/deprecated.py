"""Names of the plugin contract that will go: all of them, since when, and what to use instead.

Asking :mod:`dpspec.contract` for such a name warns and gives what took its place. How long they stay is promised in
``docs/plugins/compatibility.md``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Deprecated:
    """A name that will go. ``instead`` is a name of :mod:`dpspec.contract` that means the same."""

    since: str
    instead: str


#: By name. Empty: nothing is deprecated.
DEPRECATED: Mapping[str, Deprecated] = {}


def replaced(name: str, module: Mapping[str, Any]) -> Any:
    """What took the place of ``name`` among the names of ``module``, with a warning; raises ``AttributeError``."""
    if name not in DEPRECATED:
        raise AttributeError(f"module 'dpspec.contract' has no attribute {name!r}")
    about = DEPRECATED[name]
    message = f"dpspec.contract.{name} is deprecated since dpspec {about.since}; use {about.instead}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return module[about.instead]
