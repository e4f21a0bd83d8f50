"""Arguments and options that several commands share, so that each means the same everywhere, and the specs named."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from dpspec.cli.terminal.output import note, wants_color
from dpspec.contract import Diagnostic
from dpspec.contract.catalog import Catalog
from dpspec.errors import ExitCode, NothingToRunError, PluginError, SpecError
from dpspec.text import plain

if TYPE_CHECKING:
    from dpspec.language.load import Loaded

SpecFiles: TypeAlias = Annotated[
    list[Path], typer.Argument(metavar="SPEC", help="Spec files (YAML), or folders of them.", show_default=False)
]

ResultFiles: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="RESULT", help="Results (JSON or HTML); several are shown as one report.", show_default=False
    ),
]

ResultFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="RESULT", help="A result: JSON, or a report in HTML.", show_default=False)
]

Overrides: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override one value of every spec, e.g. mechanism.steps=100 or claims.family.epsilon=40; repeatable.",
        show_default=False,
    ),
]

StorePlace: TypeAlias = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="PATH|URL",
        help="Where trials are kept between runs: a folder, or s3://, gs://, ... (any that fsspec knows).",
        show_default=True,
    ),
]

StoreKey: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--store-key",
        metavar="FILE",
        help="Seal trials with the secret in a file, of 32 bytes or more, and believe only those that are.",
        show_default=False,
    ),
]

AllowChangedClaims: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-changed-claims",
        help="Accept claims that were changed, are expected to come out worse, or were removed.",
    ),
]

Internal: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--internal",
        help="Keep values that depend on the data or on single records; without it they are left out and counted.",
    ),
]

DEFAULT_STORE = ".dpspec/store"


#: So many files that are left out are named.
_NAMED = 3


@contextmanager
def loaded_specs(paths: Sequence[Path], catalog: Catalog, overrides: Sequence[str]) -> Iterator[Loaded]:
    """The specs of some files and folders, at least one, for as long as they are worked with.

    Diagnostics go to stderr, with the lines that they speak of, whether loading finds them or the work does. Errors
    end the command with their exit code, warnings do not.
    """
    from dpspec.language.load import load_specs

    loaded = load_specs(paths, catalog, overrides)
    report_skipped_files(loaded)
    if loaded.diagnostics:
        show(loaded.diagnostics, loaded.sources)
    if not loaded.ok:
        raise typer.Exit(ExitCode.PLUGIN if loaded.missing_plugins else ExitCode.INVALID_SPEC)
    if not loaded.specs:
        raise NothingToRunError("no spec in the given files")
    try:
        yield loaded
    except (SpecError, PluginError) as error:
        if not error.diagnostics:
            raise
        show(error.diagnostics, loaded.sources)
        raise typer.Exit(error.exit_code) from None


def report_skipped_files(loaded: Loaded) -> None:
    """Say which YAML files of a folder were left out, so that nobody takes a spec without its first key for audited."""
    if not loaded.others:
        return
    named = ", ".join(plain(str(path)) for path in loaded.others[:_NAMED])
    more = f" and {len(loaded.others) - _NAMED} more" if len(loaded.others) > _NAMED else ""
    note(f"skipped (not spec files: no key 'dpspec' at the top level): {named}{more}")


def stop_at_errors(diagnostics: Sequence[Diagnostic]) -> None:
    """Raise ``SpecError`` with all diagnostics where any of them is an error."""
    if any(diagnostic.severity == "error" for diagnostic in diagnostics):
        raise SpecError(diagnostics)


def show(diagnostics: Sequence[Diagnostic], sources: Mapping[str, str]) -> None:
    """Print diagnostics on stderr."""
    from dpspec.language.diagnostics import render

    note(render(diagnostics, color=wants_color(sys.stderr), sources=sources))
