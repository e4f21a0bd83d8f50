"""Import and call the code of plugins, and name the distribution whose code raised an error.

Every error except Ctrl-C becomes one line of text: a plugin that calls ``sys.exit`` must not end the program.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
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


_prepare: Callable[[], None] | None = None


def before_first(prepare: Callable[[], None] | None) -> None:
    """Call ``prepare`` once, before the next call of foreign code; None cancels it."""
    global _prepare
    _prepare = prepare


_LONGEST = 500
_CORE = PurePath(__file__).parents[1]
_STANDARD = PurePath(sysconfig.get_path("stdlib"))


class Failed(Exception):  # noqa: N818 - the outcome of a call, never shown to users
    """Foreign code failed, for the reason in one line of text."""


@contextlib.contextmanager
def foreign_code(where: str = "") -> Iterator[None]:
    """Run foreign code with stdout redirected to stderr; raise :class:`Failed` for any error except Ctrl-C."""
    global _prepare
    if _prepare is not None:
        prepare, _prepare = _prepare, None
        prepare()
    try:
        with contextlib.redirect_stdout(sys.stderr):
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
    """File and line of the error, in foreign code if any is in the traceback; a syntax error has its own place."""
    frames = [(PurePath(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    # dpspec and the standard library raise for their callers.
    foreign = [
        (path, line)
        for path, line in frames
        if "site-packages" in path.parts
        or not (path.is_relative_to(_STANDARD) or path.is_relative_to(_CORE) or path.name.startswith("<"))
    ]
    if isinstance(error, SyntaxError) or not frames:
        return ""
    path, line = (foreign or frames)[-1]
    return f"{'/'.join(path.parts[-2:])}:{line}"


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
