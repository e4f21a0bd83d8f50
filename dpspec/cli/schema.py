"""``dpspec schema``: the JSON Schemas, for editors and for readers of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpspec.cli.output import emit, note
from dpspec.errors import ExitCode


def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="PATH", help="Write to a file instead of stdout.")
    ] = None,
    result: Annotated[bool, typer.Option("--result", help="The schema of results instead of specs.")] = False,
) -> int:
    """Print the JSON Schema of specs with all installed plugins: editors complete and check specs by it."""
    text = _result_schema() if result else spec_schema()
    if output is None:
        emit(text)
    else:
        from dpspec.cli.reports import write_file

        write_file(output, text)
        note(f"wrote {output}")
    return ExitCode.OK


def spec_schema() -> str:
    """The schema of specs as JSON text."""
    import json

    from dpspec.registry.loader import load_catalog
    from dpspec.spec.bundle import bundle

    return json.dumps(bundle(load_catalog()), indent=2) + "\n"


def _result_schema() -> str:
    import json

    from dpspec.engine.schema import result_schema

    return json.dumps(result_schema(), indent=2) + "\n"
