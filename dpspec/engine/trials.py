"""The trials of one audit: which the store has, which are still to be made, and keeping those that are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from dpspec.contract import Event, Noticed, Plan, TrialFinished
from dpspec.engine.keys import trial_key
from dpspec.engine.prepare import Prepared
from dpspec.engine.result import TrialRecord
from dpspec.engine.store import AT_ONCE, Store, StoredTrial
from dpspec.engine.work import Made

Listener = Callable[[Event], None]


class Trials:
    """The planned trials of one audit in one store; ``found`` are those that are there, by their indices."""

    def __init__(self, prepared: Prepared, plan: Plan, store: Store, emit: Listener) -> None:
        self.plan = plan
        self.found: dict[int, StoredTrial] = {}
        self._name = prepared.spec.name
        self._store = store
        self._emit = emit
        inputs = prepared.audit.trial_inputs(prepared.spec)
        self._keys = {
            index: trial_key(inputs, prepared.facts, prepared.revisions, chunk, index)
            for chunk in plan.chunks
            for index in chunk
        }

    def look(self) -> None:
        """Take from the store what it has; a damaged record is told, and counts as absent."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            stored = pool.map(lambda key: self._store.get(key, self._notice), self._keys.values())
            self.found = {index: trial for index, trial in zip(self._keys, stored, strict=True) if trial is not None}

    def missing(self) -> Iterator[list[int]]:
        """What is still to be made, chunk by chunk."""
        for chunk in self.plan.chunks:
            if rest := [index for index in chunk if index not in self.found]:
                yield rest

    @property
    def missing_trials(self) -> int:
        """How many are still to be made."""
        return sum(map(len, self.missing()))

    def folders(self, indices: Sequence[int], *, made: bool) -> dict[int, Path | None]:
        """Where trials in work may keep their state; ``made``: as folders that are there, for others to find."""
        folders = {index: self._store.unfinished(self._keys[index]) for index in indices}
        for folder in folders.values():
            if made and folder is not None:
                with suppress(OSError):  # without one, a trial that is lost begins anew
                    folder.mkdir(parents=True, exist_ok=True)
        return folders

    def cut(self, chunks: int) -> int:
        """Go no further than so many chunks, whatever else is there or still comes; returns their number of trials."""
        self.plan = replace(self.plan, chunks=self.plan.chunks[:chunks])
        return self.plan.trials

    def keep(self, made: Made) -> None:
        """Store a trial that has just been made."""
        self.found[made.index] = self._store.put(self._keys[made.index], made.value, made.recorded)
        self._emit(TrialFinished(audit=self._name, index=made.index, seconds=made.seconds))

    @cached_property
    def sorted(self) -> list[StoredTrial]:
        """All that are there, once no more are made; tells where they were made in different ways."""
        planned = {index for chunk in self.plan.chunks for index in chunk}
        trials = [self.found[index] for index in sorted(self.found) if index in planned]
        for notice in _mixtures([stored.record for stored in trials]):
            self._notice(notice)
        return trials

    @property
    def array_bytes(self) -> int:
        """What the arrays of all that are there take."""
        return sum(array.nbytes for stored in self.sorted for array in stored.trial.arrays.values())

    def _notice(self, message: str) -> None:
        self._emit(Noticed(audit=self._name, message=message))


def _mixtures(records: Sequence[TrialRecord]) -> list[str]:
    """Say where the trials of one audit were made on different devices or by different versions."""
    notices = []
    for what in ("device", "dpspec", "torch"):
        values = sorted({str(record.recorded.get(what)).partition(":")[0] for record in records})
        if len(values) > 1:
            notices.append(f"its trials were made with different {what}: {', '.join(values)}")
    return notices
