"""Files of others, found, bounded in size and identified before anything reads them; packages that some need."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from importlib import import_module
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

from dpspec.contract import DataError
from dpspec.text import closest, did_you_mean

#: No file may be larger, and no array may hold more values (4 bytes each once loaded).
MAX_BYTES = 2**30
MAX_VALUES = 2**28


def locate(directory: Path, name: str, otherwise: str = "", key: str = "path") -> Path:
    """The regular file ``name``, relative to ``directory``; raises ``DataError`` when absent, empty or too large.

    Empty files are refused because those of ``/proc`` call themselves so: some have no end, others hold secrets.

    otherwise: what to append to the name where no file has it as it is.
    key: the key of ``data`` that names the file.
    """
    path = directory / name
    try:
        regular, size = path.is_file(), path.stat().st_size
    except FileNotFoundError:
        if otherwise and os.path.exists(directory / (name + otherwise)):
            return locate(directory, name + otherwise, key=key)
        raise DataError(f"{path}: no such file{did_you_mean(closest(path.name, _beside(path)))}", key) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be opened: {error}", key) from error
    if not regular:
        raise DataError(f"{path}: not a regular file", key)
    if size == 0:
        raise DataError(f"{path}: is empty", key)
    if size > MAX_BYTES:
        raise DataError(f"{path}: {size} bytes; at most {MAX_BYTES} are read", key)
    return path


def _beside(path: Path) -> list[str]:
    """Names in a file's folder, a thousand at most; none where it cannot be read."""
    try:
        with os.scandir(path.parent) as entries:
            return [entry.name for entry in islice(entries, 1000)]
    except OSError:
        return []


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def check_count(what: object, shape: Sequence[int]) -> None:
    """Refuse arrays without values and arrays that would not fit in memory; ``what`` begins the message."""
    if min(shape, default=0) < 1:
        raise DataError(f"{what}: is empty (shape {tuple(shape)})")
    if prod(shape) > MAX_VALUES:
        raise DataError(f"{what}: {prod(shape)} values; at most {MAX_VALUES} are read")


def need(module: str, package: str, kind: str) -> Any:
    """The imported ``module`` of ``package``; ``DataError`` names the extra, called like ``kind``, that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise DataError(
            f"data of kind {kind!r} needs {package}, which cannot be imported ({error}); "
            f"install it with: pip install 'dpspec[{kind}]'"
        ) from None
