"""Write results to stdout and report files and everything else to stderr, escaped for terminals and logs.

A closed pipe (``dpspec show spec.yaml | head``) is not an error. A write error of stdout (a full disk) is one: the
result is lost. Formats and paths of report files are checked before training.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import typer

from dpspec.cli import interrupt
from dpspec.errors import Diagnostic, DpspecError, ExitCode, UsageError
from dpspec.text import closest, did_you_mean, harmless, listed, quoted

if TYPE_CHECKING:
    from dpspec.contract import Reporter
    from dpspec.contract.catalog import Catalog, Offered
    from dpspec.contract.results import Result

#: The width without a terminal and without COLUMNS, and the maximum width.
_DEFAULT_WIDTH, _WIDEST = 80, 120


def emit(text: str, *, commands: bool = False) -> None:
    """Write to stdout; ``commands`` keeps commands to runners of continuous integration."""
    _write("stdout", harmless(text, styled=wants_color(sys.stdout), commands=commands))


def note(text: str) -> None:
    """Write to stderr."""
    _write("stderr", harmless(text, styled=wants_color(sys.stderr)))


def page_width() -> int:
    return min(shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns, _WIDEST)


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
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except (OSError, ValueError):  # the writer has reported the error
            silence(name)


def silence(name: str) -> None:
    """Point a stream and its descriptor to the null device, so that the exit is silent."""
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it replaces the stream until the end
    try:
        os.dup2(nowhere.fileno(), getattr(sys, name).fileno())
    except (OSError, ValueError, AttributeError):
        setattr(sys, name, nowhere)


def _write(name: str, text: str) -> None:
    stream = getattr(sys, name)
    try:
        stream.write(text if text.endswith("\n") else f"{text}\n")
        stream.flush()
    except BrokenPipeError:
        silence(name)
    except (OSError, ValueError) as error:  # ValueError: a plugin closed it
        silence(name)
        if name == "stdout":
            raise UsageError(f"cannot write to stdout: {getattr(error, 'strerror', None) or error}") from None


class ShownError(typer.Exit):
    """The end of a command whose diagnostics were printed."""

    def __init__(self, exit_code: ExitCode, diagnostics: Sequence[Diagnostic]) -> None:
        super().__init__(exit_code)
        self.code = exit_code
        self.diagnostics = tuple(diagnostics)


#: Errors of permissions and of a full disk.
REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

#: The format with commands to a runner.
COMMANDS = "github"

STDOUT = "-"


@dataclass(frozen=True)
class RequestedReport:
    format: str
    offered: Offered
    render: Callable[..., str]
    path: str

    @property
    def to_stdout(self) -> bool:
        return self.path == STDOUT


def parse_reports(options: Sequence[str], catalog: Catalog, inputs: Sequence[Path] = ()) -> tuple[RequestedReport, ...]:
    """Fails before training, also if a report would replace one of the ``inputs`` or another report."""
    reports = []
    used = {os.path.realpath(path): f"{path} is an input of this command" for path in inputs}
    for option in options:
        name, equals, path = option.partition("=")
        if not (equals and name and path):
            raise UsageError(f"--report expects FORMAT=PATH, got {option!r}")
        if path != STDOUT:
            _require_writable(Path(path))
            file = os.path.realpath(path)
            if file in used:
                raise UsageError(f"cannot write a report to {path}: {used[file]}; choose another path")
            if os.path.isfile(file) or not os.path.exists(file):  # a device takes several reports
                used[file] = f"{path} has another report"
        render = find_format(name, catalog)
        reports.append(RequestedReport(name, catalog.reporters[name], render, path))
    return tuple(reports)


def require_known(kind: str, name: str, names: Collection[str], label: str = "valid", hint: str = "") -> None:
    if name not in names:
        suggestion = did_you_mean(closest(name, names))
        further = f"; {hint}" if hint else ""
        raise UsageError(f"unknown {kind} {quoted(name)}{suggestion} ({label}: {listed(names)}){further}")


def find_format(name: str, catalog: Catalog) -> Callable[..., str]:
    """The function of a format, of dpspec or a plugin, which sees no more of a result than it may show.

    Without ``internal`` it receives a redacted result. Unless the format has ``void_bounds``, the result has no bounds
    of runs that deviate.
    """
    from dpspec.contract.catalog import PROJECT_HINT
    from dpspec.registry.loader import resolve

    require_known("report format", name, sorted(catalog.reporters), hint=PROJECT_HINT)
    reporter: Reporter = catalog.reporters[name].provider
    code = cast("Callable[..., str]", resolve(reporter.render))

    def render(result: Result, *, internal: bool) -> str:
        from dpspec.results.redact import redact
        from dpspec.results.void_bounds import for_readers

        if not reporter.void_bounds:
            return code(for_readers(result, internal=internal), internal=internal)
        return code(result if internal else redact(result), internal=internal)

    return render


def show_on_terminal(result: Result, *, internal: bool, brief: bool = False) -> None:
    from dpspec.reporters import terminal

    render = terminal.render_brief if brief else terminal.render
    emit(render(result, internal=internal, width=page_width(), color=wants_color(sys.stdout)))


def write_reports(reports: Sequence[RequestedReport], result: Result, *, internal: bool) -> None:
    """Render and write each report, also after the failure of another. Raises the first failure at the end."""
    from dpspec.registry.loader import mark

    failures: list[BaseException] = []
    for report in reports:
        try:
            _write_report(report, report.render(result, internal=internal))
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            failures.append(error)
            mark(error, report.offered)
            _name_failure(report, error)
    if failures:
        raise failures[0]


def _write_report(report: RequestedReport, text: object) -> None:
    if not isinstance(text, str):
        from dpspec.registry.loader import misbehaved

        raise misbehaved(report.offered, f"render() returns a {type(text).__name__}, not text")
    if report.to_stdout:
        emit(text, commands=report.format == COMMANDS)
    else:
        write_file(Path(report.path), text)
        note(f"wrote {report.path} ({report.format})")


def _name_failure(report: RequestedReport, error: BaseException) -> None:
    from dpspec.registry.loader import describe

    source = report.offered
    reason = str(error) if isinstance(error, DpspecError) else describe(error)
    note(
        f"error: reporter {quoted(report.format)} of {source.distribution} {source.version} (plugin {source.plugin}) "
        f"did not write {report.path}: {reason}"
    )


@contextmanager
def failures_in_reports(reports: Sequence[RequestedReport]) -> Iterator[None]:
    """If the block ends with an error, write it to the reports whose formats hold failures, and raise it again."""
    try:
        yield
    except Exception as error:
        if not interrupt.heard():
            _report_failure(reports, error)
        raise


def _report_failure(reports: Sequence[RequestedReport], error: Exception) -> None:
    from dpspec.registry.loader import describe, raised_by
    from dpspec.reporters.failures import FORMATS, Failure

    message, diagnostics = describe(error), getattr(error, "diagnostics", ())
    if isinstance(error, DpspecError):
        message, code = str(error), error.exit_code
    elif isinstance(error, ShownError):
        code = error.code
    elif isinstance(error, MemoryError):
        code = ExitCode.INCOMPLETE
    elif isinstance(error, OSError) and error.errno in REFUSED:
        code = ExitCode.USAGE
    else:
        code = ExitCode.PLUGIN if raised_by(error) else ExitCode.BUG
    failure = Failure(exit_code=code, message=message, diagnostics=diagnostics)
    for report in reports:
        if report.format in FORMATS:
            try:
                _write_report(report, FORMATS[report.format](failure))
            except DpspecError as second:
                _name_failure(report, second)
        elif not report.to_stdout and Path(report.path).is_file():
            note(f"{report.path} ({report.format}) is of an earlier command: this one has no result")


def write_file(path: Path, text: str) -> None:
    """Replace a file or a link as a whole; write to a device or a pipe."""
    content = text if text.endswith("\n") else f"{text}\n"
    options: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "newline": "\n"}
    scratch: str | None = None
    try:
        if path.exists() and not path.is_file() and not path.is_symlink():
            path.write_text(content, **options)
            return
        handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".dpspec-", suffix=".tmp")
        with os.fdopen(handle, "w", **options) as out:
            out.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(scratch, 0o666 & ~mask)
        os.replace(scratch, path)
    except BaseException as error:
        if scratch is not None:
            Path(scratch).unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def _require_writable(path: Path) -> None:
    try:
        if path.is_dir():
            raise UsageError(f"cannot write a report to {path}: it is a folder")
        if not path.parent.is_dir():
            raise UsageError(f"cannot write a report to {path}: the folder {path.parent} does not exist; create it")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UsageError(f"cannot write a report to {path}: permission denied")
    except OSError as error:  # a name that is too long
        raise UsageError(f"cannot write a report to {path}: {error.strerror}") from None
