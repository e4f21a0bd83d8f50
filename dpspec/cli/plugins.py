"""``dpspec plugins``: what is installed, what it offers, and what is broken and why."""

from __future__ import annotations

from typing import Annotated

import typer

from dpspec.cli.output import emit, page_width
from dpspec.contract import BrokenPlugin, Catalog, Offered
from dpspec.errors import ExitCode

#: The families of providers, in the order in which a spec names them.
FAMILIES = ("mechanisms", "datasets", "models", "backends", "reporters", "executors")


def plugins(
    json_: Annotated[bool, typer.Option("--json", help="For programs: one JSON document.")] = False,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Try whether a plugin keeps the promises of the contract; a mechanism's example is run three times.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """List what the installed plugins offer, broken ones with the reason; or try one of them."""
    if check is not None:
        from dpspec.cli.promises import check as check_plugin

        return check_plugin(check)
    from dpspec.registry.loader import load_catalog

    catalog = load_catalog()
    emit(_as_json(catalog) if json_ else _as_text(catalog))
    return ExitCode.OK


def _as_json(catalog: Catalog) -> str:
    import json

    document = {
        **{family: [_entry(name, offered) for name, offered in _sorted(catalog, family)] for family in FAMILIES},
        "broken": [_broken(plugin) for plugin in catalog.broken],
    }
    return json.dumps(document, indent=2)


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
    from dpspec.cli.table import table

    width = page_width()
    blocks = []
    for family in FAMILIES:
        rows = [
            (name, offered.provider.summary, f"{offered.distribution} {offered.version}")
            for name, offered in _sorted(catalog, family)
        ]
        blocks.append(f"{family}\n{table(rows, width) if rows else '  none'}")
    if catalog.broken:
        rows = [
            (plugin.plugin or "?", plugin.reason, f"{plugin.distribution} {plugin.version}")
            for plugin in catalog.broken
        ]
        blocks.append(f"broken (only specs that need them fail)\n{table(rows, width)}")
    return "\n\n".join(blocks)
