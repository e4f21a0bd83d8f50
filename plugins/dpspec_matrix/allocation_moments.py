"""Upper ends of epsilon for random allocation with overlapping columns: a common Gaussian release, and moments.

Theorem M8 of ``docs/explanation/proofs/matrix.md``.

>>> import numpy as np
>>> columns = np.tril(np.ones((4, 4)))  # two epochs of two steps; each row sums the noise of all earlier ones
>>> part = AllocationMoments(columns.T @ columns / 9.0, epochs=2)
>>> round(part.epsilon(1e-6), 1)
4.8
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtr, ndtri

from dpspec.accounting import Floats, crossing

#: Orders of moments, and numbers of copies per group; an order that is its group is exact.
_ORDERS = (
    *((order, order) for order in range(2, 7)),
    *((order, 4) for order in (8, 12, 16)),
    *((order, 3) for order in (6, 9, 12, 18, 24, 36, 48, 72, 96)),
)

#: Largest number of multiplications for all epochs at one order, and of matrix products.
_PRODUCTS, _CALLS = 5e9, 20_000

#: Largest work for the singular values of all pairs of epochs: steps^2 times the steps of an epoch.
_DECOMPOSED = 3e9

#: Slack of the diagonal in units of the largest entry, for 1,000 steps: more than all rounding of matrices.
_SLACK = 1e-8

#: The share of the largest common release that is used, so that the rest is safely positive semidefinite.
_SHARE = 1.0 - 1e-6

#: Relative and absolute rounding of logarithms of moments, and relative rounding of sums over cells.
_LOGARITHM, _SUM = 1e-9, 1e-9

#: Numbers of cells of the common release, and the share of delta beyond them.
_CELLS, _BEYOND = 1 << 14, 1e-4

#: Smallest delta: normal tails of much less underflow. Largest epsilon that is searched.
_LEAST_DELTA, _LARGEST_EPSILON = 1e-250, 1e9


@dataclass(frozen=True, eq=False)
class AllocationMoments:
    """Equal gradients in one random step of each epoch, with C >= 0.

    Attributes:
        kernel: at least C^T C / sigma^2, entry by entry, symmetric, (steps, steps).
        epochs: number of epochs, a divisor of ``steps``.
    """

    kernel: Floats
    epochs: int

    def epsilon(self, delta: float) -> float:
        """An upper bound of epsilon at ``delta``; present-first is the worse direction (Theorem 62)."""
        if delta < _LEAST_DELTA or not self._rest:
            return math.inf
        log_delta = math.log(delta)
        edge = -float(ndtri(_BEYOND * delta))
        nodes = np.linspace(-edge, edge, _CELLS + 1)
        tails = ndtr(-np.abs(nodes))
        masses = np.where(nodes[:-1] >= 0.0, tails[:-1] - tails[1:], tails[1:] - tails[:-1])
        masses[0] += tails[0]
        losses = 0.5 * self._common + math.sqrt(self._common) * nodes[1:]

        def margin(epsilon: float) -> float:
            """ln of a bound of delta at ``epsilon`` in units of ``delta``."""
            total = float(masses @ self._excess(epsilon - losses)) + float(tails[-1])
            return math.log(total) + _SUM - log_delta

        if margin(0.0) < 0.0:
            return 0.0
        low, high = 0.0, 1.0
        while margin(high) >= 0.0:
            low, high = high, 2.0 * high
            if high > _LARGEST_EPSILON:
                return math.inf
        _, upper = crossing(margin, low, high, within=1e-6 * high)
        return upper * (1.0 + 1e-12)

    def _excess(self, log_thresholds: Floats) -> Floats:
        """Upper bounds of E max(L - y, 0) for the rest's ratio L of mean 1, at each y >= 0 of these logarithms."""
        logs = np.zeros(log_thresholds.shape)
        for order, log_moment in self._rest.items():
            conversion = (order - 1.0) * math.log1p(-1.0 / order) - math.log(order)
            logs = np.minimum(logs, log_moment + conversion - (order - 1.0) * log_thresholds)
        bound = np.exp(logs)
        variance, is_moderate = math.expm1(min(self._rest[2], 600.0)), log_thresholds < 20.0
        gap = np.exp(log_thresholds[is_moderate]) - 1.0
        root = np.sqrt(variance + gap * gap)
        bound[is_moderate] = np.minimum(
            bound[is_moderate], np.where(gap > 0.0, variance / (root + np.abs(gap)), root - gap) / 2.0
        )
        return np.asarray(bound * (1.0 + _SUM))

    @property
    def _common(self) -> float:
        """Squared mean of the common release in units of its noise."""
        return self._parts[0]

    @property
    def _rest(self) -> dict[int, float]:
        """Upper bounds of ln E[L^order] by order, of the ratio L of the rest; empty if they take too long."""
        return self._parts[1]

    @functools.cached_property
    def _parts(self) -> tuple[float, dict[int, float]]:
        size, epochs = len(self.kernel), self.epochs
        epoch_steps = size // epochs
        if epochs > 1 and float(size) * size * epoch_steps > _DECOMPOSED:
            return 0.0, {}
        slack = _SLACK * (1.0 + size / 1000.0) * float(self.kernel.max())
        kernel = self.kernel + slack * np.eye(size)
        try:
            common = _common_release(kernel, epochs)
        except np.linalg.LinAlgError:  # not positive definite
            return 0.0, {}
        remainder = kernel - np.kron(common, np.ones((epoch_steps, epoch_steps)))
        try:
            np.linalg.cholesky(remainder + slack * np.eye(size))
        except np.linalg.LinAlgError:
            common, remainder = np.zeros((epochs, epochs)), kernel
        constant, linear, squares = _separated(remainder, epochs)
        squares = squares + 2.0 * slack * np.eye(epoch_steps)
        logs: dict[int, float] = {}
        for order, group in _ORDERS:
            if epochs * float(epoch_steps) ** group > _PRODUCTS or epochs * float(epoch_steps) ** (group - 3) > _CALLS:
                continue
            pairs = order * (order - 1) / 2.0
            terms = [_log_moment(*part, order, group) for part in zip(squares, linear, strict=True)]
            scale = pairs * (abs(constant) + float(np.abs(squares).max(axis=(1, 2)).sum()))
            scale += order * (order - 1) * float(np.abs(linear).max(axis=1).sum())
            moment = max(0.0, math.fsum((pairs * constant, *terms))) + _LOGARITHM * (1.0 + scale)
            logs[order] = min(moment, logs.get(order, math.inf))
        return float(common.sum()) * (1.0 + 1e-12), logs


def _common_release(kernel: Floats, epochs: int) -> Floats:
    """Products of the epochs' means along the direction in which all steps of an epoch have one mean, (epochs, epochs).

    Of all such directions it is the one with the largest sum of means in units of the noise.
    """
    indicators = np.kron(np.eye(epochs), np.ones((len(kernel) // epochs, 1)))
    information = indicators.T @ cho_solve(cho_factor(kernel), indicators)
    means = np.linalg.solve(information, np.ones(epochs))
    return np.asarray(np.outer(means, means) * (_SHARE / float(means @ information @ means)))


def _separated(kernel: Floats, epochs: int) -> tuple[float, Floats, Floats]:
    """A constant, numbers of the steps, (epochs, epoch_steps), and kernels, (epochs, epoch_steps, epoch_steps).

    Their sum over pairs of allocations is at least ``kernel``, in the order of positive semidefinite matrices.
    """
    epoch_steps = len(kernel) // epochs
    blocks = kernel.reshape(epochs, epoch_steps, epochs, epoch_steps).transpose(0, 2, 1, 3)
    means, rows = blocks.mean(axis=(2, 3)), blocks.mean(axis=3)
    centered = blocks - rows[..., None] - rows.transpose(1, 0, 2)[:, :, None, :] + means[..., None, None]
    squares = centered[np.arange(epochs), np.arange(epochs)].copy()
    for first in range(epochs):
        for second in range(first + 1, epochs):
            if np.any(centered[first, second]):
                left, sizes, right = np.linalg.svd(centered[first, second])
                squares[first] += (left * sizes) @ left.T
                squares[second] += (right.T * sizes) @ right
    return float(means.sum()), rows.sum(axis=1) - means.sum(axis=1)[:, None], squares


def _log_moment(square: Floats, linear: Floats, order: int, group: int) -> float:
    """An upper bound of ln E exp(sum_i (order - 1) linear(s_i) + sum_(i < j) square(s_i, s_j)).

    The mean is over ``order`` uniform places s_i; it is exact if ``group`` is the order. The sum over pairs is a mean
    over partitions into groups of ``group`` places, of the pairs within groups times (order - 1) / (group - 1), and exp
    is convex.
    """
    exponents, pairs = (order - 1.0) * linear, (order - 1.0) / (group - 1.0) * square
    top, largest = float(exponents.max()), float(pairs.max())
    total = _sum_over_places(np.exp(pairs - largest), np.exp(exponents - top), group)
    if total < 1e-200:  # underflow may have lost terms
        return math.inf
    log_mean = math.log(total) + group * (top - math.log(len(linear))) + group * (group - 1) / 2.0 * largest
    return order / group * log_mean


def _sum_over_places(affinities: Floats, weights: Floats, order: int) -> float:
    """The sum over s_1, ..., s_order of the products of all ``weights``, and of the ``affinities`` of all pairs."""
    if order == 2:
        return float(weights @ affinities @ weights)
    if order == 3:
        roots = np.sqrt(weights)
        scaled = affinities * roots[:, None] * roots
        return float(((scaled @ scaled) * scaled).sum())
    rows = zip(weights.tolist(), affinities, strict=True)
    return math.fsum(weight * _sum_over_places(affinities, weights * row, order - 1) for weight, row in rows)
