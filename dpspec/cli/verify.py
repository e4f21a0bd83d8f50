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
    """Recompute bounds, conclusions and verdicts of a result from its stored trials and compare; nothing is trained."""
    from dpspec.cli.results import read_result

    stored = read_result(result)

    from dpspec.engine.store import Store
    from dpspec.engine.verify import verify as recompute
    from dpspec.registry.loader import load_catalog
    from dpspec.reporters.escape import plain

    kept = Store(store) if store.is_dir() else None
    folder = None if directory is None else str(directory)
    mismatches = recompute(stored, load_catalog(), directory=folder, store=kept)
    for mismatch in mismatches:
        place = f"{mismatch.audit}: {mismatch.what}" if mismatch.audit else mismatch.what
        emit(
            f"{plain(place)}\n    recorded:   {plain(mismatch.recorded)}\n    recomputed: {plain(mismatch.recomputed)}"
        )
    claims = sum(len(audit.verdicts) for audit in stored.audits)
    if count := sum(mismatch.differs for mismatch in mismatches):
        emit(f"{count} value{'' if count == 1 else 's'} of {plain(str(result))} did not come out again")
        return ExitCode.UNEXPECTED
    emit(f"{plain(str(result))}: every recomputed value is as recorded ({claims} claim{'' if claims == 1 else 's'})")
    return ExitCode.OK
