"""Loading the specs of a command line: every problem of every file is shown before anything is done."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dpspec.cli.output import note, wants_color
from dpspec.contract import Catalog, Diagnostic, Spec
from dpspec.errors import PluginError, SpecError


def load(paths: Sequence[Path], catalog: Catalog, overrides: Sequence[str]) -> tuple[Spec, ...]:
    """The specs; raises ``SpecError`` or ``PluginError`` with all diagnostics, and prints warnings on stderr."""
    from dpspec.spec.load import load_specs

    loaded = load_specs(paths, catalog, overrides)
    stop_at_errors(loaded.diagnostics, missing_plugins=loaded.missing_plugins)
    warn(loaded.diagnostics)
    return loaded.specs


def stop_at_errors(diagnostics: Sequence[Diagnostic], *, missing_plugins: bool) -> None:
    """Raise what the errors among the diagnostics call for; warnings come along, so that nothing is shown twice."""
    if any(diagnostic.severity == "error" for diagnostic in diagnostics):
        if missing_plugins:
            raise PluginError("a plugin that a spec needs is missing or broken", diagnostics)
        raise SpecError(diagnostics)


def warn(diagnostics: Sequence[Diagnostic]) -> None:
    """Print warnings on stderr."""
    if diagnostics:
        from dpspec.spec.render import render

        note(render(diagnostics, color=wants_color(sys.stderr)))
