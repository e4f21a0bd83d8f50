"""``dpspec verify``: whether a result follows from the evidence that it carries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpspec.cli.options import DEFAULT_STORE, ResultFile, StoreFolder
from dpspec.cli.output import emit
from dpspec.errors import ExitCode


def verify(
    result: ResultFile,
    store: StoreFolder = DEFAULT_STORE,
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="What relative data files of the spec are relative to; the result's own spec folder otherwise.",
        ),
    ] = None,
) -> int:
    """Recompute bounds, conclusions and verdicts of a result from its own evidence and compare; nothing is trained."""
    from dpspec.cli.results import read_result

    stored = read_result(result)

    from dpspec.engine.redact import LEFT_OUT_REASON
    from dpspec.engine.store import Store
    from dpspec.engine.verify import verify as recompute
    from dpspec.registry.loader import load_catalog
    from dpspec.reporters.escape import plain
    from dpspec.reporters.words import count

    kept = Store(store) if store.is_dir() else None
    folder = None if directory is None else str(directory)
    mismatches = recompute(stored, load_catalog(), directory=folder, store=kept)
    for mismatch in mismatches:
        place = plain(f"{mismatch.audit}: {mismatch.what}" if mismatch.audit else mismatch.what)
        recorded, recomputed = plain(mismatch.recorded), plain(mismatch.recomputed)
        if mismatch.differs:
            emit(f"{place}\n    recorded:   {recorded}\n    recomputed: {recomputed}")
        else:
            emit(f"{place} ({recorded}) was not recomputed: {recomputed}")
    differing = sum(mismatch.differs for mismatch in mismatches)
    if differing:
        emit(f"{count(differing, 'value')} of {plain(str(result))} did not come out again")
        return ExitCode.UNEXPECTED
    verdicts = [verdict for audit in stored.audits for verdict in audit.verdicts]
    followed = sum(verdict.reason != LEFT_OUT_REASON for verdict in verdicts)
    claims = count(len(verdicts), "claim")
    of_all = claims if followed == len(verdicts) else f"{followed} of {claims}"
    emit(f"{plain(str(result))}: every recomputed value is as recorded ({of_all})")
    return ExitCode.OK
