"""Arguments and options of several commands, and the loading of specs."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from dpspec.cli.output import ShownError, note, wants_color
from dpspec.errors import Diagnostic, ExitCode, NothingToRunError, PluginError, SpecError, UsageError
from dpspec.regular_files import make_private_folder
from dpspec.text import plain

if TYPE_CHECKING:
    from dpspec.contract.catalog import Catalog
    from dpspec.language.load import Loaded
    from dpspec.registry.project import ProjectFile

SpecFiles: TypeAlias = Annotated[
    list[Path], typer.Argument(metavar="SPEC", help="Spec files (YAML), or folders of specs.")
]

ResultFile: TypeAlias = Annotated[Path, typer.Argument(metavar="RESULT", help="A result: JSON, or a report in HTML.")]

Overrides: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override one value of every spec, e.g. mechanism.steps=100 or claims.family.epsilon=40; repeatable.",
    ),
]

StorePlace: TypeAlias = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="PATH|URL",
        help="The store of trials: a folder, or s3://, gs://, ... (any protocol of fsspec).",
        show_default=True,
    ),
]

StoreKey: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--store-key",
        metavar="FILE",
        help="Seal trials with the secret in a file of at least 32 bytes, and accept sealed trials only.",
    ),
]

AllowChangedClaims: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-changed-claims",
        help="Accept claims that were changed, removed, or expect a worse verdict.",
    ),
]

Internal: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--internal",
        help="Keep values that depend on the data or on single records; otherwise they are omitted and counted.",
    ),
]

GroupSizes: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--group-size",
        metavar="K,...",
        help="Numbers of records that one person may have, with commas or by repeating the option; 1 by default. "
        "A claim is about the first.",
    ),
]

Reports: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--report",
        metavar="FORMAT=PATH",
        help="Also write a report (html, json, markdown, ...; see `dpspec plugins`), '-' for stdout; repeatable.",
    ),
]

Verbose: TypeAlias = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Print the whole report: findings, checks, assumptions, limits."),
]

Plugins: TypeAlias = Annotated[
    list[Path],
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Also use the decorated functions of a Python file, like [tool.dpspec] plugins of pyproject.toml; "
        "repeatable.",
    ),
]

Trust: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--trust",
        metavar="DIST",
        help="Sign off the bounds of a third-party distribution, as [tool.dpspec] trust of pyproject.toml does: the "
        "result records it; repeatable.",
    ),
]

DEFAULT_STORE = ".dpspec/store"


def command_group(name: str, summary: str) -> typer.Typer:
    """An empty group of commands, as ``dpspec new``; without a command it shows its help."""
    return typer.Typer(
        name=name,
        help=summary,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def group_sizes(texts: Sequence[str]) -> tuple[int, ...]:
    """The group sizes of the option ``--group-size``, without repetitions; empty without the option."""
    try:
        return tuple(dict.fromkeys(int(part) for text in texts for part in text.split(",")))
    except ValueError:
        shown = ",".join(texts)
        raise UsageError(f"--group-size must be integers with commas, such as 1,8, got {shown!r:.60}") from None


def load_project(
    specs: Sequence[Path] = (), plugins: Sequence[Path] = (), trust: Sequence[str] = (), *, signs: bool = False
) -> Catalog:
    """The providers of installed plugins and of the specs' project; without specs of the current folder's.

    Args:
        specs: Specs, or folders of specs.
        plugins: The files of ``--plugin``.
        trust: The distributions of ``--trust``.
        signs: Whether the project's configuration signs off distributions too.
    """
    from dpspec.registry import loader
    from dpspec.registry.project import PYPROJECT, project_files, trusted_distributions

    files = project_files(specs, plugins)
    loader.use_project(files)
    _announce([file for file in files if file.named_by == PYPROJECT])
    catalog = loader.load_catalog()
    names = [*trust, *(trusted_distributions(specs) if signs else ())]
    return loader.sign_off(catalog, names) if names else catalog


def _announce(files: Sequence[ProjectFile]) -> None:
    """Say once for each folder which code of a project's configuration every command executes, ``validate`` too."""
    if not files:
        return
    root, names = files[0].root, ", ".join(file.name for file in files)
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    announced = state / "dpspec" / "projects" / hashlib.sha256(f"{root}\0{names}".encode()).hexdigest()
    if announced.exists():
        return
    note(f"dpspec executes {names} of {root}, as its pyproject.toml says; DPSPEC_PROJECT=off ignores it")
    with suppress(OSError):  # a home that cannot be written to gets the line each time
        make_private_folder(announced.parent)
        announced.touch(mode=0o600)


@contextmanager
def loaded_specs(
    paths: Sequence[Path], catalog: Catalog, overrides: Sequence[str], *, internal: bool = False, partly: bool = False
) -> Iterator[Loaded]:
    """At least one spec. Diagnostics of loading and of the body go to stderr; errors end the command.

    With ``partly`` the body gets the specs without errors, if there are any: it has to report those in ``broken``.
    """
    from dpspec.language.load import load_specs

    loaded = load_specs(paths, catalog, overrides)
    report_skipped_files(loaded)
    if loaded.diagnostics:
        show_diagnostics(loaded.diagnostics, loaded.sources)
    if not loaded.ok and not (partly and loaded.specs):
        code = ExitCode.PLUGIN if loaded.missing_plugins else ExitCode.INVALID_SPEC
        raise ShownError(code, loaded.diagnostics)
    if not loaded.specs:
        raise NothingToRunError("no spec in the given files")
    try:
        yield loaded
    except (SpecError, PluginError) as error:
        if not error.diagnostics:
            raise
        show_diagnostics(error.diagnostics, loaded.sources, internal=internal)
        raise ShownError(error.exit_code, error.diagnostics) from None


def report_skipped_files(loaded: Loaded) -> None:
    if not loaded.others:
        return
    from dpspec.language.load import skip_reason

    by_reason: dict[str, list[str]] = {}
    for path in loaded.others:
        by_reason.setdefault(skip_reason(path), []).append(plain(str(path)))
    for reason, names in by_reason.items():
        note(f"skipped ({reason}): {', '.join(names)}")


def show_diagnostics(diagnostics: Sequence[Diagnostic], sources: Mapping[str, str], *, internal: bool = False) -> None:
    from dpspec.language.diagnostics import render

    note(render(diagnostics, color=wants_color(sys.stderr), sources=sources, internal=internal))
