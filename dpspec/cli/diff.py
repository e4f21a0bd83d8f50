"""``dpspec diff``: what changed from one result to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpspec.cli.output import emit
from dpspec.errors import ExitCode

_MARK = {"better": "+", "worse": "-", "other": "~"}


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A result (JSON).", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="A later result (JSON).", show_default=False)],
) -> int:
    """Show which verdicts, bounds and claims differ between two results (+ better, - worse, ~ other).

    Ends with 1 where anything got worse.
    """
    from dpspec.cli.results import read_result
    from dpspec.engine.diff import diff as compare
    from dpspec.reporters.escape import plain

    changes = compare(read_result(before), read_result(after))
    for change in changes:
        place = f"{change.audit} / {change.claim}" if change.claim else change.audit
        emit(f"{_MARK[change.trend]} {plain(place)}: {change.what} {plain(change.before)} -> {plain(change.after)}")
    if not changes:
        emit("no change")
    worse = any(change.trend == "worse" for change in changes)
    return ExitCode.UNEXPECTED if worse else ExitCode.OK
