"""Foreign code may fail in any way; here its failure becomes one line of text.

Everything but Ctrl-C is caught: a plugin that calls ``sys.exit`` while it is imported must not end the program.

``resolve`` goes from the text ``package.module:Attribute`` to the code that it names.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, TypeVar

from dpspec.errors import PluginError
from dpspec.text import plain, shortened

T = TypeVar("T")


class _Aside(io.TextIOBase):
    """In the place of stdout while foreign code runs: what it prints goes to stderr, whatever it does to the stream."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        sys.stderr.flush()

    def fileno(self) -> int:
        return sys.stderr.fileno()

    def close(self) -> None:
        """It is not the plugin's to close."""

    @property
    def buffer(self) -> Any:
        return sys.stderr.buffer


#: The one stream of that kind.
ASIDE = _Aside()

_prepare: Callable[[], None] | None = None


def before_first(prepare: Callable[[], None] | None) -> None:
    """Call ``prepare`` once, before foreign code runs for the first time from now on; None for nothing."""
    global _prepare
    _prepare = prepare


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
    global _prepare
    if _prepare is not None:
        prepare, _prepare = _prepare, None
        prepare()
    try:
        with contextlib.redirect_stdout(ASIDE):
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
    """The text on one line, with everything invisible written out, cut to 500 characters."""
    return shortened(" ".join(plain(text).split()), _LONGEST)


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


def resolve(reference: str) -> object:
    """Import what a descriptor names; raises :class:`~dpspec.errors.PluginError` when that does not work."""
    module, colon, attribute = reference.partition(":")
    if not (module and colon and attribute):
        raise PluginError(f"{reference!r} does not name code as 'package.module:Attribute'")

    def load() -> Any:
        found: Any = importlib.import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
        return found

    try:
        return attempt(load)
    except Failed as failure:
        raise PluginError(f"cannot load {reference}: {failure}") from failure
