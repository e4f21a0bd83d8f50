"""Calling what a plugin offers: whatever comes of it, the plugin is named, and the program goes on to its own end.

Errors on purpose pass. Any other is marked with the distribution whose code raised it, here or in another process, so
that nobody takes it for a bug of dpspec; what would end the program, as ``sys.exit``, becomes a ``PluginError``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

from dpspec.contract import Cancelled, DataError
from dpspec.contract.catalog import Offered
from dpspec.errors import DpspecError, PluginError
from dpspec.registry.descriptors import FAMILIES
from dpspec.registry.foreign_code import describe, one_line, resolve

T = TypeVar("T")

#: Raised by providers because the contract says so.
_MEANT = (DpspecError, DataError, Cancelled, MemoryError, KeyboardInterrupt, GeneratorExit)

_MARK = "dpspec_plugin"


def is_foreign(offered: Offered) -> bool:
    """Whether somebody else than dpspec offers it."""
    return offered.distribution != "dpspec"


def called(offered: Offered, what: str, function: Callable[[], T]) -> T:
    """What foreign code returns. ``what`` names the call in messages: ``facts()``."""
    try:
        return function()
    except _MEANT:
        raise
    except StopIteration as error:  # would end whatever goes through something
        raise PluginError(f"{said(offered)}: {what} raises {describe(error)}; {_ADVICE}") from error
    except Exception as error:
        blame(error, offered)
        raise
    except BaseException as error:  # SystemExit, or whatever else would end the program
        raise PluginError(f"{said(offered)}: {what} raises {describe(error)}; {_ADVICE}") from error


def listed(offered: Offered, what: str, items: Callable[[], Iterable[T]]) -> Iterator[T]:
    """What foreign code yields, one by one."""
    found = called(offered, what, items)
    if not isinstance(found, Iterable) or isinstance(found, str | bytes):
        raise misbehaved(offered, f"{what} returns a {type(found).__name__}, nothing to go through")
    iterator = called(offered, what, lambda: iter(found))
    end = object()
    while (item := called(offered, what, lambda: next(iterator, end))) is not end:
        yield cast(T, item)


def made(offered: Offered, reference: str, what: str, *arguments: Any, **named: Any) -> Any:
    """What the code under ``reference`` makes of the arguments. Raises ``PluginError`` where it cannot be called."""
    function = resolve(reference)
    if not callable(function):
        raise misbehaved(offered, f"{reference} is a {type(function).__name__}, nothing to call")
    return called(offered, what, lambda: function(*arguments, **named))


def renderer(offered: Offered) -> Callable[..., str]:
    """The function of a report format; what it does wrong is told as its plugin's.

    Raises ``PluginError`` where it is not there or cannot be called with ``(result, internal=...)``.
    """
    reporter = offered.provider
    render = resolve(reporter.render)
    if not callable(render):
        raise misbehaved(offered, f"{reporter.render} is a {type(render).__name__}, nothing to call")
    try:
        inspect.signature(render).bind(object(), internal=True)
    except TypeError as error:
        raise misbehaved(offered, f"{reporter.render} cannot be called with (result, internal=...): {error}") from None
    except ValueError:  # of what is written in C nothing is known
        pass
    if not is_foreign(offered):
        return cast("Callable[..., str]", render)

    def checked(result: object, *, internal: bool = False) -> str:
        text = called(offered, "render()", lambda: render(result, internal=internal))
        if not isinstance(text, str):
            raise misbehaved(offered, f"render() returns a {type(text).__name__}, not a text")
        return str(text)

    return checked


def misbehaved(offered: Offered, how: str) -> PluginError:
    """The error that names a plugin and says what it did."""
    return PluginError(one_line(f"{said(offered)}: {how}; {_ADVICE}"))


def said(offered: Offered) -> str:
    """A provider as messages name it: ``mechanism 'coin' of their-plugin 1.0``."""
    family = next((f for f in FAMILIES if isinstance(offered.provider, f.type)), None)
    kind = "provider" if family is None else f"{family.name} {family.key(offered.provider)!r}"
    return f"{kind} of {offered.distribution} {offered.version}"


def blame(error: BaseException, offered: Offered) -> None:
    """Mark an error that came out of foreign code, unless somebody nearer to it did.

    Where it was raised in dpspec's own code, called from there, the plugin's authors look first.
    """
    if is_foreign(offered) and blamed(error) is None:
        error.__dict__[_MARK] = offered.distribution


def blamed(error: BaseException) -> str | None:
    """The distribution that an error is marked with."""
    return error.__dict__.get(_MARK)


_ADVICE = "tell its authors, or see `dpspec plugins --check`"
