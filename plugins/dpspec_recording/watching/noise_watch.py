"""Statistics of a run's noise, for tests of its size, its shape and its independence.

Every step contributes its component along the sum, its largest absolute value, squares of coordinates and the values of
about two thousand coordinates; sampled steps also their largest absolute values. Steps and coordinates are chosen by
the operating system's randomness. :mod:`dpspec_recording.watching.noise_statistics` has the null distributions.

The noise that Opacus added is the difference of two gradients. Rounding changes it by the resolution of its type times
the size of the sum, which is fixed before its noise is drawn. So tests of single values use the coordinates where the
sum is at most ``_SUM`` standard deviations.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpspec_recording.watching import noise_statistics
from dpspec_recording.watching.noise_sketch import MeasuredNoise
from dpspec_recording.watching.noise_statistics import (
    AlongSums,
    Array,
    Extremes,
    NoiseStatistics,
    Quietest,
    Repeats,
    statistic,
)

#: Values of one step whose distribution is tested.
_VALUES = 2048

#: Largest absolute values of a step that are compared.
_LARGEST = 1024

#: Coordinates whose squares are added up over the steps.
_SQUARES = 2**20

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

#: The numbers of the largest values of all steps that are compared. Few show noise that is cut, and many a large table.
_POOLED = 2 ** np.arange(6, 15)

#: Sampled steps: all of the first few, then step n with probability rate / n: about 20 of 200, 30 of 2,000.
_FIRST, _RATE = 4, 4.0

#: The numbers of values of a step's noise, and of its sum, that are kept to find their common spacing; of all steps;
#: and below which a spacing may be chance: 8 ** -64 for values between grid points.
_SPACED, _MOST_SPACED, _FEWEST_SPACED = 256, 2**13, 64

#: Largest distance of a value from the grid, in spacings: float32 sums of rounded contributions miss it by 1e-7 of
#: their size. The smallest spacing, in resolutions of the values: all floating-point numbers are multiples of one.
_OFF, _FINEST = 1.0 / 16.0, 16.0


class NoiseWatch:
    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._resolution = max([2.0**-23, *(torch.finfo(p.dtype).eps for p in parameters if p.is_floating_point())])
        self._unit = 0.5 * self._resolution
        self._random, self._steps, self._seen, self._precise = random.SystemRandom(), 0, 0, 0
        self._coordinates = sum(p.numel() for p in parameters)
        self._tracked, self._squares = self._every(_SQUARES), torch.zeros(0)
        self._counts = np.zeros(noise_statistics.INTERVALS, dtype=np.int64)
        self._worst: tuple[float, list[int]] = (1.0, [])
        self._tested, self._room, self._rounding, self._largest = 0, 0.0, 0.0, 0.0
        self._waiting: list[tuple[Tensor, Tensor | None, Array, float]] = []
        self._along: list[float] = [0, 0.0, 0.0]
        self._within: list[float] = [0, 0.0, 0]
        self._pool, self._is_exact = [np.zeros(0)], True
        self._spaced: tuple[list[Array], list[Array]] = ([], [])  # of the noise, and of the sum
        self._least_std = math.inf

    @np.errstate(all="ignore")
    def add(self, measured: MeasuredNoise, stds: Sequence[float]) -> None:
        """Add the noise of k steps with its declared standard deviations."""
        sampled = np.array([self._is_sampled() for _ in stds])
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
        self._precise += int(precise.sum())
        self._rounding = max(self._rounding, unit * (float(largest[precise].max()) + 16.0))
        self._largest = max(self._largest, *(extreme / std)[precise])
        with_sum = precise & (lengths > 0.0)
        if with_sum.any():  # the noise along the sum, which is fixed before: a normal value of variance 1
            along = (products[with_sum] / lengths[with_sum] / std[with_sum]) ** 2
            steps, summed, longest = self._along
            self._along = [steps + len(along), summed + float(along.sum()), max(longest, float(along.max()))]
        self._add_squares(noise[:, self._tracked], np.where(precise, std, np.inf) ** -2)
        if total is not None:
            for row in np.flatnonzero(precise & sampled).tolist():
                self._add_sampled(noise[row], total[row], float(std[row]))

    def _is_sampled(self) -> bool:
        self._steps += 1
        return self._steps <= _FIRST or self._random.random() < _RATE / self._steps

    def _every(self, most: int) -> slice:
        """At most ``most`` coordinates at equal distances, from a random start."""
        stride = max(1, -(-self._coordinates // most))
        return slice(self._random.randrange(stride), None, stride)

    def _add_squares(self, noise: Tensor, weights: Array) -> None:
        if not len(self._squares):
            self._squares = torch.zeros_like(noise[0])
        if len(noise) == 1:
            self._squares.addcmul_(noise[0], noise[0], value=float(weights[0]))
        else:
            self._squares += torch.mv(noise.square().nan_to_num_(0.0).t(), torch.as_tensor(weights).to(noise))

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
            self._count_steps(values.cpu(), None if sums is None else _array(sums), std, edge_error)

    def _count_steps(self, values: Tensor, sums: Array | None, std: Array, edge_error: float) -> None:
        """Count the values between the edges, (k, n) of k steps, where the sum is small."""
        if sums is not None:
            values = values.masked_fill(torch.from_numpy(np.abs(sums) > _SUM * std[:, None]), torch.inf)
        single: Any = values.numpy() if values.dtype == torch.float32 else _array(values)
        scaled = np.sort(single, axis=1) / std[:, None]  # numbers of 32 bits are sorted in half the time
        if self._coordinates <= _VALUES:  # else sampled steps contribute the largest of all their values
            self._add_to_pool(np.abs(scaled[np.isfinite(scaled)], dtype=np.float64))
        ends = np.append(noise_statistics.EDGES, np.finfo(np.float64).max)
        counts = np.diff([row.searchsorted(ends, side="right") for row in scaled], axis=1, prepend=0)
        self._counts += counts.sum(axis=0)
        self._tested += len(counts)
        self._room = max(self._room, edge_error)
        log_p, _ = noise_statistics.log_shares(counts, edge_error)
        worst = int(np.argmin(log_p))
        if log_p[worst] < self._worst[0]:
            self._worst = float(log_p[worst]), counts[worst].tolist()

    def _add_sampled(self, noise: Tensor, total: Tensor, std: float) -> None:
        """Keep the largest values of a step where its sum is small, and values on a grid that both may be on."""
        small = torch.where(total.abs() <= _SUM * std, noise.abs(), 0.0)
        largest = _array(small.topk(min(_LARGEST, len(noise))).values) / std
        largest = largest[largest > 0.0]
        count, expected = self._gaps(largest)
        self._within = [
            before + added for before, added in zip(self._within, (count, expected, len(largest)), strict=True)
        ]
        if self._coordinates > _VALUES:
            self._add_to_pool(largest)
        for pool, values in zip(self._spaced, (noise, total), strict=True):
            nonzero = values[values != 0.0]  # zeros are on each grid
            stride = max(1, len(nonzero) // _SPACED)
            if sum(map(len, pool)) < _MOST_SPACED:
                pool.append(np.abs(_array(nonzero[self._random.randrange(stride) :: stride][:_SPACED])))
        self._least_std = min(self._least_std, std)

    def _add_to_pool(self, values: Array) -> None:
        """Keep the largest absolute values of all steps, whose gaps show numbers that steps have in common."""
        self._pool.append(values[values > 0.0])  # coordinates without noise repeat no number
        if sum(map(len, self._pool)) > 4 * _POOLED[-1]:
            self._pool = [self._largest_pooled()]

    def _largest_pooled(self) -> Array:
        """The largest pooled values, descending."""
        values, most = np.concatenate(self._pool), int(_POOLED[-1])
        largest: Array = np.sort(np.partition(values, -most)[-most:] if len(values) > most else values)[::-1]
        return largest

    def _gaps(self, values: Array) -> tuple[int, float]:
        """The number of gaps between descending values that equal ones can have, and its expectation."""
        gap, error = (_EXACT_APART, _EXACT_ERROR) if self._is_exact else (_APART, _ERROR)
        return noise_statistics.small_gaps(values, gap * self._unit, (gap + 2.0 * error) * self._unit)

    def _repeats_between_steps(self) -> Repeats:
        """Of the number of largest values with the smallest probability."""
        pooled = self._largest_pooled()
        counts = [(*self._gaps(pooled[:most]), min(int(most), len(pooled)) - 1) for most in _POOLED]
        small, expected, gaps = min(counts, key=lambda gaps: noise_statistics.log_repeats(gaps[0], gaps[1]))
        return Repeats(small=small, expected=statistic(expected), gaps=max(0, gaps), tried=len(counts))

    def _spacing(self) -> float:
        """The common spacing of noise and sums, in the smallest standard deviation; 0.0 without."""
        noise, sums = (np.concatenate([np.zeros(0), *pool]) for pool in self._spaced)
        if not self._is_exact or min(len(noise), len(sums)) < _FEWEST_SPACED:
            return 0.0
        spacing = spacing_of(noise, self._resolution)
        return spacing / self._least_std if spacing and _is_on_grid(sums, spacing) else 0.0

    def found(self) -> NoiseStatistics | None:
        """The statistics of all steps; None without noise."""
        self._read_steps()
        if not self._seen:
            return None
        rounding, (along_steps, along, longest) = statistic(self._rounding), self._along
        small, expected, gaps = self._within
        quietest: Quietest | None = None
        if len(self._squares):
            quietest = Quietest(
                squares=statistic(float(self._squares.min())),
                steps=self._precise,
                coordinates=len(self._squares),
                rounding=rounding,
            )
        return NoiseStatistics(
            quietest=quietest,
            counts=tuple(self._counts.tolist()),
            worst_counts=tuple(self._worst[1]),
            counted=self._tested,
            edge_error=statistic(self._room),
            extremes=Extremes(
                numbers=self._coordinates * self._precise, largest=statistic(self._largest), rounding=rounding
            ),
            repeats=Repeats(small=small, expected=statistic(expected), gaps=gaps, tried=1),
            pooled=self._repeats_between_steps(),
            along_sums=AlongSums(steps=along_steps, squares=statistic(along), largest=statistic(longest)),
            spacing=statistic(self._spacing()),
        )


def spacing_of(values: Array, resolution: float) -> float:
    """The largest h that divides all values (n,) up to rounding; 0.0 if none is far above the resolution.

    Contributions and noise that are rounded to multiples of h release round(sum + noise), which processes the output of
    a Gaussian mechanism. Values on such a grid repeat, and show no reused noise. The smallest gap between two values is
    a first estimate. Each larger value improves it, if it is nearly a multiple.
    """
    distinct = np.unique(values)
    finest = _FINEST * resolution * float(distinct[-1])
    gaps = np.diff(np.concatenate([[0.0], distinct]))
    gaps = gaps[gaps > finest]  # smaller ones are roundings of equal values
    if not len(gaps):
        return 0.0
    spacing = float(gaps.min())
    for value in distinct[distinct > finest].tolist():
        multiple = round(value / spacing)
        if not multiple or abs(value / spacing - multiple) > 2.0 * _OFF:
            return 0.0
        spacing = value / multiple
    return spacing if _is_on_grid(values, spacing) else 0.0


def _is_on_grid(values: Array, spacing: float) -> bool:
    multiples = values / spacing
    return bool((np.abs(multiples - np.rint(multiples)) <= _OFF).all())


def _array(values: Tensor) -> Array:
    doubles: Array = values.cpu().double().numpy()
    return doubles
