"""Writing reports: which format goes where is settled before anything is trained."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dpspec.cli.output import emit, note, page_width, wants_color
from dpspec.contract import Catalog
from dpspec.errors import UsageError

if TYPE_CHECKING:
    from dpspec.engine.result import Result

#: What a disk says that has no room.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

#: The path that means stdout.
STDOUT = "-"


@dataclass(frozen=True)
class Wanted:
    """One report to write: its format, and where it goes."""

    format: str
    render: Callable[..., str]
    path: str

    @property
    def to_stdout(self) -> bool:
        """Whether it takes the place of the report on the terminal."""
        return self.path == STDOUT


def parse_reports(options: Sequence[str], catalog: Catalog) -> tuple[Wanted, ...]:
    """Read ``FORMAT=PATH`` options; raises ``UsageError`` where a format is unknown or a path cannot be written."""
    wanted = []
    for option in options:
        name, equals, path = option.partition("=")
        if not (equals and name and path):
            raise UsageError(f"--report takes FORMAT=PATH, got {option!r}")
        if path != STDOUT:
            _require_writable(Path(path))
        wanted.append(Wanted(name, find_format(name, catalog), path))
    paths = [report.path for report in wanted]
    for path in paths:
        if paths.count(path) > 1:
            raise UsageError(f"two reports would be written to {'stdout' if path == STDOUT else path}")
    return tuple(wanted)


def find_format(name: str, catalog: Catalog) -> Callable[..., str]:
    """The function that renders a format; raises ``UsageError`` with a suggestion where there is none."""
    from dpspec.registry.loader import resolve

    if name not in catalog.reporters:
        close = get_close_matches(name, catalog.reporters, 1)
        suggestion = f"; did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"no report format {name!r}{suggestion} (valid: {', '.join(sorted(catalog.reporters))})")
    return cast("Callable[..., str]", resolve(catalog.reporters[name].provider.render))


def show_on_terminal(result: Result, *, internal: bool) -> None:
    """Print the report for people, as wide and as colourful as stdout allows."""
    from dpspec.reporters.terminal import render

    emit(render(result, internal=internal, width=page_width(), color=wants_color(sys.stdout)))


def write_reports(wanted: Sequence[Wanted], result: Result, *, internal: bool) -> None:
    """Render and write every report; a file is replaced as a whole or not at all."""
    for report in wanted:
        text = report.render(result, internal=internal)
        if report.to_stdout:
            emit(text)
        else:
            write_file(Path(report.path), text)
            note(f"wrote {report.path} ({report.format})")


def write_file(path: Path, text: str) -> None:
    """Write a text file in UTF-8, as a whole or not at all where the system allows it.

    Raises ``UsageError`` where the file cannot be written.
    """
    content = text if text.endswith("\n") else f"{text}\n"
    if path.is_file() or not path.exists():  # a device or a pipe cannot be replaced
        try:
            _replace(path, content)
            return
        except OSError as error:  # nor can a file that is mounted by itself; but where there is no room, there is none
            if error.errno in _FULL:
                raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    try:
        path.write_text(content, encoding="utf-8", errors="backslashreplace", newline="\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def _replace(path: Path, content: str) -> None:
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as out:
            out.write(content)
        os.chmod(scratch, 0o666 & ~_umask())
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _require_writable(path: Path) -> None:
    """Fail now rather than after hours of training."""
    if path.is_dir():
        raise UsageError(f"cannot write a report to {path}: it is a folder")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write a report to {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"cannot write a report to {path}: permission denied")
