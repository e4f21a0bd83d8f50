"""The worst participation of a record, the pairs above and below a schedule, and epsilon and mu of both.

``docs/explanation/proofs/matrix.md`` has the theorems.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpspec import accounting
from dpspec.accounting import EPS, Floats, Interval, Mixture, Pair, PrivacyLoss
from dpspec_matrix.encoders import Encoder, encoder_of
from dpspec_matrix.options import Schedule

#: Relative widths of intervals of claimed values, and of curves.
WIDTH, CURVE_WIDTH = 1e-4, 1e-2

#: The relative rounding of a norm of up to 10^5 rows and of the root of it.
_NORM = 1e-10

#: Largest number of different noise levels in one composition.
_LEVELS = 16

#: Outside this range of noise no pair of random allocation is composed.
_LEAST_ALLOCATED = 0.1


@dataclass(frozen=True)
class Sensitivity:
    """Bounds of the squared change of C X by one record, in clip norms; ``steps`` attain the lower one."""

    lower: float
    upper: float
    steps: tuple[int, ...]

    def mu(self, noise: float, group_size: int) -> Interval:
        low, high = (group_size * math.sqrt(square) / noise for square in (self.lower, self.upper))
        return Interval(low * (1.0 - 8.0 * EPS), high * (1.0 + 8.0 * EPS))


def gram(encoder: Encoder) -> tuple[Floats, Floats]:
    """C^T C and a bound of the error of each entry, both of shape (steps, steps)."""
    matrix = encoder.matrix()
    product = matrix.T @ matrix
    sizes = product if encoder.is_nonnegative else np.abs(matrix).T @ np.abs(matrix)
    return product, sizes * ((encoder.steps + 16.0) * EPS + 3.0 * encoder.error)


@functools.lru_cache(maxsize=64)
def sensitivity(schedule: Schedule) -> Sensitivity:
    """The largest ||sum_(t in S) C e_t g_t||^2 over the allowed sets S of steps and vectors g_t of norm at most 1."""
    encoder, most = encoder_of(schedule.encoder, schedule.steps), schedule.most
    scheme, separation = schedule.participation.scheme, schedule.participation.separation
    is_orthogonal = encoder.bands <= separation or most == 1
    first = range(0, separation * most, separation)
    if encoder.column is not None and (
        is_orthogonal or encoder.is_monotone or (scheme == "cyclic" and encoder.is_nonnegative)
    ):
        square = _toeplitz_square(encoder, first)
        error = _NORM + 4.0 * encoder.error
        return Sensitivity(square * (1.0 - error), square * (1.0 + error), tuple(first))
    product, error_of = gram(encoder)
    sizes = np.abs(product) + error_of
    if scheme == "single":
        step = int(np.argmax(np.diag(sizes)))
        return Sensitivity(float(product[step, step] - error_of[step, step]), float(sizes[step, step]), (step,))
    slots = [range(j, min(schedule.steps, j + separation * most), separation) for j in range(separation)]
    slots = [slot for slot in slots if slot]
    upper = max(float(sizes[np.ix_(slot, slot)].sum()) for slot in slots)
    candidates: list[Sequence[int]] = [*slots]
    if scheme == "min-separation":
        upper, best = _separated(_rows(sizes, separation, most), separation, most)
        candidates.append(best)
    squares = [_attained(product, error_of, candidate) for candidate in candidates]
    best_place = int(np.argmax(squares))
    return Sensitivity(min(squares[best_place], upper), upper * (1.0 + _NORM), tuple(candidates[best_place]))


def _toeplitz_square(encoder: Encoder, steps: Sequence[int]) -> float:
    """||sum of the columns of ``steps``||^2; columns that no row combines may have any signs."""
    assert encoder.column is not None  # of Toeplitz encoders only
    rows = np.zeros(encoder.steps)
    for step in steps:
        entries = np.abs(encoder.column[: encoder.steps - step])
        rows[step : step + len(entries)] += entries
    return float(np.sum(np.square(rows)))


def _attained(product: Floats, error_of: Floats, steps: Sequence[int]) -> float:
    """The largest squared change by gradients of one direction whose signs are equal or alternate."""
    block, slack = product[np.ix_(steps, steps)], float(error_of[np.ix_(steps, steps)].sum())
    alternate = np.where(np.arange(len(steps)) % 2, -1.0, 1.0)
    signs = [np.ones(len(steps)), alternate, np.where(np.linalg.eigh(block)[1][:, -1] < 0.0, -1.0, 1.0)]
    return max(0.0, max(float(sign @ block @ sign) for sign in signs) - slack)


def _rows(sizes: Floats, separation: int, most: int) -> Floats:
    """Per step s, a bound of the sum of ``sizes[s, t]`` over all sets of steps t that contain s.

    Steps of a set on one side of s are in different blocks of ``separation`` steps, counted from s.
    """
    totals = np.diag(sizes).copy()
    for step, row in enumerate(sizes):
        after, before = row[step + separation :], row[: max(0, step - separation + 1)][::-1]
        blocks = [
            np.maximum.reduceat(side, np.arange(0, len(side), separation)) for side in (after, before) if len(side)
        ]
        if blocks and most > 1:
            totals[step] += float(np.sort(np.concatenate(blocks))[::-1][: most - 1].sum())
    return totals


def _separated(values: Floats, separation: int, most: int) -> tuple[float, list[int]]:
    """The largest sum of at most ``most`` values that are ``separation`` places apart, and their places."""
    count = len(values)
    best = np.zeros((count + 1, most + 1))
    for end in range(1, count + 1):
        taken = best[max(0, end - separation), :-1] + values[end - 1]
        best[end] = best[end - 1]
        best[end, 1:] = np.maximum(best[end, 1:], taken)
    chosen, end, left = [], count, most
    while end > 0 and left > 0:
        if best[end, left] == best[end - 1, left]:
            end -= 1
        else:
            chosen.append(end - 1)
            end, left = max(0, end - separation), left - 1
    return float(best[count, most]), chosen[::-1]


Phases = tuple[tuple[Pair, int], ...]


@dataclass(frozen=True)
class Reduction:
    """Alternative compositions that dominate a schedule, and ones that it attains.

    Attributes:
        shifts: (mu, ln of a number of sets of steps): one of that many Gaussian shifts mu happens, by a fair choice.
        reason: Inequality that separates both ends; empty if none does.
    """

    above: tuple[Phases, ...]
    below: tuple[Phases, ...]
    shifts: tuple[tuple[float, float], ...] = ()
    reason: str = ""


@functools.lru_cache(maxsize=64)
def reduction(schedule: Schedule, group_size: int, directions: float = math.inf) -> Reduction:
    """The pairs of a schedule; groups of more than one record for fixed participation only.

    ``directions`` is the number of orthogonal gradients that the model has room for: its parameters.
    """
    match schedule.participation.scheme:
        case "cyclic-poisson":
            return _poisson(schedule, directions)
        case "random-allocation" | "balls-in-bins":
            return _allocated(schedule, directions)
    mu = sensitivity(schedule).mu(schedule.noise_multiplier, group_size)
    reason = "" if mu.relative_width < 1e-6 else "|C^T C| entry by entry"
    return Reduction((_shift(mu.upper, up=True),), (_shift(mu.lower, up=False),) if mu.lower > 0.0 else (), (), reason)


def _shift(mu: float, *, up: bool) -> Phases:
    """One Gaussian pair of at least or at most this ``mu``."""
    return ((Mixture.full(1, (1.0 - 4.0 * EPS if up else 1.0 + 4.0 * EPS) / mu), 1),)


def _poisson(schedule: Schedule, directions: float) -> Reduction:
    """Every slot is a Poisson sample at each of its steps, of the noise of its column (Theorem M3)."""
    encoder, chosen = encoder_of(schedule.encoder, schedule.steps), schedule.participation
    first = np.arange(0, schedule.steps, chosen.separation)

    def samples(squares: Floats, *, up: bool) -> Phases:
        levels, counts = np.unique(_levels(squares, up=up), return_counts=True)
        noises = schedule.noise_multiplier / np.sqrt(levels) * (1.0 - 4.0 * EPS if up else 1.0 + 4.0 * EPS)
        pairs = [Mixture.poisson(1, chosen.rate, float(noise)) for noise in noises]
        return tuple(zip(pairs, counts.tolist(), strict=True))

    if encoder.column is not None and encoder.bands <= chosen.separation:
        norms = np.cumsum(np.square(encoder.column))[np.minimum(schedule.steps - first, encoder.bands) - 1]
        error = _NORM + 4.0 * encoder.error
        return Reduction((samples(norms * (1.0 + error), up=True),), (samples(norms * (1.0 - error), up=False),))
    product, error_of = gram(encoder)
    sizes = np.abs(product) + error_of
    squares = np.zeros(len(first))
    for slot in range(min(chosen.separation, schedule.steps)):
        steps = np.arange(slot, schedule.steps, chosen.separation)
        totals = sizes[np.ix_(steps, steps)].sum(axis=1) * (1.0 + _NORM)
        squares[: len(steps)] = np.maximum(squares[: len(steps)], totals)
    below: list[Phases] = []
    if directions >= len(first):  # orthogonal gradients
        below.append(samples(np.diag(product - error_of)[first] * (1.0 - _NORM), up=False))
    if encoder.is_nonnegative:  # the projection on the sum of all columns
        block = product[np.ix_(first, first)]
        least_change = float(block.sum(axis=1).min()) / math.sqrt(float(block.sum())) * (1.0 - 1e-8)
        noise = schedule.noise_multiplier / least_change
        below.append(((Mixture.poisson(len(first), chosen.rate, noise), 1),))
    return Reduction((samples(squares, up=True),), tuple(below), (), "diagonal dominance of C^T C")


def _levels(squares: Floats, *, up: bool) -> Floats:
    """At most ``_LEVELS`` values, each at least (or at most) its square."""
    if len(np.unique(squares)) <= _LEVELS:
        return squares
    edges = np.geomspace(squares.min(), squares.max(), _LEVELS)
    edges[0], edges[-1] = squares.min(), squares.max()
    side = np.searchsorted(edges, squares, "left") if up else np.searchsorted(edges, squares, "right") - 1
    return np.asarray(edges[side], dtype=np.float64)


def _allocated(schedule: Schedule, directions: float) -> Reduction:
    """One step of each epoch, or one of the same places in all epochs (Theorem M4)."""
    bins, noise = schedule.participation.separation, schedule.noise_multiplier
    epochs = -(-schedule.steps // bins)
    product, error_of = gram(encoder_of(schedule.encoder, schedule.steps))
    missing = epochs * bins - schedule.steps
    product, error_of = (np.pad(part, (0, missing)) for part in (product, error_of))
    sizes = np.abs(product) + error_of
    is_one_bin = schedule.participation.scheme == "balls-in-bins"
    if is_one_bin:
        product, error_of, sizes = (
            part.reshape(epochs, bins, epochs, bins).sum(axis=(0, 2)) for part in (product, error_of, sizes)
        )
        epochs = 1
    above: list[tuple[float, Phases]] = []
    for stride in (stride for stride in range(1, bins + 1) if bins % stride == 0):
        square = _largest_total(sizes, epochs, bins, stride) * (1.0 + _NORM)
        scale = noise / math.sqrt(square) * (1.0 - 4.0 * EPS)
        if stride == bins:
            above.append((-math.inf, ((Mixture.full(1, scale), epochs),)))
        elif scale >= _LEAST_ALLOCATED:
            # the chi-square divergence of one epoch orders the strides
            growth = square / noise**2
            divergence = growth + math.log(-math.expm1(-growth)) + math.log(stride)
            above.append((divergence, ((accounting.RandomAllocation(bins // stride, scale), epochs),)))
    above = sorted(above, key=lambda item: item[0])[:2]
    below: list[Phases] = []
    smallest = max(0.0, float(np.diag(product - error_of).min()) * (1.0 - _NORM))
    is_exact = _largest_total(sizes, epochs, bins, 1) <= smallest * (1.0 + 1e-6)
    if (directions >= len(product) or is_exact) and noise >= _LEAST_ALLOCATED * math.sqrt(smallest) > 0.0:
        scale = noise / math.sqrt(smallest) * (1.0 + 4.0 * EPS)  # orthogonal gradients
        below.append(((accounting.RandomAllocation(bins, scale), epochs),))
    total = float(product.sum())
    means = product.sum(axis=1) / math.sqrt(total) * (1.0 - 1e-8) if total > 0.0 else np.zeros(len(product))
    if means.min() > 0.0:  # the projection on the sum of all columns
        if is_one_bin:
            below.append(((Mixture(means, np.full(bins, 1.0 / bins), noise), 1),))
        else:
            below.append(_shift(float(means.reshape(epochs, bins).min(axis=1).sum()) / noise, up=False))
    change = math.sqrt(max(0.0, float(np.diag(product - error_of)[:bins].min()) * (1.0 - _NORM)))
    return Reduction(
        tuple(phases for _, phases in above),
        tuple(below),
        ((change / noise * (1.0 - 4.0 * EPS), math.log(bins) * (1.0 + 4.0 * EPS)),) if change > 0.0 else (),
        "" if is_exact else "diagonal dominance of C^T C",
    )


def _largest_total(sizes: Floats, epochs: int, bins: int, stride: int) -> float:
    """The largest row sum of ``sizes`` over steps that one record may take, if places modulo ``stride`` are revealed.

    The sum covers all places with the row's remainder in its epoch, and the worst remainder of each other epoch.
    """
    classes = sizes.reshape(epochs, bins // stride, stride, epochs, bins // stride, stride).sum(axis=4)
    worst = classes.max(axis=4)  # by epoch, place and class of the row, and epoch of the column
    largest = 0.0
    for epoch in range(epochs):
        same = np.diagonal(classes[epoch, :, :, epoch], axis1=1, axis2=2)
        other_epochs = worst[epoch].sum(axis=2) - worst[epoch, :, :, epoch]
        largest = max(largest, float((same + other_epochs).max()))
    return largest


def epsilons(
    schedule: Schedule,
    group_size: int,
    deltas: Sequence[float],
    width: float | Sequence[float] = WIDTH,
    directions: float = math.inf,
) -> list[Interval]:
    """Epsilon at each delta: from attained pairs to pairs that dominate, of the best alternatives."""
    pairs = reduction(schedule, group_size, directions)
    lowers, uppers = [(0.0, "")] * len(deltas), [(math.inf, "")] * len(deltas)
    for phases in pairs.above:
        answers = PrivacyLoss(phases).epsilons(deltas, width=width)
        uppers = [min(end, (answer.upper, answer.method)) for end, answer in zip(uppers, answers, strict=True)]
    for phases in pairs.below:
        answers = PrivacyLoss(phases).epsilons(deltas, width=width)
        lowers = [max(end, (answer.lower, answer.lower_method)) for end, answer in zip(lowers, answers, strict=True)]
    for mu, log_sets in pairs.shifts:
        answers = PrivacyLoss(_shift(mu, up=False)).epsilons(deltas, width=width)
        shifted = [(answer.lower - log_sets, "one of several shifts") for answer in answers]
        lowers = [max(ends) for ends in zip(lowers, shifted, strict=True)]
    return [
        Interval(min(lower, upper), upper, method, lower_method or method)
        for (lower, lower_method), (upper, method) in zip(lowers, uppers, strict=True)
    ]


def mu_interval(schedule: Schedule, group_size: int) -> Interval:
    """Mu of a fixed participation."""
    mu = sensitivity(schedule).mu(schedule.noise_multiplier, group_size)
    return mu.by("columns of C, rounded outward")
