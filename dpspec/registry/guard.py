"""Foreign code may fail in any way; here its failure becomes one line of text.

Everything but Ctrl-C is caught: a plugin that calls ``sys.exit`` while it is imported must not end the program.
"""

from __future__ import annotations

import contextlib
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import TypeVar

T = TypeVar("T")

_LONGEST = 500
_HERE = PurePath(__file__).parent
_CORE = _HERE.parent
_STANDARD = PurePath(sysconfig.get_path("stdlib"))


class Failed(Exception):  # noqa: N818 - the outcome of a call, never shown to users
    """Foreign code did not work; ``str()`` of it says why, in one line."""


def attempt(function: Callable[[], T]) -> T:
    """Call foreign code; raises :class:`Failed` with one line of text when it raises anything but Ctrl-C.

    What the code prints goes to stderr: stdout belongs to results.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return function()
    except (KeyboardInterrupt, Failed):
        raise
    except BaseException as error:  # a plugin may raise SystemExit, or an exception of its own that skips Exception
        raise Failed(describe(error)) from error


def describe(error: BaseException) -> str:
    """``ImportError: no module named 'x' (dpspec_demo/__init__.py:3)``, in one line of at most 500 characters."""
    try:
        text = str(error)
    except Exception:  # an exception whose own text fails still deserves its name
        text = ""
    line = one_line(f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__)
    return f"{line} ({place})" if (place := _place(error)) else line


def one_line(text: str) -> str:
    """The text without line breaks and control characters, cut to 500 characters."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    joined = " ".join(printable.split())
    return joined if len(joined) <= _LONGEST else joined[: _LONGEST - 3] + "..."


def _place(error: BaseException) -> str:
    """The last line that the exception passed, of foreign code where it passed any; a syntax error names its place."""
    if isinstance(error, SyntaxError):
        return ""
    passed: list[tuple[PurePath, int | None]] = []
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = PurePath(frame.filename)
        if path.parent == _HERE:
            break
        if not frame.filename.startswith("<") and "importlib" not in path.parts:
            passed.append((path, frame.lineno))
    path, line = next((p for p in passed if _foreign(p[0])), passed[0] if passed else (_HERE, None))
    return f"{'/'.join(path.parts[-2:])}:{line}" if line is not None else ""


def _foreign(path: PurePath) -> bool:
    """Whether a file is neither dpspec's own nor the standard library's: what these raise, somebody asked them to."""
    installed = "site-packages" in path.parts or not path.is_relative_to(_STANDARD)
    return installed and not path.is_relative_to(_CORE)
