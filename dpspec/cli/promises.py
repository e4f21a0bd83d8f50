"""``dpspec plugins --check NAME``: whether a plugin keeps the promises of the contract, told one by one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from dpspec.cli.output import emit, page_width
from dpspec.cli.plugins import FAMILIES
from dpspec.contract import BrokenPlugin, Catalog
from dpspec.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from dpspec.testing.inspection import Promise


def check(name: str) -> ExitCode:
    """Try everything that the plugin ``name`` offers; ``name`` is the plugin's, its distribution's or a kind of it."""
    from dpspec.registry.loader import load_registry
    from dpspec.testing.inspection import inspect

    registry = load_registry()
    found = _plugins(registry.catalog)
    matching = [plugin for plugin, names in found.items() if name in names]
    broken = [b for b in registry.catalog.broken if name in (b.plugin, b.distribution, *b.kinds)]
    if not matching and not broken:
        known = sorted({n for names in found.values() for n in names})
        close = get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else "see `dpspec plugins`"
        raise UsageError(f"no installed plugin is called {name!r}; {hint}")
    kept = _tell_broken(broken)
    for distribution, plugin in matching:
        emit(f"{distribution}: plugin {plugin}")
        promises = []
        for promise in inspect(registry, distribution, plugin, None if name in (distribution, plugin) else name):
            emit(_told(promise))
            promises.append(promise)
        failed, left_out = sum(bool(p.broken) for p in promises), sum(bool(p.left_out) for p in promises)
        emit(_counted(len(promises) - failed - left_out, failed, left_out))
        kept = kept and not failed
    return ExitCode.OK if kept else ExitCode.PLUGIN


def _plugins(catalog: Catalog) -> dict[tuple[str, str], set[str]]:
    """Every usable plugin, as (distribution, name), with the names by which it can be asked for."""
    found: dict[tuple[str, str], set[str]] = {}
    for family in FAMILIES:
        for kind, offered in getattr(catalog, family).items():
            names = found.setdefault((offered.distribution, offered.plugin), {offered.plugin, offered.distribution})
            names.add(kind)
    return found


def _tell_broken(broken: list[BrokenPlugin]) -> bool:
    """Print why plugins cannot be used; whether there is none."""
    for plugin in broken:
        emit(f"{plugin.distribution} {plugin.version}: plugin {plugin.plugin or '?'} cannot be used")
        emit("\n".join(_indented(plugin.reason)))
    return not broken


def _counted(kept: int, failed: int, left_out: int) -> str:
    """How many promises came out how, in one line."""
    return f"{kept} kept" + f", {failed} broken" * bool(failed) + f", {left_out} not tried" * bool(left_out)


def _told(promise: Promise) -> str:
    """A line that says what was demanded and whether it holds, and what was found where it does not."""
    word = "FAILS" if promise.broken else "-" if promise.left_out else "ok"
    lines = textwrap.wrap(
        f"{promise.provider}: {promise.demand}",
        page_width(),
        initial_indent=f"  {word:<6}",
        subsequent_indent=" " * 8,
    )
    return "\n".join([*lines, *_indented(promise.broken or promise.left_out)])


def _indented(text: str) -> Iterator[str]:
    """What was found, line by line, with nothing invisible in it."""
    from dpspec.reporters.escape import plain

    for line in text.splitlines():
        yield from textwrap.wrap(
            plain(line), page_width(), initial_indent=" " * 10, subsequent_indent=" " * 10, drop_whitespace=True
        )
