"""Loading the specs of a command line: every problem of every file is shown before anything is done."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpspec.cli.output import note, wants_color
from dpspec.contract import Catalog, Diagnostic, Spec
from dpspec.errors import ExitCode, NothingToRunError, PluginError, SpecError

if TYPE_CHECKING:
    from dpspec.spec.load import Loaded

#: So many files that are left out are named.
_NAMED = 3


@contextmanager
def loaded_specs(paths: Sequence[Path], catalog: Catalog, overrides: Sequence[str]) -> Iterator[tuple[Spec, ...]]:
    """The specs of some files and folders, for as long as they are worked with.

    Diagnostics go to stderr, with the lines that they speak of, whether loading finds them or the work does. Errors
    end the command with their exit code, warnings do not.
    """
    from dpspec.spec.load import load_specs

    loaded = load_specs(paths, catalog, overrides)
    tell_of_others(loaded)
    if loaded.diagnostics:
        show(loaded.diagnostics, loaded.sources)
    if not loaded.ok:
        raise typer.Exit(ExitCode.PLUGIN if loaded.missing_plugins else ExitCode.INVALID_SPEC)
    if not loaded.specs:
        raise NothingToRunError("the given files hold no spec")
    try:
        yield loaded.specs
    except (SpecError, PluginError) as error:
        if not error.diagnostics:
            raise
        show(error.diagnostics, loaded.sources)
        raise typer.Exit(error.exit_code) from None


def tell_of_others(loaded: Loaded) -> None:
    """Say which YAML files of a folder were left out, so that nobody takes a spec without its first key for audited."""
    if not loaded.others:
        return
    from dpspec.reporters.escape import plain

    named = ", ".join(plain(str(path)) for path in loaded.others[:_NAMED])
    more = f" and {len(loaded.others) - _NAMED} more" if len(loaded.others) > _NAMED else ""
    note(f"left out, being no specs (no key 'dpspec' at the top level): {named}{more}")


def stop_at_errors(diagnostics: Sequence[Diagnostic]) -> None:
    """Raise ``SpecError`` with all diagnostics where any of them is an error."""
    if any(diagnostic.severity == "error" for diagnostic in diagnostics):
        raise SpecError(diagnostics)


def show(diagnostics: Sequence[Diagnostic], sources: Mapping[str, str]) -> None:
    """Print diagnostics on stderr."""
    from dpspec.spec.render import render

    note(render(diagnostics, color=wants_color(sys.stderr), sources=sources))
