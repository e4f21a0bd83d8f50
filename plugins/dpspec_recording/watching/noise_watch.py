"""Statistics of a run's noise, for tests that it is fresh, Gaussian and independent across coordinates and steps.

Every step contributes its component along the sum, its largest absolute value, squares of coordinates and the values of
about two thousand coordinates; sampled steps also their largest absolute values, trailing bits, and sums over tensors,
rows and columns, and products of rows and columns. The noise of some steps is kept whole. Steps and coordinates are
chosen by the operating system's randomness. ``dpspec.stats.gaussian_noise`` has the null distributions.

The noise that Opacus added is the difference of two gradients. Rounding changes it by the resolution of its type times
the size of the sum, which is fixed before its noise is drawn. So tests of single values use the coordinates where the
sum is at most ``_SUM`` standard deviations.
"""

import heapq
import math
import random
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dpspec.stats import gaussian_noise
from dpspec.stats.conformance.noise_tests import log_lower_tail
from dpspec_recording.watching.noise_facts import (
    AlongSums,
    Centered,
    CoarseValues,
    Dispersion,
    Extremes,
    Grid,
    NoiseStatistics,
    Quietest,
    Repeats,
    statistic,
)
from dpspec_recording.watching.noise_grid import NoiseGrid
from dpspec_recording.watching.noise_sketch import MeasuredNoise
from dpspec_recording.watching.sphericity import KeptSteps, Lines, sampled_squares, worst_alignment, worst_volume

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

#: Values of one step whose distribution is tested.
_VALUES = 2048

#: Largest absolute values of a step that are compared.
_LARGEST = 1024

#: Steps whose largest absolute values are compared: those with the largest ones.
_MOST_EXTREMES = 64

#: Coordinates whose squares are added up over the steps.
_SQUARES = 2**24

#: Largest coordinate of the sum, in standard deviations of the noise, where single values are tested.
_SUM = 32.0

#: Steps that are tested in one go: the code is in the processor's caches then.
_BATCH = 32

#: Rounding of a coordinate, in standard deviations, above which the squares and the direction of a step are not tested.
_ROUNDING = 0.01

#: Bounds on rounding in units of half the resolution: on the difference of two equal values, and on the error of one
#: value (up to the sum of four values of eight standard deviations each).
_APART, _ERROR = 96.0, 80.0

#: The same bounds for noise that is read as it was drawn: the roundings of its type and of its standard deviation.
_EXACT_APART, _EXACT_ERROR = 16.0, 8.0

#: The number of pooled values of all steps that are compared, for noise with and without the rounding of a difference.
#: With more, gaps of that rounding would be no surprise.
_POOLED, _EXACT_POOLED = 2**11, 2**14

#: Values with this many trailing zero bits more than the resolution explains are coarse.
_COARSE_BITS = 6

#: The number of steps from which squares of coordinates are compared: rounding of 0.01 does not change their sums.
_DISPERSED_FROM = 4

#: The probability that a step that is not sampled is checked for coarse values, and the number of these values: half
#: precision shows in 64. Sampled steps are early ones: of 120 steps one is expected among the last 30, and noise may
#: have lost its precision since.
_CHECKED, _FEW_VALUES = 0.25, 256

#: Sampled steps: all of the first few, then step n with probability rate / n: about 20 of 200, 30 of 2,000.
_FIRST, _RATE = 4, 4.0


class NoiseWatch:
    def __init__(self, parameters: Sequence[Tensor]) -> None:
        shapes = [tuple(p.shape) for p in parameters]
        self._resolution = max([2.0**-23, *(torch.finfo(p.dtype).eps for p in parameters if p.is_floating_point())])
        self._random, self._steps, self._precise = random.SystemRandom(), 0, 0
        self._lengths = [size for size in map(math.prod, shapes) if size]
        self._rows = [shape[0] if shape else 1 for shape in shapes if math.prod(shape)]
        self._families: dict[tuple[int, str], list[float]] = {}
        self._lines: dict[tuple[int, str], Lines] = {}
        self._coordinates = sum(self._lengths)
        self._kept = KeptSteps(self._coordinates)
        self._counts = np.zeros(gaussian_noise.INTERVALS, dtype=np.int64)
        self._worst: tuple[float, list[int]] = (1.0, [])
        self._tested = self._room = 0.0
        self._sampled = self._coarse = self._checked = self._checked_steps = 0
        self._coarsest = 0.0, 0, 0
        self._repeats: list[float] = [0, 0.0, 0]
        self._squares: list[Tensor] = []
        self._rounding = 0.0
        self._waiting: list[tuple[Tensor, Tensor | None, Array, float]] = []
        self._seen, self._unit = 0, 0.5 * self._resolution
        self._along: list[float] = [0, 0.0, 0.0]
        self._extremes: list[float] = [0, 0.0]
        self._largest_of_steps: list[float] = []  # at most _MOST_EXTREMES
        self._pool: list[Array] = []
        self._pooled, self._is_exact = 0, True
        self._grid = NoiseGrid(self._resolution)

    @np.errstate(all="ignore")
    def add(self, measured: MeasuredNoise, stds: Sequence[float]) -> None:
        """Add the noise of k steps with its declared standard deviations."""
        sampled = [self._is_sampled() for _ in stds]
        if not self._coordinates:
            return
        std, unit, noise = np.array(stds), self._unit, measured.noise
        largest_values = [measured.largest.double(), measured.extreme.double()]
        of_sums = torch.stack([measured.lengths, measured.products, *largest_values], dim=1)
        read = _array(torch.cat([of_sums, measured.squares], dim=1))  # one transfer from the device
        lengths, products, largest, extreme = read[:, :4].T
        self._is_exact &= measured.is_exact
        observed = (std > 0.0) & np.isfinite(std) & np.isfinite(largest) & np.isfinite(read[:, 4:]).all(axis=1)
        if not observed.any():
            return
        std = np.where(observed, std, np.inf)
        largest = np.where(observed, largest / std, 0.0)
        precise = observed & (unit * (largest + 8.0) <= _ROUNDING)
        self._seen += int(observed.sum())
        small = bool(largest.max() <= _SUM)
        total = None if small and not any(sampled) else measured.whole_sums()
        self._add_values(noise, None if small else total, std, _ERROR * unit)
        if not precise.any():
            return
        self._rounding = max(self._rounding, unit * (float(largest[precise].max()) + 16.0))
        with_sum = precise & (lengths > 0.0)
        if with_sum.any():  # the noise along the sum, which is fixed before: a normal value of variance 1
            along = (products[with_sum] / lengths[with_sum] / std[with_sum]) ** 2
            steps, summed, longest = self._along
            self._along = [steps + len(along), summed + float(along.sum()), max(longest, float(along.max()))]
        numbers, most = self._extremes
        self._extremes = [numbers + self._coordinates * int(precise.sum()), max(most, *(extreme / std)[precise])]
        of_steps = [*self._largest_of_steps, *(extreme / std)[precise].tolist()]
        self._largest_of_steps = heapq.nlargest(_MOST_EXTREMES, of_steps)
        self._precise += int(precise.sum())
        self._add_squares(noise if precise.all() else noise[torch.as_tensor(precise)], std[precise] ** -2)
        for row in np.flatnonzero(precise).tolist():
            self._kept.add(noise[row], float(std[row]))
        for row in np.flatnonzero(precise & np.array(sampled)).tolist():
            self._sampled += 1
            self._add_families(noise[row], None if total is None else total[row], float(std[row]))
            if total is not None:
                self._add_sampled(noise[row], total[row], float(std[row]), unit)
        for row in np.flatnonzero(precise).tolist():
            if total is not None and sampled[row]:
                self._add_coarse(noise[row], total[row], float(std[row]), unit, _VALUES)
            elif self._random.random() < _CHECKED:
                largest_sum = float(largest[row] * std[row])
                covered = largest_sum if total is None else total[row]
                self._add_coarse(noise[row], covered, float(std[row]), unit, _FEW_VALUES)

    def _is_sampled(self) -> bool:
        self._steps += 1
        return self._steps <= _FIRST or self._random.random() < _RATE / self._steps

    def _every(self, most: int) -> slice:
        """At most ``most`` coordinates at equal distances, from a random start."""
        stride = max(1, -(-self._coordinates // most))
        return slice(self._random.randrange(stride), None, stride)

    def _add_squares(self, noise: Tensor, weights: Array) -> None:
        layer_noise = torch.split(noise, self._lengths, dim=1)
        tracked = (
            [noise] if noise.shape[1] <= _SQUARES else [part[:, : _SQUARES // len(layer_noise)] for part in layer_noise]
        )
        self._squares = self._squares or [torch.zeros_like(part[0]) for part in tracked]
        for squares, part in zip(self._squares, tracked, strict=True):
            if len(part) == 1:
                squares.addcmul_(part[0], part[0], value=float(weights[0]))
            else:
                squares += torch.mv(part.square().t(), torch.as_tensor(weights).to(part))

    def _add_values(self, noise: Tensor, total: Tensor | None, std: Array, edge_error: float) -> None:
        """Test some values of each step with finite ``std``."""
        steps, where = np.flatnonzero(np.isfinite(std)), self._every(_VALUES)
        values, sums = (
            None if source is None else source[:, where][torch.from_numpy(steps)] for source in (noise, total)
        )
        assert values is not None
        self._waiting.append((values, sums, std[steps], edge_error))
        if noise.is_cpu or len(self._waiting) >= _BATCH:  # reads from other devices wait for each other
            self._read_steps()

    def _read_steps(self) -> None:
        waiting, self._waiting = self._waiting, []
        for values, sums, std, edge_error in waiting:
            self._count(values.cpu(), None if sums is None else _array(sums), std, edge_error)

    def _count(self, values: Tensor, sums: Array | None, std: Array, edge_error: float) -> None:
        """Count the values between the edges, (k, n) of k steps, where the sum is small."""
        if sums is not None:
            values = values.masked_fill(torch.from_numpy(np.abs(sums) > _SUM * std[:, None]), torch.inf)
        single: Any = values.numpy() if values.dtype == torch.float32 else _array(values)
        scaled = np.sort(single, axis=1) / std[:, None]  # numbers of 32 bits are sorted in half the time
        if self._coordinates <= _VALUES:  # else sampled steps contribute the largest of all their values
            self._add_to_pool(np.abs(scaled[np.isfinite(scaled)], dtype=np.float64))
        ends = np.append(gaussian_noise.EDGES, np.finfo(np.float64).max)
        counts = np.diff([row.searchsorted(ends, side="right") for row in scaled], axis=1, prepend=0)
        self._counts += counts.sum(axis=0)
        self._tested += len(counts)
        self._room = max(self._room, edge_error)
        log_p, _ = gaussian_noise.log_shares(counts, edge_error)
        worst = int(np.argmin(log_p))
        if log_p[worst] < self._worst[0]:
            self._worst = float(log_p[worst]), counts[worst].tolist()

    def _add_sampled(self, noise: Tensor, total: Tensor, std: float, unit: float) -> None:
        small = total.abs() <= _SUM * std
        largest_small = torch.where(small, noise.abs(), -1.0).topk(min(_LARGEST, len(noise))).values
        largest = _array(largest_small) / std
        largest = largest[largest >= 0.0]
        count, expected = gaussian_noise.small_gaps(largest, _APART * unit, (_APART + 2.0 * _ERROR) * unit)
        increments = count, expected, max(0, len(largest) - 1)
        self._repeats = [
            partial_sum + increment for partial_sum, increment in zip(self._repeats, increments, strict=True)
        ]
        if self._coordinates > _VALUES:
            self._add_to_pool(largest)
        if self._is_exact:
            self._grid.add(noise, total, std)

    def _add_families(self, noise: Tensor, total: Tensor | None, std: float) -> None:
        """Add squared sums over each tensor, and over rows and columns, of the noise and of the sum that it covers."""
        sources = [noise] if total is None else [noise, total]
        for index, rows in enumerate(self._rows):
            start, size = sum(self._lengths[:index]), self._lengths[index]
            matrices = [source[start : start + size].view(rows, -1).double() / std for source in sources]
            dimensions = {"tensor": (0, 1), "rows": (1,), "columns": (0,)} if 1 < rows < size else {"tensor": (0, 1)}
            for name, lines in (("rows", matrices[0]), ("columns", matrices[0].T)):
                if name in dimensions:
                    shape = (lines.shape[0], lines.shape[1])
                    self._lines.setdefault((index, name), Lines(shape)).add(lines)
            for name, over in dimensions.items():
                sums = [matrix.sum(over) for matrix in matrices]
                added = size // sums[0].numel()
                if added < 2:
                    continue
                squares = [*(float(part.square().sum()) / added for part in sums), math.inf]
                family = self._families.setdefault((index, name), [0.0, 0.0, 0.0, added])
                family[0] += squares[0]
                family[1] += squares[1]  # infinite if the sum is unknown
                family[2] += sums[0].numel()

    def _least_family(self) -> Centered | None:
        """The family with the smallest probability, of those in which the sum is not 0 itself, as its noise may be."""
        tested = [
            (squares, degrees, math.sqrt(added) * self._rounding)
            for squares, of_sum, degrees, added in self._families.values()
            if of_sum > degrees * (8.0 * math.sqrt(added) * self._rounding) ** 2
        ]
        if not tested:
            return None
        squares, degrees, rounding = min(tested, key=lambda family: log_lower_tail(family[0], family[1]))
        return Centered(squares=statistic(squares), degrees=degrees, families=len(tested), rounding=statistic(rounding))

    def _dispersion(self) -> Dispersion | None:
        """The variation of the squares of the coordinates; None for few steps."""
        if not self._squares or self._precise < _DISPERSED_FROM:
            return None
        sums = sampled_squares(self._squares)
        squares = gaussian_noise.dispersion(sums, self._precise) if len(sums) > 1 else math.inf
        return Dispersion(squares=statistic(squares), coordinates=len(sums))

    def _add_to_pool(self, values: Array) -> None:
        """Keep the largest absolute values of all steps, whose gaps show numbers that several steps have in common."""
        self._pool.append(values)
        self._pooled += len(values)
        if self._pooled > 4 * _EXACT_POOLED:
            self._pool = [self._largest_pooled(_EXACT_POOLED)]
            self._pooled = len(self._pool[0])

    def _largest_pooled(self, most: int) -> Array:
        """The ``most`` largest pooled values, descending."""
        values = np.concatenate([np.zeros(0), *self._pool])
        largest: Array = np.sort(np.partition(values, -most)[-most:] if len(values) > most else values)[::-1]
        return largest

    def _repeats_between_steps(self) -> list[float]:
        """[gaps of the pool that equal values can have, the sum of their probabilities, the number of gaps]."""
        tolerance, error, most = (
            (_EXACT_APART, _EXACT_ERROR, _EXACT_POOLED) if self._is_exact else (_APART, _ERROR, _POOLED)
        )
        pooled = self._largest_pooled(most)
        count, expected = gaussian_noise.small_gaps(
            pooled, tolerance * self._unit, (tolerance + 2.0 * error) * self._unit
        )
        return [count, expected, max(0, len(pooled) - 1)]

    def _add_coarse(self, noise: Tensor, total: Tensor | float, std: float, unit: float, most: int) -> None:
        """Check at most ``most`` values of a step. total: the sum that the noise covers, or its largest coordinate."""
        where = self._every(most)
        values = _array(noise[where])
        covered = np.full(len(values), total) if isinstance(total, float) else _array(total[where])
        used = (np.abs(covered) <= _SUM * std) & (values != 0.0)
        values, covered = values[used], covered[used]
        mantissa, exponent = np.frexp(np.abs(values))
        bits = np.ldexp(mantissa, 53).astype(np.int64)
        last = np.ldexp((bits & -bits).astype(np.float64), exponent - 53)
        explained = 2.0 * unit * (np.abs(values) + np.abs(covered) + 8.0 * std)
        coarse = int((last > 2.0**_COARSE_BITS * explained).sum())
        self._coarse += coarse
        self._checked += len(values)
        if not len(values):
            return
        self._checked_steps += 1
        # A large share of few values, such as those that no long sum covers, shows little.
        log_p = gaussian_noise.log_coarse(coarse, len(values))
        if log_p < self._coarsest[0] or not self._coarsest[2]:
            self._coarsest = log_p, coarse, len(values)

    def found(self) -> NoiseStatistics | None:
        """The statistics of all steps; None without noise."""
        self._read_steps()
        if not self._seen:
            return None
        quietest: Quietest | None = None
        if self._squares:
            least = min(float(total.min()) for total in self._squares if len(total))
            quietest = Quietest(
                squares=statistic(least),
                steps=self._precise,
                coordinates=sum(len(total) for total in self._squares),
                rounding=statistic(self._rounding),
            )
        families = [self._kept.found(), *(lines.found() for lines in self._lines.values())]
        spanned = [family for family in families if family is not None]
        numbers, largest = self._extremes
        steps, squares, longest = self._along
        return NoiseStatistics(
            counts=tuple(self._counts.tolist()),
            worst_counts=tuple(self._worst[1]),
            counted=int(self._tested),
            edge_error=statistic(self._room),
            sampled=self._sampled,
            coarse=CoarseValues(
                coarse=self._coarse,
                checked=self._checked,
                coarse_of_step=self._coarsest[1],
                checked_of_step=self._coarsest[2],
                steps=self._checked_steps,
            ),
            repeats=_repeats(self._repeats),
            pooled=_repeats(self._repeats_between_steps()),
            along_sums=AlongSums(steps=steps, squares=statistic(squares), largest=statistic(longest)),
            extremes=Extremes(
                numbers=numbers,
                largest=statistic(largest),
                rounding=statistic(self._rounding),
                equal=int(sum(largest - value <= 2.0 * self._rounding for value in self._largest_of_steps[1:])),
            ),
            quietest=quietest,
            centered=self._least_family(),
            alignment=worst_alignment(spanned),
            volume=worst_volume(spanned, self._rounding),
            dispersion=self._dispersion(),
            grid=_grid(self._grid.found()) if self._is_exact else None,
        )


def _repeats(values: Sequence[float]) -> Repeats:
    small, expected, gaps = map(statistic, values)
    return Repeats(small=small, expected=expected, gaps=gaps)


def _grid(values: Sequence[float]) -> Grid | None:
    if not values:
        return None
    spacing, noise, sums = map(statistic, values)
    return Grid(spacing=spacing, noise=noise, sums=sums)


def _array(values: Tensor) -> Array:
    doubles: Array = values.cpu().double().numpy()
    return doubles
