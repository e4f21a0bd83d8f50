"""The stage ``trials`` of all audits of a run: an executor makes those that the store lacks, in one queue.

Cells of a matrix and specs of a folder share the queue, so that every worker is busy. Audits with claims that bounds
leave open come first, so that a time limit cuts less important trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from dpspec.contract import DataError, ModelError
from dpspec.contract.audit import NO_TRIALS
from dpspec.contract.catalog import Catalog
from dpspec.contract.events import Noticed, Progressed, TrialsPlanned
from dpspec.engine.judging.judge import judge
from dpspec.engine.preparing.context import WorkerCache
from dpspec.engine.preparing.prepare import data_unreadable, model_mismatch
from dpspec.engine.running.conclude import conclude
from dpspec.engine.running.run_options import RunOptions, open_pool
from dpspec.engine.running.tasks import QueuedChunk, TrainTrials, dispatch
from dpspec.engine.storage.stored_trials import AuditState, Listener, NewTrial, StoredTrials
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import SpecError
from dpspec.executors import InlinePool, Resources

#: Number of lost workers after which a chunk is given up.
TRIES = 3


class Training:
    """The trials of all audits of one run: stored ones, and new ones.

    A ``Noticed`` event reports each audit that lacks trials because of the limits.
    """

    def __init__(
        self,
        audits: Sequence[AuditState],
        catalog: Catalog,
        store: Store,
        options: RunOptions,
        cache: WorkerCache,
        emit: Listener,
    ) -> None:
        self._catalog, self._options, self._cache, self._emit = catalog, options, cache, emit
        self.audits = [StoredTrials(audit, store, emit) for audit in audits]

    def run(self) -> list[AuditState]:
        for audit in self.audits:
            if audit.state.plan.chunks:
                audit.look()
                total, missing = audit.state.plan.trials, audit.missing_trials
                seconds = audit.state.plan.seconds
                self._emit(TrialsPlanned(audit=audit.name, total=total, stored=total - missing, seconds=seconds))
        self._make_missing()
        return [audit.trained() for audit in self.audits]

    def _make_missing(self) -> None:
        waiting = [(number, missing) for number in self._order() for missing in self.audits[number].missing()]
        chosen, most = waiting, self._options.max_trials
        if most is not None:  # chunks are not split, and at least one is taken
            fitting = sum(count <= most for count in accumulate(len(missing) for _, missing in waiting))
            chosen = waiting[: max(1, fitting)]
        if not chosen:
            return
        plans = [(audit.state.plan, audit.missing_trials) for audit in self.audits]
        seconds = sum(plan.seconds * missing / max(1, plan.trials) for plan, missing in plans)
        pool = open_pool(
            self._options,
            self._catalog,
            tasks=len(chosen),
            seconds=seconds,
            on_progress=lambda report: self._emit(report.value),
        )
        done, total = 0, sum(len(missing) for _, missing in chosen)
        everything = self.audits[0].name if len(self.audits) == 1 else f"{len(self.audits)} audits"

        def on_trial(chunk: QueuedChunk, new: NewTrial) -> None:
            nonlocal done
            audit = self.audits[chunk.audit]
            if new.index in chunk.missing:
                chunk.missing.remove(new.index)
            audit.seconds += new.seconds
            if new.index in audit.available:  # made again because it is computed together with a missing one
                return
            audit.keep(new)
            done += 1
            if pool.size > 1:
                self._emit(Progressed(audit=everything, what="trials", done=done, total=total, unit="trials"))

        def on_error(chunk: QueuedChunk, error: BaseException) -> None:
            spec = self.audits[chunk.audit].state.prepared.spec
            if isinstance(error, DataError):
                raise SpecError([data_unreadable(error, spec)]) from error
            if isinstance(error, ModelError):
                raise SpecError([model_mismatch(error, ("model",), spec)]) from error
            raise error

        def on_loss(chunk: QueuedChunk, reason: str) -> bool:
            chunk.losses += 1
            again = chunk.losses < TRIES
            outcome = "retrying" if again else f"given up after {TRIES} times"
            self._emit(Noticed(audit=chunk.name, message=f"worker lost during a trial ({reason}); {outcome}"))
            return again

        try:
            other_processes = not isinstance(pool, InlinePool)
            queue = [self._queued(number, missing, other_processes=other_processes) for number, missing in chosen]
            dispatch(
                pool,
                queue,
                self._emit,
                on_trial=on_trial,
                on_error=on_error,
                on_loss=on_loss,
                seconds_left=self._options.seconds_left,
            )
        finally:
            pool.close()
        cut, late = len(chosen) < len(waiting), (self._options.seconds_left() or 0.0) < 0.0
        why = f"stopped after {self._options.max_trials} trials" if cut else "stopped at the time limit"
        for audit in self.audits:
            if audit.missing_trials and (cut or late):
                message = f"{why}; running the same command again continues"
                self._emit(Noticed(audit=audit.name, message=message))

    def _queued(self, number: int, missing: list[int], *, other_processes: bool) -> QueuedChunk:
        audit = self.audits[number]
        prepared, plan = audit.state.prepared, audit.state.plan
        threads = self._options.threads_of(plan)

        def task(indices: Sequence[int]) -> TrainTrials:
            # Trials of a chunk may share floating-point sums, whose rounding depends on the number of runs: then all
            # are computed, as in a new run.
            whole = next(chunk for chunk in audit.state.plan.chunks if indices[0] in chunk)
            together = tuple(indices) if plan.independent else whole
            return TrainTrials(
                spec=prepared.spec,
                catalog=self._catalog,
                facts=prepared.facts,
                threads=threads,
                cache=self._cache,
                indices=together,
                makers=prepared.makers,
                folders=audit.folders(together, create=other_processes),
            )

        needs = Resources(threads=threads, memory_bytes=plan.memory_bytes, device=self._options.device)
        return QueuedChunk(audit=number, name=audit.name, needs=needs, missing=missing, task=task)

    def _order(self) -> list[int]:
        if len(self.audits) == 1:
            return [0]
        judged = judge([conclude(replace(audit.state, plan=NO_TRIALS), ()) for audit in self.audits])
        is_open = [any(verdict.verdict == "open" for verdict in of_audit.verdicts) for of_audit in judged]
        return sorted(range(len(self.audits)), key=lambda number: not is_open[number])
