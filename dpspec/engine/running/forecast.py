"""What a run will take, from short trials that were really made: the same trial with fewer steps, at two lengths.

A trial takes a + b * steps seconds; two lengths give both. The first trial of a process does not count: libraries are
loaded, and kernels chosen, only once. Nothing of it is stored.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from dpspec.contract import Plan, Spec, Trial
from dpspec.contract.catalog import Catalog
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare, raise_located
from dpspec.engine.running.conclude import Bounded, conclude
from dpspec.engine.running.run_options import RunOptions
from dpspec.engine.running.tasks import AuditTask
from dpspec.errors import IncompleteError
from dpspec.executors import Needs, PartialResult, Task, TaskFailed, WorkerLost
from dpspec.executors.cores import cores
from dpspec.executors.processes import Processes
from dpspec.language.load import from_document

#: The steps of the first trial, and the seconds that the second one aims at.
_STEPS, _AIM = 8, 4.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """One audit, measured on this machine.

    chunk_seconds: what its first chunk of trials will take; other_seconds: its bounds and conclusions.
    memory_bytes: the most that the process took; device_bytes: the most on a GPU.
    steps: of the two trials that were made; equal where they were whole.
    """

    chunk_seconds: float
    other_seconds: float
    memory_bytes: int
    device_bytes: int
    device: str
    steps: tuple[int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """What some audits will take together.

    seconds: of computing, one task after the other; at_once: how many tasks there can be at once on this machine;
    memory_bytes: of each process; measured: by the names of the audits that were measured, one per spec file.
    """

    trials: int
    seconds: float
    at_once: int
    memory_bytes: int
    device_bytes: int
    measured: dict[str, Measured]

    @property
    def wall_seconds(self) -> float:
        """The time that passes, if every worker is busy all the time."""
        return self.seconds / self.at_once


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureTrials(AuditTask):
    """Bounds, trials of the given indices with few steps, and conclusions."""

    indices: tuple[int, ...]

    def run(self, context: RunContext) -> Iterator[Measured]:
        """One :class:`Measured`."""
        began = time.monotonic()
        bounds = list(context.prepared.audit.bound(context.prepared.spec, context))
        other, whole = time.monotonic() - began, steps_of(self.spec)
        first = min(whole, _STEPS)
        _, warm, _ = self._trials(context, first)  # loads the rows, too
        short, _, _ = self._trials(warm, first)
        second = min(whole, max(first, round(first * _AIM / max(short, 1e-3))))
        long, last, trials = self._trials(warm, second)
        slope = max(0.0, (long - short) / (second - first)) if second > first else 0.0
        concluding = time.monotonic()
        conclude(Bounded(prepared=last.prepared, bounds=bounds), trials)
        yield Measured(
            chunk_seconds=long + slope * (whole - second),
            other_seconds=other + time.monotonic() - concluding,
            memory_bytes=_peak(),
            device_bytes=_device_peak(context.device),
            device=context.device,
            steps=(first, second),
        )

    def _trials(self, like: RunContext, steps: int) -> tuple[float, RunContext, list[Trial]]:
        """The seconds that trials with so many steps take, where they were made, and what came of them."""
        short = shortened(self.spec, self.catalog, steps)
        prepared = prepare(short, self.catalog)
        inputs = prepared.audit.trial_inputs(short)
        context = RunContext(prepared, self.catalog, inputs, device=like.wanted_device, like=like)
        try:
            began = time.monotonic()
            trials = list(prepared.audit.trials(inputs, context, self.indices))
            return time.monotonic() - began, context, trials
        finally:
            context.close()


def forecast(specs: Sequence[Spec], plans: Sequence[Plan], catalog: Catalog, options: RunOptions) -> Forecast:
    """Measure one audit of every spec file, and scale its plan's other cells by what the plan says of them.

    Raises ``IncompleteError`` where a short trial does not survive; what it raises itself is passed on.
    """
    measured: dict[str, Measured] = {}
    seconds, chunks, threads = 0.0, 0, 1
    families: dict[str, tuple[Measured, float]] = {}
    for spec, plan in zip(specs, plans, strict=True):
        if not plan.chunks:
            continue
        per_chunk = plan.seconds / len(plan.chunks)
        family = f"{spec.origin[()].file if () in spec.origin else ''}\n{spec.mechanism.kind}"
        if family not in families:
            families[family] = _measure(spec, plan, catalog, options), per_chunk
            measured[spec.name] = families[family][0]
        measurement, foreseen = families[family]
        scale = per_chunk / foreseen if foreseen > 0.0 else 1.0
        seconds += len(plan.chunks) * measurement.chunk_seconds * scale + measurement.other_seconds
        chunks += len(plan.chunks)
        threads = max(threads, options.threads_of(plan))
    memory = max((m.memory_bytes for m in measured.values()), default=0)
    return Forecast(
        trials=sum(plan.trials for plan in plans),
        seconds=seconds,
        at_once=_at_once(chunks, threads, memory, options, measured),
        memory_bytes=memory,
        device_bytes=max((m.device_bytes for m in measured.values()), default=0),
        measured=measured,
    )


def steps_of(spec: Spec) -> int:
    """The number of updates of a spec; 1 for a mechanism without steps, whose trials are made whole."""
    options = spec.mechanism.options
    return spec.steps if "steps" in options or "phases" in options else 1


def shortened(spec: Spec, catalog: Catalog, steps: int) -> Spec:
    """The spec with about so many steps in all, spread over its phases as they are; itself where it has no more."""
    whole = steps_of(spec)
    if steps >= whole:
        return spec
    document = spec.to_json()
    mechanism: dict[str, Any] = document["mechanism"]
    if mechanism.get("phases") is not None:
        for phase in mechanism["phases"]:
            phase["steps"] = max(1, round(phase["steps"] * steps / whole))
    else:
        mechanism["steps"] = steps
    return from_document(document, catalog, spec.directory, name=spec.name, cell=spec.cell)


def _measure(spec: Spec, plan: Plan, catalog: Catalog, options: RunOptions) -> Measured:
    """In a process of its own, whose memory is that of the trial and no one else's."""
    from dpspec.training.device import devices

    threads = options.threads_of(plan)
    work = MeasureTrials(
        spec=spec, catalog=catalog, facts=prepare(spec, catalog).facts, threads=threads, indices=plan.chunks[0]
    )
    pool = Processes(devices(options.device)[:1], most=1, threads=threads, budget=0)
    try:
        needs = Needs(threads=threads, device=options.device)
        pool.start(Task(number=1, name=spec.name, needs=needs, work=work))
        while True:
            for message in pool.messages():
                match message:
                    case PartialResult(value=Measured() as measured):
                        return measured
                    case TaskFailed(error=error):
                        raise_located(error, spec)
                    case WorkerLost(reason=reason):
                        raise IncompleteError(f"{spec.name}: worker lost during the measured trial ({reason})")
    finally:
        pool.close()


def _at_once(chunks: int, threads: int, memory: int, options: RunOptions, measured: dict[str, Measured]) -> int:
    from dpspec.training.device import devices
    from dpspec.training.gradients.memory import free_bytes

    if any(m.device != "cpu" for m in measured.values()):
        most = len(devices(options.device))
    else:
        most = min(cores() // threads, int(free_bytes("cpu") // max(1, memory)))
    return max(1, min(chunks, options.workers or most))


def _peak() -> int:
    """The most main memory that this process ever took, in bytes; 0 where the system does not say."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def _device_peak(device: str) -> int:
    """The most memory that torch ever held on a GPU, in bytes; 0 on a CPU."""
    torch = sys.modules.get("torch")
    return int(torch.cuda.max_memory_reserved(device)) if torch is not None and device.startswith("cuda") else 0
