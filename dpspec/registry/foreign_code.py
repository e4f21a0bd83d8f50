"""Import and call the code of plugins, and name the distribution whose code raised an error.

Every error except Ctrl-C becomes one line of text: a plugin that calls ``sys.exit`` must not end the program.
"""

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from dpspec.contract.catalog import Offered
from dpspec.errors import PluginError
from dpspec.registry.descriptors import FAMILIES
from dpspec.text import plain, shortened


def is_foreign(offered: Offered) -> bool:
    return offered.distribution != "dpspec"


def made(offered: Offered, reference: str, what: str, *arguments: Any, **named: Any) -> Any:
    """Call the code under ``reference``. Raises ``PluginError`` if it cannot be called."""
    function = resolve(reference)
    if not callable(function):
        raise misbehaved(offered, f"{reference} ({what}) is a {type(function).__name__}, nothing to call")
    return function(*arguments, **named)


def misbehaved(offered: Offered, how: str) -> PluginError:
    """The error that names a plugin and its mistake."""
    family = next((f for f in FAMILIES if isinstance(offered.provider, f.type)), None)
    kind = "provider" if family is None else f"{family.name} {getattr(offered.provider, family.key)!r}"
    advice = "tell its authors, or see `dpspec plugins --check`"
    return PluginError(one_line(f"{kind} of {offered.distribution} {offered.version}: {how}; {advice}"))


_LONGEST = 500


class Failed(Exception):  # noqa: N818 - the outcome of a call, never shown to users
    """Foreign code failed, for the reason in one line of text."""


@contextlib.contextmanager
def foreign_code(where: str = "") -> Iterator[None]:
    """Raise :class:`Failed` for any error of foreign code except Ctrl-C."""
    try:
        yield
    except (KeyboardInterrupt, Failed):
        raise
    except BaseException as error:  # a plugin may raise SystemExit, or an exception of its own that skips Exception
        raise Failed(f"{where}{describe(error)}") from error


def describe(error: BaseException) -> str:
    """One line, such as ``ImportError: no module named 'x' (dpspec_demo/__init__.py:3)``."""
    try:
        text = str(error)
    except Exception:  # an exception whose own text fails still deserves its name
        text = ""
    line = one_line(f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__)
    return f"{line} ({place})" if (place := _place(error)) else line


def one_line(text: str) -> str:
    """The text on one line of at most 500 characters, with invisible characters escaped."""
    return shortened(" ".join(plain(text).split()), _LONGEST)


def _place(error: BaseException) -> str:
    """File and line of the error; a syntax error has its own place."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    if isinstance(error, SyntaxError) or not frames:
        return ""
    return f"{'/'.join(PurePath(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}"


def resolve(reference: str) -> object:
    """Import the code of a reference ``package.module:Attribute``; raise ``PluginError`` if that fails."""
    module, colon, attribute = reference.partition(":")
    if not (module and colon and attribute):
        raise PluginError(f"{reference!r} does not name code as 'package.module:Attribute'")

    try:
        with foreign_code():
            found: Any = importlib.import_module(module)
            for name in attribute.split("."):
                found = getattr(found, name)
            return found
    except Failed as failure:
        raise PluginError(f"cannot load {reference}: {failure}") from failure
