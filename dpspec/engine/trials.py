"""The trials that an audit needs: from the store where they are there, trained and stored where they are not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dpspec.contract import (
    Cancelled,
    Event,
    FrozenMap,
    Noticed,
    Plan,
    StageStarted,
    Trial,
    TrialFinished,
    TrialsPlanned,
)
from dpspec.engine.context import RunContext
from dpspec.engine.environment import environment
from dpspec.engine.keys import trial_key
from dpspec.engine.prepare import Prepared
from dpspec.engine.result import TrialRecord
from dpspec.engine.store import Store

Listener = Callable[[Event], None]


def make_trials(
    prepared: Prepared, plan: Plan, inputs: FrozenMap, context: RunContext, store: Store, emit: Listener
) -> tuple[list[Trial], list[TrialRecord]]:
    """Every planned trial: from the store where it is there, trained and stored where it is not."""
    name = prepared.spec.name

    def key(chunk: Sequence[int], index: int) -> str:
        return trial_key(inputs, prepared.facts, prepared.revisions, chunk, index)

    places = {index: store.unfinished(key(chunk, index)) for chunk in plan.chunks for index in chunk}
    context.kept = places.__getitem__

    def on_damage(message: str) -> None:
        emit(Noticed(audit=name, message=message))

    found = {
        index: stored
        for chunk in plan.chunks
        for index in chunk
        if (stored := store.get(key(chunk, index), on_damage)) is not None
    }
    emit(TrialsPlanned(audit=name, total=plan.trials, stored=len(found), seconds=plan.seconds))
    if len(found) < plan.trials:
        emit(StageStarted(audit=name, stage="trials"))
    for chunk in plan.chunks:
        missing = [index for index in chunk if index not in found]
        if not missing:
            continue
        try:
            if context.cancelled():
                raise Cancelled
            began = time.monotonic()
            for trial in prepared.audit.trials(inputs, context, missing):
                seconds = time.monotonic() - began
                recorded = FrozenMap({**environment(None), "device": context.device_used, "seconds": round(seconds, 3)})
                found[trial.index] = store.put(key(chunk, trial.index), trial, recorded)
                emit(TrialFinished(audit=name, index=trial.index, seconds=seconds))
                began = time.monotonic()
        except Cancelled:
            emit(Noticed(audit=name, message="stopped at the time limit; running the same command again continues"))
            break
    made = [found[index] for index in sorted(found)]
    for notice in _mixtures([stored.record for stored in made]):
        emit(Noticed(audit=name, message=notice))
    return [stored.trial for stored in made], [stored.record for stored in made]


def _mixtures(records: Sequence[TrialRecord]) -> list[str]:
    """Say where the trials of one audit were made on different devices or by different versions."""
    notices = []
    for what in ("device", "dpspec", "torch"):
        values = sorted({str(record.recorded.get(what)) for record in records})
        if len(values) > 1:
            notices.append(f"its trials were made with different {what}: {', '.join(values)}")
    return notices
