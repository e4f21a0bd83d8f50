"""Checks of a run's noise: independent, Gaussian, and contained in the gradients of the optimizer.

The recorder writes the statistics into the end record (:mod:`dpspec_recording.watching.noise_watch`). The file is
untrusted: statistics with impossible values give no check.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import special

from dpspec.stats import gaussian_noise
from dpspec.stats.conformance import noise_tests
from dpspec.stats.conformance.measurement import LEVEL, LimitOf, Measurement
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.outcomes.conditions import FRESH, GAUSSIAN
from dpspec_recording.outcomes.faults import Fault, RunTest

REPEATED = Fault(
    name="repeated-values",
    assumption="independent-noise",
    title="absolute values that repeat within a step",
    observed="reported",
    advice=FRESH,
)
POOLED = Fault(
    name="pooled-values",
    assumption="independent-noise",
    title="absolute values that repeat between steps",
    observed="reported",
    advice=(
        "Few numbers make up all noise (a table, a pool of vectors, noise of an earlier step in another "
        "order), and the difference of two steps has none: draw new noise for every coordinate at every "
        "step."
    ),
)
EXTREME = Fault(
    name="largest-value",
    assumption="noise-law",
    title="largest absolute value of all noise",
    observed="reported",
    advice=(
        "Noise is cut (clamp, trunc_normal_) or has other tails: an output beyond the cut shows a record "
        "with certainty. "
        f"{GAUSSIAN}"
    ),
    limit_of="other-quantity",
)
DIRECTIONS = Fault(
    name="dependent-steps",
    assumption="independent-noise",
    title="components of all steps along each other",
    observed="reported",
    advice=FRESH,
)
PAIRS = Fault(
    name="dependent-pairs",
    assumption="independent-noise",
    title="noise of two steps along each other",
    observed="reported",
    advice=FRESH,
    limit_of="one-step",
)
DISTANCES = Fault(
    name="dependent-distances",
    assumption="independent-noise",
    title="noise of all steps at one distance along each other",
    observed="reported",
    advice=FRESH,
)
QUIET = Fault(
    name="quietest-coordinate",
    assumption="per-layer-noise",
    title="chi-square of the quietest coordinate of all",
    observed="reported",
    advice="One parameter got less noise than the others: draw noise of the same size for each coordinate.",
    limit_of="other-quantity",
)
SHAPE = Fault(
    name="values-in-intervals",
    assumption="noise-law",
    title="share of values in an interval",
    observed="reported",
    advice=GAUSSIAN,
)
ALONG = Fault(
    name="noise-along-sum",
    assumption="independent-noise",
    title="noise of each step along its sum",
    observed="reported",
    advice="The clipped sum contains some of the noise that is added to it: draw noise that nothing else uses.",
    limit_of="one-step",
)
COARSE = Fault(
    name="coarse-values",
    assumption="noise-law",
    title="values rounded more coarsely than their type",
    observed="reported",
    advice="Draw noise in the precision of the sum: sums show through noise that is rounded to a coarser grid.",
)

#: The probability of the largest value below which a claim stays open, as of one honest recording in 40,000.
_SUSPICIOUS = 5e-5

#: The widest grid, in standard deviations: rounding to it adds 0.1 % to the variance of noise.
_WIDEST = 0.125

#: The minimum numbers of steps and of parameters for a test of the variation of squared noise, and the factor of the
#: variation that rounding and the cube root explain.
_FEWEST_STEPS, _FEWEST_NUMBERS, _ROUNDED = 4, 256, 1.01


def noise_checks(run: RecordedRun) -> Iterator[RunTest]:
    for facts in _rank_facts(run):
        yield from _statistics(facts)
    yield from _directions(run)


def _statistics(facts: Mapping[str, Any]) -> Iterator[RunTest]:
    """Whether values are fresh, Gaussian, of one size, and not in the sum that they are added to."""
    repeats, sampled = numbers(facts.get("repeats"), 3), _count(facts.get("sampled"))
    grid = _grid(facts)  # values on a grid repeat and have trailing zero bits
    if repeats is not None and not grid and repeats[0] <= repeats[2] and repeats[2] >= 1.0:
        measured = gaussian_noise.repeats(int(repeats[0]), repeats[1], int(repeats[2]), 1, REPEATED.title)
        yield REPEATED.measured(measured, f"among {int(repeats[2]):,} of {sampled} sampled steps")
    pooled = numbers(facts.get("pooled"), 3)
    if pooled is not None and not grid and pooled[0] <= pooled[2] and pooled[2] >= 1.0:
        measured = gaussian_noise.repeats(int(pooled[0]), pooled[1], int(pooled[2]), 1, POOLED.title)
        yield POOLED.measured(measured, f"among the {int(pooled[2]):,} largest of several steps")
    if (largest := _extreme(facts)) is not None:
        measured, tested = largest
        yield EXTREME.measured(measured, f"{tested}, in standard deviations")
    quietest = numbers(facts.get("quietest"), 4)
    if quietest is not None and min(quietest[1:3]) >= 1.0 and quietest[3] <= 1.0:
        least, steps, count, rounding = quietest
        # Rounding can bring each value of a coordinate closer to 0.
        least = (math.sqrt(least) + math.sqrt(steps) * (rounding + grid)) ** 2
        measured = replace(noise_tests.least_coordinate(least, int(steps), int(count)), test=QUIET.title)
        yield QUIET.measured(measured, f"of {int(count)} coordinates")
    edge_error, counted = numbers([facts.get("room")], 1), _count(facts.get("counted"))
    of_steps: tuple[tuple[str, int, str, LimitOf], ...] = (
        ("counts", 1, "in total", "all-steps"),
        ("worst_counts", counted, f"at each step, of {counted}", "one-step"),
    )
    for name, tried, note, limit_of in of_steps:
        counts = numbers(facts.get(name), gaussian_noise.INTERVALS)
        if edge_error is not None and counts is not None and tried and sum(counts) >= 1.0:
            measured = gaussian_noise.shares([int(count) for count in counts], edge_error[0] + grid, tried, SHAPE.title)
            yield SHAPE.measured(measured, note, limit_of=limit_of)
    coarse_counts = numbers(facts.get("coarse"), 2)
    if coarse_counts is not None and not grid and coarse_counts[0] <= coarse_counts[1] and coarse_counts[1] >= 1.0:
        measured = gaussian_noise.coarse(int(coarse_counts[0]), int(coarse_counts[1]), COARSE.title)
        yield COARSE.measured(measured, "sampled values")
    along_sums = numbers(facts.get("along_sums"), 3)
    if along_sums is not None and along_sums[0] >= 1.0 and along_sums[2] <= along_sums[1]:
        steps = int(along_sums[0])
        yield ALONG.measured(gaussian_noise.spread(along_sums[1], steps, ALONG.title), "in total")
        measured = gaussian_noise.spread(along_sums[2], 1, ALONG.title, steps)
        yield ALONG.measured(measured, f"at each step, of {steps}")


def _extreme(facts: Mapping[str, Any]) -> tuple[Measurement, str] | None:
    """The test of the largest absolute value, and the number of values in words."""
    extremes = numbers(facts.get("extremes"), 3)
    if extremes is None or extremes[0] < 1.0 or extremes[2] > 1.0:
        return None
    rounding = extremes[2] + _grid(facts)
    return gaussian_noise.extreme(extremes[1], extremes[0], rounding, EXTREME.title), f"of {int(extremes[0]):,} numbers"


def _grid(facts: Mapping[str, Any]) -> float:
    """Half the spacing of the grid of noise and sums, in standard deviations; 0.0 without one."""
    grid = numbers(facts.get("grid"), 3)
    return 0.0 if grid is None or grid[0] > _WIDEST else 0.5 * grid[0]


def why_repeats_untested(run: RecordedRun) -> str:
    """The grid that all noise and sums have in common; empty without one."""
    spacing = 2.0 * max(map(_grid, _rank_facts(run)), default=0.0)
    if not spacing:
        return ""
    return (
        f"noise and sums are multiples of {spacing:.3g} standard deviations, so that values repeat and reused noise "
        "does not show: if noise is drawn for each coordinate at every step and rounded to this grid, "
        "--assume noise-law"
    )


def why_noise_seems_cut(run: RecordedRun) -> str:
    """The largest absolute value of few numbers, if it is suspiciously small; empty otherwise.

    A cut at three standard deviations shows at level 1e-6 in 6,000 numbers, but breaks a claim at any number.
    """
    for facts in _rank_facts(run):
        measured, tested = _extreme(facts) or (None, "")
        if measured is not None and measured.p_value < _SUSPICIOUS and measured.measured < measured.declared:
            shown = f"the {EXTREME.title}, {tested}, is {measured.measured:.4g} standard deviations"
            return f"{shown}, as if it was cut there (probability {measured.p_value:.1g} without a cut)"
    return ""


def why_squares_vary(run: RecordedRun) -> str:
    """The variation of the squared noise over the steps of one process, if it is too large; empty otherwise.

    A product of Gaussian matrices (m, r) and (r, n) has normal-looking values of the declared size, but its squared
    length varies 1 + (m + n) / r times as much, and a record shows in the directions that the product lacks.
    """
    squares, count = run.scaled_squares, run.header.parameters
    if squares is None or len(squares) < _FEWEST_STEPS or count < _FEWEST_NUMBERS:
        return ""
    if run.header.world or run.sums_type:  # ranks draw shares of the noise, and half precision rounds it
        return ""
    mean = float(squares.mean())
    if not mean > 0.0:
        return ""
    # The cube root of a chi-square is almost normal (Wilson and Hilferty 1931), for 256 numbers within 1e-3.
    unit = 2.0 / (9.0 * count)
    normal = (np.cbrt(squares / mean) - (1.0 - unit)) / math.sqrt(unit)
    variance = float(np.square(normal).sum()) / len(squares)
    if special.chdtrc(len(squares), len(squares) * variance / _ROUNDED) > LEVEL:
        return ""
    return (
        f"the squared noise varies over the steps {variance:.3g} times as much as the squares of independent normal "
        "values, as noise of low rank does: draw each coordinate by itself"
    )


def _rank_facts(run: RecordedRun) -> list[Mapping[str, Any]]:
    """The noise's facts of each rank or part."""
    noise_facts = None if run.end is None else run.end.noise
    listed = noise_facts if isinstance(noise_facts, list) else [noise_facts]
    return [facts for facts in listed if isinstance(facts, Mapping)]


def _directions(run: RecordedRun) -> Iterator[RunTest]:
    rows = run.rows[run.rows.any(axis=1)]
    if len(rows) < 2:
        return
    note, (squares, degrees) = f"of {len(rows)} steps, along the recorder's directions", gaussian_noise.dependence(rows)
    yield PAIRS.measured(gaussian_noise.pair_correlation(rows, PAIRS.title), f"with each step before, {note}")
    yield DISTANCES.measured(gaussian_noise.lag_correlation(rows, DISTANCES.title), note)
    if degrees:
        yield DIRECTIONS.measured(gaussian_noise.spread(squares, degrees, DIRECTIONS.title), note)


def numbers(value: Any, length: int, *, least: float = 0.0, most: float = 1e18) -> list[float] | None:
    """``length`` numbers in a range; None for anything else."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
        return None
    fits = all(type(n) in (int, float) and least <= n <= most for n in value)
    return [float(n) for n in value] if fits else None


def _count(value: Any) -> int:
    return value if type(value) is int and 0 < value < 1e18 else 0
