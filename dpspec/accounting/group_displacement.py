"""A dominating pair of one step of truncated Poisson batches for a group: Theorem 4c.

``docs/explanation/proofs/truncated-poisson.md`` has the proof. Batches with members are compared, by their number a of
others, with the batches of a others without the group and with a share of the full ones. In the worst case all vectors
are on one line, so that each comparison is an integral in one dimension with a single sign change.
"""

import math

import numpy as np
from scipy.special import ndtr

from dpspec.accounting.discrete import Discrete
from dpspec.accounting.numerics import Floats
from dpspec.accounting.truncated_poisson import Batches, TruncatedPoisson

#: Shares of the full batches; each comparison receives one share.
_SHARES = np.concatenate(([0.0], np.geomspace(1e-4, 0.1, 7), np.arange(0.15, 0.96, 0.05), [0.98, 0.99, 1.0]))

#: Noise multipliers in range, the smallest one for each member, and the largest cap.
_NOISE, _NOISE_OF_A_MEMBER, _LARGEST_CAP = (0.25, 1000.0), 0.1, 20_000

#: The range of the standard normal number at which a comparison changes its sign, and halvings of it.
_ROOTS, _HALVINGS = 45.0, 48

#: The largest loss is one of all members at this number of standard deviations; more are infinite losses.
_REACH = 12.0

#: Relative errors charged to masses of batches, which have 4e-9, and to a profile.
_CHARGED, _ROUNDED = 8e-9, 1e-8


def group_displacement_pair(step: TruncatedPoisson) -> Discrete | None:
    """A pair that dominates the step if the smaller dataset has exactly n records and the group exactly k.

    Args:
        step: the step.

    Returns:
        The pair; None if a full batch has a probability below e^-690, or out of the range of Theorem 4c.
    """
    batches, k, sigma = Batches.of(step), step.group_size, step.noise_multiplier
    in_range = (
        step.rate < 1.0
        and _NOISE[0] <= sigma <= _NOISE[1]
        and sigma >= _NOISE_OF_A_MEMBER * k
        and step.cap <= _LARGEST_CAP
    )
    if batches is None or not in_range:
        return None
    undrawn = -math.expm1(k * math.log1p(-step.rate))  # 1 - (1 - rate)^k
    farthest = k / sigma * (_REACH + 0.5 * k / sigma)
    losses = np.concatenate(
        (np.geomspace(1e-4, 0.1, 30), np.linspace(0.1, 4.0, 90)[1:], np.geomspace(4.0, max(farthest, 8.0), 90)[1:])
    )
    ratios = np.concatenate((np.linspace(-undrawn, 0.0, 12)[1:], np.expm1(losses)))
    return convex_pair(np.append(-undrawn, ratios), np.append(undrawn, _profile(batches, ratios)))


def _profile(batches: Batches, ratios: Floats) -> Floats:
    """Upper bounds of the profile where e^epsilon - 1 is one of the ``ratios``, (n,)."""
    step, cap, k, factors = batches.step, batches.step.cap, batches.step.group_size, 1.0 + ratios
    with_group = np.zeros((k + 1, k + 1))  # by cap - others, and members
    for other_count, member_count, _, weight in batches.with_group():
        with_group[cap - other_count, member_count] += weight
    with_group *= 1.0 + _CHARGED
    few, full = batches.fewer(cap - k), batches.without_group(cap) * (1.0 - _CHARGED)
    total = np.zeros_like(ratios)
    if few > 0.0:
        drawn = few * (1.0 + _CHARGED) * batches.members
        total = _compared(factors, drawn, few * (1.0 - _CHARGED), np.zeros(1), 0, step.noise_multiplier)[0]
    comparisons = [
        _compared(
            factors,
            with_group[gap],
            batches.without_group(cap - gap) * (1.0 - _CHARGED),
            _SHARES * full,
            gap,
            step.noise_multiplier,
        )
        for gap in range(1, k + 1)
    ]
    # full batches without members need a share of the full ones that leaves no excess
    spare = np.maximum(0.0, 1.0 - with_group[0, 0] / (factors * full)) * (1.0 - _ROUNDED)
    unshared = np.maximum(0.0, with_group[0, 0] - factors * full * (1.0 - spare))
    total = total + unshared + _divide(np.array(comparisons), spare)
    return np.asarray(np.minimum(1.0, total * (1.0 + _ROUNDED)), dtype=np.float64)


def _divide(comparisons: Floats, spare: Floats) -> Floats:
    """The sum of one value of each comparison, (n,), for shares with a sum of at most ``spare``.

    Args:
        comparisons: values by comparison, share and loss, convex in the share: (k, shares, n).
        spare: (n,).
    """
    steps = np.diff(_SHARES)
    slopes = np.minimum.accumulate(-np.diff(comparisons, axis=1) / steps[:, None], axis=1)
    k, count, losses = slopes.shape
    order = np.argsort(-slopes.reshape(k * count, losses), axis=0, kind="stable")
    is_within = np.cumsum(np.tile(steps, k)[order], axis=0) <= spare
    taken = np.zeros_like(order)
    np.put_along_axis(taken, order, is_within.astype(order.dtype), axis=0)
    chosen = taken.reshape(k, count, losses).cumprod(axis=1).sum(axis=1)  # by comparison: the index of its share
    values = np.take_along_axis(comparisons, chosen[:, None, :], axis=1)
    return np.asarray(values.sum(axis=(0, 1)), dtype=np.float64)


def _compared(factors: Floats, members: Floats, without: float, full: Floats, gap: int, sigma: float) -> Floats:
    """E[max(sum_i ``members``_i G(i) - e^epsilon (``without`` + ``full`` G(-``gap``)), 0)], (shares, n).

    G(t) = exp(t z / sigma - t^2 / (2 sigma^2)) with a standard normal z.

    Args:
        factors: e^epsilon, (n,).
        members: masses of batches by their number of members, (k + 1,).
        without: the mass of batches of as many others without the group.
        full: masses of full batches without the group, (shares,).
        gap: the difference of the numbers of others.
        sigma: the noise multiplier.
    """
    shifts = np.arange(len(members)) / sigma
    away = gap / sigma
    same = members[0] - factors * without
    gains = [np.maximum(same, 0.0), *(np.full_like(factors, mass) for mass in members[1:])]
    loss, far_loss = np.maximum(-same, 0.0), factors * full[:, None]

    low = np.full((len(full), len(factors)), -_ROOTS)
    high = -low
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        excess = -loss - far_loss * np.exp(-away * middle - 0.5 * away * away)
        for gain, shift in zip(gains, shifts, strict=True):
            excess += gain * np.exp(shift * middle - 0.5 * shift * shift)
        high = np.where(excess > 0.0, middle, high)
        low = np.where(excess > 0.0, low, middle)
    value = -loss * ndtr(-high) - far_loss * ndtr(-away - high)
    for gain, shift in zip(gains, shifts, strict=True):
        value += gain * ndtr(shift - high)
    return np.asarray(np.maximum(value, 0.0), dtype=np.float64)


def convex_pair(ratios: Floats, profile: Floats) -> Discrete:
    """The pair whose profile is the convex hull of points, exact at and below the first ratio.

    Args:
        ratios: ascending e^epsilon - 1, (n,).
        profile: upper bounds of the profile there, (n,); the first one is the value 1 - e^epsilon.
    """
    hull: list[int] = []
    for i in range(len(ratios)):
        while len(hull) > 1 and _slope(ratios, profile, hull[-2], hull[-1]) >= _slope(ratios, profile, hull[-1], i):
            hull.pop()
        hull.append(i)
    x, y = ratios[hull], profile[hull]
    slopes = np.concatenate(([-1.0], np.clip(np.diff(y) / np.diff(x), -1.0, 0.0), [0.0]))
    absent = np.append(np.maximum(np.diff(slopes), 0.0), 0.0)
    present = np.append(absent[:-1] * (1.0 + x), y[-1])
    return Discrete(present / math.fsum(present), absent / math.fsum(absent))


def _slope(x: Floats, y: Floats, i: int, j: int) -> float:
    return float((y[j] - y[i]) / (x[j] - x[i]))
