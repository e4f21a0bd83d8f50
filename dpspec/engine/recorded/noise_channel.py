"""Checks that a run's noise is fresh, Gaussian and independent across coordinates and steps.

The recorder writes their statistics into the end record (:mod:`dpspec.recording.watching.noise_watch`). They come from
an untrusted file: statistics with impossible values give no check.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpspec.contract import Check
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.stats import gaussian_noise, step_correlations
from dpspec.stats.conformance import noise_size
from dpspec.stats.conformance.measurement import Measurement, check, worst

#: Names of the tests.
REPEATED = "absolute values that repeat within a step"
COMMON = "absolute values common to two sampled steps"
SHIFTED = "products of coordinates at one distance or about one center"
ROWS = "components of a layer's rows along each other"
STEPS = "components of up to 64 steps along each other"
DIRECTIONS = "components of all steps along each other"
PAIRS = "noise of two steps along each other"
DISTANCES = "noise of all steps at one distance along each other"
EARLIER = "noise of a step along the sum of all earlier noise"
WINDOWS = "sums of the noise over windows of steps"
QUIET = "chi-square of the quietest coordinate of all"
SHAPE = "share of values in an interval"
SUMS = "variance of the sums of coordinates"
NORMS = "variance of the squared norms"
COARSE = "values rounded more coarsely than their type"

_FRESH = "Draw new noise for every coordinate of every tensor at every step: a difference removes noise that repeats."
_GAUSSIAN = "Draw independent normal values, by torch.normal or torch.randn, and change nothing about them."

#: What to do when a test is rejected, by the test's name.
ADVICE = dict.fromkeys((REPEATED, COMMON, SHIFTED, ROWS, STEPS, DIRECTIONS, PAIRS, DISTANCES, EARLIER, WINDOWS), _FRESH)
ADVICE |= dict.fromkeys((SHAPE, SUMS, NORMS), _GAUSSIAN)
ADVICE[QUIET] = "One parameter got less noise than the others: draw noise of the same size for each coordinate."
ADVICE[COARSE] = "Draw noise in the precision of the sum: sums show through noise that is rounded to a coarser grid."

#: No recorder writes larger numbers.
_LARGEST = 1e18


def noise_checks(run: RecordedRun) -> Iterator[Check]:
    """The checks; none if no noise was recorded."""
    found = None if run.end is None else run.end.get("noise")
    if not isinstance(found, Mapping):
        return
    for test in (_repeated, _common, _shifted, _rows, _steps, _quiet, _shape, _sums, _coarse):
        yield from test(found, run)


def _repeated(found: Mapping[str, Any], run: RecordedRun) -> Iterator[Check]:
    given = _numbers(found.get("repeats"), 3)
    if given is None or not 0.0 <= given[0] <= given[2] or given[2] < 1.0:
        return
    count, expected, gaps = given
    measured = gaussian_noise.repeats(int(count), expected, int(gaps), 1, REPEATED)
    yield check("independent-noise", measured, "reported", f"among {int(gaps):,} of {_sampled(found)} sampled steps")


def _common(found: Mapping[str, Any], run: RecordedRun) -> Iterator[Check]:
    given, pairs = _numbers(found.get("common"), 3), _count(found.get("pairs"))
    if given is None or not pairs or not 0.0 <= given[0] <= given[2] or given[2] < 1.0:
        return
    measured = gaussian_noise.repeats(int(given[0]), given[1], int(given[2]), pairs, COMMON)
    yield check("independent-noise", measured, "reported", f"of {pairs} pairs of steps")


def _shifted(found: Mapping[str, Any], run: RecordedRun) -> Iterator[Check]:
    shifts, sampled = _count(found.get("shifts")), _sampled(found)
    tried = {"shift": shifts * sampled, "pooled_shift": shifts}
    made: list[Measurement] = []
    for name, number in tried.items():
        given = _numbers(found.get(name), 2, signed=True)
        if given is not None and given[1] >= 1.0 and number:
            made.append(gaussian_noise.shifts(given[0], int(given[1]), number, SHIFTED))
    if made:
        yield worst("per-layer-noise", made, "reported", f"at {sampled} sampled steps, and in total")


def _rows(found: Mapping[str, Any], run: RecordedRun) -> Iterator[Check]:
    block, blocks = _numbers(found.get("block"), 3), _numbers(found.get("blocks"), 3)
    layers = run.header.layers
    if block is None or blocks is None or block[0] >= len(layers) or min(blocks[0], block[2], blocks[2]) < 1.0:
        return
    made = [
        gaussian_noise.spread(block[1], int(block[2]), ROWS, int(blocks[0])),
        gaussian_noise.spread(blocks[1], int(blocks[2]), ROWS),
    ]
    note = f"in {int(blocks[0])} blocks, and in total; most extreme in {layers[int(block[0])][0]}"
    yield worst("per-layer-noise", made, "reported", note)


def _steps(found: Mapping[str, Any], run: RecordedRun) -> Iterator[Check]:
    given = _numbers(found.get("steps"), 2)
    if given is not None and given[1] >= 1.0:
        yield check(
            "independent-noise", gaussian_noise.spread(given[0], int(given[1]), STEPS), "reported", "pairs of steps"
        )
    rows = run.rows[run.rows.any(axis=1)]
    if len(rows) > 1:
        squares, degrees = gaussian_noise.dependence(rows)
        if degrees:
            measured = gaussian_noise.spread(squares, degrees, DIRECTIONS)
            yield check("independent-noise", measured, "reported", "along the recorder's directions")
        made = [
            step_correlations.pairs(rows, PAIRS),
            step_correlations.distances(rows, DISTANCES),
            *step_correlations.earlier_sums(rows, EARLIER),
            *step_correlations.windows(rows, WINDOWS),
        ]
        yield worst("independent-noise", made, "reported", f"of {len(rows)} steps, along the recorder's directions")


def _quiet(found: Mapping[str, Any], run: RecordedRun) -> Iterator[Check]:
    given = _numbers(found.get("quietest"), 4)
    if given is None or min(given[1:3]) < 1.0 or given[3] > 1.0:
        return
    least, steps, count, rounding = given
    # Rounding can bring each value of a coordinate closer to 0.
    least = (math.sqrt(least) + math.sqrt(steps) * rounding) ** 2
    measured = replace(noise_size.least_coordinate(least, int(steps), int(count)), test=QUIET)
    yield check("per-layer-noise", measured, "reported", f"of {int(count)} coordinates")


def _shape(found: Mapping[str, Any], run: RecordedRun) -> Iterator[Check]:
    room, steps = _numbers([found.get("room")], 1), _count(found.get("counted"))
    made: list[Measurement] = []
    for name, tried in (("counts", 1), ("worst_counts", steps)):
        counts = _numbers(found.get(name), gaussian_noise.INTERVALS)
        if room is not None and counts is not None and tried and sum(counts) >= 1.0:
            made.append(gaussian_noise.shares([int(one) for one in counts], room[0], tried, SHAPE))
    if made:
        yield worst("noise-law", made, "reported", f"at each of {steps} steps, and in total")


def _sums(found: Mapping[str, Any], run: RecordedRun) -> Iterator[Check]:
    layers = sum(size > 0 for _, size in run.header.layers)
    for name, test in (("sums", SUMS), ("norms", NORMS)):
        given = _numbers(found.get(name), 3)
        if given is None or given[0] < 1.0:
            continue
        steps = int(given[0])
        made = [gaussian_noise.spread(given[2], steps, test)]
        if layers > 1:
            made.append(gaussian_noise.spread(given[1], steps * layers, test))
        successive = _numbers(found.get("successive"), 2, signed=True)
        if name == "norms" and successive is not None and 1.0 <= successive[0] < steps:
            made.append(gaussian_noise.shifts(successive[1], int(successive[0]), 1, f"{test} of successive steps"))
        yield worst("noise-law", made, "reported", "of each layer and of all coordinates, over all steps")


def _coarse(found: Mapping[str, Any], run: RecordedRun) -> Iterator[Check]:
    given = _numbers(found.get("coarse"), 2)
    if given is None or not 0.0 <= given[0] <= given[1] or given[1] < 1.0:
        return
    yield check("noise-law", gaussian_noise.coarse(int(given[0]), int(given[1]), COARSE), "reported", "sampled values")


def _sampled(found: Mapping[str, Any]) -> int:
    return _count(found.get("sampled"))


def _count(value: Any) -> int:
    """A count that a recorder writes; 0 for anything else."""
    return value if type(value) is int and 0 < value < _LARGEST else 0


def _numbers(value: Any, length: int, *, signed: bool = False) -> list[float] | None:
    """``length`` finite numbers; None for anything else."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
        return None
    if not all(type(one) in (int, float) and abs(one) < _LARGEST and (signed or one >= 0.0) for one in value):
        return None
    return [float(one) for one in value]
