"""Where text goes: results to stdout, everything else to stderr, and no trace when nobody reads any more.

A reader that goes away (``dpspec show spec.yaml | head``) changes nothing about what the command found out. A stdout
that cannot take it (a full disk) is an error: the result is lost.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import IO

from dpspec.errors import UsageError

#: Without a terminal to ask, and nothing in COLUMNS, a page is this wide.
_DEFAULT_WIDTH = 80

#: Beyond this, lines become hard to read.
_WIDEST = 120


def emit(text: str) -> None:
    """Write a result to stdout, with a line end."""
    _write(sys.stdout, "stdout", text)


def note(text: str) -> None:
    """Write a remark to stderr, with a line end."""
    _write(sys.stderr, "stderr", text)


def page_width() -> int:
    """The columns that a page on stdout may take."""
    return min(shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns, _WIDEST)


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
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except OSError:  # what could not be written has been told of by whoever wrote it
            silence(name)


def silence(name: str) -> None:
    """Point ``stdout`` or ``stderr`` nowhere, down to the file descriptor, so that the exit is quiet too."""
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it takes the stream's place until the end
    try:
        os.dup2(nowhere.fileno(), getattr(sys, name).fileno())
    except (OSError, ValueError, AttributeError):
        setattr(sys, name, nowhere)


def _write(stream: IO[str], name: str, text: str) -> None:
    try:
        stream.write(text if text.endswith("\n") else f"{text}\n")
        stream.flush()
    except BrokenPipeError:
        silence(name)
    except OSError as error:
        silence(name)
        if name == "stdout":
            raise UsageError(f"cannot write to stdout: {error.strerror or error}") from None
