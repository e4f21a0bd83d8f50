"""``dpspec validate``: everything that is wrong with specs, found without torch and without reading rows."""

from __future__ import annotations

import sys

from dpspec.cli.options import Overrides, SpecFiles
from dpspec.cli.output import emit, wants_color
from dpspec.contract import Diagnostic
from dpspec.errors import ExitCode


def validate(specs: SpecFiles, overrides: Overrides = []) -> int:  # noqa: B006 - typer copies it
    """Check specs and show every problem at its place, without training or reading rows."""
    from dpspec.cli.specs import tell_of_others
    from dpspec.engine.prepare import check
    from dpspec.registry.loader import load_catalog
    from dpspec.spec.load import load_specs

    catalog = load_catalog()
    loaded = load_specs(specs, catalog, overrides)
    tell_of_others(loaded)
    found: list[Diagnostic] = [*loaded.diagnostics]
    for spec in loaded.specs:
        found.extend(check(spec, catalog))
    diagnostics = tuple(dict.fromkeys(found))
    if diagnostics:
        from dpspec.spec.render import render

        emit(render(diagnostics, color=wants_color(sys.stdout), sources=loaded.sources))
    if any(diagnostic.severity == "error" for diagnostic in diagnostics):
        return ExitCode.PLUGIN if loaded.missing_plugins else ExitCode.INVALID_SPEC
    audits, files = len(loaded.specs), len(loaded.files)
    cells = f" ({audits} audits with their matrix cells)" if audits != files else ""
    emit(f"{files} spec{'' if files == 1 else 's'} valid{cells}")
    return ExitCode.OK
