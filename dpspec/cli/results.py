"""Reading result files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dpspec.errors import ResultError

if TYPE_CHECKING:
    from dpspec.engine.result import Result


def read_result(path: Path) -> Result:
    """The result in a file; raises ``ResultError`` naming the file where it cannot be read."""
    from dpspec.engine.codec import MAX_BYTES, load

    try:
        if path.stat().st_size > MAX_BYTES:
            raise ResultError(f"{path}: larger than {MAX_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ResultError(f"{path}: not a text file") from None
    try:
        return load(text)
    except ResultError as error:
        raise ResultError(f"{path}: {error}") from None
