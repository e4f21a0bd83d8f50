"""Every error that dpspec raises on purpose, and the exit code each one ends the program with.

The tree::

    DpspecError
    ├── UsageError            2   the command line, or a call, asks for something that makes no sense
    │   └── MissingLibraryError   the call needs a library that is not installed; an ImportError too
    ├── SpecError             3   one or more specs are invalid; carries every diagnostic
    ├── PluginError           4   a plugin that a spec needs is missing, broken or in conflict
    ├── NothingToRunError     5   no spec, no claim, no file
    ├── IncompleteError       6   stopped before the end; a re-run resumes
    ├── ResultError           2   a result file that cannot be read, or is not one
    └── RecordingError        3   the folder of a recorded run is none, or was changed

``verify`` ends with 7, which no error has, where it could not recompute all that it was given.

Anything else that escapes is a bug in dpspec and ends with 70.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from dpspec.contract.diagnostics import Diagnostic


class ExitCode(IntEnum):
    """What a run of ``dpspec`` ends with; a finding and a crash never share a code."""

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


class DpspecError(Exception):
    """Base of all errors raised on purpose; ``exit_code`` says how the program ends."""

    exit_code: ClassVar[ExitCode] = ExitCode.BUG


class UsageError(DpspecError):
    """The command line, or a call from Python, asks for something that makes no sense."""

    exit_code = ExitCode.USAGE


class MissingLibraryError(UsageError, ImportError):
    """Something was asked for that needs a library which is not installed; the message says which."""


class ResultError(DpspecError):
    """A result file cannot be read, or is not a dpspec result."""

    exit_code = ExitCode.USAGE


class RecordingError(DpspecError):
    """The folder of a recorded run is none, or is not as its recorder left it; the message names file and place."""

    exit_code = ExitCode.INVALID_SPEC


class SpecError(DpspecError):
    """One or more specs are invalid; ``diagnostics`` holds every problem found."""

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
    """There is no spec, no claim or no file to work on."""

    exit_code = ExitCode.NOTHING_TO_RUN


class IncompleteError(DpspecError):
    """The work stopped before its end; running the same command again continues it."""

    exit_code = ExitCode.INCOMPLETE


def _placed(diagnostic: Diagnostic) -> str:
    """What is wrong, after the file and the line where it is; the file alone where all of it is meant."""
    span = diagnostic.span
    if span is None or not span.file:
        return diagnostic.message
    whole = (span.line, span.column) == (span.end_line, span.end_column)
    return f"{span.file}: {diagnostic.message}" if whole else f"{span.file}:{span.line}: {diagnostic.message}"
