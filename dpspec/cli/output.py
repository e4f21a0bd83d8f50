"""Write results to stdout and everything else to stderr, escaped for terminals and logs.

A closed pipe (``dpspec show spec.yaml | head``) is not an error. A write error of stdout (a full disk) is one: the
result is lost.

Results use a separate descriptor: output of plugins and their processes to file descriptor 1 goes to stderr.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from dpspec.errors import UsageError
from dpspec.registry import foreign_code
from dpspec.text import harmless

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
    _results = _moved(before)
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


def _moved(stream: IO[str]) -> IO[str]:
    """The stream on another descriptor, with stderr in its place; unchanged if that is impossible."""
    try:
        if stream.fileno() != 1:
            return stream
        stream.flush()
        moved = open(os.dup(1), "w", encoding=getattr(stream, "encoding", None), errors=getattr(stream, "errors", None))  # noqa: SIM115
    except (OSError, ValueError, AttributeError):
        return stream
    with suppress(OSError):
        os.dup2(2, 1)
    return moved


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
