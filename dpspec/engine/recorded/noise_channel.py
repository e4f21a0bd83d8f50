"""Checks that a run's noise is fresh, Gaussian and independent across coordinates and steps.

The recorder writes their statistics into the end record (:mod:`dpspec.recording.watching.noise_watch`). They come from
an untrusted file: statistics with impossible values give no check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpspec.contract import Check
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.stats.conformance import gaussian_noise
from dpspec.stats.conformance.measurement import Measurement, check, worst

#: Names of the tests.
REPEATED = "absolute values that repeat within a step"
COMMON = "absolute values common to two sampled steps"
SHIFTED = "products of coordinates at one distance or about one center"
RANK = "singular values of a layer's noise"
STEPS = "singular values of the noise of sampled steps"
SHAPE = "share of values in an interval"
SUMS = "variance of the sums of coordinates"
NORMS = "variance of the squared norms"
COARSE = "values rounded more coarsely than their type"

_FRESH = "Draw new noise for every coordinate of every tensor at every step: a difference removes noise that repeats."
_GAUSSIAN = "Draw independent normal values, by torch.normal or torch.randn, and change nothing about them."

#: What to do when a test is rejected, by the test's name.
ADVICE = dict.fromkeys((REPEATED, COMMON, SHIFTED, RANK, STEPS), _FRESH)
ADVICE |= dict.fromkeys((SHAPE, SUMS, NORMS), _GAUSSIAN)
ADVICE[COARSE] = "Draw noise in the precision of the sum: sums show through noise that is rounded to a coarser grid."

#: No recorder writes larger numbers.
_LARGEST = 1e18


def noise_checks(run: RecordedRun) -> Iterator[Check]:
    """The checks; none if no noise was recorded."""
    found = None if run.end is None else run.end.get("noise")
    if not isinstance(found, Mapping):
        return
    for test in (_repeated, _common, _shifted, _ranks, _steps, _shape, _sums, _coarse):
        yield from test(found, run)


def _repeated(found: Mapping[str, Any], run: RecordedRun) -> Iterator[Check]:
    given = _numbers(found.get("repeats"), 3)
    if given is None or not 0.0 <= given[0] <= given[2] or given[2] < 1.0:
        return
    count, expected, gaps = given
    measured = gaussian_noise.repeats(int(count), expected, int(gaps), 1, REPEATED)
    yield check("fresh-noise", measured, "reported", f"among {int(gaps):,} of {_sampled(found)} sampled steps")


def _common(found: Mapping[str, Any], run: RecordedRun) -> Iterator[Check]:
    given, pairs = _numbers(found.get("common"), 3), _count(found.get("pairs"))
    if given is None or not pairs or not 0.0 <= given[0] <= given[2] or given[2] < 1.0:
        return
    measured = gaussian_noise.repeats(int(given[0]), given[1], int(given[2]), pairs, COMMON)
    yield check("fresh-noise", measured, "reported", f"of {pairs} pairs of steps")


def _shifted(found: Mapping[str, Any], run: RecordedRun) -> Iterator[Check]:
    shifts, sampled = _count(found.get("shifts")), _sampled(found)
    tried = {"shift": shifts * sampled, "pooled_shift": shifts}
    made: list[Measurement] = []
    for name, number in tried.items():
        given = _numbers(found.get(name), 2, signed=True)
        if given is not None and given[1] >= 1.0 and number:
            made.append(gaussian_noise.shifts(given[0], int(given[1]), number, SHIFTED))
    if made:
        yield worst("noise-isotropy", made, "reported", f"at {sampled} sampled steps, and in total")


def _ranks(found: Mapping[str, Any], run: RecordedRun) -> Iterator[Check]:
    given, tried = _numbers(found.get("matrix"), 5), _count(found.get("matrices"))
    layers = run.header.layers
    if given is None or not tried or given[0] >= len(layers) or min(given[1:3]) < 1.0:
        return
    layer, rows, columns = (int(one) for one in given[:3])
    measured = gaussian_noise.singular(rows, columns, given[3], given[4], tried, RANK)
    yield check("noise-isotropy", measured, "reported", f"of {tried} blocks, most extreme in {layers[layer][0]}")


def _steps(found: Mapping[str, Any], run: RecordedRun) -> Iterator[Check]:
    given = _numbers(found.get("steps_matrix"), 4)
    if given is None or min(given[:2]) < 1.0:
        return
    rows, columns = int(given[0]), int(given[1])
    measured = gaussian_noise.singular(rows, columns, given[2], given[3], 1, STEPS)
    yield check("fresh-noise", measured, "reported", f"{rows} by {columns}")


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
