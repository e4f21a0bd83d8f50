"""The stage ``bounds`` of all audits of a run, in this process or in the workers of the trials.

An audit's bounds depend on its spec only. The caller's process begins. If the first bounds show that the rest takes
long, the remaining audits become tasks of the workers that will make the trials.

The caller computes the rest, in the order of the audits: if bounds raise, if they or their plan cannot
be pickled, if a worker has other versions or dies. So errors are the same as without workers, and the first invalid
spec is reported. Bounds of recorded runs and of composed audits are always computed by the caller.
"""

from __future__ import annotations

import dataclasses
import pickle
import platform
import statistics
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeAlias

from dpspec.contract import DataError, Finding, Json, Plan, Series
from dpspec.contract.audit import NO_TRIALS
from dpspec.contract.catalog import Catalog
from dpspec.contract.events import Event, Noticed, Progressed, StageStarted
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import Prepared, data_unreadable, out_of_range
from dpspec.engine.running.conclude import Bounded
from dpspec.engine.running.dispatch import QueuedChunk, dispatch
from dpspec.engine.running.run_options import RunOptions, Workers
from dpspec.engine.running.tasks import AuditTask, WorkerCache
from dpspec.engine.storage.origins import version_of
from dpspec.errors import PluginError, SpecError, UsageError
from dpspec.executors import Pool, Resources
from dpspec.executors.pools import InlinePool
from dpspec.text import clipped

#: Number of audits above which the progress through a stage is reported too.
MANY = 8

#: Seconds of remaining bounds below which workers are not started.
_WORTHWHILE = 10.0

#: Number of last audits from which the remaining time is estimated.
_RECENT = 9

_LIBRARIES = ("dpspec", "numpy", "scipy", "mpmath", "scikit-learn", "torch")

#: Number of lost workers after which the caller computes all bounds.
_LOSSES = 3


#: The bounds of an audit, the plan of its trials, and the seconds to compute both.
Computed: TypeAlias = tuple[list[Finding | Series], Plan, float]


def compute(context: RunContext, *, plan: bool) -> Computed:
    began, prepared = time.monotonic(), context.prepared
    bounds = list(prepared.audit.bound(prepared.spec, context))
    planned = prepared.plan() if plan else NO_TRIALS
    return bounds, planned, time.monotonic() - began


def bound(
    prepared: Prepared, catalog: Catalog, *, cache: WorkerCache, plan: bool, emit: Callable[[Event], None]
) -> Bounded:
    from dpspec.training.threads import limited

    began, spec = time.monotonic(), prepared.spec
    try:
        with limited(1):
            context = cache.context(spec, catalog, prepared.facts, device="cpu", emit=emit)
            bounds, planned, _ = compute(context, plan=plan)
        recording = None if prepared.recording is None else prepared.recording.read(spec, prepared.facts)
    except DataError as error:
        raise SpecError([data_unreadable(error, spec)]) from error
    except ArithmeticError as error:
        if isinstance(error, ZeroDivisionError):
            raise
        raise SpecError([out_of_range(error, spec)]) from error
    seconds = time.monotonic() - began
    return Bounded(prepared=prepared, bounds=bounds, plan=planned, seconds=seconds, recording=recording)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeBounds(AuditTask):
    """``sender`` are the caller's versions."""

    plan: bool
    sender: Mapping[str, Json]

    def run(self, context: RunContext) -> Iterator[Computed]:
        if _versions() != self.sender:
            raise UsageError("a worker has other versions of dpspec, Python or numeric libraries")
        computed = compute(context, plan=self.plan)
        pickle.loads(pickle.dumps(computed))  # noqa: S301 - our own; raises here rather than where it arrives
        yield computed


@cache
def _versions() -> dict[str, Json]:
    libraries: dict[str, Json] = {library: version_of(library) for library in _LIBRARIES}
    python = [platform.python_implementation(), platform.python_version(), platform.machine()]
    return {**libraries, "python": python}


class Bounding:
    def __init__(
        self,
        audits: Sequence[Prepared],
        catalog: Catalog,
        options: RunOptions,
        cache: WorkerCache,
        workers: Workers,
        emit: Callable[[Event], None],
        *,
        plan: bool,
    ) -> None:
        self._audits, self._catalog, self._options, self._cache = audits, catalog, options, cache
        self._workers, self._emit, self._plan = workers, emit, plan
        self._bounded: dict[int, Bounded] = {}
        self._recent: deque[Bounded] = deque(maxlen=_RECENT)
        self._failed: dict[int, str] = {}
        self._shareable = [
            number for number, audit in enumerate(audits) if not audit.components and audit.recording is None
        ]

    def run(self) -> list[Bounded]:
        shared = False
        for number, audit in enumerate(self._audits):
            if not shared and (pool := self._pool(number)) is not None:
                shared = True
                self._share(pool, number)
            if number in self._bounded:
                continue
            self._emit(StageStarted(audit=audit.spec.name, stage="bound"))
            bounded = bound(audit, self._catalog, cache=self._cache, plan=self._plan, emit=self._emit)
            if number > 0:  # the first loads libraries, and its duration says nothing of the others
                self._recent.append(bounded)
            if (reason := self._failed.get(number)) is not None:
                message = f"its bounds were computed by the process that was started, as no worker could: {reason}"
                self._emit(Noticed(audit=audit.spec.name, message=message))
            self._done(number, bounded)
        return [self._bounded[number] for number in range(len(self._audits))]

    def _done(self, number: int, bounded: Bounded) -> None:
        self._bounded[number] = bounded
        done, total = len(self._bounded), len(self._audits)
        if total > MANY:
            self._emit(Progressed(audit=f"{total} audits", what="bound", done=done, total=total, unit="audits"))

    def _pool(self, number: int) -> Pool | None:
        recent, left = self._recent, len(self._shareable) - bisect_left(self._shareable, number)
        if not recent or left < 2:
            return None
        seconds = left * statistics.median(each.seconds for each in recent)
        if seconds < _WORTHWHILE:
            return None
        of_all = len(self._audits) / len(recent)
        try:
            pool = self._workers.pool(
                tasks=left + round(of_all * sum(len(each.plan.chunks) for each in recent)),
                seconds=seconds + of_all * sum(each.plan.seconds for each in recent),
                device=self._options.device if self._plan else "cpu",
            )
        except (UsageError, PluginError):  # reported if trials need the pool
            return None
        return None if isinstance(pool, InlinePool) else pool

    def _share(self, pool: Pool, number: int) -> None:
        needs = Resources(memory_bytes=max(each.plan.memory_bytes for each in self._recent))
        chunks = [
            QueuedChunk(audit=n, name=self._audits[n].spec.name, needs=needs, missing=[n], task=self._task)
            for n in self._shareable
            if n >= number
        ]
        losses = 0

        def give_up(chunk: QueuedChunk, reason: str, *, others: bool) -> None:
            self._failed[chunk.audit] = clipped(reason, 200)
            for each in chunks if others else [chunk]:
                each.missing.clear()

        def on_part(chunk: QueuedChunk, computed: Computed) -> None:
            bounds, plan, seconds = computed
            chunk.missing.clear()
            prepared = self._audits[chunk.audit]
            self._done(chunk.audit, Bounded(prepared=prepared, bounds=bounds, plan=plan, seconds=seconds))

        def on_error(chunk: QueuedChunk, error: BaseException) -> None:
            # Perhaps a spec is wrong, and then those after it need no bounds.
            give_up(chunk, " ".join(f"{type(error).__name__}: {error}".split()), others=True)

        def on_loss(chunk: QueuedChunk, reason: str) -> bool:
            nonlocal losses
            losses += 1
            give_up(chunk, reason, others=losses >= _LOSSES)
            return False

        dispatch(pool, chunks, "bound", self._emit, on_part=on_part, on_error=on_error, on_loss=on_loss)

    def _task(self, numbers: Sequence[int]) -> ComputeBounds:
        audit = self._audits[numbers[0]]
        return ComputeBounds(
            spec=audit.spec, catalog=self._catalog, facts=audit.facts, plan=self._plan, sender=_versions()
        )
