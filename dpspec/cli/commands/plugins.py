"""``dpspec plugins``: installed providers and broken plugins, and with ``--check`` a test of a plugin's contract."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.output import emit, page_width
from dpspec.contract.catalog import BrokenPlugin, Catalog, Offered
from dpspec.errors import ExitCode, UsageError
from dpspec.registry.descriptors import FAMILIES
from dpspec.text import closest, did_you_mean, json_text, plain, quoted

if TYPE_CHECKING:
    from dpspec.testing.inspection import Promise


def plugins(
    json_: Annotated[bool, typer.Option("--json", help="For programs: one JSON document.")] = False,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Test the contract of a plugin; a mechanism's example runs three times.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """List the providers of installed plugins, and broken plugins with the reason; or test a plugin."""
    if check is not None:
        return check_promises(check)
    from dpspec.registry.loader import load_catalog

    catalog = load_catalog()
    emit(_as_json(catalog) if json_ else _as_text(catalog))
    return ExitCode.OK


def _as_json(catalog: Catalog) -> str:
    import json

    document = {
        **{f.field: [_entry(name, offered) for name, offered in _sorted(catalog, f.field)] for f in FAMILIES},
        "broken": [_broken(plugin) for plugin in catalog.broken],
    }
    return json_text(json.dumps(document, indent=2))


def _sorted(catalog: Catalog, family: str) -> list[tuple[str, Offered]]:
    return sorted(getattr(catalog, family).items())


def _entry(name: str, offered: Offered) -> dict[str, str]:
    return {
        "name": name,
        "summary": offered.provider.summary,
        "plugin": offered.plugin,
        "distribution": offered.distribution,
        "version": offered.version,
    }


def _broken(plugin: BrokenPlugin) -> dict[str, object]:
    return {
        "plugin": plugin.plugin,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "reason": plugin.reason,
        "kinds": list(plugin.kinds),
    }


def _as_text(catalog: Catalog) -> str:
    from dpspec.reporters.layout import text_table

    def table(rows: Sequence[tuple[str, str, str]]) -> str:
        return "\n".join(f"  {line}" for line in text_table(rows, page_width() - 2, folded=1))

    blocks = []
    for family in FAMILIES:
        rows = [
            (name, offered.provider.summary, f"{offered.distribution} {offered.version}")
            for name, offered in _sorted(catalog, family.field)
        ]
        blocks.append(f"{family.field}\n{table(rows) if rows else '  none'}")
    if catalog.broken:
        rows = [
            (plugin.plugin or "?", plugin.reason, f"{plugin.distribution} {plugin.version}")
            for plugin in catalog.broken
        ]
        blocks.append(f"broken (only specs that need them fail)\n{table(rows)}")
    return "\n\n".join(blocks)


def check_promises(name: str) -> ExitCode:
    """Test all providers of a plugin; ``name`` is a plugin, a distribution or a kind."""
    from dpspec.registry.loader import load_registry
    from dpspec.testing.inspection import inspect

    registry = load_registry()
    plugins = _by_distribution(registry.catalog)
    matching = [plugin for plugin, names in plugins.items() if name in names]
    broken = [b for b in registry.catalog.broken if name in (b.plugin, b.distribution, *b.kinds)]
    if not matching and not broken:
        names_known = sorted({n for names in plugins.values() for n in names})
        hint = did_you_mean(closest(name, names_known)) or "; see `dpspec plugins`"
        raise UsageError(f"unknown plugin {quoted(name)}{hint}")
    all_kept = _show_broken(broken)
    for distribution, plugin in matching:
        emit(f"{distribution}: plugin {plugin}")
        promises = []
        for promise in inspect(registry, distribution, plugin, None if name in (distribution, plugin) else name):
            emit(_result(promise))
            promises.append(promise)
        failed, left_out = sum(bool(p.broken) for p in promises), sum(bool(p.left_out) for p in promises)
        emit(_counted(len(promises) - failed - left_out, failed, left_out))
        all_kept = all_kept and not failed
    return ExitCode.OK if all_kept else ExitCode.PLUGIN


def _by_distribution(catalog: Catalog) -> dict[tuple[str, str], set[str]]:
    """Each usable plugin, as (distribution, name), with the names that select it."""
    plugins: dict[tuple[str, str], set[str]] = {}
    for family in FAMILIES:
        for kind, offered in getattr(catalog, family.field).items():
            names = plugins.setdefault((offered.distribution, offered.plugin), {offered.plugin, offered.distribution})
            names.add(kind)
    return plugins


def _show_broken(broken: list[BrokenPlugin]) -> bool:
    """Print the reasons of broken plugins; return whether the list is empty."""
    for plugin in broken:
        emit(f"{plugin.distribution} {plugin.version}: plugin {plugin.plugin or '?'} cannot be used")
        emit("\n".join(_indented(plugin.reason)))
    return not broken


def _counted(kept: int, failed: int, left_out: int) -> str:
    """The number of promises per outcome."""
    return f"{kept} kept" + f", {failed} broken" * bool(failed) + f", {left_out} not tried" * bool(left_out)


def _result(promise: Promise) -> str:
    """A line with the demand and its outcome, and the finding if it fails."""
    word = "FAILS" if promise.broken else "-" if promise.left_out else "ok"
    lines = textwrap.wrap(
        f"{promise.provider}: {promise.demand}",
        page_width(),
        initial_indent=f"  {word:<6}",
        subsequent_indent=" " * 8,
    )
    return "\n".join([*lines, *_indented(promise.broken or promise.left_out)])


def _indented(text: str) -> Iterator[str]:
    """The lines of a finding, escaped and folded."""
    for line in text.splitlines():
        yield from textwrap.wrap(
            plain(line), page_width(), initial_indent=" " * 10, subsequent_indent=" " * 10, drop_whitespace=True
        )
