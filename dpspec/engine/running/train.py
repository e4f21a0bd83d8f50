"""The stage ``trials`` of all audits of a run: an executor makes those that the store lacks, in one queue.

Cells of a matrix and specs of a folder share the queue, so that every worker is busy.
"""

import dataclasses
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from dpspec.contract import Cancelled, DataError, ModelError, Plan, Spec
from dpspec.contract.catalog import Catalog
from dpspec.contract.events import Noticed, Progressed, StageStarted, TrialsPlanned
from dpspec.decimals import duration
from dpspec.engine.preparing.context import WorkerCache
from dpspec.engine.preparing.diagnostics import data_unreadable, model_mismatch
from dpspec.engine.running.conclude import planned_tests, stopped_plan
from dpspec.engine.running.failures import Failures
from dpspec.engine.running.trial_work import TrainTrials
from dpspec.engine.storage.stored_trials import AuditState, Listener, StoredTrials
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import PluginError, SpecError
from dpspec.executors import (
    InlinePool,
    PartialResult,
    Pool,
    PoolRequest,
    Resources,
    Task,
    TaskFailed,
    TaskProgress,
    WorkerLost,
)
from dpspec.registry.loader import made

#: Names of devices.
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")

#: Seconds of a chunk on one core below which a second core does not help.
_SHORT = 60.0


StopRequests: TypeAlias = Callable[[], AbstractContextManager[Callable[[], str]]]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Execution of a run; None lets dpspec decide, ``executor`` None is this process.

    While trials run, the context of ``stop_requests`` yields a function that names a request to stop, such as SIGTERM.
    """

    executor: str | None = None
    workers: int | None = None
    threads: int | None = None
    address: str | None = None
    device: str = "auto"
    deadline: float | None = None
    max_trials: int | None = None
    stop_requests: StopRequests = field(default=lambda: nullcontext(lambda: ""), repr=False)

    def seconds_left(self) -> float | None:
        return None if self.deadline is None else self.deadline - time.monotonic()

    def threads_of(self, plan: Plan) -> int:
        """The CPU threads of each trial, by the plan alone, so that an audit has the same result among others."""
        if self.threads is not None:
            return self.threads
        chunks = max(1, len(plan.chunks))
        if plan.seconds / chunks < _SHORT:
            return 1
        from dpspec.executors.processes import cores

        return max(1, cores() // chunks)


def open_pool(
    options: RunOptions, catalog: Catalog, *, tasks: int, seconds: float, on_progress: Callable[[TaskProgress], None]
) -> Pool:
    """The workers of a run; ``on_progress`` receives progress reports of tasks in this process."""
    executor, offers = options.executor, catalog.executors
    if executor is None:
        return InlinePool(on_progress)
    if executor not in offers:
        valid = ", ".join(sorted(offers))
        raise PluginError(f"no installed plugin offers executor {executor!r} (installed: {valid})")
    workers, address = options.workers, options.address
    demand = PoolRequest(tasks=tasks, seconds=seconds, device=options.device, workers=workers, address=address)
    offered = offers[executor]
    pool = cast(Pool, made(offered, offered.provider.pool, "its pool", demand))
    return InlinePool(on_progress) if isinstance(pool, InlinePool) else pool


#: Factors and seconds that bound the time of a trial relative to its plan on one idle core. Plans count operations;
#: measured trials of the quickstart, ``specs/attacks`` and digits took 0.37 to 6.7 times the planned time.
LEAST, MOST, BESIDE = 1.0 / 3.0, 5.0, 2.0


def format_time_range(seconds: float) -> str:
    return f"{duration(LEAST * seconds)} to {duration(MOST * seconds + BESIDE)}"


#: Number of lost workers after which a chunk is given up.
TRIES = 3


@dataclass(kw_only=True)
class _Chunk:
    """The ``missing`` trials of a chunk; ``losses`` is the number of lost workers.

    ``fraction``: the finished part of the current work, all missing trials or one of several independent ones.
    """

    audit: StoredTrials
    needs: Resources
    missing: list[int]
    losses: int = 0
    fraction: float = 0.0

    @property
    def begun(self) -> float:
        """Number of missing trials that equals the finished work."""
        return self.fraction * min(len(self.missing), 1 if self.audit.state.plan.independent else len(self.missing))


def _at_most(waiting: Sequence[_Chunk], most: int) -> list[_Chunk]:
    """The first chunks with at most ``most`` missing trials. Only chunks of independent trials are split."""
    chosen: list[_Chunk] = []
    for chunk in waiting:
        independent = chunk.audit.state.plan.independent
        taken = chunk.missing[:most] if independent else chunk.missing
        if not taken or len(taken) > most:
            break
        chosen.append(dataclasses.replace(chunk, missing=taken))
        most -= len(taken)
    return chosen


def _spec_error(error: BaseException, spec: Spec) -> SpecError:
    """The error of a spec's data or model, at its place. Raises any other error."""
    if isinstance(error, DataError):
        located = data_unreadable(error, spec)
    elif isinstance(error, ModelError):
        located = model_mismatch(error, ("model",), spec)
    else:
        raise error
    problem = SpecError([located])
    problem.__cause__ = error
    return problem


class Training:
    """The trials of all audits of one run. A ``Noticed`` event reports audits that lack trials because of limits."""

    def __init__(
        self,
        audits: Sequence[AuditState],
        catalog: Catalog,
        store: Store,
        options: RunOptions,
        cache: WorkerCache,
        emit: Listener,
        failures: Failures,
    ) -> None:
        self._failures = failures
        self._catalog, self._options, self._cache, self._emit = catalog, options, cache, emit
        self.audits = [StoredTrials(audit, store, emit) for audit in audits]
        self._tests = sum(
            planned_tests([claim.kind for claim in audit.prepared.spec.claims], audit.plan.trials, audit.plan.power)
            for audit in audits
        )
        self._running: dict[int, _Chunk] = {}
        self._done = self._total = 0

    def run(self) -> list[AuditState]:
        for audit in self.audits:
            if audit.state.plan.chunks:
                audit.look()
                self._stop_if_decided(audit)
                total, missing = audit.state.plan.trials, audit.missing_trials
                seconds = audit.state.plan.seconds
                self._emit(TrialsPlanned(audit=audit.name, total=total, stored=total - missing, seconds=seconds))
        self._make_missing()
        return self._failures.without_failed([audit.trained() for audit in self.audits])

    def _make_missing(self) -> None:
        waiting = []
        for audit in self.audits:
            plan, options = audit.state.plan, self._options
            threads = options.threads_of(plan)
            needs = Resources(threads=threads, memory_bytes=plan.memory_bytes, device=options.device)
            waiting += [_Chunk(audit=audit, needs=needs, missing=missing) for missing in audit.missing()]
        most = self._options.max_trials
        chosen = waiting if most is None else _at_most(waiting, most)
        if waiting and not chosen:
            together = len(waiting[0].missing)
            message = (
                f"no trial was made: {together} trials are trained together, and --max-trials is {most}; "
                f"use --max-trials {together} or more"
            )
            self._emit(Noticed(audit=waiting[0].audit.name, message=message))
        if not chosen:
            return
        all_trials, chosen_trials = (sum(len(chunk.missing) for chunk in chunks) for chunks in (waiting, chosen))
        cut = chosen_trials < all_trials
        plans = [(audit.state.plan, audit.missing_trials) for audit in self.audits]
        seconds = sum(plan.seconds * missing / max(1, plan.trials) for plan, missing in plans)
        pool = open_pool(
            self._options,
            self._catalog,
            tasks=len(chosen),
            seconds=seconds,
            on_progress=self._report,
        )
        try:
            with self._options.stop_requests() as requested:  # after Ray has set its handlers of signals
                if isinstance(pool, InlinePool):
                    pool.requested = requested
                self._dispatch(pool, chosen, requested)
                signaled = requested()
        finally:
            pool.close()
        late = (self._options.seconds_left() or 0.0) < 0.0
        reason = "stopped at the time limit"
        if signaled:
            reason = f"stopped by {signaled}"
        elif cut:
            reason = f"stopped after {self._options.max_trials} trials"
        for audit in self.audits:
            if audit.missing_trials and (cut or late or signaled):
                message = f"{reason}; running the same command again continues"
                self._emit(Noticed(audit=audit.name, message=message))

    def _stop_if_decided(self, audit: StoredTrials) -> bool:
        """Cut the plan of a sequential audit after the chunks that decide its claims; True if it was cut now."""
        plan = audit.state.plan
        if not plan.sequential or (chunks := audit.whole_chunks()) <= audit.judged_chunks:
            return False
        trials = {index: stored.trial for index, stored in audit.available.items()}
        cut = stopped_plan(audit.state, trials, self._tests, judged_chunks=audit.judged_chunks)
        audit.judged_chunks = chunks
        if cut is plan:
            return False
        audit.state = dataclasses.replace(audit.state, plan=dataclasses.replace(cut, sequential=False))
        self._emit(Noticed(audit=audit.name, message=cut.notes[-1]))
        return True

    def _report(self, report: TaskProgress) -> None:
        """Emit an event of a task. If several tasks run, only their joint progress is emitted."""
        event = report.value
        if not isinstance(event, Progressed):
            self._emit(event)
            return
        self._running[report.task].fraction = min(1.0, event.done / max(1, event.total))
        if len(self._running) > 1:
            self._report_all()
        else:
            self._emit(dataclasses.replace(event, overall=self._overall()))

    def _report_all(self) -> None:
        subject = self.audits[0].name if len(self.audits) == 1 else f"{len(self.audits)} audits"
        overall, done, total = self._overall(), self._done, self._total
        self._emit(Progressed(audit=subject, what="trials", done=done, total=total, unit="trials", overall=overall))

    def _overall(self) -> float:
        return (self._done + sum(chunk.begun for chunk in self._running.values())) / max(1, self._total)

    def _dispatch(self, pool: Pool, chunks: Sequence[_Chunk], requested: Callable[[], str]) -> None:
        """Run all chunks in their order while there is room, until the deadline or a request to stop.

        Both stop running tasks too.
        """
        waiting, running, started = deque(chunks), self._running, 0
        stopping = False
        self._done, self._total = 0, sum(len(chunk.missing) for chunk in chunks)
        while waiting or running:
            if requested() and not stopping:
                stopping = True
                waiting.clear()
                stop = getattr(pool, "stop", None)  # executors for earlier versions lack it
                if stop is None:
                    return
                stop()
            while (left := self._options.seconds_left()) is None or left >= 0.0:
                if not waiting or not pool.room(waiting[0].needs):
                    break
                chunk = waiting.popleft()
                started += 1
                self._emit(StageStarted(audit=chunk.audit.name, stage="trials"))
                work = self._work(chunk, other_processes=not isinstance(pool, InlinePool))
                pool.start(Task(number=started, name=chunk.audit.name, needs=chunk.needs, work=work, seconds=left))
                running[started] = chunk
                chunk.fraction = 0.0
                if pool.size > 1:
                    self._report_all()
            if not running:
                return
            for message in pool.messages():
                chunk = running[message.task]
                if not isinstance(message, TaskProgress | PartialResult):
                    del running[message.task]
                match message:
                    case TaskProgress():
                        self._report(message)
                    case PartialResult(value=new):
                        chunk.missing = [index for index in chunk.missing if index != new.index]
                        chunk.audit.seconds += new.seconds
                        if new.index in chunk.audit.available:  # it is computed together with a missing one
                            continue
                        chunk.audit.keep(new)
                        self._done += 1
                        if self._stop_if_decided(chunk.audit):
                            waiting = deque(further for further in waiting if further.audit is not chunk.audit)
                        if chunk.audit.state.plan.independent:
                            chunk.fraction = 0.0
                        self._report_all()
                    case TaskFailed(error=error) if not isinstance(error, Cancelled):
                        spec = chunk.audit.state.prepared.spec
                        self._failures.add(spec, _spec_error(error, spec))
                        waiting = deque(c for c in waiting if not self._failures.include(c.audit.state.prepared.spec))
                    case WorkerLost(reason=reason) if chunk.missing and not requested():
                        chunk.losses += 1
                        again = chunk.losses < TRIES
                        outcome = "retrying" if again else f"given up after {TRIES} times"
                        lost = f"worker lost during a trial ({reason}); {outcome}"
                        self._emit(Noticed(audit=chunk.audit.name, message=lost))
                        if again:
                            waiting.appendleft(chunk)

    def _work(self, chunk: _Chunk, *, other_processes: bool) -> TrainTrials:
        # Trials of a chunk may share floating-point sums, whose rounding depends on the number of runs: then all are
        # computed, as in a new run.
        audit, plan = chunk.audit, chunk.audit.state.plan
        whole = next(planned for planned in plan.chunks if chunk.missing[0] in planned)
        together = tuple(chunk.missing) if plan.independent else whole
        prepared = audit.state.prepared
        return TrainTrials(
            spec=prepared.spec,
            catalog=self._catalog,
            facts=prepared.facts,
            threads=chunk.needs.threads,
            cache=self._cache,
            indices=together,
            makers=prepared.makers,
            folders=audit.folders(together, create=other_processes),
        )
