"""``dpspec report`` and ``dpspec diff``: stored results in any format, and what changed from one to another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from dpspec.cli.arguments import AllowChangedClaims, Internal, ResultFiles
from dpspec.cli.terminal.output import emit, note
from dpspec.errors import ExitCode, UsageError
from dpspec.text import closest, did_you_mean, listed, quoted


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
    """Show results again or convert them to another format, several to one report; nothing is recomputed."""
    from dpspec.cli.report_files import COMMANDS, find_format, show_on_terminal, write_file
    from dpspec.registry.loader import load_catalog
    from dpspec.reporters.read_results import read_results

    if output is not None and any(os.path.realpath(path) == os.path.realpath(output) for path in results):
        raise UsageError(f"--output {output} is the result that is read; give it a path of its own")
    stored = read_results(results)
    if format_ is None and output is None:
        show_on_terminal(stored, internal=internal)
        return ExitCode.OK
    text = find_format(format_ or "text", load_catalog())(stored, internal=internal)
    if output is None:
        emit(text, commands=format_ == COMMANDS)
    else:
        write_file(output, text)
    return ExitCode.OK


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A result (JSON or HTML).", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="A later result.", show_default=False)],
    format_: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="text, markdown (a table for a comment) or json.")
    ] = "text",
    allow_changed_claims: AllowChangedClaims = False,
) -> int:
    """Show which claims, verdicts, bounds and declarations differ between two results (+ better, - worse, ~ other).

    Ends with 1 where anything got worse, and where a claim was changed or taken away.
    """
    from dpspec.engine.results.diff import diff as compare
    from dpspec.engine.results.diff import failing
    from dpspec.reporters.formats.data_files import CHANGE_FORMATS
    from dpspec.reporters.read_results import read_result

    if format_ not in CHANGE_FORMATS:
        suggestion = did_you_mean(closest(format_, CHANGE_FORMATS))
        raise UsageError(f"unknown format {quoted(format_)}{suggestion} (valid: {listed(CHANGE_FORMATS)})")
    changes = compare(read_result(before), read_result(after))
    emit(CHANGE_FORMATS[format_](changes))
    failures = failing(changes, allow_changed_claims=allow_changed_claims)
    if any(change.of_claim for change in failures):
        note("Claims were changed or removed; --allow-changed-claims accepts that.")
    if any(not change.of_claim for change in failures):
        note("Something got worse (-).")
    return ExitCode.UNEXPECTED if failures else ExitCode.OK
