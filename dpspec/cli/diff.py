"""``dpspec diff``: what changed from one result to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpspec.cli.output import emit
from dpspec.errors import ExitCode, UsageError


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A result (JSON or HTML).", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="A later result.", show_default=False)],
    format_: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="text, markdown (a table for a comment) or json.")
    ] = "text",
) -> int:
    """Show which verdicts, bounds and claims differ between two results (+ better, - worse, ~ other).

    Ends with 1 where anything got worse.
    """
    from dpspec.cli.results import read_result
    from dpspec.engine.diff import diff as compare
    from dpspec.reporters.changes import FORMATS

    if format_ not in FORMATS:
        raise UsageError(f"no format {format_!r} (valid: {', '.join(FORMATS)})")
    changes = compare(read_result(before), read_result(after))
    emit(FORMATS[format_](changes))
    worse = any(change.trend == "worse" for change in changes)
    return ExitCode.UNEXPECTED if worse else ExitCode.OK
