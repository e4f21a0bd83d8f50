"""``dpspec new``: a spec or a plugin to start from."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from dpspec.cli.output import emit
from dpspec.errors import ExitCode, UsageError

app = typer.Typer(help="Write a spec or a plugin to start from.", no_args_is_help=True)


@app.command("spec", short_help="Write a spec that runs, to change.")
def new_spec(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The spec's name; its file is NAME.yaml.")],
    mechanism: Annotated[
        str | None,
        typer.Option("--mechanism", metavar="KIND", help="Whose example to start from.", show_default=False),
    ] = None,
    folder: Annotated[Path, typer.Option("--in", metavar="FOLDER", help="Where to write it.")] = Path(),
) -> int:
    """Write NAME.yaml from a mechanism's own example; an existing file is never overwritten."""
    from dpspec.cli.init import SCHEMA, write_new
    from dpspec.cli.starter import starter_spec
    from dpspec.registry.loader import load_catalog

    place = folder / f"{name}.yaml"
    if place.exists():
        raise UsageError(f"{place} is already there")
    schema = Path(os.path.relpath(_root_of(folder) / SCHEMA, folder.resolve()))
    text = starter_spec(load_catalog(), mechanism, schema=schema, name=name)
    write_new(place, text)
    emit(f"\nNext:\n  dpspec validate {place}")
    return ExitCode.OK


@app.command("plugin", short_help="Write a plugin whose own tests pass, to change.")
def new_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The mechanism kind; the package is dpspec-NAME.")],
    folder: Annotated[Path, typer.Option("--in", metavar="FOLDER", help="Where to write it.")] = Path(),
) -> int:
    """Write the package dpspec-NAME: a small mechanism whose own tests pass once it is installed."""
    from dpspec.templates.scaffold import write_plugin

    written = write_plugin(name, folder)
    for path in written:
        emit(f"wrote {path}")
    root = folder / f"dpspec-{name}"
    install = shlex.quote(f"{root}[test]")
    example = root / root.name.replace("-", "_") / "example.yaml"
    emit(
        f"\nNext:\n  pip install -e {install}\n  python -m pytest {root}\n  dpspec plugins --check {name}\n"
        f"  dpspec run {example}"
    )
    return ExitCode.OK


def _root_of(folder: Path) -> Path:
    """The nearest folder from here upwards that was initialised, or this one."""
    from dpspec.cli.init import SCHEMA

    here = folder.resolve()
    return next((place for place in (here, *here.parents) if (place / SCHEMA).is_file()), here)
