"""Where text goes: results to stdout, everything else to stderr, and no trace when nobody reads any more.

A reader that goes away (``dpspec show spec.yaml | head``) changes nothing about what the command found out. A stdout
that cannot take it (a full disk) is an error: the result is lost.

Results have a descriptor of their own: what plugins, or processes of theirs, print or write to file descriptor 1
goes to stderr. And whatever goes to a terminal or a log passes one door here, where nothing stays that either obeys.
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

#: Without a terminal to ask, and nothing in COLUMNS, a page is this wide.
_DEFAULT_WIDTH = 80

#: Beyond this, lines become hard to read.
_WIDEST = 120


#: Where results go; None for ``sys.stdout``.
_results: IO[str] | None = None


def emit(text: str, *, commands: bool = False) -> None:
    """Write a result to stdout, with a line end. ``commands``: what runners of continuous integration obey stays."""
    stream = results()
    _write(stream, "stdout", harmless(text, styled=wants_color(stream), commands=commands))


def note(text: str) -> None:
    """Write a remark to stderr, with a line end."""
    _write(sys.stderr, "stderr", harmless(text, styled=wants_color(sys.stderr)))


def results() -> IO[str]:
    """The stream of results."""
    return sys.stdout if _results is None else _results


@contextmanager
def results_apart() -> Iterator[None]:
    """Within it, results alone reach stdout: once a plugin is about to run, what is printed goes to stderr."""
    global _results
    before, outer = sys.stdout, _results
    _results = _moved(before)
    sys.stdout = _results

    def divert() -> None:
        sys.stdout = sys.stderr

    foreign_code.before_first(divert)
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
    """The stream on another descriptor, and stderr in the place of stdout; as it is where that cannot be."""
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
    """The columns that a page on stdout may take."""
    columns = shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns
    if _results is not None and not os.environ.get("COLUMNS"):
        try:
            columns = os.get_terminal_size(_results.fileno()).columns or _DEFAULT_WIDTH
        except (OSError, ValueError, AttributeError):
            columns = _DEFAULT_WIDTH
    return min(columns, _WIDEST)


def wants_color(stream: IO[str]) -> bool:
    """Whether a stream is a terminal whose owner has not asked for plain text (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def tolerate_any_character() -> None:
    """Let a stream that cannot encode a character write it out as an escape, and one that is closed take anything."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell's >&-
            silence(name)
        reconfigure = getattr(getattr(sys, name), "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def flush() -> None:
    """Flush both streams here, where a reader that has gone can still be forgiven."""
    for name, stream in (("stdout", results()), ("stderr", sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):  # what could not be written has been told of by whoever wrote it
            silence(name)


def silence(name: str) -> None:
    """Point ``stdout`` or ``stderr`` nowhere, down to the file descriptor, so that the exit is quiet too."""
    global _results
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it takes the stream's place until the end
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
