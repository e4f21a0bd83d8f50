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
from dpspec.stats.conformance import batch_sampling, canary_contributions, noise_checks, step_tests
from dpspec.stats.conformance.evidence.measured import ReplayedStep, States
from dpspec.stats.conformance.evidence.reported import BatchSums, NormSums, SamplingSums
from dpspec.stats.conformance.evidence.run import RunEvidence, read_runs
from dpspec.stats.conformance.evidence.run import arranged as arranged  # plugins import it from here
from dpspec.stats.conformance.measurement import Measurement, abstaining, check, exact, worst
from dpspec.stats.truncated_binomial import TruncatedSize


def _sampling_log(phase: Phase, number: int, logs: Sequence[SamplingSums]) -> Iterator[Check]:
    """The batches of one phase: rate, sizes, inclusions per record, and independence across steps."""
    # A run that ended early is told of by its steps.
    drawn = [(log.records, log.batches[number]) for log in logs if log.batches[number].steps]
    if not drawn:
        return
    where = f"phase {number + 1}"
    match phase.sampling.scheme:
        case "poisson":
            yield from _poisson(drawn, phase.rate(), where)
        case "truncated-poisson":
            yield from _truncated(drawn, phase.rate(), int(phase["sampling"]["max_batch"]), where)
        case "fixed" | "full":
            yield from _exact_sizes(drawn, phase.sampling.batch_size, where)
        case scheme:
            yield abstaining("sampling", "batch sizes", "reported", where, f"no test is made of {scheme} batches")


def _poisson(drawn: Sequence[tuple[int, BatchSums]], rate: float, where: str) -> Iterator[Check]:
    chances = sum(records * batch.steps for records, batch in drawn)
    included = min(chances, sum(batch.total for _, batch in drawn))  # more only where records are drawn twice
    yield check("sampling", batch_sampling.inclusions(included, chances, rate), "reported", f"rate, {where}")
    variances = [
        batch_sampling.batch_variance(batch.steps, batch.total, batch.squares, records, rate)
        for records, batch in drawn
    ]
    yield worst("sampling", variances, "reported", f"variance of the batch size, {where}")
    sizes = [
        (batch.sizes, batch_sampling.BatchSize(records, rate)) for records, batch in drawn if batch.sizes is not None
    ]
    if sizes:
        single = [step_tests.single(sums, law) for sums, law in sizes]
        yield worst("sampling", single, "reported", f"rate at each step, {where}")
    patterns = [step_tests.patterns(sums, law) for sums, law in sizes if sums.stretches is not None]
    if patterns:
        yield worst("sampling", patterns, "reported", f"rate in stretches and patterns of steps, {where}")
    spreads = [
        batch_sampling.record_spread(records, batch.total, batch.spread, batch.steps, rate)
        for records, batch in drawn
        if batch.spread is not None
    ]
    if spreads:
        yield worst("sampling", spreads, "reported", f"inclusions per record, {where}")
    if 0.0 < rate < 1.0:
        yield _most(drawn, [rate] * len(drawn), where)
    yield from _overlaps([batch for _, batch in drawn], [rate] * len(drawn), where)


def _truncated(drawn: Sequence[tuple[int, BatchSums]], rate: float, cap: int, where: str) -> Iterator[Check]:
    """Poisson batches with a cap: no batch is larger, and sizes have the law that the cap leaves of a binomial one."""
    seen = [int(batch.sizes.most.value) for _, batch in drawn if batch.sizes is not None]
    if seen:
        largest = max(seen)
        yield exact("sampling", "largest batch", "reported", largest <= cap, cap, largest, f"cap, {where}", None)
    if not 0.0 < rate < 1.0:
        yield abstaining("sampling", "batch sizes", "reported", where, "a truncated batch of all records is no sample")
        return
    laws = [(batch, TruncatedSize(records, rate, cap)) for records, batch in drawn]
    means = [batch_sampling.mean_size(batch.steps, batch.total, law) for batch, law in laws]
    yield worst("sampling", means, "reported", f"mean batch size, {where}")
    spreads = [batch_sampling.size_variance(batch.steps, batch.total, batch.squares, law) for batch, law in laws]
    yield worst("sampling", spreads, "reported", f"variance of the batch size, {where}")
    sizes = [(batch.sizes, law) for batch, law in laws if batch.sizes is not None]
    if sizes:
        yield worst("sampling", [step_tests.single(*one) for one in sizes], "reported", f"size at each step, {where}")
    patterns = [step_tests.patterns(sums, law) for sums, law in sizes if sums.stretches is not None]
    if patterns:
        yield worst("sampling", patterns, "reported", f"size in stretches and patterns of steps, {where}")
    yield _excess(drawn, [rate] * len(drawn), where)
    yield _most(drawn, [rate] * len(drawn), where)
    overlaps = [
        batch_sampling.overlap(one.lag, one.common, one.chances, rate, fewer=False)
        for _, batch in drawn
        for one in batch.overlaps
        if one.chances
    ]
    several = any(batch.steps > 1 for _, batch in drawn)
    yield from _worst_overlap(overlaps, f"independence across steps, {where}", several)


def _exact_sizes(drawn: Sequence[tuple[int, BatchSums]], batch_size: int | None, where: str) -> Iterator[Check]:
    """Batches of a declared size, or of all records."""
    sizes = [records if batch_size is None else batch_size for records, _ in drawn]
    right = all(
        batch.total == size * batch.steps and batch.squares == size * size * batch.steps
        for (_, batch), size in zip(drawn, sizes, strict=True)
    )
    first = drawn[0][1]
    realised = first.total / first.steps
    yield exact("sampling", "batch sizes", "reported", right, sizes[0], realised, f"batch size, {where}")
    if batch_size is not None:
        rates = [batch_size / records for records, _ in drawn]
        if all(0.0 < rate < 1.0 for rate in rates):
            yield _excess(drawn, rates, where)
            yield _most(drawn, rates, where)
        yield from _overlaps([batch for _, batch in drawn], rates, where)


#: Why a run does not tell how often its records were drawn.
_UNTOLD = "no trial tells of it: it was cut short, or is of an earlier version"


def _excess(drawn: Sequence[tuple[int, BatchSums]], rates: Sequence[float], where: str) -> Check:
    """Whether records are drawn more often than at their rates."""
    note = f"inclusions per record, {where}"
    counts = [
        batch_sampling.record_excess(records, batch.above, batch.steps, rate)
        for (records, batch), rate in zip(drawn, rates, strict=True)
        if batch.above is not None
    ]
    if not counts:
        return abstaining("sampling", "excess of inclusions per record", "reported", note, _UNTOLD)
    return worst("sampling", counts, "reported", note)


def _most(drawn: Sequence[tuple[int, BatchSums]], rates: Sequence[float], where: str) -> Check:
    """Whether one record is."""
    note = f"the record drawn most often, {where}"
    counts = [
        batch_sampling.most_inclusions(records, batch.most, batch.steps, rate)
        for (records, batch), rate in zip(drawn, rates, strict=True)
        if batch.most is not None
    ]
    if not counts:
        return abstaining("sampling", "inclusions of the record drawn most often", "reported", note, _UNTOLD)
    return worst("sampling", counts, "reported", note)


def _overlaps(batches: Sequence[BatchSums], rates: Sequence[float], where: str) -> Iterator[Check]:
    random = [(batch, rate) for batch, rate in zip(batches, rates, strict=True) if 0.0 < rate < 1.0]
    several = any(batch.steps > 1 for batch, _ in random)
    steps = [
        batch_sampling.overlap(one.lag, one.common, one.chances, rate)
        for batch, rate in random
        for one in batch.overlaps
        if one.chances
    ]
    yield from _worst_overlap(steps, f"independence across steps, {where}", several)
    single = [
        batch_sampling.overlap_at_a_step(one.lag, one.common, one.chances, rate, one.tried)
        for batch, rate in random
        for one in batch.again
        if one.chances
    ]
    yield from _worst_overlap(single, f"independence at each step, {where}", several)


def _worst_overlap(measurements: Sequence[Measurement], note: str, drawn: bool) -> Iterator[Check]:
    if measurements:
        yield worst("sampling", measurements, "reported", note)
    elif drawn:
        test, reason = "records in common with earlier batches", "hardly any record was drawn"
        yield abstaining("sampling", test, "reported", note, reason)


def _repeats(logs: Sequence[SamplingSums]) -> Iterator[Check]:
    """No record stands in a batch twice."""
    if logs:
        repeated = sum(log.repeats for log in logs)
        test = "records drawn twice into one batch"
        yield exact("sampling", test, "reported", repeated == 0, 0, repeated, detectable=None)


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
    for found in (
        noise_checks.noise_scale([run.noise for run in runs if run.noise is not None]),
        noise_checks.residuals([run.measured for run in runs if run.measured is not None]),
        canary_contributions.checks([run.signal for run in runs if run.signal is not None]),
    ):
        yield from (replace(check, privacy=privacy) for check in found)
    yield from noise_checks.noise_log([run.noise_log for run in runs if run.noise_log is not None])
    sampled = [run.sampling_log for run in runs if run.sampling_log is not None]
    for number, phase in enumerate(phases):
        yield from _sampling_log(phase, number, sampled)
    yield from _repeats(sampled)
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
