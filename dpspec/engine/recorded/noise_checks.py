"""Checks of a run's noise: independent, Gaussian, and contained in the gradients of the optimizer.

The recorder writes the statistics into the end record (:mod:`dpspec.recording.watching.noise_watch`). The file is
untrusted: statistics with impossible values give no check.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dpspec.contract import Check
from dpspec.engine.recorded.joined_checks import none_found
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.recording.folder.joined_folder import JoinedFolder
from dpspec.stats import gaussian_noise
from dpspec.stats.conformance import noise_tests
from dpspec.stats.conformance.measurement import Measurement, worst

#: Names of the tests.
OTHERS = "gradients other than the reported sum and noise"
REPEATED = "absolute values that repeat within a step"
SHIFTED = "products of coordinates at one distance"
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
ALONG = "noise of each step along its sum"
COARSE = "values rounded more coarsely than their type"
SHARED_SEED = "steps whose noise and batch come from two generators with one seed"
PUBLIC_SEED = "steps with the seed of an unseeded torch.Generator(), which is public"

_FRESH = "Draw new noise for every coordinate of every tensor at every step: a difference removes noise that repeats."
_GAUSSIAN = "Draw independent normal values, by torch.normal or torch.randn, and change nothing about them."

#: Advice for a rejected test, by the test's name.
ADVICE = dict.fromkeys((REPEATED, SHIFTED, ROWS, STEPS, DIRECTIONS, PAIRS, DISTANCES, EARLIER, WINDOWS), _FRESH)
ADVICE |= dict.fromkeys((SHAPE, SUMS, NORMS), _GAUSSIAN)
ADVICE[QUIET] = "One parameter got less noise than the others: draw noise of the same size for each coordinate."
ADVICE[ALONG] = "The clipped sum contains some of the noise that is added to it: draw noise that nothing else uses."
ADVICE[COARSE] = "Draw noise in the precision of the sum: sums show through noise that is rounded to a coarser grid."
ADVICE[SHARED_SEED] = "Both draw the same numbers: give noise_generator another seed than the loader's, or neither."
ADVICE[PUBLIC_SEED] = "Call seed() of the generator, or manual_seed() with a secret number."

#: The largest fraction of a layer's noise that rounding may hide.
_HIDDEN = 0.1

#: The names and sizes of the layers that statistics of noise belong to.
Layers: TypeAlias = Sequence[tuple[str, int]]


def noise_checks(run: RecordedRun) -> Iterator[Check]:
    noise_facts = None if run.end is None else run.end.noise
    rank_facts = noise_facts if isinstance(noise_facts, list) else [noise_facts]
    layers: Sequence[Layers] = [run.header.layers] * len(rank_facts)
    if isinstance(run.folder, JoinedFolder) and run.header.shards:
        layers = [rank.header.layers for rank in run.folder.ranks]
    rank_noise = [
        (facts, rank_layers)
        for facts, rank_layers in zip(rank_facts, layers, strict=False)
        if isinstance(facts, Mapping)
    ]
    results: dict[str, list[Check]] = {}
    for facts, rank_layers in rank_noise:
        for name, check in (*_independence(facts, rank_layers), *_distribution(facts, rank_layers)):
            results.setdefault(name, []).append(check)
    for same in results.values():
        least = min(same, key=lambda check: check.p_value)
        yield replace(least, p_value=min(1.0, len(same) * least.p_value))
    if rank_noise:
        yield from _directions(run)


def _independence(facts: Mapping[str, Any], layers: Layers) -> Iterator[tuple[str, Check]]:
    """By statistic, whether the values of a step, its layers and the steps are independent."""
    sampled, shifts = (_count(facts.get(name)) for name in ("sampled", "shifts"))
    repeats = numbers(facts.get("repeats"), 3)
    if repeats is not None and repeats[0] <= repeats[2] and repeats[2] >= 1.0:
        measured = gaussian_noise.repeats(int(repeats[0]), repeats[1], int(repeats[2]), 1, REPEATED)
        note = f"among {int(repeats[2]):,} of {sampled} sampled steps"
        yield "repeats", measured.check("independent-noise", "reported", note)
    measurements: list[Measurement] = []
    for name, number in (("shift", shifts * sampled), ("pooled_shift", shifts)):
        shift_sums = numbers(facts.get(name), 2, least=-1e18)
        if shift_sums is not None and shift_sums[1] >= 1.0 and number:
            measurements.append(gaussian_noise.shifts(shift_sums[0], int(shift_sums[1]), number, SHIFTED))
    if measurements:
        yield "shifts", worst("per-layer-noise", measurements, "reported", f"at {sampled} sampled steps, and in total")
    block, blocks = numbers(facts.get("block"), 3), numbers(facts.get("blocks"), 3)
    if block and blocks and block[0] < len(layers) and min(blocks[0], block[2], blocks[2]) >= 1.0:
        measurements = [
            gaussian_noise.spread(block[1], int(block[2]), ROWS, int(blocks[0])),
            gaussian_noise.spread(blocks[1], int(blocks[2]), ROWS),
        ]
        note = f"in {int(blocks[0])} blocks, and in total; most extreme in {layers[int(block[0])][0]}"
        yield "blocks", worst("per-layer-noise", measurements, "reported", note)
    step_sums = numbers(facts.get("steps"), 2)
    if step_sums is not None and step_sums[1] >= 1.0:
        measured = gaussian_noise.spread(step_sums[0], int(step_sums[1]), STEPS)
        yield "steps", measured.check("independent-noise", "reported", "pairs of steps")


def _distribution(facts: Mapping[str, Any], layers: Layers) -> Iterator[tuple[str, Check]]:
    """By statistic, whether values are Gaussian, of one size, and not in the sum that they are added to."""
    quietest = numbers(facts.get("quietest"), 4)
    if quietest is not None and min(quietest[1:3]) >= 1.0 and quietest[3] <= 1.0:
        least, steps, count, rounding = quietest
        # Rounding can bring each value of a coordinate closer to 0.
        least = (math.sqrt(least) + math.sqrt(steps) * rounding) ** 2
        measured = replace(noise_tests.least_coordinate(least, int(steps), int(count)), test=QUIET)
        yield "quietest", measured.check("per-layer-noise", "reported", f"of {int(count)} coordinates")
    edge_error, counted = numbers([facts.get("room")], 1), _count(facts.get("counted"))
    measurements: list[Measurement] = []
    for name, tried in (("counts", 1), ("worst_counts", counted)):
        counts = numbers(facts.get(name), gaussian_noise.INTERVALS)
        if edge_error is not None and counts is not None and tried and sum(counts) >= 1.0:
            measurements.append(gaussian_noise.shares([int(count) for count in counts], edge_error[0], tried, SHAPE))
    if measurements:
        yield "counts", worst("noise-law", measurements, "reported", f"at each of {counted} steps, and in total")
    filled = sum(size > 0 for _, size in layers)
    for name, test in (("sums", SUMS), ("norms", NORMS)):
        norm_sums = numbers(facts.get(name), 3)
        if norm_sums is None or norm_sums[0] < 1.0:
            continue
        measurements = [gaussian_noise.spread(norm_sums[2], int(norm_sums[0]), test)]
        if filled > 1:
            measurements.append(gaussian_noise.spread(norm_sums[1], int(norm_sums[0]) * filled, test))
        successive = numbers(facts.get("successive"), 2, least=-1e18)
        if name == "norms" and successive is not None and 1.0 <= successive[0] < int(norm_sums[0]):
            measurements.append(
                gaussian_noise.shifts(successive[1], int(successive[0]), 1, f"{test} of successive steps")
            )
        yield name, worst("noise-law", measurements, "reported", "of each layer and of all coordinates, over all steps")
    coarse_counts = numbers(facts.get("coarse"), 2)
    if coarse_counts is not None and coarse_counts[0] <= coarse_counts[1] and coarse_counts[1] >= 1.0:
        measured = gaussian_noise.coarse(int(coarse_counts[0]), int(coarse_counts[1]), COARSE)
        yield "coarse", measured.check("noise-law", "reported", "sampled values")
    along_sums = numbers(facts.get("along_sums"), 3)
    if along_sums is not None and along_sums[0] >= 1.0 and along_sums[2] <= along_sums[1]:
        measurements = [
            gaussian_noise.spread(along_sums[1], int(along_sums[0]), ALONG),
            gaussian_noise.spread(along_sums[2], 1, ALONG, int(along_sums[0])),
        ]
        note = f"at each of {int(along_sums[0])} steps, and in total"
        yield "along", worst("independent-noise", measurements, "reported", note)


def _directions(run: RecordedRun) -> Iterator[Check]:
    rows = run.rows[run.rows.any(axis=1)]
    if len(rows) > 1:
        squares, degrees = gaussian_noise.dependence(rows)
        if degrees:
            measured = gaussian_noise.spread(squares, degrees, DIRECTIONS)
            yield measured.check("independent-noise", "reported", "along the recorder's directions")
        measurements = [
            gaussian_noise.pair_correlation(rows, PAIRS),
            gaussian_noise.lag_correlation(rows, DISTANCES),
            *gaussian_noise.earlier_sums(rows, EARLIER),
            *gaussian_noise.window_sums(rows, WINDOWS),
        ]
        yield worst(
            "independent-noise", measurements, "reported", f"of {len(rows)} steps, along the recorder's directions"
        )


def numbers(value: Any, length: int, *, least: float = 0.0, most: float = 1e18) -> list[float] | None:
    """``length`` numbers in a range; None for anything else."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
        return None
    fits = all(type(n) in (int, float) and least <= n <= most for n in value)
    return [float(n) for n in value] if fits else None


def _count(value: Any) -> int:
    return value if type(value) is int and 0 < value < 1e18 else 0


@dataclass(frozen=True)
class ComparedGradients:
    """A recorder's comparison of gradients with reported sums and noise, over ``steps`` steps.

    summed: the number of steps with a reported sum; apart: of steps whose gradient is not sum and noise. hidden: the
    largest length of noise that rounding can hide, in standard deviations.
    """

    steps: float
    summed: float
    apart: float
    hidden: float


def compared(run: RecordedRun) -> ComparedGradients | None:
    gradient_sums = None if run.end is None else numbers(run.end.gradients, 8, least=-1e100, most=1e100)
    if gradient_sums is None:
        return None
    steps, *_, summed, apart, hidden = gradient_sums
    fits = 1.0 <= steps <= run.steps and 0.0 <= apart <= summed <= steps
    return ComparedGradients(steps, summed, apart, hidden) if fits else None


def reported_noise_checks(run: RecordedRun) -> Iterator[Check]:
    comparison = compared(run)
    if comparison is not None and comparison.summed:
        note = f"sum and noise over a divisor, at {comparison.summed:.0f} steps"
        yield none_found("update", OTHERS, "measured", comparison.apart, note)


def why_noise_unconfirmed(run: RecordedRun) -> str:
    """Why reported noise was not confirmed in the gradients, and the fix; empty if it was.

    It is confirmed if every step reports its sum, and the gradient is sum and noise up to rounding that would hide no
    layer's noise. A check tests that the sum does not correlate with the noise.
    """
    if not run.header.optimizer:
        return "dpspec.record got no optimizer and inspected no gradient: give optimizer="
    comparison = compared(run)
    zero = run["noise_squares"] == 0.0
    if zero.any():
        return f"the reported noise is zero at {int(zero.sum())} of {run.steps} steps"
    if comparison is None:
        return (
            "no gradient could be compared with it: report norms and noise, and let the given optimizer step once, "
            "before run.stepped(), with gradients that exist when step() is called, not with gradients of a closure"
        )
    if comparison.summed < comparison.steps:
        return "the loop does not report the sum, so a part of the noise may be missing: call run.summed"
    # without the steps that killed parts made after their last checkpoint
    steps = run.steps if run.resumed is None else sum(run.resumed.covered)
    if comparison.steps < steps:
        return f"only {comparison.steps:.0f} of {steps} steps could be compared with their gradients"
    if comparison.apart:
        return f"gradients of {comparison.apart:.0f} steps are not the reported sum and noise"
    smallest = min((size for _, size in run.header.layers), default=1)
    coarse = comparison.hidden > _HIDDEN * math.sqrt(smallest)
    return "gradients are rounded so coarsely that noise could be missing in a layer" if coarse else ""
