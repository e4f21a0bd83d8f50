"""``dpspec verify``: whether a result follows from the evidence that it carries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpspec.cli.options import DEFAULT_STORE, ResultFile, StorePlace
from dpspec.cli.output import emit
from dpspec.errors import ExitCode


def verify(
    result: ResultFile,
    store: StorePlace = DEFAULT_STORE,
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="What relative data files of the spec are relative to; the result's own spec folder otherwise.",
        ),
    ] = None,
) -> int:
    """Recompute bounds, conclusions and verdicts of a result from its own evidence and compare; nothing is trained."""
    from dpspec.cli.results import page_at, read_result

    stored = read_result(result)
    page = page_at(result)

    from dpspec.engine.redact import LEFT_OUT_REASON
    from dpspec.engine.store import Store
    from dpspec.engine.verify import verify as recompute
    from dpspec.registry.loader import load_catalog
    from dpspec.reporters.escape import plain
    from dpspec.reporters.html.edited import comparable, edited
    from dpspec.reporters.places import place
    from dpspec.reporters.words import count

    kept = Store(store)
    folder = None if directory is None else str(directory)
    mismatches = recompute(stored, load_catalog(), directory=folder, store=kept if kept.exists() else None)
    for mismatch in mismatches:
        where = plain(place(stored, mismatch.audit, mismatch.what))
        recorded, recomputed = plain(mismatch.recorded), plain(mismatch.recomputed)
        if mismatch.differs:
            emit(f"{where}\n    recorded:   {recorded}\n    recomputed: {recomputed}")
        else:
            emit(f"{where} ({recorded}) was not recomputed: {recomputed}")
    differing = sum(mismatch.differs for mismatch in mismatches)
    if page is not None and not comparable(page):
        emit("the text of the page was not compared: another version of dpspec wrote it")
    for change in edited(page, stored) if page is not None and comparable(page) else ():
        differing += 1
        emit(
            f"the page shows what its result does not say, under {plain(change.under)!r}\n"
            f"    shown:       {plain(change.shown)}\n    its result:  {plain(change.expected)}"
        )
    if differing:
        emit(f"{count(differing, 'value')} of {plain(str(result))} did not come out again")
        return ExitCode.UNEXPECTED
    verdicts = [verdict for audit in stored.audits for verdict in audit.verdicts]
    followed = sum(verdict.reason != LEFT_OUT_REASON for verdict in verdicts)
    claims = count(len(verdicts), "claim")
    of_all = claims if followed == len(verdicts) else f"{followed} of {claims}"
    emit(f"{plain(str(result))}: every recomputed value is as recorded ({of_all})")
    return ExitCode.OK
