"""``dpspec report``: a stored result in any format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpspec.cli.options import Internal, ResultFiles
from dpspec.cli.output import emit
from dpspec.errors import ExitCode


def report(
    results: ResultFiles,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="json, markdown, text, ...; the terminal's own otherwise."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="PATH", help="Write to a file instead of stdout.")
    ] = None,
    internal: Internal = False,
) -> int:
    """Show results again, or turn them into another format, several into one report; nothing is recomputed."""
    from dpspec.cli.reports import find_format, show_on_terminal, write_file
    from dpspec.cli.results import read_results
    from dpspec.registry.loader import load_catalog

    stored = read_results(results)
    if format_ is None and output is None:
        show_on_terminal(stored, internal=internal)
        return ExitCode.OK
    text = find_format(format_ or "text", load_catalog())(stored, internal=internal)
    if output is None:
        emit(text)
    else:
        write_file(output, text)
    return ExitCode.OK
