"""``dpspec show``: a spec as dpspec understands it, with parents, matrix, overrides and defaults in their places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.options import Overrides, SpecFiles
from dpspec.cli.output import emit
from dpspec.contract import Path
from dpspec.errors import ExitCode

if TYPE_CHECKING:
    from dpspec.contract import Spec


def show(
    specs: SpecFiles,
    overrides: Overrides = [],  # noqa: B006 - typer copies it
    origin: Annotated[bool, typer.Option("--origin", help="Say behind each value where it was written.")] = False,
) -> int:
    """Print specs resolved, as YAML: one document for each cell of a matrix."""
    from dpspec.cli.specs import loaded_specs
    from dpspec.registry.loader import load_catalog

    with loaded_specs(specs, load_catalog(), overrides) as loaded:
        emit("---\n".join(_document(spec, origin=origin) for spec in loaded))
    return ExitCode.OK


def _document(spec: Spec, *, origin: bool) -> str:
    from dpspec.cli.yamltext import to_yaml
    from dpspec.reporters.escape import plain

    def comment(path: Path) -> str:
        span = spec.origin.get(path)
        return plain(f"{span.file}:{span.line}:{span.column}") if span is not None else "default"

    return to_yaml(spec.to_json(), comment) if origin else to_yaml(spec.to_json())
