"""The worst participation of a record, the pairs above and below a schedule, and epsilon and mu of both.

``docs/explanation/proofs/matrix.md`` has the theorems.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpspec import accounting
from dpspec.accounting import EPS, Floats, Interval, Mixture, Pair, PrivacyLoss
from dpspec_matrix.allocation_moments import AllocationMoments
from dpspec_matrix.encoders import Encoder, encoder_of
from dpspec_matrix.moments import Overlaps, toeplitz_families, tree_family
from dpspec_matrix.options import Schedule

#: Relative widths of intervals of claimed values, and of curves.
WIDTH, CURVE_WIDTH = 1e-4, 1e-2

#: The relative rounding of a norm of up to 10^5 rows and of the root of it.
_NORM = 1e-10

#: Largest number of different noise levels in one composition.
_LEVELS = 16

#: Numbers of steps of a slot whose gradients are equal; the gradients of different blocks are orthogonal.
_BLOCKS = (4, 16, 64)

#: Multiples of a unit up to the largest mean of a step: as many as keep the usual sum of draws below ``_SUMS``.
_LEAST_UNITS, _UNITS, _SUMS = 8, 128, 2048

#: Smallest noise of blocks in units of the change of one step; the accountant takes long for less.
_LEAST_BLOCKED = 0.01

#: Smallest probability of a sum of draws.
_RARE = 1e-40

#: Largest delta of bounds by moments, which take half a second each.
_LARGEST_DELTA = 0.01

#: Iterations of projections.
_ITERATIONS = 12

#: Different noise levels in one epoch of random allocation.
_ALLOCATED_LEVELS = 4

#: Shares of the largest inner product of two steps of one epoch, and of two epochs, that all steps have in common.
_COMMON, _COMMON_EPOCHS = (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.3)

#: Outside this range of noise no pair of random allocation is composed.
_LEAST_ALLOCATED, _LARGEST_ALLOCATED = 0.1, 1e12


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
        moments: Moments of equal gradients, if any: an alternative to ``above`` (Theorems M7 and M8).
    """

    above: tuple[Phases, ...]
    below: tuple[Phases, ...]
    shifts: tuple[tuple[float, float], ...] = ()
    reason: str = ""
    moments: Overlaps | AllocationMoments | None = None


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
    block, error_of = (part[np.ix_(first, first)] for part in (product, error_of))
    is_quiet = schedule.noise_multiplier < _LEAST_BLOCKED * math.sqrt(float(squares.max()))
    for length in sorted({size for size in _BLOCKS if size < len(first) and not is_quiet} | {len(first)}):
        slices = [slice(start, start + length) for start in range(0, len(first), length)]
        if len(slices) <= directions:
            means = [_equal_gradients(block[part, part], error_of[part, part]) for part in slices]
            below.append(_projected_samples(means, chosen.rate, schedule.noise_multiplier))
    moments = None
    if encoder.is_nonnegative and chosen.rate < 1.0:
        moments = _overlaps(encoder, sizes, schedule)
    phases = tuple(pairs for pairs in below if pairs)
    return Reduction((samples(squares, up=True),), phases, (), "overlapping columns of drawn steps", moments)


def _overlaps(encoder: Encoder, sizes: Floats, schedule: Schedule) -> Overlaps:
    """Kernels of Theorem M7: of slot 0 for Toeplitz encoders, whose inner products are the largest."""
    separation, variance = schedule.participation.separation, schedule.noise_multiplier**2
    if encoder.column is None:
        slots = (np.arange(slot, schedule.steps, separation) for slot in range(min(separation, schedule.steps)))
        nodes = [tree_family(steps, schedule.steps, (1.0 + _NORM) / variance) for steps in slots]
        return Overlaps(tuple((family,) for family in nodes), schedule.participation.rate)
    lags = [float(np.diagonal(sizes, lag).max()) for lag in range(0, schedule.steps, separation)]
    return Overlaps((toeplitz_families(np.array(lags) * ((1.0 + _NORM) / variance)),), schedule.participation.rate)


def _smallest(values: Floats) -> float:
    return float(values.min())


def _smallest_sum(means: Floats, epochs: int) -> float:
    """The sum of each epoch's smallest mean."""
    return float(means.reshape(epochs, -1).min(axis=1).sum())


def _log_growth(means: Floats) -> float:
    """ln of 1 + the chi-square divergence from N(0, 1) of one of the means with equal probability, and variance 1.

    The means are large where the smallest one decides little: 16 bands of the square root in 4 epochs of 16 steps lose
    0.3 % of their lower end if the smallest mean chooses the direction.
    """
    return float(np.logaddexp.reduce(np.outer(means, means), axis=None)) - 2.0 * math.log(len(means))


def _equal_gradients(product: Floats, error_of: Floats) -> Floats:
    """Lower bounds of <v, C e_s> for v proportional to the sum of the columns, and 0 for steps that are omitted."""
    totals, errors = product.sum(axis=1), error_of.sum(axis=1)
    norm = math.sqrt(max(0.0, float(totals.sum() + errors.sum())) * (1.0 + _NORM))
    if norm == 0.0:
        return np.zeros(len(product))
    return np.asarray(np.maximum(0.0, (totals - errors) / norm * (1.0 - 1e-8)), dtype=np.float64)


def _projected_samples(means: Sequence[Floats], rate: float, noise: float) -> Phases:
    """For each block, N(sum of the means of drawn steps, noise^2), with means rounded down to multiples of a unit."""
    table = np.zeros((len(means), max(map(len, means))))
    for row, values in zip(table, means, strict=True):
        row[: len(values)] = values
    units = max(_LEAST_UNITS, min(_UNITS, int(_SUMS / (1.0 + table.shape[1] * rate))))
    if (unit := float(table.max()) / units) <= 0.0:
        return ()
    rows, counts = np.unique(np.floor(table / unit).astype(np.int64), axis=0, return_counts=True)
    groups = np.arange(len(rows))
    if len(rows) > _LEVELS:  # the smallest means of similar blocks
        totals = rows.sum(axis=1)
        groups = np.searchsorted(np.geomspace(max(1, totals.min()), totals.max(), _LEVELS)[1:-1], totals, "right")
    phases = []
    for group in np.unique(groups).tolist():
        multiples = rows[groups == group].min(axis=0)
        if multiples.any():
            pair = _sum_of_draws(multiples[multiples > 0].tolist(), rate, noise / unit * (1.0 + 1e-9))
            phases.append((pair, int(counts[groups == group].sum())))
    return tuple(phases)


def _sum_of_draws(multiples: Sequence[int], rate: float, noise: float) -> Mixture:
    """The sum of those integers that are drawn; rare sums and rounding of probabilities count as 0."""
    if rate == 1.0:
        return Mixture([float(sum(multiples))], [1.0], noise)
    masses = np.ones(1)
    for multiple in multiples:
        shifted = np.pad(masses, (multiple, 0)) * rate
        shifted[: len(masses)] += masses * (1.0 - rate)
        masses = shifted[: int(np.flatnonzero(shifted >= _RARE)[-1]) + 1]
    masses[masses < _RARE] = 0.0
    masses *= 1.0 - 1e-9
    masses[0] = 1.0 - float(masses[1:].sum())
    sums = np.flatnonzero(masses)
    return Mixture(sums, masses[sums], noise)


def _equal_means(product: Floats, error_of: Floats, value: Callable[[Floats], float] = _smallest) -> Floats:
    """Lower bounds of <v, C e_s> for each step s, (n,), and the unit vector v of the largest ``value`` of several.

    v is proportional to C u with u >= 0, first for equal u, and then for C^T C u that is nearly equal at all steps.
    """
    weights, best = np.ones(len(product)), np.zeros(len(product))
    for _ in range(_ITERATIONS):
        totals = product @ weights
        norm = math.sqrt(float(weights @ totals + weights @ (error_of @ weights)) * (1.0 + _NORM))
        means = (totals - error_of @ weights) / norm * (1.0 - 1e-8)
        best = max(best, means, key=value)
        if totals.min() <= 0.0:
            break
        weights = weights * np.sqrt(totals.mean() / totals)
    return best


def _levels(squares: Floats, *, up: bool, count: int = _LEVELS) -> Floats:
    """At most ``count`` values, each at least (or at most) its square."""
    if len(np.unique(squares)) <= count:
        return squares
    edges = np.geomspace(squares.min(), squares.max(), count)
    edges[0], edges[-1] = squares.min(), squares.max()
    side = np.searchsorted(edges, squares, "left") if up else np.searchsorted(edges, squares, "right") - 1
    return np.asarray(edges[side], dtype=np.float64)


def _allocated(schedule: Schedule, directions: float) -> Reduction:
    """One step of each epoch, or one of the same places in all epochs (Theorem M4)."""
    bins, noise = schedule.participation.separation, schedule.noise_multiplier
    epochs = -(-schedule.steps // bins)
    encoder = encoder_of(schedule.encoder, schedule.steps)
    product, error_of = gram(encoder)
    missing = epochs * bins - schedule.steps
    product, error_of = (np.pad(part, (0, missing)) for part in (product, error_of))
    sizes = np.abs(product) + error_of
    is_one_bin = schedule.participation.scheme == "balls-in-bins"
    if is_one_bin:
        product, error_of, sizes = (
            part.reshape(epochs, bins, epochs, bins).sum(axis=(0, 2)) for part in (product, error_of, sizes)
        )
        epochs = 1
    above = _allocated_above(sizes, encoder.is_nonnegative, epochs, bins, noise)
    below: list[Phases] = []
    smallest = max(0.0, float(np.diag(product - error_of).min()) * (1.0 - _NORM))
    is_exact = _largest_total(sizes, epochs, bins, 1) <= smallest * (1.0 + 1e-6)
    lengths = (
        [1] if is_exact else [1, *(length for length in range(2, bins) if bins % length == 0 and length**2 >= bins)]
    )
    blocks = [_allocated_below(product, error_of, epochs, bins, noise, length) for length in lengths]
    needed = [epochs * (bins // length) for length in lengths]
    possible = [
        block for block, count in zip(blocks, needed, strict=True) if block and (directions >= count or is_exact)
    ]
    if possible:
        below.append(max(possible, key=lambda item: item[0])[1])
    # One direction for all steps: the place in a bin chooses its mean, places in several epochs at least the smallest.
    if is_one_bin:
        means = _equal_means(product, error_of, lambda means: _log_growth(means / noise))
        if means.min() > 0.0:
            below.append(((Mixture(means, np.full(bins, 1.0 / bins), noise), 1),))
    else:
        means = _equal_means(product, error_of, lambda means: _smallest_sum(means, epochs))
        if (shift := max(0.0, _smallest_sum(means, epochs))) > 0.0:
            below.append(_shift(shift / noise, up=False))
    change = math.sqrt(max(0.0, float(np.diag(product - error_of)[:bins].min()) * (1.0 - _NORM)))
    moments = None
    if encoder.is_nonnegative and not is_exact:
        moments = AllocationMoments(sizes * ((1.0 + _NORM) / noise**2), epochs)
    return Reduction(
        above[:1] if is_exact else above,
        tuple(below),
        ((change / noise * (1.0 - 4.0 * EPS), math.log(bins) * (1.0 + 4.0 * EPS)),) if change > 0.0 else (),
        "" if is_exact else "overlapping columns of possible steps",
        moments,
    )


def _allocated_above(sizes: Floats, is_nonnegative: bool, epochs: int, bins: int, noise: float) -> tuple[Phases, ...]:
    """The two pairs of Theorem M4 with the smallest chi-square divergences.

    Args:
        sizes: upper bounds of |C^T C|, (epochs * bins, epochs * bins).
        is_nonnegative: whether C >= 0, so that steps may have a part in common.
        epochs: number of epochs.
        bins: steps of an epoch.
        noise: noise multiplier.
    """
    tensor = sizes.reshape(epochs, bins, epochs, bins)
    across = tensor.max(axis=(1, 3)) * (1.0 - np.eye(epochs))
    overlaps_many = float(np.mean(np.count_nonzero(across, axis=1))) > 2.0  # more than the neighboring epochs
    same_epoch = np.stack([tensor[epoch, :, epoch] for epoch in range(epochs)])
    alternatives: list[tuple[float, Phases]] = []
    for stride in (stride for stride in range(1, bins + 1) if bins % stride == 0):
        for epoch_share in _COMMON_EPOCHS if is_nonnegative and overlaps_many else (0.0,):
            common = epoch_share * across
            excess = np.maximum(tensor - common[:, None, :, None], 0.0) if epoch_share else tensor
            totals = excess.reshape(epochs, bins, epochs, bins // stride, stride).sum(axis=3).max(axis=3)
            other_epochs = totals.sum(axis=2) - totals[np.arange(epochs), :, np.arange(epochs)]
            for share in _COMMON if is_nonnegative and stride < bins else (0.0,):
                shared, energies = _energies(same_epoch, other_epochs, stride, share)
                gaussian = (shared + float(common.sum())) * (1.0 + _NORM)
                alternatives.append(_common_and_allocated(gaussian, energies * (1.0 + _NORM), epochs, noise))
    finite = {divergence: phases for divergence, phases in alternatives if phases}
    return tuple(finite[divergence] for divergence in sorted(finite)[:2])


def _energies(same_epoch: Floats, other_epochs: Floats, stride: int, share: float) -> tuple[float, Floats]:
    """The sum of c_ee over epochs, and E_i of Theorem M4, (bins / stride,).

    Args:
        same_epoch: |G| within each epoch, (epochs, bins, bins).
        other_epochs: what other epochs add to D_s, (epochs, bins).
        stride: w.
        share: c_ee as a share of the largest inner product of two steps of one remainder.
    """
    shared, energies = 0.0, np.zeros(same_epoch.shape[1] // stride)
    off_diagonal = 1.0 - np.eye(len(energies))
    for block, added in zip(same_epoch, other_epochs, strict=True):
        products = np.stack([block[remainder::stride, remainder::stride] for remainder in range(stride)])
        squares = np.diagonal(products, axis1=1, axis2=2)
        common = min(share * float((products * off_diagonal).max()), float(squares.max()))
        rows = np.maximum(squares - common, 0.0) + (np.maximum(products - common, 0.0) * off_diagonal).sum(axis=2)
        rows = rows + added.reshape(-1, stride).T
        energies = np.maximum(energies, np.sort(rows, axis=1)[:, ::-1].max(axis=0))
        shared += common
    return shared, energies


def _common_and_allocated(gaussian: float, energies: Floats, epochs: int, noise: float) -> tuple[float, Phases]:
    """ln of 1 + the chi-square divergence of a Gaussian release and of allocations, and both; none out of range."""
    scaled = np.maximum(energies, 1e-12 * max(float(energies.max()), gaussian)) / noise**2
    with np.errstate(over="ignore"):
        log_growth = float(np.logaddexp.reduce(scaled + np.log(-np.expm1(-scaled)))) - 2.0 * math.log(len(scaled))
    divergence = gaussian / noise**2 + epochs * float(np.logaddexp(0.0, log_growth))
    pair = _allocation(scaled, up=True)
    if pair is None:
        return divergence, ()
    release = _shift(math.sqrt(gaussian) / noise, up=True) if gaussian > 0.0 else ()
    return divergence, (*release, (pair, epochs))


def _allocation(energies: Floats, *, up: bool) -> Pair | None:
    """One epoch whose steps have these squared changes in units of the noise, rounded up or down; none out of range."""
    rounded = _levels(energies, up=up, count=_ALLOCATED_LEVELS)
    noises = np.sqrt(1.0 / rounded) * (1.0 - 4.0 * EPS if up else 1.0 + 4.0 * EPS)
    if len(noises) == 1:
        return Mixture.full(1, float(noises[0]))
    if noises.min() < _LEAST_ALLOCATED or noises.max() > _LARGEST_ALLOCATED:
        return None
    values, counts = np.unique(noises, return_counts=True)
    if len(values) == 1:
        return accounting.RandomAllocation(len(noises), float(values[0]))
    return accounting.UnevenAllocation(list(zip(counts.tolist(), values.tolist(), strict=True)))


def _allocated_below(
    product: Floats, error_of: Floats, epochs: int, bins: int, noise: float, length: int
) -> tuple[float, Phases] | None:
    """As :func:`_common_and_allocated`, for equal gradients in blocks of ``length`` steps and orthogonal ones across.

    The last epoch has a separate pair, because its columns are shorter.
    """
    if length == 1:
        squares = np.maximum(np.diag(product - error_of), 0.0)
    else:
        blocks = [slice(start, start + length) for start in range(0, epochs * bins, length)]
        means = [_equal_means(product[block, block], error_of[block, block]).min() for block in blocks]
        squares = np.square(np.maximum(means, 0.0))
    squares = squares.reshape(epochs, bins // length)
    squares = np.sort(squares, axis=1) * (1.0 - _NORM) / noise**2
    if squares.min() <= 0.0:
        return None
    log_growths = np.logaddexp.reduce(squares + np.log(-np.expm1(-squares)), axis=1) - 2.0 * math.log(squares.shape[1])
    full_epochs = [(squares[:-1].min(axis=0), epochs - 1)] if epochs > 1 else []
    pairs = [(_allocation(energies, up=False), times) for energies, times in (*full_epochs, (squares[-1], 1))]
    phases = tuple((pair, times) for pair, times in pairs if pair is not None)
    return (float(np.logaddexp(0.0, log_growths).sum()), phases) if len(phases) == len(pairs) else None


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
    uppers = _uppers(pairs, deltas, width)
    lowers = [(0.0, "")] * len(deltas)
    for phases in _largest(pairs.below, deltas):
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


def upper_epsilons(
    schedule: Schedule, group_size: int, deltas: Sequence[float], directions: float = math.inf
) -> list[float]:
    """Upper ends at the deltas of a curve: lower ends take longer, and no curve shows them."""
    pairs = reduction(schedule, group_size, directions)
    return [upper for upper, _ in _uppers(pairs, deltas, CURVE_WIDTH)]


def _uppers(pairs: Reduction, deltas: Sequence[float], width: float | Sequence[float]) -> list[tuple[float, str]]:
    """Upper ends and their methods, of the best alternatives."""
    uppers = [(math.inf, "")] * len(deltas)
    for phases in pairs.above:
        answers = PrivacyLoss(phases).epsilons(deltas, width=width)
        uppers = [min(end, (answer.upper, answer.method)) for end, answer in zip(uppers, answers, strict=True)]
    if pairs.moments is not None:
        moments = [pairs.moments.epsilon(delta) if delta <= _LARGEST_DELTA else math.inf for delta in deltas]
        method = "moments of equal gradients"
        uppers = [min(end, (moment, method)) for end, moment in zip(uppers, moments, strict=True)]
    return uppers


def _largest(alternatives: Sequence[Phases], deltas: Sequence[float]) -> list[Phases]:
    """The alternatives with the largest epsilon of a delta, by wide intervals."""
    if len(alternatives) < 2:
        return list(alternatives)
    ends = [
        [answer.lower for answer in PrivacyLoss(phases).epsilons(deltas, width=CURVE_WIDTH)] for phases in alternatives
    ]
    best = set(np.argmax(np.array(ends), axis=0).tolist())
    return [phases for index, phases in enumerate(alternatives) if index in best]


def mu_interval(schedule: Schedule, group_size: int) -> Interval:
    """Mu of a fixed participation."""
    mu = sensitivity(schedule).mu(schedule.noise_multiplier, group_size)
    return mu.by("columns of C, rounded outward")
