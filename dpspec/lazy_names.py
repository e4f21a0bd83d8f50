"""Public names of a package that are imported on first use, so that ``import dpspec`` loads no other library."""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # importing typing would take longer than the rest of this module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], listed: Iterable[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: The ``__name__`` of the package.
        homes: The module of each name; a module that has the name itself, as ``dpspec.accounting.gaussian``, is the
            value.
        listed: Names for ``dir()`` in addition to those that are imported.
    """
    names = frozenset(listed)

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(homes[name])
        value = home if homes[name] == f"{package}.{name}" else getattr(home, name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return find, list_names
