"""Write results to stdout and report files and everything else to stderr, escaped for terminals and logs.

A closed pipe (``dpspec show spec.yaml | head``) is not an error. A write error of stdout (a full disk) is one: the
result is lost. Formats and paths of report files are checked before training.

Results use a separate descriptor: output of plugins and their processes to file descriptor 1 goes to stderr.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from dpspec.contract.catalog import Catalog
from dpspec.errors import UsageError
from dpspec.registry import foreign_code
from dpspec.text import closest, did_you_mean, harmless, listed, quoted

if TYPE_CHECKING:
    from dpspec.engine.results.result import Result
    from dpspec.language.load import Loaded

#: The width without a terminal and without COLUMNS, and the maximum width.
_DEFAULT_WIDTH, _WIDEST = 80, 120

#: The stream of results; None for ``sys.stdout``.
_results: IO[str] | None = None


def emit(text: str, *, commands: bool = False) -> None:
    """Write to stdout; ``commands`` keeps commands to runners of continuous integration."""
    stream = results()
    _write(stream, "stdout", harmless(text, styled=wants_color(stream), commands=commands))


def note(text: str) -> None:
    """Write to stderr."""
    _write(sys.stderr, "stderr", harmless(text, styled=wants_color(sys.stderr)))


def results() -> IO[str]:
    return sys.stdout if _results is None else _results


@contextmanager
def results_apart() -> Iterator[None]:
    """Redirect the output of plugins to stderr, so that stdout has results only."""
    global _results
    before, outer = sys.stdout, _results
    _results = before
    with suppress(OSError, ValueError, AttributeError):  # without a descriptor the stream stays
        if before.fileno() == 1:
            before.flush()
            encoding, errors = getattr(before, "encoding", None), getattr(before, "errors", None)
            _results = open(os.dup(1), "w", encoding=encoding, errors=errors)  # noqa: SIM115
            os.dup2(2, 1)
    sys.stdout = _results
    foreign_code.before_first(lambda: setattr(sys, "stdout", sys.stderr))
    try:
        yield
    finally:
        foreign_code.before_first(None)
        with suppress(OSError, ValueError):
            _results.flush()
        if _results is not before:
            with suppress(OSError):
                os.dup2(_results.fileno(), 1)
        sys.stdout, _results = before, outer


def page_width() -> int:
    columns = shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns
    if _results is not None and not os.environ.get("COLUMNS"):
        try:
            columns = os.get_terminal_size(_results.fileno()).columns or _DEFAULT_WIDTH
        except (OSError, ValueError, AttributeError):
            columns = _DEFAULT_WIDTH
    return min(columns, _WIDEST)


def wants_color(stream: IO[str]) -> bool:
    """See https://no-color.org."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def tolerate_any_character() -> None:
    """Closed streams accept all text."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell's >&-
            silence(name)
        reconfigure = getattr(getattr(sys, name), "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def flush() -> None:
    for name, stream in (("stdout", results()), ("stderr", sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):  # the writer has reported the error
            silence(name)


def silence(name: str) -> None:
    """Point a stream and its descriptor to the null device, so that the exit is silent."""
    global _results
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it replaces the stream until the end
    try:
        stream = results() if name == "stdout" else sys.stderr
        os.dup2(nowhere.fileno(), stream.fileno())
    except (OSError, ValueError, AttributeError):
        setattr(sys, name, nowhere)
        if name == "stdout" and _results is not None:
            _results = nowhere


def _write(stream: IO[str], name: str, text: str) -> None:
    try:
        stream.write(text if text.endswith("\n") else f"{text}\n")
        stream.flush()
    except BrokenPipeError:
        silence(name)
    except (OSError, ValueError) as error:  # ValueError: a plugin closed it
        silence(name)
        if name == "stdout":
            raise UsageError(f"cannot write to stdout: {getattr(error, 'strerror', None) or error}") from None


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
    for report in reports:
        if report.to_stdout or not os.path.lexists(report.path):
            continue
        target = os.lstat(report.path)  # a link is replaced, not its target
        for path in found:
            with suppress(OSError, ValueError):
                if os.path.samestat(target, os.lstat(path)) or os.path.samestat(target, os.stat(path)):
                    raise UsageError(
                        f"a report to {report.path} would replace an input of the run; choose another path"
                    )


def _texts(tree: object) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict | list):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _texts(value)


def require_known(what: str, name: str, names: Collection[str], label: str = "valid") -> None:
    if name not in names:
        suggestion = did_you_mean(closest(name, names))
        raise UsageError(f"unknown {what} {quoted(name)}{suggestion} ({label}: {listed(names)})")


def find_format(name: str, catalog: Catalog) -> Callable[..., str]:
    from dpspec.registry.foreign_code import resolve

    require_known("report format", name, sorted(catalog.reporters))
    return cast("Callable[..., str]", resolve(catalog.reporters[name].provider.render))


def show_on_terminal(result: Result, *, internal: bool, brief: bool = False, title: str = "") -> None:
    from dpspec.reporters import terminal

    render = terminal.render_brief if brief else terminal.render
    emit(title + render(result, internal=internal, width=page_width(), color=wants_color(results())))


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
