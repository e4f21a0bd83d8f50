"""Reading result files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpspec.errors import ResultError, UsageError

if TYPE_CHECKING:
    from dpspec.engine.result import Result


def page_at(path: Path) -> str | None:
    """The text of a report in HTML that :func:`read_result` has read; None for any other file."""
    from dpspec.reporters.html.embed import is_page

    text = path.read_text(encoding="utf-8")
    return text if is_page(text) else None


def read_results(paths: Sequence[Path]) -> Result:
    """The result in a file, or those in several joined to one; raises ``UsageError`` where a file is given twice."""
    from dpspec.engine.joined import join

    seen: dict[str, Path] = {}
    for path in paths:
        first = seen.setdefault(os.path.realpath(path), path)
        if first is not path:
            raise UsageError(f"{path} is given twice{'' if first == path else f', as {first} too'}")
    return join([(str(path), read_result(path)) for path in paths])


def read_result(path: Path) -> Result:
    """The result in a file, or inside a report in HTML; raises ``ResultError`` naming the file where there is none."""
    from dpspec.engine.codec import MAX_BYTES, load
    from dpspec.reporters.html.embed import extract, is_page

    try:
        if path.exists() and not path.is_file():
            raise ResultError(f"{path}: not a regular file")
        if path.stat().st_size > MAX_BYTES:
            raise ResultError(f"{path}: larger than {MAX_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ResultError(f"{path}: not a text file") from None
    try:
        return load(extract(text) if is_page(text) else text)
    except ResultError as error:
        spec = path.suffix in (".yaml", ".yml")
        hint = "; of a spec, `dpspec run SPEC --report json=RESULT` makes a result" if spec else ""
        raise ResultError(f"{path}: {error}{hint}") from None
