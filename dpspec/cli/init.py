"""``dpspec init``: a folder to start from, with a first spec and the schema that editors check it by."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpspec.cli.output import emit
from dpspec.errors import ExitCode, UsageError

#: Where the schema lies in an initialised folder.
SCHEMA = Path(".dpspec/spec.schema.json")

#: What keeps the trial store out of version control; the schema stays in.
_IGNORED = "store/\n"


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The project's folder.")] = Path(),
    mechanism: Annotated[
        str | None,
        typer.Option("--mechanism", metavar="KIND", help="Whose example to start from.", show_default=False),
    ] = None,
) -> int:
    """Write a first spec and the schema for editors; what is already there is never overwritten."""
    from dpspec.cli.schema import spec_schema
    from dpspec.cli.starter import starter_spec
    from dpspec.registry.loader import load_catalog

    spec = starter_spec(load_catalog(), mechanism, schema=Path("..") / SCHEMA, name="first")
    place = folder / "specs" / "first.yaml"
    kept = write_new(place, spec)
    write_new(folder / SCHEMA, spec_schema())
    write_new(folder / SCHEMA.parent / ".gitignore", _IGNORED)
    emit(f"\nNext:\n  dpspec validate {place}\n  dpspec run {place}" if kept else "\nNothing was overwritten.")
    return ExitCode.OK


def write_new(path: Path, text: str) -> bool:
    """Write a file that does not exist yet and say so; say that it was kept where it does."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="\n") as out:
            out.write(text)
    except FileExistsError:
        emit(f"kept  {path} (already there)")
        return False
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    emit(f"wrote {path}")
    return True
