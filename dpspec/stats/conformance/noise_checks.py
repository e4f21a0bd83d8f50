"""Checks of the noise and of the mean update: measured on released models, and reported by the backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from dpspec.contract import Check
from dpspec.stats.conformance import freshness, martingale, noise_size, step_tests
from dpspec.stats.conformance.evidence.measured import (
    Directions,
    DriftAtStep,
    Everywhere,
    FirstResidual,
    OutsideNoise,
    PairSum,
    ResidualSums,
    SharedLayers,
)
from dpspec.stats.conformance.evidence.reported import NoiseSums
from dpspec.stats.conformance.evidence.steps import LEAST_STEPS, StepSums
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement, Observed, abstaining, check, worst
from dpspec.stats.independence import layer_noise

#: What tests speak of, and why one says nothing.
_OUTSIDE = "relative to the declared scale, from what is released"
_EACH = "at each step"
_PATTERNS = "in stretches and patterns of steps"
_LAYERS, _LAYERS_EACH, _PARAMETERS = "in each layer", "in each layer at each step", "in each parameter"
_UPDATE, _UPDATE_EACH = "relative to rate * sum of clipped gradients", "at each step"
_LAGS, _TWO, _TRIALS = "at every lag", "every two steps", "first steps of different trials"
_BETWEEN = "between any two layers"
_ROUNDING = "the rounding of the parameters hides what a step adds"
_DEPENDENT = "what a shuffled batch holds follows from the epoch's others, so that residuals are no martingale"

#: Rows that are compared with all earlier ones at once.
_BLOCK = 256


def noise_scale(runs: Sequence[OutsideNoise]) -> Iterator[Check]:
    """The size of the noise in directions that no canary uses: over all steps, at each, and in patterns of them."""
    degrees, hidden = sum(run.degrees for run in runs), [run.hidden for run in runs if run.hidden]
    if degrees:
        outside = noise_size.lower_tail(sum(run.statistic for run in runs), 1.0, degrees)
        yield check("noise-scale", outside, "measured", _OUTSIDE)
    elif hidden:
        yield abstaining("noise-scale", "chi-square", "measured", _OUTSIDE, _ROUNDING)
    longest = max((run.hidden + (run.each.steps if run.each else 0) for run in runs if run.hidden), default=0)
    yield from _by_step([run.each for run in runs if run.each is not None], longest, both=False)


def _by_step(each: Sequence[StepSums], longest: int = 0, *, both: bool) -> Iterator[Check]:
    """Single steps and patterns; longest: how many steps the longest run has of which rounding hides some."""
    observed: Observed = "reported" if both else "measured"
    tested = [(sums, noise_size.StepNoise(int(sums.count or 1), both)) for sums in each]
    if tested:
        single = [step_tests.single(sums, law) for sums, law in tested]
        yield worst("noise-scale", single, observed, _EACH)
    elif longest:
        yield abstaining("noise-scale", "chi-square at each step", observed, _EACH, _ROUNDING)
    patterns = [step_tests.patterns(sums, law) for sums, law in tested if sums.stretches is not None]
    if patterns:
        yield worst("noise-scale", patterns, observed, _PATTERNS)
    elif longest >= LEAST_STEPS:
        test = "chi-square of stretches and patterns of steps"
        yield abstaining("noise-scale", test, observed, _PATTERNS, _ROUNDING)


def residuals(runs: Sequence[ResidualSums], *, dependent: bool = False) -> Iterator[Check]:
    """What is left of the updates: noise everywhere, no drift, nothing twice.

    dependent: whether no step is tested for drift and for what comes twice, since batches depend on each other.
    """
    if not runs:
        return
    hidden = any(run.hidden for run in runs)
    why = _ROUNDING if hidden else _DEPENDENT
    yield from _everywhere([(run.everywhere, run.steps_seen) for run in runs if run.everywhere is not None], hidden)
    tested = [(run.directions, run.steps) for run in runs if run.directions is not None]
    freedman = "residuals along the expected update"
    if tested:
        yield check("update", _drift([directions for directions, _ in tested]), "measured", _UPDATE)
        single = [_at_a_step(directions.step, steps) for directions, steps in tested if directions.step is not None]
        if single:
            yield worst("update", single, "measured", _UPDATE_EACH)
    elif hidden or dependent:
        yield abstaining("update", freedman, "measured", _UPDATE, why)
        yield abstaining("update", f"{freedman} at each step", "measured", _UPDATE_EACH, why)
    several = [(directions, steps) for directions, steps in tested if directions.lag.lag]
    if several:
        lags = [_worst_lag(directions, steps) for directions, steps in several]
        yield worst("independent-noise", lags, "measured", _LAGS)
        pairs = [_worst_pair(directions.pair, steps) for directions, steps in several]
        yield worst("independent-noise", pairs, "measured", _TWO)
    elif dependent or any(run.hidden + run.steps > 1 for run in runs if run.hidden):
        test = "residuals of steps at the worst lag"
        yield abstaining("independent-noise", test, "measured", _LAGS, why)
        yield abstaining("independent-noise", "residuals of two steps", "measured", _TWO, why)
    if len(tested) > 1:
        firsts = [directions.first for directions, _ in tested]
        alike = [_two_runs(firsts[i], firsts[j]) for i, j in _suspects([first.row for first in firsts], unit=True)]
        among = len(firsts) * (len(firsts) - 1) // 2
        yield worst("independent-noise", alike, "measured", _TRIALS, among)
    elif len(runs) > 1 and (hidden or dependent):
        yield abstaining("independent-noise", "residuals of two runs", "measured", _TRIALS, why)
    shared = [_two_layers(run.shared) for run in runs if run.shared is not None]
    if shared:
        yield worst("independent-noise", shared, "measured", _BETWEEN)
    elif hidden and all(run.everywhere is None for run in runs):
        yield abstaining("independent-noise", layer_noise.TEST, "measured", _BETWEEN, _ROUNDING)


def _everywhere(runs: Sequence[tuple[Everywhere, int]], hidden: bool) -> Iterator[Check]:
    """Noise in each layer and in each parameter, of runs that were seen for so many steps."""
    if not runs:
        if hidden:
            for note in (_LAYERS, _LAYERS_EACH, _PARAMETERS):
                yield abstaining("per-layer-noise", "chi-square", "measured", note, _ROUNDING)
        return
    layers = [run.layers for run, _ in runs if run.layers]
    if layers:
        parts = {
            name: (sum(one[name].total for one in layers), sum(one[name].degrees for one in layers))
            for name in layers[0]
        }
        name, quiet = noise_size.quietest(parts)
        yield check("per-layer-noise", quiet, "measured", f"{_LAYERS}, least in {name}")
    single = [
        noise_size.quietest_step({name: (part.total, part.degrees) for name, part in run.quietest.items()}, steps)
        for run, steps in runs
        if run.quietest
    ]
    if single:
        yield worst("per-layer-noise", single, "measured", _LAYERS_EACH)
    coordinates = [(run.coordinates, steps) for run, steps in runs]
    least = [noise_size.least_coordinate(one.least, steps, one.count) for one, steps in coordinates]
    yield worst("per-layer-noise", least, "measured", _PARAMETERS)


def _two_layers(kept: SharedLayers) -> Measurement:
    """Whether one layer's noise is that of another. No plan promises it: a model may have one layer, earlier trials
    lack it."""
    return Measurement(
        test=f"{layer_noise.TEST}, most alike {' and '.join(kept.squares)}",
        declared=0.0,
        measured=kept.product / kept.count,
        p_value=layer_noise.p_value(kept.shared, kept.pairs),
        detectable=layer_noise.least_seen(kept.count, kept.pairs, LEVEL, POWER),
    )


def _at_a_step(step: DriftAtStep, steps: int) -> Measurement:
    return martingale.single(
        step.total,
        step.variance,
        step.unit,
        weakest=(step.weakest.variance, step.weakest.unit, step.weakest.rounding),
        test="residuals along the expected update at each step, Freedman",
        tried=steps,
    )


def _drift(runs: Sequence[Directions]) -> Measurement:
    """The sum over trials along the expected update; what rounding can have changed is taken off."""
    total = _less(sum(run.drift.total for run in runs), sum(run.rounding for run in runs))
    variance, least = sum(run.variance for run in runs), sum(run.least for run in runs)
    unit = sum(run.drift.unit for run in runs)
    test = "residuals along the expected update, Freedman"
    return martingale.drift(total, variance, least, unit, test=test, declared=1.0)


def _less(total: float, rounding: float) -> float:
    """A sum without what rounding can have changed of it."""
    return float(np.sign(total)) * max(0.0, abs(total) - rounding)


def _worst_lag(run: Directions, steps: int) -> Measurement:
    test, tried = "residuals of steps at the worst lag, Freedman", max(1, freshness.tested_lags(steps))
    total = _less(run.lag.total, run.rounding)
    return _correlation(martingale.drift(total, run.variance, run.least, run.lag.unit, test=test, tried=tried))


def _worst_pair(pair: PairSum, steps: int) -> Measurement:
    test, tried = "residuals of two steps, Freedman", max(1, steps * (steps - 1) // 2)
    total = _less(pair.total, pair.rounding)
    return _correlation(martingale.drift(total, pair.variance, pair.least, pair.unit, test=test, tried=tried))


def _two_runs(one: FirstResidual, other: FirstResidual) -> Measurement:
    """The other run's first residual along the one's."""
    earlier, later = np.asarray(one.row, dtype=np.float64), np.asarray(other.row, dtype=np.float64)
    length = float(np.linalg.norm(earlier)) or 1.0
    unit = (one.least * other.least) ** 0.5 * len(earlier) / length
    total = float(earlier @ later) / length if len(earlier) == len(later) else 0.0
    test = "residuals of two runs, Freedman"
    total = _less(total, other.rounding)
    return _correlation(martingale.drift(total, other.variance, other.least, unit, test=test))


def _correlation(found: Measurement) -> Measurement:
    """A correlation above 1 cannot be; what would need one is not detectable."""
    seen = found.detectable
    return replace(found, detectable=seen if seen is not None and seen <= 1.0 else None)


def noise_log(logs: Sequence[NoiseSums]) -> Iterator[Check]:
    """The noise that the backend says it added."""
    if not logs:
        return
    total, degrees = sum(log.statistic for log in logs), sum(log.degrees for log in logs)
    scale = noise_size.two_sided(total, 1.0, degrees)
    yield check("noise-scale", scale, "reported", "relative to the declared scale")
    yield from _by_step([log.each for log in logs if log.each is not None], both=True)
    quiet = [noise_size.least_coordinate(log.quietest, log.steps, log.width) for log in logs]
    yield worst("per-layer-noise", quiet, "reported", "in each parameter that was looked at")
    half = sum(log.steps * (log.width // 2) for log in logs)
    if half:
        halves = freshness.repeated(sum(log.halves for log in logs), half, 2 * half, 1, "correlation of parameters")
        yield check("per-layer-noise", halves, "reported", "independent across parameters")
    pairs = sum(log.pairs for log in logs)
    if pairs:
        products = sum(log.products for log in logs)
        yield check("independent-noise", noise_size.correlation(products, pairs, degrees), "reported", "")
    yield from _again(logs)


def _again(logs: Sequence[NoiseSums]) -> Iterator[Check]:
    """Whether a step's noise, or a run's, was used before."""
    several = [log for log in logs if log.lag.lag]
    if several:
        lags = [_lag(log) for log in several]
        yield worst("independent-noise", lags, "reported", "at every lag")
        pairs = [_pair(log.pair, log.width, log.steps * (log.steps - 1) // 2) for log in several]
        yield worst("independent-noise", pairs, "reported", "every two steps")
    twins = [(log.twin, log) for log in logs if log.twin is not None]
    if twins:
        test = "correlation of two runs"
        aligned = [
            freshness.repeated(twin.aligned, log.steps * log.width, 2 * log.steps * log.width, 1, test)
            for twin, log in twins
        ]
        yield worst("independent-noise", aligned, "reported", "with another seed, step by step")
        any_two = [_pair(twin.largest, log.width, log.steps**2) for twin, log in twins]
        yield worst("independent-noise", any_two, "reported", "with another seed, every two steps")
    firsts = [np.asarray(log.first, dtype=np.float64) for log in logs]
    widths = {len(first) for first in firsts}
    if len(firsts) > 1 and len(widths) == 1:
        width = widths.pop()
        across = [_pair(float(firsts[i] @ firsts[j]), width, 1) for i, j in _suspects(firsts, unit=False)]
        among = len(firsts) * (len(firsts) - 1) // 2
        yield worst("independent-noise", across, "reported", "first steps of different trials", among)


def _suspects(rows: Sequence[npt.ArrayLike], *, unit: bool) -> list[tuple[int, int]]:
    """The pairs of rows (i before j) of which one is the most alike: the first pair, and for each j the i whose product
    with it is the largest, over the length of i where ``unit`` says so.

    A test of two rows grows with the size of that product and depends on nothing else but j, so that of all pairs,
    which may be millions, no other can be the worst.
    """
    if len({np.shape(row) for row in rows}) > 1:
        return list(combinations(range(len(rows)), 2))
    known = np.stack([np.asarray(row, dtype=np.float64) for row in rows])
    lengths = np.linalg.norm(known, axis=1) if unit else np.ones(len(known))
    units = known / np.where(lengths > 0.0, lengths, 1.0)[:, None]
    found = {(0, 1)}
    for start in range(1, len(known), _BLOCK):
        block = known[start : start + _BLOCK]
        size = np.abs(units[: start + len(block)] @ block.T)
        size[np.arange(len(size))[:, None] >= start + np.arange(len(block))[None, :]] = -1.0
        found |= {(int(i), start + j) for j, i in enumerate(np.argmax(size, axis=0))}
    return sorted(found)


def _lag(log: NoiseSums) -> Measurement:
    lag, steps, width = log.lag.lag, log.steps, log.width
    test, tried = f"correlation of steps {lag} apart", freshness.tested_lags(steps)
    return freshness.repeated(log.lag.products, (steps - lag) * width, steps * width, tried, test)


def _pair(product: float, width: int, tried: int) -> Measurement:
    return freshness.repeated(product, width, 2 * width, max(1, tried), "largest correlation of two steps")
