"""The checks of all runs together: released models, and reported steps, noise, repeated records and norms."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dpspec.sampling import scheme_of
from dpspec.stats.conformance import canary_contributions, noise_tests
from dpspec.stats.conformance.evidence import Runs, adaptive_steps
from dpspec.stats.conformance.measurement import (
    CLIP_TOLERANCE,
    Abstention,
    Measurement,
    Outcome,
    Row,
    exactly,
    of_several,
    the_worst,
)
from dpspec.stats.conformance.sampling import StepExtremes, each_step

#: Tolerance of sums of two updates in float32, relative to their norms.
_SUMS = 1e-3

#: Factor on the change of an update by another order of its records.
_AS_RANDOM = 10.0

#: Maximum rounding error of a tested step.
_BEARABLE = 1e-2

#: Names of the deviations of clipped norms that no norm above the clip norm shows.
MISCOUNTED, MISSING_NORMS, FURTHER_NORMS, OTHER_NORMS = "miscounted", "missing-norms", "further-norms", "other-norms"

_ROUNDING = Abstention("the rounding of the parameters hides what a step adds")
_DEPENDENT = Abstention("a batch depends on the epoch's other batches, so that residuals are not a martingale")

_released = partial(Row, observed="measured", rows=True)
_reported = partial(Row, observed="reported")


@partial(
    Row,
    assumption="steps",
    observed="measured",
    compares="released models",
    evidence="number of released models; models equal to their predecessor; whether the last is the trained one",
    null="exact",
    detects="any",
)
def released_models(runs: Runs) -> Outcome:
    # A run with logs but without released models has released none, if other runs have.
    counts = [run.steps for run in runs.runs if run.steps is not None or run.told is not None]
    states = runs.of(lambda run: run.states)
    if all(count is None for count in counts):
        return None
    count = _unusual(counts, runs.steps)
    still = sum(state.still for state in states) if not any(state.blind for state in states) else 0
    differing = sum(state.apart for state in states)
    test = "released models"
    if count == runs.steps and differing:
        test = "released models, the last is not the trained one"
    elif count == runs.steps and still:
        test = "released models, some equal their predecessor"
    right = count == runs.steps and not still and not differing
    return exactly(test, right, runs.steps, count if count != runs.steps else count - still - differing)


@partial(
    _reported,
    assumption="steps",
    compares="steps in the logs",
    evidence="numbers of batches, noise vectors and clipped norms",
    null="exact",
    detects="any",
)
def reported_steps(runs: Runs) -> Outcome:
    reported = runs.of(lambda run: run.told)
    fields = {"batches": "batches", "noise vectors": "noise", "clipped norms": "norms"}
    logs = {log: [getattr(steps, field) for steps in reported] for log, field in fields.items()}
    unusual = {log: _unusual(counts, runs.steps) for log, counts in logs.items() if {*counts} - {None}}
    if not unusual:
        return None
    log = next((log for log, count in unusual.items() if count != runs.steps), None)
    test = "steps in the logs" if log is None else f"steps in the logs, {log}"
    return exactly(test, log is None, runs.steps, runs.steps if log is None else unusual[log])


def _unusual(counts: Sequence[int | None], declared: int) -> int:
    """Return the smallest count that differs from the declared one, else the declared one. None counts as 0."""
    return next((count for count in sorted({count or 0 for count in counts}) if count != declared), declared)


@partial(
    _released,
    assumption="noise-scale",
    compares="relative to the declared scale, from released models",
    evidence="squared residuals in directions that no canary uses, over all steps",
    null="chi-square, lower tail",
    reason="everything else in a residual only adds to it",
    detects="less noise at all steps",
)
def released_noise(runs: Runs) -> Outcome:
    outside_noise = runs.of(lambda run: run.noise)
    if degrees := sum(run.degrees for run in outside_noise):
        return noise_tests.lower_tail(sum(run.statistic for run in outside_noise), degrees)
    return _ROUNDING if any(run.hidden for run in outside_noise) else None


@partial(
    _released,
    assumption="noise-scale",
    compares="at each step",
    evidence="the same at each step",
    null="chi-square, lower tail, Bonferroni over steps",
    detects="less noise at one step",
    limit_of="one-step",
)
def released_noise_of_each_step(runs: Runs) -> Outcome:
    outside_noise = runs.of(lambda run: run.noise)
    outcome = _noise_each([run.each for run in outside_noise if run.each is not None], both=False)
    return _ROUNDING if outcome is None and any(run.hidden for run in outside_noise) else outcome


def _noise_each(step_extremes: Sequence[StepExtremes], *, both: bool) -> Measurement | None:
    return the_worst(
        each_step(extremes, noise_tests.StepNoise(int(extremes.count or 1), both)) for extremes in step_extremes
    )


@partial(
    _released,
    assumption="per-layer-noise",
    compares="in each layer and each parameter",
    evidence="squared residuals of each layer, and of the quietest parameter, over all steps",
    null="chi-square, lower tail, Bonferroni over layers and parameters",
    detects="less noise in one layer and in one parameter, the larger limit",
)
def noise_of_parts(runs: Runs) -> Outcome:
    residuals = runs.of(lambda run: run.measured)
    everywhere = [(run.everywhere, run.steps_seen) for run in residuals if run.everywhere is not None]
    if not everywhere:
        return _ROUNDING if any(run.hidden for run in residuals) else None
    quiet = None
    if layers := [run.layers for run, _ in everywhere if run.layers]:
        sums = {name: [run_layers[name] for run_layers in layers] for name in layers[0]}
        totals = {name: (sum(s.total for s in layer), sum(s.degrees for s in layer)) for name, layer in sums.items()}
        name, quiet = noise_tests.quietest(totals)
        quiet = replace(quiet, details=name)
    quietest = [(run.coordinates, steps) for run, steps in everywhere]
    least = (noise_tests.least_coordinate(sums.least, steps, sums.count) for sums, steps in quietest)
    return of_several([quiet, the_worst(least)])


@partial(
    _released,
    assumption="update",
    compares="relative to rate * sum of clipped gradients",
    evidence="residuals along the expected update",
    null="Freedman",
    reason="a martingale of known conditional variance",
    detects="a longer or shorter mean update",
)
def update(runs: Runs) -> Outcome:
    directions = [run.directions for run in runs.of(lambda run: run.measured) if run.directions is not None]
    if not directions:
        return _without_directions(runs)
    return noise_tests.drift(
        _less(sum(run.drift.total for run in directions), sum(run.rounding for run in directions)),
        sum(run.variance for run in directions),
        sum(run.least for run in directions),
        sum(run.drift.unit for run in directions),
        test="residuals along the expected update",
        declared=1.0,
    )


@partial(
    _released,
    assumption="independent-noise",
    compares="at every lag",
    evidence="residuals along earlier residuals, at the worst lag",
    null="Freedman, Bonferroni over lags",
    detects="a correlation of all steps at one lag",
)
def released_noise_at_lags(runs: Runs) -> Outcome:
    residuals = runs.of(lambda run: run.measured)
    several = [(run.directions, run.steps) for run in residuals if run.directions and run.directions.lag.lag]
    if not several:
        hides_steps = any(run.hidden + run.steps > 1 for run in residuals if run.hidden)
        return _without_directions(runs) if _depend(runs) or hides_steps else None
    measured = []
    for run, steps in several:
        sums = _less(run.lag.total, run.rounding), run.variance, run.least, run.lag.unit
        test, tried = "residuals of steps at the worst lag", max(1, noise_tests.tested_lags(steps))
        measurement = noise_tests.drift(*sums, test=test, tried=tried)
        possible = (measurement.detectable or 0.0) <= 1.0  # no correlation is above 1
        measured.append(measurement if possible else replace(measurement, detectable=None))
    return the_worst(measured)


def _depend(runs: Runs) -> bool:
    noisy = [phase for phase in runs.phases if phase.get("noise_multiplier") != 0.0]
    return bool(noisy) and not any(scheme_of(phase).directed for phase in noisy)


def _without_directions(runs: Runs) -> Outcome:
    residuals = runs.of(lambda run: run.measured)
    if any(run.hidden for run in residuals):
        return _ROUNDING
    return _DEPENDENT if residuals and _depend(runs) else None


def _less(total: float, rounding: float) -> float:
    return float(np.sign(total)) * max(0.0, abs(total) - rounding)


@partial(
    _released,
    assumption="independent-noise",
    compares="between any two layers",
    evidence="products of the residuals of the eight largest layers",
    null="Ville, Bonferroni over pairs of layers",
    detects="a correlation of two layers",
)
def noise_of_two_layers(runs: Runs) -> Outcome:
    residuals = runs.of(lambda run: run.measured)
    shared = [run.shared for run in residuals if run.shared is not None]
    if not shared and any(run.hidden for run in residuals) and all(run.everywhere is None for run in residuals):
        return _ROUNDING
    return the_worst(layer_pair.test() for layer_pair in shared)


@partial(
    _released,
    assumption="sensitivity",
    compares="of an inserted canary, relative to rate * clip norm",
    evidence="projections on the directions of inserted and of absent canary groups",
    null="the larger of Welch's t over groups and Student's t over steps",
    detects="a larger or smaller contribution",
)
def contribution(runs: Runs) -> Outcome:
    return canary_contributions.test(runs.of(lambda run: run.signal))


@partial(
    _reported,
    assumption="noise-scale",
    compares="relative to the declared scale",
    evidence="squared noise, over all steps",
    null="chi-square, two-sided",
    detects="more or less noise at all steps",
)
def reported_noise(runs: Runs) -> Outcome:
    logs = runs.of(lambda run: run.noise_log)
    total, degrees = sum(log.statistic for log in logs), sum(log.degrees for log in logs)
    return noise_tests.two_sided(total, degrees) if logs else None


@partial(
    _reported,
    assumption="noise-scale",
    compares="at each step",
    evidence="squared noise at each step",
    null="chi-square, two-sided, Bonferroni over steps",
    detects="more or less noise at one step",
    limit_of="one-step",
)
def reported_noise_of_each_step(runs: Runs) -> Outcome:
    logs = runs.of(lambda run: run.noise_log)
    return _noise_each([log.each for log in logs if log.each is not None], both=True)


@partial(
    _reported,
    assumption="noise-scale",
    compares="of the counts of unclipped records",
    evidence="squared noise of the counts of adaptive clipping, over all steps",
    null="chi-square, two-sided",
    detects="more or less noise of all counts",
)
def noise_of_counts(runs: Runs) -> Outcome:
    counted = [(log.statistic, log.of_steps.steps) for log in runs.of(lambda run: run.count_log) if log.of_steps]
    return noise_tests.two_sided(sum(s for s, _ in counted), sum(n for _, n in counted)) if counted else None


@partial(
    _reported,
    assumption="noise-scale",
    compares="of the count of unclipped records at each step",
    evidence="squared noise of each count of adaptive clipping",
    null="chi-square, two-sided, Bonferroni over steps",
    detects="a count without noise",
    limit_of="one-step",
)
def noise_of_each_count(runs: Runs) -> Outcome:
    logs = runs.of(lambda run: run.count_log)
    outcome = _noise_each([log.of_steps for log in logs if log.of_steps is not None], both=True)
    return None if outcome is None else replace(outcome, detectable=None)  # one value shows no scale


def _repeated_noise(runs: Runs, *, second: bool) -> Outcome:
    """Test for repeated noise, if there is a second run exactly if ``second``: a plan promises one of both rows."""
    logs = runs.of(lambda run: run.noise_log)
    if any(log.twin is not None for log in logs) != second:
        return None

    def pair(product: float, width: int, tried: int, subject: str) -> Measurement:
        return noise_tests.correlation(product, width, 2 * width, max(1, tried), f"largest correlation of {subject}")

    several, lags = [log for log in logs if log.lag.lag], []
    for log in several:
        pair_count, tried = (log.steps - log.lag.lag) * log.width, noise_tests.tested_lags(log.steps)
        test = f"correlation of steps at a lag, {log.lag.lag}"
        lags.append(noise_tests.correlation(log.lag.products, pair_count, log.steps * log.width, tried, test))
    pairs = [pair(log.pair, log.width, log.steps * (log.steps - 1) // 2, "two steps") for log in several]
    twins = [pair(log.twin.largest, log.width, log.steps**2, "two runs") for log in logs if log.twin is not None]
    return of_several([the_worst(lags), the_worst(pairs), the_worst(twins)])


_repeated = partial(
    _reported,
    assumption="independent-noise",
    null="normal or Chernoff, Bonferroni over lags and pairs",
    detects="a correlation of all steps at one lag, and of two steps, the larger limit",
)


@partial(
    _repeated,
    compares="at every lag, of every two steps, and of two runs",
    evidence="products of the noise of different steps, and with the noise of a run with another seed",
)
def repeated_noise_of_two_runs(runs: Runs) -> Outcome:
    return _repeated_noise(runs, second=True)


@partial(
    _repeated,
    compares="at every lag and of every two steps",
    evidence="products of the noise of different steps, without a second run",
)
def repeated_noise(runs: Runs) -> Outcome:
    return _repeated_noise(runs, second=False)


@partial(
    _reported,
    assumption="sampling",
    compares="records drawn twice",
    evidence="records drawn twice into one batch",
    null="exact",
    detects="any",
)
def repeated_records(runs: Runs) -> Outcome:
    logs = runs.of(lambda run: run.sampling_log)
    repeated = sum(log.repeats for log in logs)
    return exactly("records drawn twice into one batch", repeated == 0, 0, repeated, None) if logs else None


@partial(
    _reported,
    assumption="clipping",
    compares="clipped norms",
    evidence="largest clipped norm; numbers of norms and of drawn records at each step; counts of adaptive clipping",
    null="exact",
    detects="a longer norm, a record without a norm, or another count of unclipped records",
    rows=True,
)
def clipped_norms(runs: Runs) -> Outcome:
    logs = runs.of(lambda run: run.norm_log)
    if not logs:
        return None
    missing = next((log.missing for log in logs if log.missing), 0)
    astray = sum(log.astray or 0 for log in logs)
    largest = max(log.largest for log in logs)
    clipped = largest <= 1.0 + CLIP_TOLERANCE
    miscounted = sum(log.miscounted or 0 for log in logs)
    if clipped and not missing and miscounted:
        return exactly("counts that contradict the clipped norms", False, 0, miscounted, name=MISCOUNTED)
    if clipped and missing > 0:
        return exactly("drawn records without a clipped norm", False, 0, missing, name=MISSING_NORMS)
    if clipped and missing:
        return exactly("clipped norms in excess of the drawn records", False, 0, -missing, name=FURTHER_NORMS)
    if clipped and astray:
        return exactly("steps with more or fewer clipped norms than drawn records", False, 0, astray, name=OTHER_NORMS)
    return Measurement("largest clipped norm", 1.0, largest, 1.0 if clipped else 0.0, CLIP_TOLERANCE)


@partial(
    _reported,
    assumption="clipping",
    compares="clip norms that follow from the noisy counts",
    evidence="clip norms and released counts of adaptive clipping, and the rule of the spec",
    null="exact",
    detects="a clip norm by another rule, or a step without a count",
)
def clip_norms_by_counts(runs: Runs) -> Outcome:
    logs = runs.of(lambda run: run.count_log)
    if not logs:
        return None
    declared = adaptive_steps(runs.phases)
    counts = _unusual([log.counts for log in logs], declared)
    if counts != declared:
        return exactly("noisy counts", False, declared, counts)
    unruled = sum(log.unruled for log in logs)
    return exactly("clip norms by another rule", unruled == 0, 0, unruled)


@partial(
    _released,
    assumption="data-independent-hyperparameters",
    compares="a record adds the same with all other records (divisor, clip norm, preparation)",
    evidence="updates without noise of two datasets and of both combined, by the first trial",
    null="exact",
    detects="a contribution that depends on other records (divisor, clip norm, preparation)",
)
def additive_update(runs: Runs) -> Outcome:
    outcomes: list[Outcome] = []
    for step in runs.of(lambda run: run.replayed):
        tolerance = _SUMS + step.rounding + _AS_RANDOM * step.random
        if step.random > _SUMS + 2.0 * step.rounding:
            outcomes.append(Abstention("a step without noise is not always the same"))
        elif step.rounding > _BEARABLE:
            outcomes.append(_ROUNDING)
        else:
            test = "one step on two datasets and one on both"
            outcomes.append(exactly(test, step.apart <= tolerance, 0.0, step.apart, tolerance))
    measured = [outcome for outcome in outcomes if isinstance(outcome, Measurement)]
    return min(measured, key=lambda outcome: outcome.p_value) if measured else next(iter(outcomes), None)
