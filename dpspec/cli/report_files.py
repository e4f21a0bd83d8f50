"""Report files: their formats and paths are checked before training."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dpspec.cli.output import emit, note, page_width, results, wants_color
from dpspec.contract.catalog import Catalog
from dpspec.errors import UsageError
from dpspec.text import closest, did_you_mean, listed, quoted

if TYPE_CHECKING:
    from dpspec.engine.results.result import Result
    from dpspec.language.load import Loaded

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

#: The format with commands to a runner.
COMMANDS = "github"

#: Parts of a spec without file names.
_NO_FILES = ("name", "description", "claims")

STDOUT = "-"


@dataclass(frozen=True)
class RequestedReport:
    format: str
    render: Callable[..., str]
    path: str

    @property
    def to_stdout(self) -> bool:
        return self.path == STDOUT


def parse_reports(options: Sequence[str], catalog: Catalog) -> tuple[RequestedReport, ...]:
    """Fails before training."""
    reports = []
    for option in options:
        name, equals, path = option.partition("=")
        if not (equals and name and path):
            raise UsageError(f"--report expects FORMAT=PATH, got {option!r}")
        if path != STDOUT:
            _require_writable(Path(path))
        reports.append(RequestedReport(name, find_format(name, catalog), path))
    places = [report.path if report.to_stdout else os.path.realpath(report.path) for report in reports]
    for report, place in zip(reports, places, strict=True):
        if places.count(place) > 1:
            raise UsageError(f"two reports have the path {report.path}; choose different paths")
    return tuple(reports)


def require_apart(reports: Sequence[RequestedReport], loaded: Loaded, key: Path | None) -> None:
    """Inputs are specs with their parents, the key and files that a value of a spec names, but not the baseline."""
    found = {*map(os.fspath, loaded.files), *loaded.sources}
    if key is not None:
        found.add(os.fspath(key))
    for spec in loaded.specs:
        values = {part: value for part, value in spec.to_json().items() if part not in _NO_FILES}
        found |= {os.path.join(spec.directory, text) for text in _texts(values)}
        found |= {span.file for span in spec.origin.values()}  # a table of phases is not among the values
    for report in reports:
        if not report.to_stdout and os.path.lexists(report.path):
            target = os.lstat(report.path)  # a link is replaced, not its target
            if any(_is(target, file) for file in found):
                raise UsageError(f"a report to {report.path} would replace an input of the run; choose another path")


def _texts(tree: object) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict | list):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _texts(value)


def _is(target: os.stat_result, path: str) -> bool:
    try:
        return os.path.samestat(target, os.lstat(path)) or os.path.samestat(target, os.stat(path))
    except (OSError, ValueError):
        return False


def require_known(what: str, name: str, names: Collection[str], label: str = "valid") -> None:
    if name not in names:
        suggestion = did_you_mean(closest(name, names))
        raise UsageError(f"unknown {what} {quoted(name)}{suggestion} ({label}: {listed(names)})")


def find_format(name: str, catalog: Catalog) -> Callable[..., str]:
    from dpspec.registry.loader import resolve

    require_known("report format", name, sorted(catalog.reporters))
    return cast("Callable[..., str]", resolve(catalog.reporters[name].provider.render))


def show_on_terminal(result: Result, *, internal: bool, brief: bool = False) -> None:
    from dpspec.reporters import terminal

    render = terminal.render_brief if brief else terminal.render
    emit(render(result, internal=internal, width=page_width(), color=wants_color(results())))


def write_reports(reports: Sequence[RequestedReport], result: Result, *, internal: bool) -> None:
    for report in reports:
        text = report.render(result, internal=internal)
        if report.to_stdout:
            emit(text, commands=report.format == COMMANDS)
        else:
            write_file(Path(report.path), text)
            note(f"wrote {report.path} ({report.format})")


def write_file(path: Path, text: str) -> None:
    """Atomically if the system allows it."""
    content = text if text.endswith("\n") else f"{text}\n"
    if path.is_file() or path.is_symlink() or not path.exists():  # a device or a pipe cannot be replaced
        try:
            _replace(path, content)
            return
        except OSError as error:  # a mounted file cannot be replaced either
            if error.errno in _FULL or path.is_symlink():
                raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o666)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as out:
            out.write(content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def _replace(path: Path, content: str) -> None:
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".dpspec-", suffix=".tmp")  # a longer name may not fit
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as out:
            out.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(scratch, 0o666 & ~mask)
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def _require_writable(path: Path) -> None:
    try:
        if path.is_dir():
            raise UsageError(f"cannot write a report to {path}: it is a folder")
        if not path.parent.is_dir():
            raise UsageError(f"cannot write a report to {path}: the folder {path.parent} does not exist; create it")
        os.lstat(path)  # fails for long names and circular links
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"cannot write a report to {path}: {why}") from None
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"cannot write a report to {path}: permission denied")
