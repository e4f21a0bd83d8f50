"""From the text ``package.module:Attribute`` to the code that it names."""

from __future__ import annotations

import importlib
from typing import Any

from dpspec.errors import PluginError
from dpspec.registry.guard import Failed, attempt


def resolve(reference: str) -> object:
    """Import what a descriptor names; raises :class:`~dpspec.errors.PluginError` when that does not work."""
    module, colon, attribute = reference.partition(":")
    if not (module and colon and attribute):
        raise PluginError(f"{reference!r} does not name code as 'package.module:Attribute'")

    def load() -> Any:
        found: Any = importlib.import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
        return found

    try:
        return attempt(load)
    except Failed as failure:
        raise PluginError(f"cannot load {reference}: {failure}") from failure
