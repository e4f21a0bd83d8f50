"""Call the code of a provider, and find the distribution whose code raised an error."""

from __future__ import annotations

import traceback
from typing import Any

from dpspec.contract.catalog import Offered
from dpspec.errors import PluginError
from dpspec.registry.descriptors import FAMILIES
from dpspec.registry.foreign_code import one_line, resolve

_MARK = "dpspec_plugin"

#: The fields of descriptors that name code.
_CODE = ("audit", "source", "trainer", "factory", "render", "pool", "make", "score")


def is_foreign(offered: Offered) -> bool:
    """Whether another distribution than dpspec offers it."""
    return offered.distribution != "dpspec"


def made(offered: Offered, reference: str, what: str, *arguments: Any, **named: Any) -> Any:
    """Call the code under ``reference``. Raises ``PluginError`` if it cannot be called."""
    function = resolve(reference)
    if not callable(function):
        raise misbehaved(offered, f"{reference} ({what}) is a {type(function).__name__}, nothing to call")
    return function(*arguments, **named)


def misbehaved(offered: Offered, how: str) -> PluginError:
    """The error that names a plugin and its mistake."""
    return PluginError(one_line(f"{said(offered)}: {how}; {_ADVICE}"))


def said(offered: Offered) -> str:
    """A provider as messages name it: ``mechanism 'coin' of their-plugin 1.0``."""
    family = next((f for f in FAMILIES if isinstance(offered.provider, f.type)), None)
    kind = "provider" if family is None else f"{family.name} {family.key(offered.provider)!r}"
    return f"{kind} of {offered.distribution} {offered.version}"


def mark(error: BaseException) -> None:
    """Write the distribution whose code raised an error into it: a traceback does not leave its process."""
    if distribution := raised_by(error):
        error.__dict__[_MARK] = distribution


def raised_by(error: BaseException) -> str:
    """The distribution of the plugin whose code raised an error; empty for dpspec's own code."""
    from dpspec.registry.loader import load_catalog

    if marked := error.__dict__.get(_MARK):
        return str(marked)
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = [str(name).partition(".")[0] for name in modules]
    catalog, offering = load_catalog(), {"dpspec": "dpspec"}
    for offered in (offered for family in FAMILIES for offered in getattr(catalog, family.field).values()):
        for field in _CODE:
            if reference := getattr(offered.provider, field, ""):
                offering.setdefault(reference.partition(".")[0].partition(":")[0], offered.distribution)
    deepest = next((offering[package] for package in reversed(packages) if package in offering), "dpspec")
    return "" if deepest == "dpspec" else deepest


_ADVICE = "tell its authors, or see `dpspec plugins --check`"
