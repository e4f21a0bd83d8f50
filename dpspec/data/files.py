"""Locate, limit and hash data files before they are read, and import optional packages."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

from dpspec.contract import DataError
from dpspec.text import closest, did_you_mean

#: Maximum size of a file, and maximum number of values of an array (4 bytes each once loaded).
MAX_BYTES = 2**30
MAX_VALUES = 2**28


def locate(directory: Path, name: str, otherwise: str = "", key: str = "path") -> Path:
    """Return the path of a regular file, with the suffix ``otherwise`` if it is missing without. Raises ``DataError``.

    Empty files are rejected: system files in ``/proc`` report size 0 but may be endless or contain secrets.
    """
    path = directory / name
    try:
        regular, size = path.is_file(), path.stat().st_size
    except FileNotFoundError:
        if otherwise and os.path.exists(directory / (name + otherwise)):
            return locate(directory, name + otherwise, key=key)
        siblings: list[str] = []
        with suppress(OSError), os.scandir(path.parent) as entries:
            siblings = [entry.name for entry in islice(entries, 1000)]
        raise DataError(f"{path}: no such file{did_you_mean(closest(path.name, siblings))}", key) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be opened: {error}", key) from error
    if not regular:
        raise DataError(f"{path}: not a regular file", key)
    if size == 0:
        raise DataError(f"{path}: is empty", key)
    if size > MAX_BYTES:
        raise DataError(f"{path}: {size} bytes; at most {MAX_BYTES} are read", key)
    return path


def sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def check_count(what: object, shape: Sequence[int]) -> None:
    if min(shape, default=0) < 1:
        raise DataError(f"{what}: is empty (shape {tuple(shape)})")
    if prod(shape) > MAX_VALUES:
        raise DataError(f"{what}: {prod(shape)} values; at most {MAX_VALUES} are read")


def import_optional(module: str, package: str, kind: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise DataError(
            f"data of kind {kind!r} needs {package}, which cannot be imported ({error}); "
            f"install it with: pip install 'dpspec[{kind}]'"
        ) from None
