"""``dpspec report``, ``diff`` and ``verify``: show, compare and recompute results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.arguments import (
    DEFAULT_STORE,
    AllowChangedClaims,
    Internal,
    Plugins,
    ResultFile,
    StoreKey,
    load_project,
)
from dpspec.cli.output import COMMANDS, emit, find_format, note, require_known, show_on_terminal, write_file
from dpspec.errors import ExitCode, UsageError
from dpspec.text import plain

if TYPE_CHECKING:
    from dpspec.contract.results import Result
    from dpspec.engine.differences import Mismatch
    from dpspec.engine.storage.trial_store import Store


def report(
    result: ResultFile,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="json, markdown, text, ...; the terminal's own otherwise."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="PATH", help="Write to a file instead of stdout.")
    ] = None,
    series: Annotated[
        str | None, typer.Option(metavar="NAME", help="Write this series of all audits as CSV, such as trade-off.")
    ] = None,
    internal: Internal = False,
) -> int:
    """Show a result or convert it to another format, without recomputation."""
    from dpspec.reporters.read_results import read_result

    if output is not None and os.path.realpath(result) == os.path.realpath(output):
        raise UsageError(f"--output {output} would replace the result; choose another path")
    stored = read_result(result)
    if series is not None:
        from dpspec.reporters.data_files import render_series
        from dpspec.results.redact import redact

        if format_ not in (None, "csv"):
            raise UsageError(f"--series writes csv, not {format_}")
        text = render_series((stored if internal else redact(stored)).series(series))
        if output is None:
            emit(text)
        else:
            write_file(output, text)
        return ExitCode.OK
    render = find_format(format_ or "text", load_project())
    if output is not None:
        write_file(output, render(stored, internal=internal))
    elif format_ is None:
        show_on_terminal(stored, internal=internal)
    else:
        emit(render(stored, internal=internal), commands=format_ == COMMANDS)
    return ExitCode.OK


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A result (JSON or HTML).")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="A later result.")],
    format_: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="text, markdown (a table for a comment) or json.")
    ] = "text",
    allow_changed_claims: AllowChangedClaims = False,
) -> int:
    """Show which claims, verdicts, bounds and declarations differ between two results (+ better, - worse, ~ other).

    Ends with 1 if a value got worse, or a claim was changed or removed.
    """
    from dpspec.reporters.data_files import CHANGE_FORMATS, render_changes
    from dpspec.reporters.read_results import read_result
    from dpspec.results.diff import diff as compare
    from dpspec.results.diff import regressions

    require_known("format", format_, CHANGE_FORMATS)
    earlier, later = read_result(before), read_result(after)
    changes = compare(earlier, later)
    emit(render_changes(changes, format_))
    failures = regressions(earlier, later, allow_changed_claims=allow_changed_claims)
    if any(change.of_claim for change in failures):
        note("Claims were changed or removed; --allow-changed-claims accepts that.")
    if any(not change.of_claim for change in failures):
        note("Something got worse (-).")
    return ExitCode.UNEXPECTED if failures else ExitCode.OK


def verify(
    result: ResultFile,
    store: Annotated[
        str | None,
        typer.Option(metavar="PATH|URL", help=f"The store of the result's trials; {DEFAULT_STORE} if it exists."),
    ] = None,
    store_key: StoreKey = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The base folder of relative data files; by default the folder of the result's spec.",
        ),
    ] = None,
    plugins: Plugins = [],  # noqa: B006 - typer copies it
) -> int:
    """Recompute bounds, conclusions and verdicts of a result from its evidence and compare, without training.

    Ends with 0 if all values are equal, with 1 if a value differs, and with 7 if a value could not be recomputed: its
    evidence was omitted or is in another store, or another version wrote the page. With --store-key this includes every
    trial without a seal in the store. Ends with 7 also if --store names a store without any trial of the result.
    """
    from dpspec.engine.differences import other_versions, unverified
    from dpspec.engine.storage.trial_store import Store, read_key
    from dpspec.engine.verify import missing_recordings
    from dpspec.engine.verify import verify as recompute
    from dpspec.reporters.read_results import outcome_differs, page_at, read_result
    from dpspec.reporters.words import place

    stored = read_result(result)
    page = page_at(result)
    catalog = load_project(plugins=plugins)
    trial_store = Store(store or DEFAULT_STORE, read_key(store_key), only_read=True)
    existing_store = trial_store if trial_store.exists() else None
    folder = None if directory is None else str(directory)
    # With a key only trials with its seal count.
    mismatches = recompute(stored, catalog, directory=folder, store=existing_store, vouched=store_key is not None)
    for mismatch in mismatches:
        if not mismatch.differs:
            name = plain(place(mismatch.audit, mismatch.what, mismatch.part))
            emit(f"{name} ({plain(mismatch.before)}) was not recomputed: {plain(mismatch.after)}")
    differing = [mismatch for mismatch in mismatches if mismatch.differs]
    differing_count, incomparable_count = len(differing), 0
    if differing and (versions := other_versions(stored, catalog)):
        emit(f"recorded by {plain(', '.join(versions))}: differences may come from other rules, or from an edit")
    for mismatch in differing:
        name = plain(place(mismatch.audit, mismatch.what, mismatch.part))
        text = f"{name}\n    recorded:   {plain(mismatch.before)}\n    recomputed: {plain(mismatch.after)}"
        emit(f"{text}\n    because:    {plain(mismatch.because)}" if mismatch.because else text)
    if outcome := outcome_differs(result, stored):
        emit(f"the result states {plain(outcome)}")
        differing_count += 1
    if page is not None:
        from dpspec.reporters.page import compared

        edit, reason = compared(page, stored)
        if reason:
            emit(f"the page could not be compared: {plain(reason)}")
        if edit:
            emit("\n".join(map(plain, f"the page differs from its result in {edit}".split("\n"))))
        differing_count += bool(edit)
        incomparable_count += bool(reason)
    intact_trials = _count_trials(stored, trial_store, "damaged or without a seal" if store_key else "damaged")
    exit_code = _end(plain(str(result)), stored, mismatches, differing_count, incomparable_count)
    if exit_code is ExitCode.OK and intact_trials == 0 and store is not None:
        exit_code = ExitCode.NOT_RECOMPUTED
    if not differing_count:
        for folder, digest in missing_recordings(stored, mismatches):
            _emit_way_on(str(result), folder, digest)
    emit(plain(unverified(stored, existing_store)))
    return exit_code


def _emit_way_on(name: str, folder: str, digest: str) -> None:
    """Print which part of a recorded result was verified without its folder, and how to verify the others."""
    emit(plain(f"verified without the recording: the verdicts of {name} follow from its stated bounds and tests"))
    emit(plain(f"not verified: that these follow from the recording, SHA-256 {digest or 'unknown'}"))
    where = f"restore the folder {folder}" if os.path.isabs(folder) else f"put its folder {folder} into DIR"
    rerun = name if os.path.isabs(folder) else f"{name} --directory DIR"
    emit(plain(f"to verify the rest, {where} and run: dpspec verify {rerun}"))


def _count_trials(stored: Result, store: Store, unusable: str) -> int | None:
    """Print and return the number of the result's trials in the store; None for a result without trials."""
    from dpspec.engine.verify import stored_trials

    total = sum(len(audit.trials) for audit in stored.audits)
    if not total:
        return None
    intact, damaged = stored_trials(stored, store) if store.exists() else (0, 0)
    text = f"store {store.location}: {intact} of {total} trials found, {damaged} {unusable}"
    emit(plain(text if store.exists() else f"{text}: it does not exist"))
    return intact


def _end(
    name: str, stored: Result, mismatches: Sequence[Mismatch], differing_count: int, incomparable_count: int
) -> ExitCode:
    from dpspec.reporters.words import count

    if differing_count:
        verb = "differs" if differing_count == 1 else "differ"
        emit(f"{count(differing_count, 'value')} of {name} {verb} from the recomputation")
        return ExitCode.UNEXPECTED
    claims = sum(len(audit.verdicts) for audit in stored.audits)
    missing = [mismatch for mismatch in mismatches if not mismatch.differs]
    if missing or incomparable_count:
        verdicts = len({(mismatch.audit, claim) for mismatch in missing for claim in mismatch.claims})
        other_values = sum(not mismatch.claims for mismatch in missing) + incomparable_count
        texts = [f"{verdicts} of {count(claims, 'verdict')}"] if verdicts else []
        texts += [count(other_values, "other value" if verdicts else "value")] if other_values else []
        emit(f"{name}: could not be recomputed: {' and '.join(texts)}")
        return ExitCode.NOT_RECOMPUTED
    emit(f"{name}: verified: all recomputed values equal the recorded ones ({count(claims, 'claim')})")
    return ExitCode.OK
