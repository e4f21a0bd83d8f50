"""What a result was made of and is not at hand when it is verified: taken as recorded, and said.

A table of scores that trials read, and the folder of a recorded run, belong to whoever ran the audit. Where they are
there, everything is made anew of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dpspec.contract import DataError, Plan
from dpspec.engine.preparing.prepare import Prepared
from dpspec.engine.results.result import AuditResult
from dpspec.engine.storage.trial_store import StoredTrial
from dpspec.engine.verification.differences import Mismatch
from dpspec.errors import DpspecError, SpecError

if TYPE_CHECKING:
    from dpspec.engine.recorded.executed_run import ExecutedRun


def absent_file(prepared: Prepared) -> DataError | None:
    """Why a file that trials read, beside the data, is not at hand; None where it is, or where there is none."""
    if prepared.spec.audit is None:
        return None
    try:
        prepared.audit.trial_inputs(prepared.spec)
    except DataError as error:
        return error
    return None


def without_its_file(prepared: Prepared) -> Prepared:
    """The same without the objection that the file cannot be read."""
    kept = tuple(d for d in prepared.diagnostics if d.code != "data-unreadable")
    return dataclasses.replace(prepared, diagnostics=kept)


def recorded_plan(audit: AuditResult) -> Plan:
    """The plan as the result tells it, where it followed from a file that is not at hand."""
    return Plan(
        chunks=(tuple(range(audit.planned_trials)),),
        seconds=0.0,
        memory_bytes=0,
        power=audit.power,
        notes=audit.notes,
        checks=audit.promised,
    )


def file_not_at_hand(audit: AuditResult, error: DataError) -> Mismatch:
    """That trials are taken as recorded, because the file that they read is absent."""
    return Mismatch(
        audit=audit.name,
        what="the file that its trials read",
        recorded=counted_trials(len(audit.trials)),
        recomputed=f"taken as recorded, without the file: {error}",
        differs=False,
        claims=tuple(verdict.claim for verdict in audit.verdicts),
    )


def recording_of(audit: AuditResult, prepared: Prepared) -> tuple[ExecutedRun | None, list[Mismatch]]:
    """Evaluate the recorded run of a spec again; if its folder is missing or invalid, use the result's own values."""
    reader = prepared.recording
    if reader is None:
        return None, []
    setup = audit.recording.setup if audit.recording is not None else audit.notes
    recorded = "; ".join(setup[-1:]) or "a recorded run"
    try:
        return reader.read(prepared.spec, prepared.facts), []
    except SpecError as error:  # there is no such folder
        differs, found = False, f"taken as recorded: {error}"
    except DpspecError as error:
        differs, found = True, str(error)
    gone = Mismatch(
        audit=audit.name,
        what="recording",
        recorded=recorded,
        recomputed=found,
        differs=differs,
        claims=tuple(verdict.claim for verdict in audit.verdicts),
    )
    return reader.from_result(audit), [gone]


def not_vouched(audit: AuditResult, stored: Sequence[StoredTrial | None]) -> Iterator[Mismatch]:
    """The trials that the store does not have, where it is to vouch for all of them."""
    if missing := [index for index, trial in enumerate(stored) if trial is None]:
        yield Mismatch(
            audit=audit.name,
            what="trials",
            recorded=counted_trials(len(missing)),
            recomputed=f"taken as recorded: the store has no seal of {'it' if len(missing) == 1 else 'them'}",
            differs=False,
            claims=tuple(verdict.claim for verdict in audit.verdicts),
        )


def counted_trials(number: int) -> str:
    """So many trials, in words."""
    return f"{number} trial{'' if number == 1 else 's'}"
