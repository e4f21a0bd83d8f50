"""Packages that only some data kinds need: imported when they are, and missed in words."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dpspec.contract import DataError


def need(module: str, package: str, kind: str) -> Any:
    """The imported ``module`` of ``package``; ``DataError`` names the extra, called like ``kind``, that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise DataError(
            f"data of kind {kind!r} needs {package}, which cannot be imported ({error}); "
            f"install it with: pip install 'dpspec[{kind}]'"
        ) from None
