"""Located messages about a spec, the errors of dpspec, and the exit codes of the program.

Any other exception is a bug and exits with 70.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Literal, TypeAlias

#: Location of a value in a spec: mapping keys and list indices from the root.
Path: TypeAlias = tuple[str | int, ...]

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Span:
    """A range in a file. Lines and columns count from 1; the end is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """One message about a spec.

    Attributes:
        code: Short name in kebab case for ``dpspec explain``.
        path: Location in the spec, for example ``("mechanism", "sampling", "rate")``.
        span: Range in the file. Plugins omit it; core finds the range of the value or of its nearest parent.
        at_key: Point at the key instead of its value.
        private: The value that the message is about, if it comes from the data. Only ``--internal`` shows it.
    """

    code: str
    message: str
    path: Path = ()
    help: str | None = None
    severity: Severity = "error"
    span: Span | None = None
    at_key: bool = False
    private: str | None = None


def format_path(path: Path) -> str:
    """Format a path, for example ``mechanism.phases[1].steps``; the root is ``the spec``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the spec"


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Whether a diagnostic is an error."""
    return any(diagnostic.severity == "error" for diagnostic in diagnostics)


class ExitCode(IntEnum):
    """Exit codes of ``dpspec``. ``NOT_RECOMPUTED`` is that of ``verify`` if it could not recompute everything."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    INVALID_SPEC = 3
    PLUGIN = 4
    NOTHING_TO_RUN = 5
    INCOMPLETE = 6
    NOT_RECOMPUTED = 7
    BUG = 70
    INTERRUPTED = 130
    TERMINATED = 143


class DpspecError(Exception):
    """Base class of dpspec's errors."""

    exit_code: ClassVar[ExitCode] = ExitCode.BUG


class UsageError(DpspecError):
    """Invalid arguments of the command line or of a function."""

    exit_code = ExitCode.USAGE


class ArgumentError(UsageError, ValueError):
    """An invalid argument of a public function."""


class MissingLibraryError(UsageError, ImportError):
    """A required library is not installed; the message names it."""


class ResultError(DpspecError):
    """A file cannot be read, or is not a dpspec result."""

    exit_code = ExitCode.USAGE


class RecordingError(DpspecError):
    """A folder is not a recording, or was changed after recording; the message names file and place."""

    exit_code = ExitCode.INVALID_SPEC


class HistoryError(DpspecError):
    """A file is not an accountant's history, or has an event without a bound; the message names file and place."""

    exit_code = ExitCode.INVALID_SPEC


class LedgerError(DpspecError):
    """A release does not fit into a ledger: its audit does not stand, or the budget is exceeded."""

    exit_code = ExitCode.UNEXPECTED


class UnobservableError(DpspecError):
    """The recorder cannot observe the training any further. It ends the recording, never the training.

    The message is free of values of the training, so that reports may print it.
    """


class SpecError(DpspecError):
    """One or more specs are invalid; ``diagnostics`` holds all errors."""

    exit_code = ExitCode.INVALID_SPEC

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("; ".join(map(_placed, self.diagnostics)) or "invalid spec")

    def __reduce__(self) -> tuple[type[SpecError], tuple[Sequence[Diagnostic]]]:
        return type(self), (self.diagnostics,)


class PluginError(DpspecError):
    """A plugin that a spec needs is missing, broken or in conflict."""

    exit_code = ExitCode.PLUGIN

    def __init__(self, message: str, diagnostics: Sequence[Diagnostic] = ()) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__(message)

    def __reduce__(self) -> tuple[type[PluginError], tuple[str, Sequence[Diagnostic]]]:
        return type(self), (str(self), self.diagnostics)


class NothingToRunError(DpspecError):
    """There is no spec, no claim or no file to process."""

    exit_code = ExitCode.NOTHING_TO_RUN


def _placed(diagnostic: Diagnostic) -> str:
    span = diagnostic.span
    if span is None or not span.file:
        return diagnostic.message
    whole = (span.line, span.column) == (span.end_line, span.end_column)
    return f"{span.file}: {diagnostic.message}" if whole else f"{span.file}:{span.line}: {diagnostic.message}"
