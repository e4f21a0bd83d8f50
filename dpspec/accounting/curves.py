"""Certified trade-off curves of a composed privacy loss, by convex conjugation of its privacy profile.

Theorem 17 of ``docs/explanation/proofs/grids.md``: lines of points above the profile bound the curve from below, and
lines of the crossings of extended chords bound it from above.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpspec.accounting.numerics import EPS, OPPOSITE, Floats, Interval, accountant_direction, inside, whole
from dpspec.accounting.privacy_loss import PrivacyLoss
from dpspec.accounting.tradeoff import LARGEST_EPSILON, Lines, Polygon

#: The smallest delta at which the profile is computed, and the number of deltas.
FLOOR, NODES = 1e-12, 192

#: Relative width of each epsilon.
WIDTH = 1e-5

#: Deltas of the first pass, which place the others.
_SCOUTS = 32

#: Passes that add points near a wanted level, and points on either side of the nearest one.
_ROUNDS, _ZOOM = 2, 5

#: Relative error charged to corners and values that are computed from certified points.
_ROUNDING = 1e-13

#: The minimum relative distance of the ends of a chord.
_APART = 1e-9


@dataclass(frozen=True)
class TradeOffBounds:
    """Two curves with ``lower`` <= f <= ``upper`` everywhere; ``at_zero`` contains delta(0), the advantage."""

    lower: Polygon
    upper: Polygon
    at_zero: Interval

    def __call__(self, alpha: float) -> Interval:
        """f(alpha)."""
        return _interval(float(self.lower(alpha)), float(self.upper(alpha)))

    def tpr(self, fpr: float) -> Interval:
        """The largest power at ``fpr``, 1 - f(fpr)."""
        return _interval(float(self.upper.tpr(fpr)), float(self.lower.tpr(fpr)))

    def rero(self, kappa: float) -> Interval:
        """The largest success of reconstruction from the baseline ``kappa``; for a present-first curve."""
        return self.tpr(inside("kappa", kappa, one=True))

    def advantage(self) -> Interval:
        """The largest tpr - fpr."""
        return self.at_zero

    def inverse(self) -> "TradeOffBounds":
        """The bounds of the exchanged pair's curve."""
        return TradeOffBounds(self.lower.inverse(), self.upper.inverse(), self.at_zero)


@dataclass(frozen=True, eq=False)
class _Profile:
    """Points at or above (upper) and at or below (lower) one direction's profile, at epsilons >= 0, ascending."""

    upper: tuple[Floats, Floats]
    lower: tuple[Floats, Floats]


def tradeoff_bounds(loss: PrivacyLoss, *, nodes: int = NODES, fprs: Sequence[float] = ()) -> TradeOffBounds:
    """Certified lower and upper trade-off curves of ``loss``, in its direction; of ``both``, the symmetrized curve.

    Below a delta of 1e-12 the curves diverge: lower(0) is 1 - 1e-12 at best.

    Args:
        loss: the composed privacy loss.
        nodes: the number of deltas per direction at which the profile is computed.
        fprs: levels with more deltas nearby, so that ``tpr`` is narrow there.
    """
    whole("nodes", nodes, _SCOUTS)
    levels = [inside("fpr", fpr) for fpr in fprs]
    side = accountant_direction(loss.direction)
    opposite_loss = loss if side == "both" else replace(loss, direction=OPPOSITE[side])
    first = _profile(loss, nodes)
    second = first if opposite_loss is loss else _profile(opposite_loss, nodes)
    bounds = _conjugate(first, second)
    for _ in range(_ROUNDS if levels else 0):
        misses = [float(beta) for beta in bounds.lower(levels) if 0.0 < beta < 1.0]
        if opposite_loss is loss:
            first = second = _refine(first, loss, [*levels, *misses])
        else:
            first, second = _refine(first, loss, levels), _refine(second, opposite_loss, misses)
        bounds = _conjugate(first, second)
    return bounds


def _profile(loss: PrivacyLoss, nodes: int) -> _Profile:
    at_zero = loss.delta(0.0, width=WIDTH)
    start = _Profile((np.zeros(1), np.array([at_zero.upper])), (np.zeros(1), np.array([at_zero.lower])))
    top = at_zero.lower
    if top <= 2.0 * FLOOR:
        return start
    # first in equal ratios up to half of the largest delta, then in equal steps
    half = _SCOUTS // 2
    shares = np.concatenate(
        (np.geomspace(FLOOR / top, 0.5, half, endpoint=False), np.linspace(0.5, 1.0, half + 1)[:-1])
    )
    profile = _with(start, loss, top * shares)
    for share in (1.0 / 3.0, 2.0 / 3.0):  # in two passes, the second seeing where the first left gaps
        profile = _with(profile, loss, _spread(profile, round(share * (nodes - _SCOUTS))))
    return profile


def _spread(profile: _Profile, nodes: int) -> Floats:
    """About ``nodes`` more deltas, where neighbors dt apart whose lines have slopes a and a' leave the curves about
    (a - a') dt apart: in proportion to the root of that over the power (to the 3/4, so that large powers count more).
    """
    t, first = np.unique(np.exp(np.minimum(profile.lower[0], LARGEST_EPSILON)), return_index=True)
    deltas = profile.lower[1][first]
    if len(t) < 3:
        return np.empty(0)
    slopes = np.maximum(-np.diff(deltas) / np.diff(t), 0.0)
    turns = np.abs(np.diff(slopes))
    turns = np.maximum(np.append(turns, turns[-1]), np.append(turns[0], turns))
    gaps = np.sqrt(turns * np.diff(t) / (deltas[1:] + slopes * t[1:]) ** 0.75)
    if not gaps.sum() > 0.0:
        return np.empty(0)
    # intervals that are short enough already get none
    total = len(gaps) + nodes
    short = gaps * total < gaps.sum()
    gaps = np.where(short, 0.0, gaps)
    count = np.rint((nodes + np.count_nonzero(~short)) * gaps / gaps.sum() - 1.0).clip(0).astype(np.int64)
    inner = [
        np.geomspace(deltas[i], deltas[i + 1], count[i] + 2)[1:-1] for i in range(len(count)) if deltas[i + 1] > 0.0
    ]
    return np.concatenate(inner) if inner else np.empty(0)


def _with(profile: _Profile, loss: PrivacyLoss, deltas: Floats) -> _Profile:
    if deltas.size == 0:
        return profile
    epsilons = loss.epsilons([float(delta) for delta in deltas], width=WIDTH)
    low, high = np.array([x.lower for x in epsilons]), np.array([x.upper for x in epsilons])
    points = []
    for (nodes, values), new_epsilons, used in (
        (profile.upper, high, high <= LARGEST_EPSILON),
        (profile.lower, low, low > 0.0),
    ):
        nodes, values = np.append(nodes, new_epsilons[used]), np.append(values, deltas[used])
        order = np.lexsort((-values, nodes))
        points.append((nodes[order], values[order]))
    return _Profile(*points)


def _refine(profile: _Profile, loss: PrivacyLoss, fprs: Sequence[float]) -> _Profile:
    """More points near the epsilons whose lines, minimal in delta + e^epsilon fpr, touch the curve at ``fprs``."""
    epsilons, deltas = profile.upper
    new_deltas: list[float] = []
    for fpr in fprs:
        nearest = int(np.argmin(deltas + np.exp(np.minimum(epsilons, LARGEST_EPSILON)) * fpr))
        if 0 < nearest < len(deltas) - 1:
            for left, right in ((nearest - 1, nearest), (nearest, nearest + 1)):
                new_deltas.extend(np.linspace(deltas[left], deltas[right], _ZOOM + 2)[1:-1])
    top = float(profile.lower[1][0])
    return _with(profile, loss, np.unique([delta for delta in new_deltas if 0.0 < delta < top]))


def _conjugate(first: _Profile, second: _Profile) -> TradeOffBounds:
    below = Polygon.above(Lines.of(*first.upper) + Lines.mirrored(*second.upper))
    (t, value), (s, second_value) = _corners(first, second), _corners(second, first)
    mirrored = Lines(1.0 / s, 1.0 - (1.0 - second_value) / s, (1.0 - second_value) / s)
    above = Polygon.above(Lines(t, value, 1.0 - value) + mirrored)
    at_zero = _interval(max(p.lower[1][0] for p in (first, second)), min(p.upper[1][0] for p in (first, second)))
    return TradeOffBounds(_shifted(below, -_ROUNDING), _shifted(above, _ROUNDING), at_zero)


def _shifted(curve: Polygon, error: float) -> Polygon:
    power = np.clip(curve.power * (1.0 - error), curve.alpha, 1.0)
    beta = np.clip(curve.beta * (1.0 + error) + error * (1.0 - curve.alpha), 0.0, 1.0 - curve.alpha)
    return Polygon(curve.alpha, beta, power)


def _corners(profile: _Profile, opposite: _Profile) -> tuple[Floats, Floats]:
    """Points (t, value), t >= 1, whose lines bound the trade-off curve from above."""
    t, low = np.exp(np.minimum(profile.lower[0], LARGEST_EPSILON)), profile.lower[1]
    s, high = np.exp(np.minimum(profile.upper[0], LARGEST_EPSILON)), profile.upper[1]
    # points left of epsilon = 0, from the other direction; at t = 0 the profile is 1
    shrink = np.exp(-opposite.upper[0][::-1])
    s = np.concatenate(([0.0], shrink, s))
    high = np.concatenate(([1.0], 1.0 - shrink * (1.0 - opposite.upper[1][::-1]), high))
    shrink = np.exp(-opposite.lower[0][1:2])
    t, low = np.append(shrink, t), np.append(1.0 - shrink * (1.0 - opposite.lower[1][1:2]), low)
    # For each point below the profile the best slopes of lines through it that stay below, to either side.
    gap = s[None, :] - t[:, None]
    left, right = gap < -_APART * t[:, None], gap > _APART * t[:, None]
    gap = np.where(left | right, gap, 1.0)
    slope = (high[None, :] - low[:, None]) / gap
    error = 4.0 * EPS * (high[None, :] + low[:, None] + np.abs(slope) * (s[None, :] + t[:, None])) / np.abs(gap)
    fall = np.clip(np.max(np.where(left, slope - error, -1.0), axis=1), -1.0, 0.0)
    rise = np.clip(np.min(np.where(right, slope + error, 0.0), axis=1), -1.0, 0.0)
    points = [(float(x), float(y)) for x, y in zip(t, low, strict=True) if x >= 1.0]
    for i in range(len(t) - 1):
        if fall[i] >= rise[i + 1]:
            continue
        x = (low[i + 1] - low[i] + fall[i] * t[i] - rise[i + 1] * t[i + 1]) / (fall[i] - rise[i + 1])
        if max(t[i], 1.0) < x < t[i + 1]:
            y = min(low[i] + fall[i] * (x - t[i]), low[i + 1] + rise[i + 1] * (x - t[i + 1]))
            points.append((float(x), float(y - 16.0 * EPS * low[i])))
    # beyond the last point: down to zero
    end = float(t[-1] - low[-1] / fall[-1]) if fall[-1] < 0.0 else math.exp(LARGEST_EPSILON)
    x, y = np.array([*points, (end, 0.0)]).T
    return x, y


def _interval(low: float, high: float) -> Interval:
    return Interval(float(min(low, high)), float(max(low, high)))
