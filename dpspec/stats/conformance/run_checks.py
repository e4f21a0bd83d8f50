"""Every test of an executed DP-SGD run, from the evidence of its trials: one ``Check`` per property that is declared.

``dpspec.training.measure.run_evidence`` writes the evidence. What was measured on released models comes first, what the
backend said of itself after. Where several trials tell the same, the most surprising one counts, for its number
(Bonferroni).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from dpspec.contract import Check, FrozenMap, Json, Phase
from dpspec.contract.findings import Privacy
from dpspec.stats.conformance import canary_contributions, noise_checks
from dpspec.stats.conformance.evidence.measured import ReplayedStep, States
from dpspec.stats.conformance.evidence.reported import NormSums
from dpspec.stats.conformance.evidence.run import RunEvidence, read_runs
from dpspec.stats.conformance.evidence.run import arranged as arranged  # plugins import it from here
from dpspec.stats.conformance.measurement import abstaining, exact
from dpspec.stats.conformance.sampling import checks as sampling_checks

#: Float32 gradients clip to the norm within this relative error.
CLIP_TOLERANCE = 1e-4

#: What a backend tells of every step, and how its count is called.
TOLD = {
    "batches": "count of batches told of",
    "noise": "count of noise vectors told of",
    "norms": "count of batches with norms told of",
}

#: What is asked of released states.
MANY, NEW, LAST = "one for each step", "each a new state", "the last is the trained model"

RELEASED = (MANY, NEW, LAST)


def joined(evidence: Mapping[str, Json], ran: Mapping[str, Json]) -> dict[str, Json]:
    """A trial's own evidence together with that of the run, both of which have an ``internal`` part."""
    return {**evidence, **ran, "internal": {**evidence.get("internal", {}), **ran.get("internal", {})}}


def checks(
    phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap], *, privacy: Privacy = "data-dependent"
) -> Iterator[Check]:
    """All checks of the trials' evidence against ``phases``; none for what is absent.

    privacy: of the checks of what speaks of the rows; of all others it is ``public``. Raises ``ValueError`` that names
    the trial and the place, before the first check, where evidence is not that of a run of these phases.
    """
    typed = [Phase.of(phase) for phase in phases]
    return of_runs(typed, read_runs(typed, evidence), privacy=privacy)


def counted(phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap]) -> Iterator[Check]:
    """The checks of what was released, and of how often a backend told of a step; raises as :func:`checks` does."""
    typed = [Phase.of(phase) for phase in phases]
    return _counted(typed, read_runs(typed, evidence))


def of_runs(
    phases: Sequence[Phase], runs: Sequence[RunEvidence], *, privacy: Privacy = "data-dependent"
) -> Iterator[Check]:
    """All checks of runs whose evidence was read; as :func:`checks`."""
    try:
        yield from _all(phases, runs, privacy)
    except ArithmeticError as error:  # numbers that are each in range, and together beyond floating point
        raise ValueError(f"evidence: its numbers cannot be computed with ({error})") from error


def _all(phases: Sequence[Phase], runs: Sequence[RunEvidence], privacy: Privacy) -> Iterator[Check]:
    yield from _counted(phases, runs)
    noisy = [phase for phase in phases if phase.get("noise_multiplier") != 0.0]
    dependent = bool(noisy) and all("sampling" in phase and phase.sampling.is_shuffled for phase in noisy)
    for found in (
        noise_checks.noise_scale([run.noise for run in runs if run.noise is not None]),
        noise_checks.residuals([run.measured for run in runs if run.measured is not None], dependent=dependent),
        canary_contributions.checks([run.signal for run in runs if run.signal is not None]),
    ):
        yield from (replace(check, privacy=privacy) for check in found)
    yield from noise_checks.noise_log([run.noise_log for run in runs if run.noise_log is not None])
    sampled = [run.sampling_log for run in runs if run.sampling_log is not None]
    for number, phase in enumerate(phases):
        yield from sampling_checks.of_phase(phase, number, sampled)
    yield from sampling_checks.repeats(sampled)
    norms = _norm_log([run.norm_log for run in runs if run.norm_log is not None])
    replayed = _replayed([run.replayed for run in runs if run.replayed is not None])
    yield from (replace(check, privacy=privacy) for check in chain(norms, replayed))


#: Updates that miss each other by no more than this part of their lengths add up: sums in float32 are no closer.
_ADD_UP = 1e-3

#: How much further apart they may be than an update is from itself, with its records in another order.
_AS_RANDOM = 10.0

#: Where rounding can have changed more than this part of them nothing is seen.
_BEARABLE = 1e-2


def _replayed(steps: Sequence[ReplayedStep]) -> Iterator[Check]:
    """Whether the updates of two data sets add up to that of both. No plan promises it: earlier trials lack it."""
    test = "one step on two data sets against that on both"
    note = "what a record adds depends on no other (divisor, clip norm, preparation)"
    for step in steps:
        if step.random > _ADD_UP + 2.0 * step.rounding:
            yield abstaining("public-constants", test, "measured", note, "a step without noise is not always the same")
        elif step.rounding > _BEARABLE:
            reason = "the rounding of the parameters hides what a step adds"
            yield abstaining("public-constants", test, "measured", note, reason)
        else:
            room = _ADD_UP + step.rounding + _AS_RANDOM * step.random
            yield exact("public-constants", test, "measured", step.apart <= room, 0.0, step.apart, note, room)


def _counted(phases: Sequence[Phase], runs: Sequence[RunEvidence]) -> Iterator[Check]:
    yield from _steps(phases, runs)
    yield from _states([run.states for run in runs if run.states is not None])


def _steps(phases: Sequence[Phase], runs: Sequence[RunEvidence]) -> Iterator[Check]:
    declared = sum(phase.steps for phase in phases)
    # Of a run that was logged, and released nothing where others did, no state was released.
    logged = [run.steps for run in runs if run.steps is not None or run.told is not None]
    if (count := _worst_count(logged, declared)) is not None:
        yield exact("steps", "count of released states", "measured", count == declared, declared, count, MANY)
    told = [run.told for run in runs if run.told is not None]
    for what, test in TOLD.items():
        if (count := _worst_count([getattr(one, what) for one in told], declared)) is not None:
            yield exact("steps", test, "reported", count == declared, declared, count, what)


def _worst_count(told: Sequence[int | None], declared: int) -> int | None:
    """The least count that is not the declared one, or that one; None where no run tells of any.

    Of what one run tells, a silent one has none.
    """
    if all(count is None for count in told):
        return None
    return next((count for count in sorted({count or 0 for count in told}) if count != declared), declared)


def _states(released: Sequence[States]) -> Iterator[Check]:
    """Whether every released state was a new one, and the last one what was trained."""
    if not released:
        return
    still, apart = sum(one.still for one in released), sum(one.apart for one in released)
    if any(one.blind for one in released):
        yield abstaining("steps", "released states", "measured", NEW, "rounding may keep a model as it is")
    else:
        test = "released states that are the one before"
        yield exact("steps", test, "measured", still == 0, 0, still, NEW, detectable=None)
    test = "runs whose last released state is not the trained model"
    yield exact("steps", test, "measured", apart == 0, 0, apart, LAST, detectable=None)


def _norm_log(logs: Sequence[NormSums]) -> Iterator[Check]:
    if not logs:
        return
    largest = max(log.largest for log in logs)
    yield Check(
        assumption="clipping",
        test="largest clipped norm",
        p_value=1.0 if largest <= 1.0 + CLIP_TOLERANCE else 0.0,
        observed="reported",
        declared=1.0,
        measured=largest,
        detectable=CLIP_TOLERANCE,
        note="relative to the clip norm",
    )
    missing = [log.missing for log in logs if log.missing is not None]
    if missing:
        wrong = next((count for count in missing if count), 0)
        test = "drawn records without a clipped norm of their own"
        yield exact("clipping", test, "reported", wrong == 0, 0, wrong, detectable=None)
    astray = [log.astray for log in logs if log.astray is not None]
    if astray:
        test = "steps with more or fewer clipped norms than drawn records"
        yield exact("clipping", test, "reported", sum(astray) == 0, 0, sum(astray), detectable=None)
