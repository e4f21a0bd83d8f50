"""``dpspec verify``: whether a result follows from the evidence that it carries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.arguments import DEFAULT_STORE, ResultFile, StoreKey, StorePlace
from dpspec.cli.terminal.output import emit
from dpspec.errors import ExitCode
from dpspec.text import plain

if TYPE_CHECKING:
    from dpspec.engine.results.result import Result
    from dpspec.engine.verification.differences import Mismatch


def verify(
    result: ResultFile,
    store: StorePlace = DEFAULT_STORE,
    store_key: StoreKey = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="What relative data files of the spec are relative to; the result's own spec folder otherwise.",
        ),
    ] = None,
) -> int:
    """Recompute bounds, conclusions and verdicts of a result from its own evidence and compare; nothing is trained.

    Ends with 0 only where all of it came out again, with 1 where something did not, and with 7 where something could
    not be recomputed: its evidence was left out, is in a store elsewhere, or another version wrote it. With --store-key
    that is so of every trial that the store does not have under its seal.
    """
    from dpspec.reporters.read_results import page_at, read_result

    stored = read_result(result)
    page = page_at(result)

    from dpspec.engine.storage.trial_store import Store, read_key
    from dpspec.engine.verification.differences import other_versions, unverified
    from dpspec.engine.verification.verify import verify as recompute
    from dpspec.registry.loader import load_catalog

    catalog = load_catalog()
    trial_store = Store(store, read_key(store_key), only_read=True)
    held = trial_store if trial_store.exists() else None
    folder = None if directory is None else str(directory)
    # Whoever names a key asks for trials that were sealed with it, and for no others.
    mismatches = recompute(stored, catalog, directory=folder, store=held, vouched=store_key is not None)
    others = other_versions(stored, catalog)
    for one in mismatches:
        if not one.differs:
            emit(f"{_place(stored, one)} ({plain(one.recorded)}) was not recomputed: {plain(one.recomputed)}")
    differing = [one for one in mismatches if one.differs]
    wrong, unclear = _of_others(stored, differing, others) if others else _of_this(stored, differing)
    if page is not None:
        edits, uncompared = _of_page(page, stored)
        wrong += edits
        unclear += uncompared
    emit(plain(unverified(stored, held)))
    return _end(plain(str(result)), stored, mismatches, wrong, unclear)


def _of_this(stored: Result, differing: Sequence[Mismatch]) -> tuple[int, int]:
    """Tell what differs in a result of this version; how much of it is wrong, and how much unclear."""
    for one in differing:
        text = f"{_place(stored, one)}\n    recorded:   {plain(one.recorded)}\n    recomputed: {plain(one.recomputed)}"
        emit(f"{text}\n    because:    {plain(one.because)}" if one.because else text)
    return len(differing), 0


def _of_others(stored: Result, differing: Sequence[Mismatch], others: Sequence[str]) -> tuple[int, int]:
    """Tell which verdicts of a result of another version would be other ones now, and how much besides differs."""
    from dpspec.engine.verification.differences import changed, tally
    from dpspec.reporters.labels import count

    emit(f"recorded by {plain(', '.join(others))}: differences may come from other rules, or from an edit")
    changes = list(changed(stored, differing))
    for one, text in changes:
        emit(plain(f"{one.audit}: {text}" if one.audit else text))
    told = [one for one, _ in changes]
    rest = [one for one in differing if one not in told]
    if rest:
        emit(f"{count(len(rest), 'value')} differ without changing a verdict: {plain(tally(rest))}")
    return len(changes), len(rest)


def _of_page(page: str, stored: Result) -> tuple[int, int]:
    """Tell where a page is not the one that its result makes, and what of it could not be compared."""
    from dpspec.reporters.html.edited_pages import compared

    edits, reason = compared(page, stored)
    if reason:
        emit(f"the page could not be compared: {plain(reason)}")
    for one in edits:
        emit(
            f"the page shows what its result does not say, under {plain(one.under)!r}\n"
            f"    shown:       {plain(one.shown)}\n    its result:  {plain(one.expected)}"
        )
    return len(edits), int(bool(reason))


def _place(stored: Result, one: Mismatch) -> str:
    from dpspec.reporters.phrases import place

    return plain(place(stored, one.audit, one.what))


def _end(name: str, stored: Result, mismatches: Sequence[Mismatch], wrong: int, unclear: int) -> ExitCode:
    from dpspec.reporters.labels import count

    if wrong:
        emit(f"{count(wrong, 'value')} of {name} did not come out again")
        return ExitCode.UNEXPECTED
    claims = sum(len(audit.verdicts) for audit in stored.audits)
    missing = [one for one in mismatches if not one.differs]
    if missing or unclear:
        verdicts = len({(one.audit, claim) for one in missing for claim in one.claims})
        besides = sum(not one.claims for one in missing) + unclear
        texts = [f"{verdicts} of {count(claims, 'verdict')}"] if verdicts else []
        texts += [count(besides, "other value" if verdicts else "value")] if besides else []
        emit(f"{name}: could not be recomputed: {' and '.join(texts)}")
        return ExitCode.NOT_RECOMPUTED
    emit(f"{name}: every recomputed value is as recorded ({count(claims, 'claim')})")
    return ExitCode.OK
