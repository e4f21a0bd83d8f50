"""``dpspec new``: a spec, a plugin, or a part of a project to start from.

A spec starts from the example of a mechanism, or from a recorded run with its proved epsilon.
"""

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from dpspec.cli.arguments import Plugins, command_group, load_project
from dpspec.cli.output import emit
from dpspec.cli.starter_specs import MODELINE, starter_spec
from dpspec.cli.templates import PARTS, write_new, write_part, write_plugin
from dpspec.errors import ExitCode, UsageError
from dpspec.text import quoted

_SPEC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

#: The schema's place in a project.
SCHEMA = Path(".dpspec/spec.schema.json")

#: Excludes the trial store from version control, and not the schema.
_IGNORED = "store/\n"


new = command_group("new", "Write a spec, a plugin, or a part of a project to start from.")


@new.command("spec", short_help="Write a spec that runs, to change.")
def new_spec(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The spec's name; its file is NAME.yaml.")],
    mechanism: Annotated[
        str | None, typer.Option("--mechanism", metavar="KIND", help="The mechanism of the example.")
    ] = None,
    folder: Annotated[Path, typer.Option("--in", metavar="FOLDER", help="The folder of the new file.")] = Path(),
    run: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="The folder of a recorded run to declare."),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="KIND", help="The model instead of the example's.")] = None,
    data: Annotated[str | None, typer.Option(metavar="KIND", help="The dataset instead of the example's.")] = None,
    plugins: Plugins = [],  # noqa: B006 - typer copies it
) -> int:
    """Write NAME.yaml from a mechanism's example or a recorded run, and the schema for editors."""
    from dpspec.cli.specs import spec_schema

    name = name.removesuffix(".yaml")
    if not _SPEC_NAME.fullmatch(name):
        raise UsageError(f"invalid spec name {quoted(name)}: use letters, digits, dots, dashes and underscores")
    spec_file = folder / f"{name}.yaml"
    if spec_file.exists():
        raise UsageError(f"{spec_file} already exists; choose another name or folder")
    spec_folder = folder.resolve()
    root = next((parent for parent in (spec_folder, *spec_folder.parents) if (parent / SCHEMA).is_file()), spec_folder)
    schema = Path(os.path.relpath(root / SCHEMA, spec_folder))
    if run is not None and (mechanism, model, data) != (None, None, None):
        raise UsageError("--from determines mechanism, model and data: remove --mechanism, --model and --data")
    catalog = load_project([spec_file], plugins)
    if run is not None:
        from dpspec.engine.preparing.providers import run_folders

        body = run_folders(catalog).starter_spec(run, catalog, name, folder)
        text = f"{MODELINE}{schema.as_posix()}\n{body}"
    else:
        text = starter_spec(catalog, mechanism, schema=schema, name=name, model=model, data=data)
    if not (root / SCHEMA).is_file():
        write_new(root / SCHEMA, spec_schema(catalog))
        write_new(root / SCHEMA.parent / ".gitignore", _IGNORED)
    write_new(spec_file, text)
    arguments = shlex.join([str(spec_file), *(part for path in plugins for part in ("--plugin", str(path)))])
    emit(f"\nNext:\n  dpspec validate {arguments}\n  dpspec run {arguments}")
    return ExitCode.OK


@new.command("plugin", short_help="Write a plugin whose own tests pass, to change.")
def new_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The mechanism kind; the package is dpspec-NAME.")],
    folder: Annotated[Path, typer.Option("--in", metavar="FOLDER", help="The folder of the new package.")] = Path(),
    bounds_only: Annotated[bool, typer.Option("--bounds-only", help="An upper bound, without an attack.")] = False,
) -> int:
    """Write the package dpspec-NAME: a small mechanism whose own tests pass once it is installed."""
    write_plugin(name, folder, bounds_only=bounds_only)
    root = folder / f"dpspec-{name}"
    install = shlex.quote(f"{root}[test]")
    example = root / root.name.replace("-", "_") / "example.yaml"
    emit(
        f"\nNext:\n  pip install -e {install}\n  python -m pytest {root}\n  dpspec plugins --check {name}\n"
        f"  dpspec run {example}"
    )
    return ExitCode.OK


def _command(part: str) -> Callable[..., int]:
    def new_part(
        name: Annotated[str, typer.Argument(metavar="NAME", help="The kind in specs; the file is dp/NAME.py.")],
        folder: Annotated[Path, typer.Option("--in", metavar="FOLDER", help="The folder of the project.")] = Path(),
    ) -> int:
        following = write_part(part, name, folder)
        emit(f"\nNext:\n  python -m pytest {folder / 'tests'}\n  {following}")
        return ExitCode.OK

    new_part.__doc__ = f"""Write dp/NAME.py, a working {part}, with its tests, and name it in pyproject.toml."""
    return new_part


for _part in PARTS:
    new.command(_part, short_help=f"Write a new {_part} of this project, to change.")(_command(_part))
