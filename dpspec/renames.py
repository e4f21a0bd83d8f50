"""Old names of the public tools of plugins, which stay importable for two minor versions after a rename.

A module of :data:`RENAMED` defines ``__getattr__ = old_names(__name__)``. An entry leaves the table with the second
minor version after ``since``: :func:`expired` finds it, and a test fails.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

#: The number of minor versions for which an old name stays.
KEPT = 2


@dataclass(frozen=True)
class Rename:
    """The new name in the same module, and the minor version that renamed it, such as ``(0, 3)``."""

    new: str
    since: tuple[int, int]


#: The renames by module and old name.
RENAMED: Mapping[str, Mapping[str, Rename]] = {
    "dpspec.testing": {},
    "dpspec.kit": {},
    "dpspec.sampling": {},
}


def old_names(module: str) -> Callable[[str], Any]:
    """The function ``__getattr__`` of a module: an old name gives the object of the new one, with a warning."""

    def find(name: str) -> Any:
        rename = RENAMED.get(module, {}).get(name)
        if rename is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        last = f"{rename.since[0]}.{rename.since[1] + KEPT - 1}"
        text = f"{module}.{name} is now {rename.new}; the old name works up to dpspec {last}"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(import_module(module), rename.new)

    return find


def expired(version: tuple[int, int]) -> Iterator[str]:
    """The old names that this minor version may remove."""
    for module, names in RENAMED.items():
        for old, rename in names.items():
            if version[0] > rename.since[0] or version[1] >= rename.since[1] + KEPT:
                yield f"{module}.{old}"
