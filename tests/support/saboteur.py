"""A backend that reports falsely or not at all: the native loop behind a relay.

``LIES`` names each; ``shown_by`` are the sources of which any one must give it away: a declared log (``iterates``,
``sampling-log``, ``noise-log``, ``norm-log``), or ``undone``: residuals of released states. Lies without a source are
beyond every test; the checks that the plan promises must be made all the same.
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

#: Of the relay, the step and the value: the steps and values that observers get in its place.
Telling = Callable[[Any, int, Any], Iterable[tuple[int, Any]]]

EVENTS = ("released", "sampled", "noised", "clipped")


class Relay(Observer):
    """Stands between the loop and its observers, and changes what they get.

    kept: a value of the saboteur's. swallows: whether objections of observers are not heard.
    """

    def __init__(self, job: TrainingJob, steps: int, told: Mapping[str, Telling], swallows: bool) -> None:
        self._job, self.steps, self.kept, self._told, self._swallows = job, steps, None, told, swallows

    def _tell(self, method: str, step: int, value: Any) -> None:
        for at, changed in self._told[method](self, step, value) if method in self._told else [(step, value)]:
            with contextlib.suppress(*([Exception] if self._swallows else [])):
                for observer in self._job.observers:
                    getattr(observer, method)(at, changed)

    def released(self, step: int, state: Any) -> None:
        self._tell("released", step, state)

    def sampled(self, step: int, indices: Any) -> None:
        self._tell("sampled", step, indices)

    def noised(self, step: int, noise: Any) -> None:
        self._tell("noised", step, noise)

    def clipped(self, step: int, norms: Any) -> None:
        self._tell("clipped", step, norms)


@dataclass(frozen=True)
class Lie:
    """What the relay tells, and how the job or the loop's parts differ from what is declared.

    run: in which of the runs that somebody looks on, counted from 1; None for all.
    """

    shown_by: frozenset[str]
    told: Mapping[str, Telling] = field(default_factory=dict)
    swallows: bool = False
    job: Callable[[TrainingJob], TrainingJob] = field(default=lambda job: job)
    parts: Callable[[Any], Any] = field(default=lambda parts: parts)
    after: Callable[[TrainingJob], None] = field(default=lambda job: None)
    run: int | None = None


def sabotage(lie: Lie, job: TrainingJob) -> None:
    """Train a job by the native loop, with a lie."""
    changed = lie.job(replace(job, resumable=None))
    steps = sum(int(phase["steps"]) for phase in job.phases)
    relay = Relay(job, steps, lie.told, lie.swallows)
    train_with(replace(changed, observers=(relay,)), lie.parts(parts_of(changed)))
    if changed.model is not job.model:
        flat_model.load(job.model, flat_model.flatten(changed.model))
    lie.after(job)


class Saboteur:
    """The lie that the spec's option ``lie`` names."""

    #: How many runs somebody has looked on since the count was set back.
    watched = 0

    def train(self, job: TrainingJob) -> None:
        Saboteur.watched += bool(job.observers)
        lie = LIES[str(job.options.get("lie", "none"))]
        told = lie.run is None or (bool(job.observers) and Saboteur.watched == lie.run)
        sabotage(lie if told else LIES["none"], job)


def _phases(**changes: Callable[[FrozenMap], Any]) -> Callable[[TrainingJob], TrainingJob]:
    def changed(job: TrainingJob) -> TrainingJob:
        phases = [FrozenMap({**p, **{key: change(p) for key, change in changes.items()}}) for p in job.phases]
        return replace(job, phases=tuple(phases))

    return changed


def _noise(change: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
    """The noise of each step, changed; steps count from 1."""

    def parts(made: Any) -> Any:
        steps = itertools.count(1)

        def noise(total: Any, deviation: float, source: Any) -> Any:
            return change(made.noise(total, deviation, source), next(steps))

        return replace(made, noise=noise)

    return parts


def _sampler(change: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
    """Every batch changed, knowing how many records there are."""

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
    """Every second state is the one before; the last is right."""
    if step % 2 == 0 or step == relay.steps or relay.kept is None:
        relay.kept = value.clone()
    return [(step, relay.kept)]


def constant(relay: Relay, step: int, value: Any) -> list[tuple[int, Any]]:
    relay.kept = value.clone() if relay.kept is None else relay.kept
    return [(step, relay.kept)]


def empty(relay: Relay, step: int, value: Any) -> list[tuple[int, Any]]:
    return [(step, value[:0])]


def hundredfold(relay: Relay, step: int, value: Any) -> list[tuple[int, Any]]:
    return [(step, 100.0 * value)]


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
UNTOLD = dict.fromkeys(EVENTS, nothing)

LIES: dict[str, Lie] = {
    "none": Lie(frozenset()),
    "steps-half": Lie(_ANY, job=_phases(steps=lambda p: int(p["steps"]) // 2)),
    "steps-triple": Lie(_ANY, job=_phases(steps=lambda p: 3 * int(p["steps"]))),
    "steps-one-more": Lie(_ANY, job=_phases(steps=lambda p: int(p["steps"]) + 1)),
    "steps-one-less": Lie(_ANY, job=_phases(steps=lambda p: int(p["steps"]) - 1)),
    "noise-none": Lie(_SEEN_NOISE, parts=_noise(lambda noise, step: 0.0 * noise)),
    "noise-hundredth": Lie(_SEEN_NOISE, parts=_noise(lambda noise, step: 0.01 * noise)),
    "noise-doubled": Lie(_NOISE, parts=_noise(lambda noise, step: 2.0 * noise)),
    "noise-reused": Lie(_SEEN_NOISE, parts=lambda made: _noise(partial(_first, []))(made)),
    "noise-hundredth-told-whole": Lie(
        frozenset({"undone"}), told={"noised": hundredfold}, parts=_noise(lambda noise, step: 0.01 * noise)
    ),
    "noise-told-constant": Lie(_NOISE, told={"noised": constant}),
    "half-steps-hundredth-noise": Lie(
        _ANY, job=_phases(steps=lambda p: int(p["steps"]) // 2), parts=_noise(lambda noise, step: 0.01 * noise)
    ),
    "states-none": Lie(_STATES, told={"released": nothing}),
    "states-every-second": Lie(_STATES, told={"released": every_second}),
    "states-every-second-renumbered": Lie(_STATES, told={"released": renumbered}),
    "states-every-second-objections-swallowed": Lie(_STATES, told={"released": every_second}, swallows=True),
    "states-half": Lie(_STATES, told={"released": half}),
    "states-twice": Lie(_STATES, told={"released": twice}),
    "states-stale": Lie(_STATES, told={"released": stale}),
    "states-constant": Lie(_STATES, told={"released": constant}),
    "last-state-not-the-model": Lie(_STATES, after=_noisier),
    "batches-none": Lie(_DRAWN, told={"sampled": nothing}),
    "batches-half": Lie(_DRAWN, told={"sampled": half}),
    "batches-twice": Lie(_DRAWN, told={"sampled": twice}),
    "batches-empty": Lie(_DRAWN, told={"sampled": empty}),
    "noise-log-none": Lie(_NOISE, told={"noised": nothing}),
    "noise-log-half": Lie(_NOISE, told={"noised": half}),
    "noise-log-twice": Lie(_NOISE, told={"noised": twice}),
    "norms-none": Lie(_NORMS, told={"clipped": nothing}),
    "norms-half": Lie(_NORMS, told={"clipped": half}),
    "norms-twice": Lie(_NORMS, told={"clipped": twice}),
    "logs-none": Lie(_LOGS, told=dict.fromkeys(EVENTS[1:], nothing)),
    "nothing-shown": Lie(_ANY, told=UNTOLD),
    "rate-doubled": Lie(_DRAWN, job=_phases(sampling=_with_rate)),
    "records-half": Lie(_DRAWN, parts=_sampler(lambda drawn, records: drawn[drawn < records // 2])),
    "records-twice": Lie(_DRAWN, parts=_sampler(lambda drawn, records: torch.cat([drawn, drawn]))),
    # Beyond tests of so short a run, and so none of them need give it away: what is promised must be made all the same.
    "canaries-ignored": Lie(
        frozenset(), parts=lambda made: replace(made, contributions=_without_canaries(made.contributions))
    ),
    "clip-doubled": Lie(frozenset(), job=_phases(clip_norm=lambda p: 2.0 * float(p["clip_norm"]))),
}

#: Noise that is missing at single steps, which sums over all steps do not show.
PER_STEP = {
    "first-step-silent": _noise(lambda noise, step: noise * float(step > 1)),
    "last-step-silent": _noise(lambda noise, step: noise * float(step % 8 != 0)),
    "noise-alternating": _noise(lambda noise, step: noise * (0.25 if step % 2 else 1.39)),
    "one-step-tenth": _noise(lambda noise, step: noise * (0.1 if step == 3 else 1.0)),
}
LIES |= {name: Lie(_SEEN_NOISE, parts=parts) for name, parts in PER_STEP.items()}

#: One run of several is another one: what the others tell must not speak for it.
LIES |= {
    "second-run-untold": Lie(_ANY, told=UNTOLD, run=2),
    "second-run-without-noise": Lie(_SEEN_NOISE, parts=_noise(lambda noise, step: 0.0 * noise), run=2),
    "second-run-without-noise-untold": Lie(_ANY, told=UNTOLD, parts=_noise(lambda noise, step: 0.0 * noise), run=2),
    "second-run-half": Lie(_ANY, job=_phases(steps=lambda p: int(p["steps"]) // 2), run=2),
}


def _without_canaries(own: Any) -> Any:
    """No canary's gradient reaches the sum; everything else is told as it was."""
    return lambda state, indices, clip: own(state, indices[indices < len(own._x)], clip)
