"""The noise of each step: its size in each layer, and whether it is fresh, independent and Gaussian.

The mistakes: noise is drawn once and added at every step, so that a difference of two steps has none; a layer gets less
than the others; or the values come from another distribution::

    noise = torch.randn_like(total)                      # before the loop
    for batch in loader:
        p.grad = (clipped_sum(batch) + noise) / size

:mod:`dpspec_recording.watching.noise_sketch` measures each step, and :mod:`dpspec_recording.watching.noise_watch` keeps
statistics whose distribution for honest noise is known. Values that no honest noise has give no check.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from dpspec.stats import gaussian_noise
from dpspec.stats.conformance import noise_tests
from dpspec.stats.conformance.measurement import LEVEL, LimitOf, Measurement
from dpspec_recording.outcomes.conditions import FRESH, GAUSSIAN, stated
from dpspec_recording.outcomes.faults import Fault, RunTest
from dpspec_recording.outcomes.outcome import Outcome
from dpspec_recording.probes.loop_arguments import omitted_arguments
from dpspec_recording.probes.probe import Probe, Training, emits
from dpspec_recording.watching.noise_facts import UNKNOWN, NoiseFacts, NoiseStatistics, Repeats

if TYPE_CHECKING:
    from dpspec_recording.probes.judged_run import Array, JudgedRun
    from dpspec_recording.watching.noise_sketch import MeasuredNoise

_ALL_DIRECTIONS = (
    "Noise is not the same in all directions: it was projected, filtered or combined from fewer numbers. A record "
    "shows in the directions that have less noise. Draw each coordinate by itself. A loop that projects the noisy sum "
    "reports sum and noise before the projection."
)

_EACH_COORDINATE = (
    "Some coordinates got less noise than others, or none: draw noise of the same standard deviation for each."
)

#: Noise that repeats, of nodes that set a global seed.
_SOURCE = "https://github.com/fedbiomed/fedbiomed/pull/794"

WITHOUT_NOISE = Fault(
    name="update-without-noise",
    assumption="noise-scale",
    title="parameter updates without noise",
    observed="reported",
    source=_SOURCE,
    advice="Add noise at each update, also for an empty batch: a step without noise releases its exact sum.",
)
QUIETEST_LAYER = Fault(
    name="quietest-layer",
    assumption="per-layer-noise",
    title="chi-square of the quietest layer",
    observed="reported",
    source=_SOURCE,
    advice=(
        "One tensor of the model got less noise than the others, or none: draw noise of the same standard "
        "deviation for every trained tensor, at each step."
    ),
)
QUIETEST_LAYER_AT_A_STEP = Fault(
    name="quietest-layer-at-a-step",
    assumption="per-layer-noise",
    title="chi-square of the quietest layer at a step",
    observed="reported",
    source=_SOURCE,
    advice=(
        "One tensor of the model got less noise than the others, or none: draw noise of the same standard "
        "deviation for every trained tensor, at each step."
    ),
    limit_of="one-step",
)
REPEATED = Fault(
    name="repeated-values",
    assumption="independent-noise",
    title="absolute values that repeat within a step",
    observed="reported",
    source=_SOURCE,
    advice=FRESH,
)
POOLED = Fault(
    name="pooled-values",
    assumption="independent-noise",
    title="absolute values that repeat between steps",
    observed="reported",
    source=_SOURCE,
    advice=(
        "Numbers of the noise return (a table, a pool of vectors, one key for several tensors, noise of an earlier "
        "step in another order), and a difference of steps or coordinates has none: draw new noise for every "
        "coordinate at every step."
    ),
)
EXTREME = Fault(
    name="largest-value",
    assumption="noise-law",
    title="largest absolute value of all noise",
    observed="reported",
    source=_SOURCE,
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
    source=_SOURCE,
    advice=FRESH,
)
PAIRS = Fault(
    name="dependent-pairs",
    assumption="independent-noise",
    title="noise of two steps along each other",
    observed="reported",
    source=_SOURCE,
    advice=FRESH,
    limit_of="one-step",
)
DISTANCES = Fault(
    name="dependent-distances",
    assumption="independent-noise",
    title="noise of all steps at one distance along each other",
    observed="reported",
    source=_SOURCE,
    advice=FRESH,
)
QUIET = Fault(
    name="quietest-coordinate",
    assumption="per-layer-noise",
    title="chi-square of the quietest coordinate of all",
    observed="reported",
    source=_SOURCE,
    advice=_EACH_COORDINATE,
    limit_of="other-quantity",
)
ALIGNED = Fault(
    name="aligned-noise",
    assumption="noise-law",
    title="components of vectors of noise along earlier ones",
    observed="reported",
    source=_SOURCE,
    advice=_ALL_DIRECTIONS,
    limit_of="other-quantity",
)
FLAT = Fault(
    name="flat-noise",
    assumption="noise-law",
    title="volume that vectors of noise span",
    observed="reported",
    source=_SOURCE,
    advice=_ALL_DIRECTIONS,
    limit_of="other-quantity",
)
UNEVEN = Fault(
    name="uneven-coordinates",
    assumption="per-layer-noise",
    title="variation of the squared noise over coordinates",
    observed="reported",
    source=_SOURCE,
    advice=_EACH_COORDINATE,
    limit_of="other-quantity",
)
CENTERED = Fault(
    name="centered-noise",
    assumption="noise-law",
    title="sums of noise over a tensor, its rows or its columns",
    observed="reported",
    source=_SOURCE,
    advice=(
        "Noise was centered: it cancels in a sum over coordinates, which then shows the exact sum of the records. "
        f"{GAUSSIAN}"
    ),
    limit_of="other-quantity",
)
LENGTHS = Fault(
    name="equal-lengths",
    assumption="noise-law",
    title="variation of the noise's length over the steps",
    observed="reported",
    source=_SOURCE,
    advice=(
        "Noise was scaled to a fixed length or deviation: who knows the sum without a record sees whether the rest has "
        f"this length. {GAUSSIAN}"
    ),
    limit_of="other-quantity",
)
SHAPE = Fault(
    name="values-in-intervals",
    assumption="noise-law",
    title="share of values in an interval",
    observed="reported",
    source=_SOURCE,
    advice=GAUSSIAN,
)
ALONG = Fault(
    name="noise-along-sum",
    assumption="independent-noise",
    title="noise of each step along its sum",
    observed="reported",
    source=_SOURCE,
    advice="The clipped sum contains some of the noise that is added to it: draw noise that nothing else uses.",
    limit_of="one-step",
)
COARSE = Fault(
    name="coarse-values",
    assumption="noise-law",
    title="values rounded more coarsely than their type",
    observed="reported",
    source=_SOURCE,
    advice="Draw noise in the precision of the sum: sums show through noise that is rounded to a coarser grid.",
)

#: The probability of the largest value below which a claim stays open, as of one honest recording in 40,000.
_SUSPICIOUS = 5e-5

#: The largest cut at which equal values are tested: torch's float32 numbers above it have few different lengths, and a
#: lower one of many numbers is found by its size.
_LARGEST_CUT = 4.5

#: The widest grid, in standard deviations: rounding to it adds 0.1 % to the variance of noise.
_WIDEST = 0.125

#: The largest number of vectors whose volume a recording has.
_MOST_VECTORS = 2**12

#: The minimum numbers of steps and of parameters for a test of the variation of squared noise, and the factor of the
#: variation that rounding and the cube root explain.
_FEWEST_STEPS, _FEWEST_NUMBERS, _ROUNDED = 4, 256, 1.01

#: The minimum numbers of steps and of parameters for the correlation of squared noise with batch sizes, and the largest
#: weight of one step: a sum of many almost normal values is normal up to its tails. Then the share of the declared
#: variance that counts as all of it.
_FEWEST_RELATED_STEPS, _FEWEST_RELATED_NUMBERS, _LARGEST_WEIGHT, _DECLARED = 10, 16, 0.7, 0.99


class Noise(Probe[NoiseFacts]):
    """Keeps statistics of the measured noise. Of several ranks, those that add noise have the fact."""

    name, kind = "noise", NoiseFacts | None
    of_adding_ranks = True

    def start(self, training: Training) -> None:
        """Keep the shapes of the parameters that get noise; of sharded ones the rows of this process."""
        from dpspec_recording.shards import local
        from dpspec_recording.watching.noise_watch import NoiseWatch

        self._watch = NoiseWatch([local(p) for p in training.script_parts.noisy_parameters()])

    def noise_measured(self, measured: MeasuredNoise, deviations: Sequence[float]) -> None:
        """Add the noise of some steps."""
        self._watch.add(measured, deviations)

    def facts(self) -> NoiseFacts | None:
        """None without noise."""
        statistics = self._watch.found()
        return None if statistics is None else NoiseFacts(processes=(statistics,))

    @staticmethod
    def judge(facts: NoiseFacts | None, run: JudgedRun) -> Iterator[Outcome]:
        """Each step has noise of the declared size in each layer, which passes all tests of its distribution."""
        yield from _sizes(run)
        for statistics in _processes(facts):
            yield from _distribution(statistics)
        yield from _directions(run)
        yield from _lengths(run)
        doubt = (
            why_noise_seems_cut(facts)
            or why_squares_follow_batches(run)
            or why_squares_vary(run)
            or why_repeats_untested(facts)
        )
        if doubt:
            yield stated("noise-law", f", but {doubt}", "unchecked")
        else:
            by_torch = "; it comes from torch's generator, not a cryptographic one, by default"
            yield stated("noise-law", by_torch if emits(run.header, "before_noise") else "")
        if omitted := omitted_arguments(run, "noise_multiplier", "clip_norm"):
            text = f"the size of the noise was not compared with a declared one, because {omitted}"
            yield stated("noise", status="unchecked", text=text)
        if facts is None and run.audits is not None and run.header.shards:
            yield stated("noise", status="unchecked", text="the noise of a rank was not observed")


def _processes(facts: NoiseFacts | None) -> tuple[NoiseStatistics, ...]:
    return () if facts is None else facts.processes


def _sizes(run: JudgedRun) -> Iterator[RunTest]:
    """Whether each step has noise, and each layer as much as declared, over all steps and at each one."""
    squares = run["noise_squares"]
    observed = np.isfinite(squares)
    if observed.any():
        noisy = run["noise_multiplier"] > 0.0
        without = observed & (squares == 0.0) & (noisy | np.isnan(run["noise_multiplier"]))
        count = int(without.sum())
        note = f"first at step {int(np.argmax(without)) + 1}" if count else "every update has noise"
        yield WITHOUT_NOISE.none_found(count, note)
    layer_squares = {
        name: (float(total), size * run.steps)
        for (name, size), total in zip(run.header.layers, run.layers, strict=True)
        if size
    }
    if run.scaled_squares is None or not layer_squares:
        return
    name, quiet = noise_tests.quietest(layer_squares)
    yield QUIETEST_LAYER.measured(quiet, f"in each layer, least in {name}")
    least = {
        name: (float(value), size)
        for (name, size), value in zip(run.header.layers, run.quietest, strict=True)
        if size and np.isfinite(value)
    }
    if least:
        name, quiet = noise_tests.quietest(least, run.steps)
        quiet = replace(quiet, test=QUIETEST_LAYER_AT_A_STEP.title, details=f"in {name}")
        yield QUIETEST_LAYER_AT_A_STEP.measured(quiet, "in each layer, each step")


def _distribution(noise: NoiseStatistics) -> Iterator[RunTest]:
    """Whether values are fresh, Gaussian, of one size, and not in the sum that they are added to."""
    grid = _grid(noise)  # values on a grid repeat and have trailing zero bits
    if not grid and _is_testable(noise.repeats):
        yield REPEATED.measured(_repeated(noise.repeats, REPEATED), _among(noise))
    if not grid and _is_testable(noise.pooled):
        note = f"among the {int(noise.pooled.gaps):,} largest of several steps"
        yield POOLED.measured(_repeated(noise.pooled, POOLED), note)
    if (largest := _extreme(noise)) is not None:
        measured, tested = largest
        yield EXTREME.measured(measured, f"{tested}, in standard deviations")
    if (quiet := noise.quietest) is not None and _is_known(quiet.squares, quiet.steps, quiet.coordinates):
        steps, count = int(quiet.steps), int(quiet.coordinates)
        # Rounding can bring each value of a coordinate closer to 0.
        least = (math.sqrt(quiet.squares) + math.sqrt(quiet.steps) * (quiet.rounding + grid)) ** 2
        if min(steps, count) >= 1 and quiet.rounding <= 1.0:
            measured = replace(noise_tests.least_coordinate(least, steps, count), test=QUIET.title)
            yield QUIET.measured(measured, f"of {count} coordinates")
    if (centered := noise.centered) is not None and _is_known(centered.squares, centered.degrees, centered.families):
        degrees, families = int(centered.degrees), int(centered.families)
        if not grid and min(degrees, families) >= 1 and centered.rounding <= 0.5:
            # Rounding can bring each sum closer to 0.
            least = (math.sqrt(centered.squares) + math.sqrt(degrees) * centered.rounding) ** 2
            measured = replace(noise_tests.quietest({"": (least, degrees)}, families)[1], test=CENTERED.title)
            yield CENTERED.measured(measured, f"of {families} families of sums")
    yield from _directions_of(noise, grid)
    of_steps: tuple[tuple[tuple[int, ...], int, str, LimitOf], ...] = (
        (noise.counts, 1, "in total", "all-steps"),
        (noise.worst_counts, noise.counted, f"at each step, of {noise.counted}", "one-step"),
    )
    for counts, tried, note, limit_of in of_steps:
        if _is_known(noise.edge_error) and len(counts) == gaussian_noise.INTERVALS and tried and sum(counts) >= 1:
            measured = gaussian_noise.shares([*counts], noise.edge_error + grid, tried, SHAPE.title)
            yield SHAPE.measured(measured, note, limit_of=limit_of)
    coarse = noise.coarse
    if not grid and coarse.coarse <= coarse.checked and coarse.checked >= 1:
        yield COARSE.measured(gaussian_noise.coarse(coarse.coarse, coarse.checked, COARSE.title), "sampled values")
    if not grid and coarse.coarse_of_step <= coarse.checked_of_step and coarse.checked_of_step and coarse.steps:
        measured = gaussian_noise.coarse(coarse.coarse_of_step, coarse.checked_of_step, COARSE.title, coarse.steps)
        yield COARSE.measured(measured, f"at each step, of {coarse.steps}", limit_of="one-step")
    along = noise.along_sums
    if _is_known(along.steps, along.squares) and along.steps >= 1.0 and along.largest <= along.squares:
        steps = int(along.steps)
        yield ALONG.measured(gaussian_noise.spread(along.squares, steps, ALONG.title), "in total")
        measured = gaussian_noise.spread(along.largest, 1, ALONG.title, steps)
        yield ALONG.measured(measured, f"at each step, of {steps}")


def _directions_of(noise: NoiseStatistics, grid: float) -> Iterator[RunTest]:
    """Whether noise has the same variance in all directions, and in each coordinate."""
    if (aligned := noise.alignment) is not None and _is_known(aligned.squares, aligned.terms, aligned.families):
        terms, families = int(aligned.terms), int(aligned.families)
        if min(terms, families) >= 1 and noise.extremes.rounding <= 1.0:
            rounding = noise.extremes.rounding + grid
            measured = gaussian_noise.alignment(aligned.squares, terms, families, rounding, ALIGNED.title)
            yield ALIGNED.measured(measured, f"{terms:,} components, of {_families(families)}")
    if (flat := noise.volume) is not None and _is_known(flat.ratio, flat.vectors, flat.dimensions, flat.families):
        vectors, dimensions, families = int(flat.vectors), int(flat.dimensions), int(flat.families)
        if 1 <= vectors <= min(dimensions, _MOST_VECTORS) and families >= 1:
            measured = gaussian_noise.volume(flat.ratio, vectors, dimensions, families, FLAT.title)
            yield FLAT.measured(measured, f"{vectors} in {dimensions:,} dimensions, of {_families(families)}")
    uneven = noise.dispersion
    if uneven is not None and _is_known(uneven.squares, uneven.coordinates) and uneven.coordinates >= 2 and not grid:
        count = int(uneven.coordinates)
        measured = gaussian_noise.spread(uneven.squares, count - 1, UNEVEN.title)
        yield UNEVEN.measured(measured, f"of {count} coordinates")


def _families(count: int) -> str:
    return f"{count} {'family' if count == 1 else 'families'} of steps, rows and columns"


def _is_known(*statistics: float) -> bool:
    return max(statistics) < UNKNOWN


def _is_testable(repeats: Repeats) -> bool:
    return _is_known(repeats.expected, repeats.gaps) and repeats.small <= repeats.gaps and repeats.gaps >= 1.0


def _repeated(repeats: Repeats, fault: Fault) -> Measurement:
    return gaussian_noise.repeats(int(repeats.small), repeats.expected, int(repeats.gaps), 1, fault.title)


def _among(noise: NoiseStatistics) -> str:
    return f"among {int(noise.repeats.gaps):,} of {noise.sampled} sampled steps"


def _extreme(noise: NoiseStatistics) -> tuple[Measurement, str] | None:
    """The test of the largest absolute value, and the number of values in words."""
    extremes = noise.extremes
    if extremes.numbers < 1.0 or not _is_known(extremes.numbers, extremes.largest) or extremes.rounding > 1.0:
        return None
    rounding = extremes.rounding + _grid(noise)
    measured = gaussian_noise.extreme(extremes.largest, extremes.numbers, rounding, EXTREME.title)
    return measured, f"of {int(extremes.numbers):,} numbers"


def _grid(noise: NoiseStatistics) -> float:
    """Half the spacing of the grid of noise and sums, in standard deviations; 0.0 without one."""
    return 0.0 if noise.grid is None or noise.grid.spacing > _WIDEST else 0.5 * noise.grid.spacing


def why_repeats_untested(facts: NoiseFacts | None) -> str:
    """The grid that all noise and sums have in common; empty without one."""
    spacing = 2.0 * max(map(_grid, _processes(facts)), default=0.0)
    if not spacing:
        return ""
    return (
        f"noise and sums are multiples of {spacing:.3g} standard deviations, so that values repeat and reused noise "
        "does not show: if noise is drawn for each coordinate at every step and rounded to this grid, "
        "--assume noise-law"
    )


def untested_tails(facts: NoiseFacts | None) -> str:
    """The largest absolute value of all noise in words, beyond which no test reaches; empty without one."""
    extremes = [extreme for statistics in _processes(facts) if (extreme := _extreme(statistics)) is not None]
    if not extremes:
        return ""
    measured, tested = max(extremes, key=lambda extreme: extreme[0].measured)
    return f"beyond {measured.measured:.3g} standard deviations, the largest {tested}"


def why_noise_seems_cut(facts: NoiseFacts | None) -> str:
    """The largest absolute value of few numbers, if it is suspiciously small or several steps have it; else empty.

    A cut at three standard deviations shows at level 1e-6 in 6,000 numbers, but breaks a claim at any number.
    """
    for statistics in _processes(facts):
        measured, tested = _extreme(statistics) or (None, "")
        if measured is not None and measured.p_value < _SUSPICIOUS and measured.measured < measured.declared:
            shown = f"the {EXTREME.title}, {tested}, is {measured.measured:.4g} standard deviations"
            return f"{shown}, as if it was cut there (probability {measured.p_value:.1g} without a cut)"
        extremes = statistics.extremes
        if measured is None or _grid(statistics) or extremes.largest > _LARGEST_CUT:
            continue
        chance = gaussian_noise.equal_extremes(
            int(extremes.equal), extremes.largest, extremes.numbers, extremes.rounding
        )
        if chance < _SUSPICIOUS:
            shown = f"the {EXTREME.title} is {measured.measured:.4g} standard deviations at {extremes.equal + 1} steps"
            return f"{shown}, as if it was cut there (probability {chance:.1g} without a cut)"
    return ""


def why_squares_follow_batches(run: JudgedRun) -> str:
    """The correlation of the squared noise with the batch size over the steps, if it is too large; empty otherwise.

    Noise that clients add in shares, or that a loop adds to the mean of each batch, has the declared size on average
    only: smaller batches have less. Noise above the declared one at all batch sizes is correct.
    """
    squares, count = run.scaled_squares, run.header.parameters
    if squares is None or run.header.world or run.sums_type or count < _FEWEST_RELATED_NUMBERS:
        return ""
    sizes = np.where(np.isfinite(run["drawn"]), run["drawn"], run["rows"])
    if len(sizes) < _FEWEST_RELATED_STEPS or not np.isfinite(sizes).all():
        return ""
    mean, centered = float(squares.mean()), sizes - sizes.mean()
    length = float(np.linalg.norm(centered))
    # One step with another size, as a short last batch, would test that step alone.
    if not mean > 0.0 or not length > 0.0 or np.abs(centered).max() > _LARGEST_WEIGHT * length:
        return ""
    relative = squares / mean
    scores = _normal_scores(relative, count)
    along = float(scores @ centered) / length
    # Noise of low rank varies more, and so follows any sizes.
    residual = (float(scores @ scores) - along * along) / (len(sizes) - 2)
    errors = abs(along) / math.sqrt(max(1.0, residual))
    if special.chdtrc(1, errors * errors / _ROUNDED) > LEVEL:
        return ""
    fitted = 1.0 + float(relative @ centered) / length**2 * centered
    if fitted.min() * mean >= _DECLARED * count:  # additional noise of large batches
        return ""
    direction = "more" if along > 0.0 else "less"
    return (
        f"larger batches have {direction} noise ({errors:.3g} standard errors over {len(sizes)} steps): its size "
        "follows the number of drawn records. Draw noise of one standard deviation for the sum of each step, also if "
        "records or clients add shares of it, or it is added to a mean"
    )


def _normal_scores(squares: Array, count: int) -> Array:
    """Squared lengths of ``count`` normal values, relative to their mean, as almost normal values.

    The cube root of a chi-square is almost normal (Wilson and Hilferty 1931), for 256 numbers within 1e-3.
    """
    unit = 2.0 / (9.0 * count)
    scores: Array = (np.cbrt(squares) - (1.0 - unit)) / math.sqrt(unit)
    return scores


def _variation(run: JudgedRun) -> tuple[float, int] | None:
    """The variance of the squared noise over the steps, relative to independent normal values, and the number of steps.

    None if ranks or rounding change it, or for few steps or numbers.
    """
    squares, count = run.scaled_squares, run.header.parameters
    if squares is None or len(squares) < _FEWEST_STEPS or count < _FEWEST_NUMBERS:
        return None
    if run.header.world or run.sums_type:  # ranks draw shares of the noise, and half precision rounds it
        return None
    mean = float(squares.mean())
    if not mean > 0.0:
        return None
    normal = _normal_scores(squares / mean, count)
    return float(np.square(normal).sum()) / len(squares), len(squares)


def _lengths(run: JudgedRun) -> Iterator[RunTest]:
    """Whether the length of the noise varies at all: one degree of freedom is the measured mean."""
    if (variation := _variation(run)) is not None:
        variance, steps = variation
        measured = noise_tests.quietest({"": (_ROUNDED * steps * variance, steps - 1)})[1]
        yield LENGTHS.measured(replace(measured, test=LENGTHS.title), f"of {steps} steps")


def why_squares_vary(run: JudgedRun) -> str:
    """The variation of the squared noise over the steps of one process, if it is too large; empty otherwise.

    A product of Gaussian matrices (m, r) and (r, n) has normal-looking values of the declared size, but its squared
    length varies 1 + (m + n) / r times as much, and a record shows in the directions that the product lacks.
    """
    if (variation := _variation(run)) is None:
        return ""
    variance, steps = variation
    if special.chdtrc(steps, steps * variance / _ROUNDED) > LEVEL:
        return ""
    return (
        f"the squared noise varies over the steps {variance:.3g} times as much as the squares of independent normal "
        "values, as noise of low rank does: draw each coordinate by itself"
    )


def _directions(run: JudgedRun) -> Iterator[RunTest]:
    rows = run.rows[run.rows.any(axis=1)]
    if len(rows) < 2:
        return
    note, (squares, degrees) = f"of {len(rows)} steps, along the recorder's directions", gaussian_noise.dependence(rows)
    yield PAIRS.measured(gaussian_noise.pair_correlation(rows, PAIRS.title), f"with each step before, {note}")
    yield DISTANCES.measured(gaussian_noise.lag_correlation(rows, DISTANCES.title), note)
    if degrees:
        yield DIRECTIONS.measured(gaussian_noise.spread(squares, degrees, DIRECTIONS.title), note)
