"""``dpspec plugins``: installed providers and broken plugins, and with ``--check`` a test of a plugin's contract."""

import textwrap
from collections.abc import Iterator
from typing import Annotated

import typer

from dpspec.cli.arguments import Plugins, load_project
from dpspec.cli.output import emit, page_width
from dpspec.errors import ExitCode, UsageError
from dpspec.registry.loader import FAMILIES
from dpspec.text import closest, did_you_mean, plain, quoted


def plugins(
    check: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Test the contract of a plugin, or of all third-party ones (all). It runs a mechanism's example five "
            "times.",
        ),
    ] = None,
    plugins: Plugins = [],  # noqa: B006 - typer copies it
) -> int:
    """List the providers of installed plugins, and broken plugins with the reason; or test a plugin."""
    catalog = load_project(plugins=plugins)
    if check is not None:
        return _check(check)
    from dpspec.reporters.layout import text_table

    tables = {
        family.field.replace("_", " "): [
            (name, offered.provider.summary, f"{offered.distribution} {offered.version}")
            for name, offered in sorted(getattr(catalog, family.field).items())
        ]
        for family in FAMILIES
    }
    if catalog.broken:
        tables["broken (only specs that need them fail)"] = [
            (plugin.plugin or "?", plugin.reason, f"{plugin.distribution} {plugin.version}")
            for plugin in catalog.broken
        ]
    blocks = []
    for title, rows in tables.items():
        lines = text_table(rows, page_width() - 2, folded=1) if rows else ("none",)
        blocks.append("\n".join([title, *(f"  {line}" for line in lines)]))
    emit("\n\n".join(blocks))
    return ExitCode.OK


#: The name of all third-party plugins.
ALL = "all"


def _check(name: str) -> ExitCode:
    """Test all providers of ``name``, a plugin, a distribution or a kind."""
    from dpspec.registry.loader import load_registry
    from dpspec.testing.inspection import inspect

    registry = load_registry()
    offers = [(f.name, kind, offered) for f in FAMILIES for kind, offered in getattr(registry.catalog, f.field).items()]
    chosen = [
        offer
        for offer in offers
        if name in (offer[1], offer[2].plugin, offer[2].distribution) or (name == ALL and offer[2].is_foreign)
    ]
    broken = [b for b in registry.catalog.broken if name in (b.plugin, b.distribution, *b.kinds)]
    if name == ALL and not chosen:
        emit("no third-party plugin is installed")
        return ExitCode.OK
    if not chosen and not broken:
        known_names = sorted({n for _, kind, offered in offers for n in (kind, offered.plugin, offered.distribution)})
        raise UsageError(
            f"unknown plugin {quoted(name)}{did_you_mean(closest(name, known_names)) or '; see `dpspec plugins`'}"
        )
    for broken_plugin in broken:
        emit(
            f"{broken_plugin.distribution} {broken_plugin.version}: plugin {broken_plugin.plugin or '?'} cannot be used"
        )
        emit("\n".join(_indented(broken_plugin.reason)))
    if not chosen:
        return ExitCode.PLUGIN
    emit("\n".join(dict.fromkeys(f"{offered.distribution}: plugin {offered.plugin}" for _, _, offered in chosen)))
    promises = []
    for family, kind, _ in chosen:
        for promise in inspect(registry, family, kind):
            word = "FAILS" if promise.broken else "-" if promise.left_out else "limit" if promise.remark else "ok"
            demand = f"{promise.provider}: {promise.demand}"
            lines = textwrap.wrap(demand, page_width(), initial_indent=f"  {word:<6}", subsequent_indent=" " * 8)
            emit("\n".join([*lines, *_indented(promise.broken or promise.left_out or promise.remark)]))
            promises += [] if promise.remark else [promise]
    failed, left_out = sum(bool(p.broken) for p in promises), sum(bool(p.left_out) for p in promises)
    summary = f"{len(promises) - failed - left_out} kept"
    emit(summary + f", {failed} broken" * bool(failed) + f", {left_out} not tried" * bool(left_out))
    return ExitCode.PLUGIN if failed or broken else ExitCode.OK


def _indented(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield from textwrap.wrap(plain(line), page_width(), initial_indent=" " * 10, subsequent_indent=" " * 10)
