"""Statistics of a run's noise, for tests that it is fresh, Gaussian and independent across coordinates and steps.

Every step contributes sums, squared norms and the values of about two thousand coordinates; sampled steps also their
largest absolute values, products of coordinates, rows of layers, and coordinates to compare with other steps. Steps and
coordinates are chosen by the operating system's randomness. ``dpspec.stats.gaussian_noise`` has the null distributions.

The noise that Opacus added is the difference of two gradients. Rounding changes it by the resolution of its type times
the size of the sum, which is fixed before its noise is drawn. So tests of single values use the coordinates where the
sum is at most ``_SUM`` standard deviations.
"""

import math
import os
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dpspec.recording.watching.noise_sketch import MeasuredNoise
from dpspec.stats import gaussian_noise

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

#: Values of one step whose distribution is tested.
_VALUES = 2048

#: Largest absolute values of a step that are kept, coordinates that are compared, and steps kept.
_LARGEST, _COMPARED, _KEPT = 1024, 2**14, 64

#: Coordinates whose squares are added up over the steps.
_SQUARES = 2**24

#: Largest coordinate of the sum, in standard deviations of the noise, where single values are tested.
_SUM = 32.0

#: Steps that are tested in one go: the code is in the processor's caches then.
_BATCH = 32

#: Rounding of a coordinate, in standard deviations, above which a step is not tested for dependence.
_ROUNDING = 0.01

#: Bounds on rounding in units of half the resolution: on the difference of two equal values, and on the error of one
#: value (up to the sum of four values of eight standard deviations each).
_APART, _ERROR = 96.0, 80.0

#: Values with this many trailing zero bits more than the resolution explains are coarse.
_COARSE_BITS = 6

#: Sampled steps: all of the first few, then pairs of successive steps that begin at step n with probability rate / n.
_FIRST, _RATE = 4, 2.0

#: Number of coordinates in the window for products, and in one of its blocks.
WINDOW, _BLOCK = 2**16, 2**13

#: Rows and columns of a block of one layer, and the number of layers sampled at one step.
_ROWS, _COLUMNS, _LAYERS = 64, 512, 16


class SampledSteps:
    """Samples about 20 of 200 steps, 30 of 2,000."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()
        self._step, self._follows = 0, False

    def next(self) -> bool:
        self._step += 1
        begins = self._step <= _FIRST or self._random.random() < _RATE / self._step
        sampled = begins or self._follows
        self._follows = begins and not self._follows
        return sampled


class Coordinates:
    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        self._random = np.random.default_rng(int.from_bytes(os.urandom(16), "little"))
        self._shapes = [tuple(shape) for shape in shapes]
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        self._starts = [0, *np.cumsum(sizes).tolist()]
        self.count = self._starts[-1]
        self._matrices = [n for n, shape in enumerate(self._shapes) if sum(side > 1 for side in shape) > 1]

    def every(self, most: int) -> slice:
        """At most ``most`` coordinates at equal distances, from a random start."""
        stride = max(1, -(-self.count // most))
        return slice(int(self._random.integers(stride)), None, stride)

    def window(self) -> list[slice]:
        """Disjoint stretches of coordinates; of a large model two random ones, and a shift of one."""
        if self.count <= WINDOW:
            return [slice(0, self.count)]
        start, half = int(self._random.integers(self.count // 8)), self.count // 2
        quarter = self.count // 4
        second_start = quarter + int(self._random.integers(max(1, quarter - 4 * _BLOCK)))
        stretches = [(start, _BLOCK), (second_start, min(4 * _BLOCK, half - second_start)), (half + start, _BLOCK)]
        ends = [(low, low + size) for low, size in stretches]
        assert all(before[1] <= after[0] for before, after in pairwise(ends))
        return [slice(low, high) for low, high in ends]

    def blocks(self) -> list[tuple[int, Tensor]]:
        """Random (p, q) submatrices of layers with two dimensions or more, p <= q, with the layer's number."""
        chosen = self._matrices
        if len(chosen) > _LAYERS:
            chosen = sorted(self._random.choice(chosen, _LAYERS, replace=False).tolist())
        return [(layer, self._block(layer)) for layer in chosen]

    def _block(self, layer: int) -> Tensor:
        shape = self._shapes[layer]
        sides = [n for n, side in enumerate(shape) if side > 1]
        rows = sides[: int(self._random.integers(1, len(sides)))]
        if len(sides) > 2 and self._random.random() < 0.5:
            rows = [sides[int(self._random.integers(len(sides)))]]
        columns = [n for n in sides if n not in rows]
        strides = np.append(np.cumprod(shape[:0:-1])[::-1], 1).astype(np.int64)
        axes = []
        for dimensions in (rows, columns):
            lengths = [shape[n] for n in dimensions]
            axes.append((int(np.prod(lengths)), lengths, strides[dimensions]))
        if axes[0][0] > axes[1][0]:
            axes.reverse()
        offsets = []
        for (size, lengths, steps), most in zip(axes, (_ROWS, _COLUMNS), strict=True):
            picked = self._random.choice(size, min(size, most), replace=False, shuffle=False)
            offsets.append(np.stack(np.unravel_index(picked, lengths), axis=-1) @ steps)
        return torch.from_numpy(self._starts[layer] + offsets[0][:, None] + offsets[1][None, :])


class NoiseWatch:
    def __init__(self, parameters: Sequence[Tensor]) -> None:
        shapes = [tuple(p.shape) for p in parameters]
        self._resolution = max([2.0**-23, *(torch.finfo(p.dtype).eps for p in parameters if p.is_floating_point())])
        self._coordinates, self._steps = Coordinates(shapes), SampledSteps()
        # The sizes of the layers that have coordinates, and of all of these together if there are several.
        self._lengths = [size for size in map(math.prod, shapes) if size]
        self._filled = [layer for layer, shape in enumerate(shapes) if math.prod(shape)]
        whole = [sum(self._lengths)] if len(self._lengths) > 1 else []
        self._sizes = np.array([*self._lengths, *whole], dtype=np.float64)
        self._window = self._coordinates.window()
        self._kept = self._coordinates.every(_COMPARED)
        self._score: float | None = None
        self._sums, self._norms, self._successive = [0, 0.0, 0.0], [0, 0.0, 0.0], [0, 0.0]
        self._counts = np.zeros(gaussian_noise.INTERVALS, dtype=np.int64)
        self._worst: tuple[float, list[int]] = (1.0, [])
        self._tested = self._room = 0.0
        self._sampled = self._coarse = self._checked = 0
        self._repeats: list[float] = [0, 0.0, 0]
        self._shift: tuple[float, list[float]] = (1.0, [])
        self._pooled: tuple[Array, Array] | None = None
        self._block: tuple[float, list[float]] = (1.0, [])
        self._blocks: list[float] = [0, 0.0, 0]
        self._rows: list[Array] = []
        self._squares: list[Tensor] = []
        self._rounding = 0.0
        self._waiting: list[tuple[Tensor, Tensor | None, Array, float]] = []
        self._seen, self._unit = 0, 0.5 * self._resolution
        self._along: list[float] = [0, 0.0, 0.0]

    @np.errstate(all="ignore")
    def add(self, measured: MeasuredNoise, stds: Sequence[float]) -> None:
        """Add the noise of k steps with its declared standard deviations."""
        sampled = [self._steps.next() for _ in stds]
        if self._coordinates.count == 0:
            return
        std, unit, noise = np.array(stds), self._unit, measured.noise
        of_sums = torch.stack([measured.lengths, measured.products, measured.largest.double()], dim=1)
        read = _array(torch.cat([of_sums, measured.totals, measured.squares], dim=1))  # one transfer from the device
        lengths, products, largest = read[:, :3].T
        totals, squares = (part[:, self._filled] for part in np.split(read[:, 3:], 2, axis=1))
        observed = (std > 0.0) & np.isfinite(std) & np.isfinite(largest)
        observed &= np.isfinite(totals).all(axis=1) & np.isfinite(squares).all(axis=1)
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
        self._add_norms(totals[precise], squares[precise], std[precise, None])
        self._add_squares(noise if precise.all() else noise[torch.as_tensor(precise)], std[precise] ** -2)
        for row in np.flatnonzero(precise).tolist():
            if sampled[row] or len(self._rows) < _KEPT:
                _keep(self._rows, (_array(noise[row, self._kept]) / std[row]).astype(np.float32))
            if sampled[row]:
                self._add_sampled(noise[row], None if total is None else total[row], float(std[row]), unit)

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
        steps, where = np.flatnonzero(np.isfinite(std)), self._coordinates.every(_VALUES)
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
        ends = np.append(gaussian_noise.EDGES, np.finfo(np.float64).max)
        counts = np.diff([row.searchsorted(ends, side="right") for row in scaled], axis=1, prepend=0)
        self._counts += counts.sum(axis=0)
        self._tested += len(counts)
        self._room = max(self._room, edge_error)
        log_p, _ = gaussian_noise.log_shares(counts, edge_error)
        worst = int(np.argmin(log_p))
        if log_p[worst] < self._worst[0]:
            self._worst = float(log_p[worst]), counts[worst].tolist()

    def _add_norms(self, sums: Array, squares: Array, std: Array) -> None:
        """Add the normal scores of sums and squared norms, (k, layers), of each layer and of all coordinates."""
        sizes = self._sizes
        if len(sizes) > sums.shape[1]:
            sums, squares = (np.c_[part, part.sum(axis=1)] for part in (sums, squares))
        sums, scores = sums / std / np.sqrt(sizes), gaussian_noise.scores(squares / std / std, sizes)
        for running_sums, values in ((self._sums, sums), (self._norms, scores)):
            # The last one belongs to all coordinates, and depends on the layers.
            running_sums[0] += len(values)
            running_sums[1] += float((values[:, :-1] ** 2).sum())
            running_sums[2] += float((values[:, -1] ** 2).sum())
        whole = scores[:, -1] if self._score is None else np.concatenate([[self._score], scores[:, -1]])
        self._successive[0] += len(whole) - 1
        self._successive[1] += float(whole[1:] @ whole[:-1])
        self._score = float(whole[-1])

    def _add_sampled(self, noise: Tensor, total: Tensor | None, std: float, unit: float) -> None:
        self._sampled += 1
        if total is not None:
            small = total.abs() <= _SUM * std
            largest_small = torch.where(small, noise.abs(), -1.0).topk(min(_LARGEST, len(noise))).values
            largest = _array(largest_small) / std
            largest = largest[largest >= 0.0]
            count, expected = gaussian_noise.small_gaps(largest, _APART * unit, (_APART + 2.0 * _ERROR) * unit)
            increments = count, expected, max(0, len(largest) - 1)
            self._repeats = [
                partial_sum + increment for partial_sum, increment in zip(self._repeats, increments, strict=True)
            ]
            where = self._coordinates.every(_VALUES)
            self._add_coarse(_array(noise[where]), _array(total[where]), std, unit)
        self._add_products(np.concatenate([_array(noise[stretch]) for stretch in self._window]) / std)
        for layer, block in self._coordinates.blocks():
            squares, degrees = gaussian_noise.dependence(_array(noise[block.to(noise.device)]) / std)
            self._blocks = [self._blocks[0] + 1, self._blocks[1] + squares, self._blocks[2] + degrees]
            log_p = gaussian_noise.log_chi_square(squares, degrees)
            if log_p < self._block[0]:
                self._block = log_p, [layer, squares, degrees]

    def _add_coarse(self, values: Array, total: Array, std: float, unit: float) -> None:
        values, total = values[np.abs(total) <= _SUM * std], total[np.abs(total) <= _SUM * std]
        values, total = values[values != 0.0], total[values != 0.0]
        mantissa, exponent = np.frexp(np.abs(values))
        bits = np.ldexp(mantissa, 53).astype(np.int64)
        last = np.ldexp((bits & -bits).astype(np.float64), exponent - 53)
        explained = 2.0 * unit * (np.abs(values) + np.abs(total) + 8.0 * std)
        self._coarse += int((last > 2.0**_COARSE_BITS * explained).sum())
        self._checked += len(values)

    def _add_products(self, values: Array) -> None:
        """Sums of products of coordinates at each distance."""
        count = len(values)
        if count < 2:
            return
        spectrum = np.fft.rfft(values, 1 << (2 * count - 1).bit_length())
        products = np.fft.irfft(np.abs(spectrum) ** 2)[1:count]
        pairs = count - np.arange(1.0, count)
        log_p = gaussian_noise.log_products(products, pairs)
        worst = int(np.argmin(log_p))
        if log_p[worst] < self._shift[0]:
            self._shift = float(log_p[worst]), [float(products[worst]), int(pairs[worst])]
        before = self._pooled
        self._pooled = (products, pairs) if before is None else (before[0] + products, before[1] + pairs)

    def found(self) -> dict[str, Any] | None:
        self._read_steps()
        if not self._seen:
            return None
        quietest, pooled, steps = list[float](), list[float](), list[float]()
        if self._squares:
            least = min(float(total.min()) for total in self._squares if len(total))
            # [smallest sum of squares of a coordinate, steps, coordinates, rounding of one value]
            quietest = [least, self._norms[0], sum(len(total) for total in self._squares), self._rounding]
        if self._pooled is not None:
            products, distances = self._pooled
            worst = int(np.argmin(gaussian_noise.log_products(products, distances)))
            pooled = [float(products[worst]), int(distances[worst])]
        if len(self._rows) > 1:
            # [chi-square value, degrees of freedom] of the kept steps, in the compared coordinates
            steps = list(gaussian_noise.dependence(np.stack(self._rows).astype(np.float64)))
        return {
            "sums": self._sums,
            "norms": self._norms,
            "successive": self._successive,
            "counts": self._counts.tolist(),
            "worst_counts": self._worst[1],
            "counted": int(self._tested),
            "room": self._room,
            "sampled": self._sampled,
            "quietest": quietest,
            "coarse": [self._coarse, self._checked],
            "repeats": self._repeats,
            "shift": self._shift[1],
            "pooled_shift": pooled,
            "shifts": 0 if self._pooled is None else len(self._pooled[0]),
            "block": self._block[1],
            "blocks": self._blocks,
            "steps": steps,
            "along_sums": self._along,
        }


def _keep(rows: list[Array], row: Array) -> None:
    if len(rows) == _KEPT:
        del rows[random.SystemRandom().randrange(_KEPT)]
    rows.append(row)


def _array(values: Tensor) -> Array:
    doubles: Array = values.cpu().double().numpy()
    return doubles
