"""The noise of each step: its size in each layer, its shape, and its independence of other noise and of the sums.

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

from dpspec.stats.conformance import noise_tests, run_checks
from dpspec.stats.conformance.measurement import LEVEL, LimitOf, Measurement
from dpspec_recording.observers.loop_arguments import omitted_arguments
from dpspec_recording.observers.observer import Observer, Training, emits
from dpspec_recording.outcomes.conditions import FRESH, GAUSSIAN, stated
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Issue, Statement, asked, doubted
from dpspec_recording.watching import noise_statistics
from dpspec_recording.watching.noise_statistics import UNKNOWN, NoiseFacts, NoiseStatistics

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun, Terms
    from dpspec_recording.watching.noise_sketch import MeasuredNoise

SHAPE = Fault(
    name="noise-shape",
    condition="noise-law",
    title="share of values in an interval",
    observed="reported",
    source="https://github.com/KatherLab/MediSwarm/pull/258",
    advice=GAUSSIAN,
)
SIZE = Fault(
    name="noise-size",
    condition="per-layer-noise",
    title="chi-square of the quietest layer",
    observed="reported",
    source="https://github.com/meta-pytorch/opacus/issues/191",
    advice=(
        "One tensor of the model got less noise than the others, or none, or some coordinates did: draw noise of the "
        "same standard deviation for every coordinate of every trained tensor, at each step."
    ),
    explains=(run_checks.reported_noise.name, SHAPE.name),
)
WITHOUT_NOISE = Fault(
    name="update-without-noise",
    condition="noise-scale",
    title="parameter updates without noise",
    observed="reported",
    source="https://github.com/londonaicentre/FLIP/issues/1145",
    advice="Add noise at each update, also for an empty batch: a step without noise releases its exact sum.",
    explains=(SIZE.name, *SIZE.explains),
)
INDEPENDENCE = Fault(
    name="noise-independence",
    condition="independent-noise",
    title="absolute values of the noise that repeat",
    observed="reported",
    source="https://github.com/fedbiomed/fedbiomed/pull/794",
    advice=f"{FRESH} Use no table, no key for several tensors, no seed within the loop, no clamp and no rounding.",
    explains=(SIZE.name, *SIZE.explains),
)

#: Names of the statistics of a fault that has several.
_AT_A_STEP, _COORDINATE = f"{SIZE.title} at a step", "chi-square of the quietest coordinate of all"
EXTREME = "largest absolute value of all noise"
PAIRS, DISTANCES = "noise of two steps along each other", "noise of all steps at one distance along each other"
ALONG = "noise of each step along its sum"

#: The probability of the largest value below which a claim stays open, as of one honest recording in 40,000.
_SUSPICIOUS = 5e-5

#: The widest grid, in standard deviations: rounding to it adds 0.1 % to the variance of noise.
_WIDEST = 0.125

#: The minimum number of steps for a test of the variation of squared noise, the factor of the variation that rounding
#: explains, and the largest normal value of a square.
_FEWEST_STEPS, _ROUNDED, _FARTHEST = 4, 1.01, 38.0


class Noise(Observer[NoiseFacts]):
    """Keeps statistics of the measured noise. Of several ranks, those that add noise have the fact."""

    name, kind = "noise", NoiseFacts | None
    of_adding_ranks = True

    def start(self, training: Training) -> None:
        """Begin to watch the parameters that get noise; of sharded ones the rows of this process."""
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
    def judge(facts: NoiseFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """Each step has noise of the declared size in each layer, of normal values that depend on nothing else."""
        scale = _measured_scale(run)
        yield from _size(run, _processes(facts), scale)
        if scale > 0.0:
            yield from _shape(_processes(facts))
            yield from _independence(run, _processes(facts), scale)
        if doubt := why_noise_seems_cut(facts) or why_squares_vary(run) or why_repeats_untested(facts):
            yield doubted("noise-law", f", but {doubt}")
        else:
            by_torch = "; it comes from torch's generator, not a cryptographic one, by default"
            yield stated("noise-law", by_torch if emits(run.header, "before_noise") else "")
        if omitted := omitted_arguments(run, "noise_multiplier", "clip_norm"):
            text = f"the size of the noise was not compared with a declared one, because {omitted}"
            yield doubted("noise", text=text)
        if facts is None and run.audits is not None and run.header.shards:
            yield doubted("noise", text="the noise of a rank was not observed")

    @staticmethod
    def ask(facts: NoiseFacts | None, run: JudgedRun, terms: Terms) -> Iterator[Issue]:
        """Noise must be unpredictable."""
        yield asked(
            "secret-randomness",
            "seeds and states of generators are secret: no constant, time, weights or records; no log, threshold or "
            "statistic is released",
        )


def _processes(facts: NoiseFacts | None) -> tuple[NoiseStatistics, ...]:
    return () if facts is None else facts.processes


def _measured_scale(run: JudgedRun) -> float:
    """The size of all noise, in declared standard deviations; 1 if it is unknown.

    A test of less noise in a part, or of dependence, takes the measured scale if the declared one is less surprising:
    noise of another scale is the fault of the test of all noise alone. p-values of noise as declared only grow.
    """
    squares, count = run.scaled_squares, run.header.parameters
    return 1.0 if squares is None or not count else math.sqrt(float(squares.mean()) / count)


def _size(run: JudgedRun, processes: Sequence[NoiseStatistics], scale: float) -> Iterator[Issue]:
    """Whether each step has noise, and each layer and coordinate as much as all of it."""
    squares = run["noise_squares"]
    observed = np.isfinite(squares)
    if observed.any():
        noisy = run["noise_multiplier"] > 0.0
        without = observed & (squares == 0.0) & (noisy | np.isnan(run["noise_multiplier"]))
        count = int(without.sum())
        note = f"first at step {int(np.argmax(without)) + 1}" if count else "every update has noise"
        yield WITHOUT_NOISE.none_found(count, note)
    less = min(1.0, scale) ** 2 or 1.0
    layers = {
        name: (float(total) / less, float(quiet) / less, size)
        for (name, size), total, quiet in zip(run.header.layers, run.layers, run.quietest, strict=True)
        if size
    }
    if run.scaled_squares is not None and layers:
        of_all = {name: (total, size * run.steps) for name, (total, _, size) in layers.items()}
        name, measured = noise_tests.quietest(of_all)
        yield SIZE.measured(measured, f"in each layer, least in {name}")
        of_steps = {name: (quiet, size) for name, (_, quiet, size) in layers.items() if np.isfinite(quiet)}
        if of_steps:
            name, measured = noise_tests.quietest(of_steps, run.steps)
            measured = replace(measured, test=_AT_A_STEP, details=f"in {name}")
            yield SIZE.measured(measured, "in each layer, each step", limit_of="one-step")
    for noise in processes:
        quiet = noise.quietest
        if quiet is None or not _is_known(quiet.squares, quiet.steps, quiet.coordinates) or quiet.rounding > 1.0:
            continue
        steps, count = int(quiet.steps), int(quiet.coordinates)
        if min(steps, count) >= 1:
            # Rounding can bring each value of a coordinate closer to 0.
            rounding = math.sqrt(quiet.steps) * (quiet.rounding + _grid(noise))
            least = (math.sqrt(quiet.squares / less) + rounding) ** 2
            measured = replace(noise_tests.least_coordinate(least, steps, count), test=_COORDINATE)
            yield SIZE.measured(measured, f"of {count} coordinates", limit_of="other-quantity")


def _shape(processes: Sequence[NoiseStatistics]) -> Iterator[Issue]:
    """Whether values are normal: their shares in intervals, and the largest one."""
    for noise in processes:
        of_steps: tuple[tuple[tuple[int, ...], int, str, LimitOf], ...] = (
            (noise.counts, 1, "in total", "all-steps"),
            (noise.worst_counts, noise.counted, f"at each step, of {noise.counted}", "one-step"),
        )
        for counts, tried, note, limit_of in of_steps:
            if _is_known(noise.edge_error) and len(counts) == noise_statistics.INTERVALS and tried and sum(counts) >= 1:
                measured = noise_statistics.shares([*counts], noise.edge_error + _grid(noise), tried, SHAPE.title)
                yield SHAPE.measured(measured, note, limit_of=limit_of)
        if (extreme := _extreme(noise)) is not None:
            measured, tested = extreme
            advice = (
                "Noise is cut (clamp, trunc_normal_) or has other tails: an output beyond the cut shows a record with "
                f"certainty. {GAUSSIAN}"
            )
            yield SHAPE.measured(
                measured, f"{tested}, in standard deviations", limit_of="other-quantity", advice=advice
            )


def _independence(run: JudgedRun, processes: Sequence[NoiseStatistics], scale: float) -> Iterator[Issue]:
    """Whether values repeat, and the noise of a step is along other noise, or along the sum that it is added to."""
    smaller, larger = min(1.0, scale), max(1.0, scale)
    for noise in processes:
        for repeats, note in ((noise.repeats, "of sampled steps"), (noise.pooled, "largest of several steps")):
            is_known = _is_known(repeats.expected, repeats.gaps) and repeats.small <= repeats.gaps and repeats.tried
            if is_known and repeats.gaps >= 1.0 and not _grid(noise):  # values on a grid repeat
                counts = int(repeats.small), repeats.expected / smaller**2, int(repeats.gaps), repeats.tried
                measured = noise_statistics.repeats(*counts, INDEPENDENCE.title)
                yield INDEPENDENCE.measured(measured, f"among the {int(repeats.gaps):,} {note}")
        along = noise.along_sums
        if _is_known(along.steps, along.squares) and along.steps >= 1.0 and along.largest <= along.squares:
            steps = int(along.steps)
            advice = (
                "The clipped sum contains some of the noise that is added to it: draw noise that nothing else uses."
            )
            for squares, terms, tried, note in (
                (along.squares, steps, 1, "in total"),
                (along.largest, 1, steps, f"at each step, of {steps}"),
            ):
                measured = noise_statistics.excess(squares / larger**2, terms, ALONG, tried)
                yield INDEPENDENCE.measured(measured, note, limit_of="one-step", advice=advice)
    rows = run.rows[run.rows.any(axis=1)]
    if len(rows) >= 2:
        note = f"of {len(rows)} steps, along the recorder's directions"
        pair, distance = noise_statistics.correlations(rows / larger, PAIRS, DISTANCES)
        yield INDEPENDENCE.measured(pair, f"with each step before, {note}", limit_of="one-step", advice=FRESH)
        yield INDEPENDENCE.measured(distance, note, advice=FRESH)


def _is_known(*statistics: float) -> bool:
    return max(statistics) < UNKNOWN


def _extreme(noise: NoiseStatistics) -> tuple[Measurement, str] | None:
    """The test of the largest absolute value, and the number of values in words."""
    extremes = noise.extremes
    if extremes.numbers < 1.0 or not _is_known(extremes.numbers, extremes.largest) or extremes.rounding > 1.0:
        return None
    rounding = extremes.rounding + _grid(noise)
    measured = noise_statistics.extreme(extremes.largest, extremes.numbers, rounding, EXTREME)
    return measured, f"of {int(extremes.numbers):,} numbers"


def _grid(noise: NoiseStatistics) -> float:
    """Half the spacing of the grid of noise and sums, in standard deviations; 0.0 without one."""
    return 0.0 if noise.spacing > _WIDEST else 0.5 * noise.spacing


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
    """The largest absolute value of few numbers, if it is suspiciously small; else empty.

    A cut at three standard deviations shows at level 1e-6 in 6,000 numbers, but breaks a claim at any number.
    """
    for measured, tested in filter(None, map(_extreme, _processes(facts))):
        if measured.p_value < _SUSPICIOUS and measured.measured < measured.declared:
            shown = f"the {EXTREME}, {tested}, is {measured.measured:.4g} standard deviations"
            return f"{shown}, as if it was cut there (probability {measured.p_value:.1g} without a cut)"
    return ""


def why_squares_vary(run: JudgedRun) -> str:
    """The variation of the squared noise over the steps of one process, if it is too large or small; empty otherwise.

    Noise that clients add in shares, or that a loop adds to the mean of each batch, follows the batch size. A product
    of Gaussian matrices (m, r) and (r, n) has normal-looking values of the declared size, but its squared length varies
    1 + (m + n) / r times as much. Noise that is scaled to one length does not vary. Ranks draw shares of the noise, and
    half precision rounds it, so that neither is tested.
    """
    squares, count = run.scaled_squares, run.header.parameters
    if squares is None or len(squares) < _FEWEST_STEPS or not squares.any() or run.header.world or run.sums_type:
        return ""
    steps, relative = len(squares), squares * (count / squares.mean())
    lower, upper = special.chdtr(count, relative), special.chdtrc(count, relative)
    # normal values of the same probabilities
    normal = np.where(lower < 0.5, special.ndtri(lower), -special.ndtri(upper)).clip(-_FARTHEST, _FARTHEST)
    total = float(np.square(normal).sum())
    if special.chdtrc(steps, total / _ROUNDED) <= 0.5 * LEVEL:
        reason = "as noise of low rank does, and noise that follows the batch size"
    elif special.chdtr(steps - 1, _ROUNDED * total) <= 0.5 * LEVEL:  # one degree of freedom is the mean
        reason = "as noise of a fixed length does"
    else:
        return ""
    return (
        f"the squared noise varies over the steps {total / steps:.3g} times as much as the squares of independent "
        f"normal values, {reason}: draw each coordinate by itself, of one standard deviation for the sum of each step"
    )
