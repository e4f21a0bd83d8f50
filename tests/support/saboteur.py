"""A faulty backend: the native loop behind a relay that changes or drops its reports.

Any single source in a fault's ``detected_by`` must detect it: a declared log (``iterates``, ``sampling-log``,
``noise-log``, ``norm-log``), or ``undone``, the residuals of released states. A fault without a source is
undetectable, but the run must still make every check that its plan promises.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from dpspec.contract import FrozenMap, Observer, TrainingJob
from dpspec.training.gradients import flat_model
from dpspec.training.loop.native import parts_of, train_with

#: Maps the relay, a step and a value to the steps and values that observers get instead.
Change = Callable[[Any, int, Any], Iterable[tuple[int, Any]]]

EVENTS = ("released", "sampled", "noised", "clipped")


class Relay(Observer):
    """Change the loop's reports to its observers.

    kept: state of a change between steps. swallows: whether to suppress exceptions of observers.
    """

    def __init__(self, job: TrainingJob, steps: int, reports: Mapping[str, Change], swallows: bool) -> None:
        self._job, self.steps, self.kept, self._reports, self._swallows = job, steps, None, reports, swallows

    def _report(self, method: str, step: int, value: Any) -> None:
        for at, changed in self._reports[method](self, step, value) if method in self._reports else [(step, value)]:
            with contextlib.suppress(*([Exception] if self._swallows else [])):
                for observer in self._job.observers:
                    getattr(observer, method)(at, changed)

    def released(self, step: int, state: Any) -> None:
        self._report("released", step, state)

    def sampled(self, step: int, indices: Any) -> None:
        self._report("sampled", step, indices)

    def noised(self, step: int, noise: Any) -> None:
        self._report("noised", step, noise)

    def clipped(self, step: int, norms: Any) -> None:
        self._report("clipped", step, norms)


@dataclass(frozen=True)
class Fault:
    """Changes of the reports, and deviations of the job or of the loop's parts from the declaration.

    run: the number of the only observed run with the fault, counted from 1; None for all runs.
    """

    detected_by: frozenset[str]
    reports: Mapping[str, Change] = field(default_factory=dict)
    swallows: bool = False
    job: Callable[[TrainingJob], TrainingJob] = field(default=lambda job: job)
    parts: Callable[[Any], Any] = field(default=lambda parts: parts)
    after: Callable[[TrainingJob], None] = field(default=lambda job: None)
    run: int | None = None


def sabotage(fault: Fault, job: TrainingJob) -> None:
    changed = fault.job(replace(job, resumable=None))
    steps = sum(int(phase["steps"]) for phase in job.phases)
    relay = Relay(job, steps, fault.reports, fault.swallows)
    train_with(replace(changed, observers=(relay,)), fault.parts(parts_of(changed)))
    if changed.model is not job.model:
        flat_model.load(job.model, flat_model.flatten(changed.model))
    fault.after(job)


class Saboteur:
    #: Number of observed runs since the last reset.
    watched = 0

    def train(self, job: TrainingJob) -> None:
        Saboteur.watched += bool(job.observers)
        fault = FAULTS[str(job.options.get("fault", "none"))]
        applies = fault.run is None or (bool(job.observers) and Saboteur.watched == fault.run)
        sabotage(fault if applies else FAULTS["none"], job)


def _phases(**changes: Callable[[FrozenMap], Any]) -> Callable[[TrainingJob], TrainingJob]:
    def changed(job: TrainingJob) -> TrainingJob:
        phases = [FrozenMap({**p, **{key: change(p) for key, change in changes.items()}}) for p in job.phases]
        return replace(job, phases=tuple(phases))

    return changed


def _noise(change: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
    """Change the noise of each step; steps count from 1."""

    def parts(made: Any) -> Any:
        steps = itertools.count(1)

        def noise(total: Any, std: float, source: Any) -> Any:
            return change(made.noise(total, std, source), next(steps))

        return replace(made, noise=noise)

    return parts


def _sampler(change: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
    """Change every batch, given its indices and the number of records."""

    class Sampler:
        def __init__(self, own: Any) -> None:
            self.records, self.inclusion, self._own = own.records, own.inclusion, own

        def draw(self, source: Any) -> Any:
            return change(self._own.draw(source), self.records)

    def parts(made: Any) -> Any:
        phases = tuple(replace(phase, sampler=Sampler(phase.sampler)) for phase in made.schedule.phases)
        return replace(made, schedule=replace(made.schedule, phases=phases))

    return parts


def _first(kept: list[Any], noise: Any, step: int) -> Any:
    kept.append(noise)
    return kept[0]


def nothing(relay: Relay, step: int, value: Any) -> list[tuple[int, Any]]:
    return []


def half(relay: Relay, step: int, value: Any) -> list[tuple[int, Any]]:
    return [(step, value)] if step <= relay.steps // 2 else []


def twice(relay: Relay, step: int, value: Any) -> list[tuple[int, Any]]:
    return [(0, value)] if step == 0 else [(2 * step - 1, value), (2 * step, value)]


def every_second(relay: Relay, step: int, value: Any) -> list[tuple[int, Any]]:
    return [(step, value)] if step % 2 == 0 else []


def renumbered(relay: Relay, step: int, value: Any) -> list[tuple[int, Any]]:
    return [(step // 2, value)] if step % 2 == 0 else []


def stale(relay: Relay, step: int, value: Any) -> list[tuple[int, Any]]:
    """Report every second state twice, except that the last one is correct."""
    if step % 2 == 0 or step == relay.steps or relay.kept is None:
        relay.kept = value.clone()
    return [(step, relay.kept)]


def constant(relay: Relay, step: int, value: Any) -> list[tuple[int, Any]]:
    relay.kept = value.clone() if relay.kept is None else relay.kept
    return [(step, relay.kept)]


def empty(relay: Relay, step: int, value: Any) -> list[tuple[int, Any]]:
    return [(step, value[:0])]


def _noisier(job: TrainingJob) -> None:
    with torch.no_grad():
        for parameter in job.model.parameters():
            parameter.add_(0.01 * torch.ones_like(parameter))


def _with_rate(phase: FrozenMap) -> FrozenMap:
    return FrozenMap({"scheme": "poisson", "rate": min(1.0, 2.0 * float(phase["sampling"]["rate"]))})


_LOGS = frozenset({"sampling-log", "noise-log", "norm-log"})
_ANY = _LOGS | {"iterates"}
_STATES, _DRAWN, _NOISE, _NORMS = (frozenset({c}) for c in ("iterates", "sampling-log", "noise-log", "norm-log"))
_SEEN_NOISE = frozenset({"undone", "noise-log"})
UNREPORTED = dict.fromkeys(EVENTS, nothing)

FAULTS: dict[str, Fault] = {
    "none": Fault(frozenset()),
    "steps-half": Fault(_ANY, job=_phases(steps=lambda p: int(p["steps"]) // 2)),
    "steps-triple": Fault(_ANY, job=_phases(steps=lambda p: 3 * int(p["steps"]))),
    "steps-one-more": Fault(_ANY, job=_phases(steps=lambda p: int(p["steps"]) + 1)),
    "steps-one-less": Fault(_ANY, job=_phases(steps=lambda p: int(p["steps"]) - 1)),
    "noise-none": Fault(_SEEN_NOISE, parts=_noise(lambda noise, step: 0.0 * noise)),
    "noise-hundredth": Fault(_SEEN_NOISE, parts=_noise(lambda noise, step: 0.01 * noise)),
    "noise-doubled": Fault(_NOISE, parts=_noise(lambda noise, step: 2.0 * noise)),
    "noise-reused": Fault(_SEEN_NOISE, parts=lambda made: _noise(partial(_first, []))(made)),
    "noise-hundredth-logged-whole": Fault(
        frozenset({"undone"}),
        reports={"noised": lambda relay, step, value: [(step, 100.0 * value)]},
        parts=_noise(lambda noise, step: 0.01 * noise),
    ),
    "noise-log-constant": Fault(_NOISE, reports={"noised": constant}),
    "half-steps-hundredth-noise": Fault(
        _ANY, job=_phases(steps=lambda p: int(p["steps"]) // 2), parts=_noise(lambda noise, step: 0.01 * noise)
    ),
    "states-none": Fault(_STATES, reports={"released": nothing}),
    "states-every-second": Fault(_STATES, reports={"released": every_second}),
    "states-every-second-renumbered": Fault(_STATES, reports={"released": renumbered}),
    "states-every-second-objections-swallowed": Fault(_STATES, reports={"released": every_second}, swallows=True),
    "states-half": Fault(_STATES, reports={"released": half}),
    "states-twice": Fault(_STATES, reports={"released": twice}),
    "states-stale": Fault(_STATES, reports={"released": stale}),
    "states-constant": Fault(_STATES, reports={"released": constant}),
    "last-state-not-the-model": Fault(_STATES, after=_noisier),
    "batches-none": Fault(_DRAWN, reports={"sampled": nothing}),
    "batches-half": Fault(_DRAWN, reports={"sampled": half}),
    "batches-twice": Fault(_DRAWN, reports={"sampled": twice}),
    "batches-empty": Fault(_DRAWN, reports={"sampled": empty}),
    "noise-log-none": Fault(_NOISE, reports={"noised": nothing}),
    "noise-log-half": Fault(_NOISE, reports={"noised": half}),
    "noise-log-twice": Fault(_NOISE, reports={"noised": twice}),
    "norms-none": Fault(_NORMS, reports={"clipped": nothing}),
    "norms-half": Fault(_NORMS, reports={"clipped": half}),
    "norms-twice": Fault(_NORMS, reports={"clipped": twice}),
    "logs-none": Fault(_LOGS, reports=dict.fromkeys(EVENTS[1:], nothing)),
    "nothing-shown": Fault(_ANY, reports=UNREPORTED),
    "rate-doubled": Fault(_DRAWN, job=_phases(sampling=_with_rate)),
    "records-half": Fault(_DRAWN, parts=_sampler(lambda drawn, records: drawn[drawn < records // 2])),
    "records-twice": Fault(_DRAWN, parts=_sampler(lambda drawn, records: torch.cat([drawn, drawn]))),
    # No test detects these in so short a run. The promised checks are still required.
    "canaries-ignored": Fault(
        frozenset(), parts=lambda made: replace(made, contributions=_without_canaries(made.contributions))
    ),
    "clip-doubled": Fault(frozenset(), job=_phases(clip_norm=lambda p: 2.0 * float(p["clip_norm"]))),
}

#: Too little noise at single steps, which sums over all steps do not reveal.
PER_STEP = {
    "first-step-silent": _noise(lambda noise, step: noise * float(step > 1)),
    "last-step-silent": _noise(lambda noise, step: noise * float(step % 8 != 0)),
    "noise-alternating": _noise(lambda noise, step: noise * (0.25 if step % 2 else 1.39)),
    "one-step-tenth": _noise(lambda noise, step: noise * (0.1 if step == 3 else 1.0)),
}
FAULTS |= {name: Fault(_SEEN_NOISE, parts=parts) for name, parts in PER_STEP.items()}

#: Faults of the second run alone, which reports of the other runs must not hide.
FAULTS |= {
    "second-run-unreported": Fault(_ANY, reports=UNREPORTED, run=2),
    "second-run-without-noise": Fault(_SEEN_NOISE, parts=_noise(lambda noise, step: 0.0 * noise), run=2),
    "second-run-without-noise-unreported": Fault(
        _ANY, reports=UNREPORTED, parts=_noise(lambda noise, step: 0.0 * noise), run=2
    ),
    "second-run-half": Fault(_ANY, job=_phases(steps=lambda p: int(p["steps"]) // 2), run=2),
}


def _without_canaries(own: Any) -> Any:
    """Omit the gradients of canaries from the sum, and report everything else unchanged."""
    return lambda state, indices, clip: own(state, indices[indices < len(own._x)], clip)
