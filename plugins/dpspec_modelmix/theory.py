"""Epsilon with mixing: the repaired theorem for Gaussian noise, Freedman's inequality for Laplace noise.

Formulas and corrections: ``docs/explanation/proofs/modelmix.md``. Noise of one mixed coordinate: N(0, 1) convolved with
a uniform of width t, in units of the Gaussian std.

    p_0(o) = [Phi(o + t/2) - Phi(o - t/2)] / t,   p_v(o) = p_0(o - v),   A_k(v, t) = E_{p_0}[(p_v / p_0)^k].

The relative error of moments is below 1e-10.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy.special import log_ndtr

import dpspec.contract as dps
from dpspec import accounting
from dpspec.accounting import (
    BestEpsilon,
    Conversion,
    Floats,
    Interval,
    Laplace,
    PrivacyLoss,
    sampled_gaussian_integer_rdp,
)
from dpspec_modelmix.options import Segment

SOURCE = "Xiao, Wan & Devadas, Theorem 4.1 and Corollary 4.1, repaired"
LAPLACE_SOURCE = "Xiao, Wan & Devadas, Lemma D.2, corrected; Freedman 1975"

#: Scope of bounds that hold for every dataset.
SCOPE = dps.Scope(direction="both", access="all-iterates", adversary="gradient")

#: Highest integer orders of the search, tried in turn while the best order is the last.
_HIGHEST_ORDERS = (32, 64, 128, 256)
INTEGER_ORDERS = tuple(range(2, _HIGHEST_ORDERS[-1] + 1))

#: Laplace noise: number of cuts, and largest cut in noise scales.
_CUTS, _FARTHEST = 200, 40.0

#: epsilon_0 of one step above which e^epsilon_0 would overflow; basic composition applies then.
LARGEST_LOSS = 300.0


class Moments(NamedTuple):
    """Upper bounds on the mean, the second moment and the maximum of one step's loss."""

    mean: float
    second: float
    largest: float


#: Width below which the uniform counts as 0, which only increases the bounds.
NARROW = 1e-6

#: Shift above which the Gaussian moment is used: mixing only decreases moments, and quadrature needs too many nodes.
LONG = 100.0

#: Integration range beyond the centers, width of a panel, and its nodes and weights on [-1, 1].
_REACH, _PANEL, _RULE = 12.0, 0.5, np.polynomial.legendre.leggauss(16)

#: Width above which the middle of the uniform is skipped: p_v / p_0 equals 1 there in float64.
_WIDE = 48.0

#: Width above which both ends of the uniform are independent.
_FAR = 100.0


def log_density(o: Floats, width: float) -> Floats:
    """ln p_0 at ``o``, for ``width`` t >= 0."""
    if width < NARROW:
        return np.asarray(-0.5 * np.square(o) - 0.5 * math.log(2.0 * math.pi), dtype=np.float64)
    a, half = np.abs(o), 0.5 * width
    upper, lower = log_ndtr(half - a), log_ndtr(-half - a)
    return np.asarray(upper + np.log(-np.expm1(lower - upper)) - math.log(width), dtype=np.float64)


def log_ratio(o: Floats, shift: float, width: float) -> Floats:
    """ln p_v(o) / p_0(o) at v = ``shift``."""
    return np.asarray(log_density(o - shift, width) - log_density(o, width), dtype=np.float64)


def nodes(shift: float, width: float, largest: float) -> tuple[Floats, Floats]:
    """Quadrature nodes and weights (n,) that cover the mass of (p_v / p_0)^a p_0 for a up to ``largest``."""
    half = 0.5 * width
    low, high = -half - _REACH, half + largest * shift + _REACH
    pieces = [(low, -half), (-half, -half + shift), (-half + shift, half), (half, half + shift), (half + shift, high)]
    if width > _WIDE + 2.0 * shift:
        pieces[2:3] = [(-half + shift, -half + shift + _REACH), (half - _REACH, half)]
    elif shift > width:
        pieces = [(low, high)]
    base, weights = _RULE
    panels_of_pieces: list[tuple[Floats, Floats]] = []
    for start, end in pieces:
        panels = max(1, math.ceil((end - start) / _PANEL))
        size = (end - start) / panels
        if size <= 0.0:
            continue
        middles = start + size * (np.arange(panels) + 0.5)
        panels_of_pieces.append(((middles[:, None] + 0.5 * size * base).ravel(), np.tile(0.5 * size * weights, panels)))
    return np.concatenate([o for o, _ in panels_of_pieces]), np.concatenate([w for _, w in panels_of_pieces])


def log_excess_moments(orders: Floats, shift: float, width: float, rate: float = 1.0) -> Floats:
    """ln(E_{p_0}[(1 - q + q p_v / p_0)^a] - 1) for real ``orders`` a > 1, shape (n,), with q = ``rate``.

    The integrand (1 + w)^a - 1 - a w is non-negative; w = q (p_v / p_0 - 1) has mean 0 under p_0.
    """
    if shift == 0.0:
        return np.full(len(orders), -math.inf)
    far = _FAR + 4.0 * shift
    if width > far:
        # Only the ends contribute and their shape is fixed, so the excess is proportional to 1 / t.
        return np.asarray(log_excess_moments(orders, shift, far, rate) + math.log(far / width), dtype=np.float64)
    log_excess = np.empty(len(orders))
    # Similar orders share nodes; large orders need a wider range than small ones.
    ranks = np.ceil(np.log2(np.maximum(orders, 2.0)))
    for rank in np.unique(ranks):
        alike = ranks == rank
        o, weights = nodes(shift, width, float(orders[alike].max()))
        loss = log_ratio(o, shift, width)
        logs = log_density(o, width) + np.log(weights)
        if rate < 1.0:
            change = rate * np.expm1(np.minimum(loss, 700.0))
            loss = np.where(
                loss < 1.0, np.log1p(np.minimum(change, 2.0)), np.logaddexp(math.log1p(-rate), loss + math.log(rate))
            )
        change = np.expm1(np.minimum(loss, 700.0))
        for i in np.flatnonzero(alike):
            values = accounting.log_excess_power(np.full(len(o), orders[i]), loss, change) + logs
            top = float(np.max(values))
            log_excess[i] = top + math.log(float(np.sum(np.exp(values - top)))) if math.isfinite(top) else top
    return log_excess


@lru_cache(maxsize=1024)
def log_moments(orders: tuple[int, ...], shift: float, width: float) -> Floats:
    """ln A_k(v, t) for k in ``orders``, at least 2, shape (n,); k (k - 1) v^2 / 2 for shifts above ``LONG``."""
    k = np.asarray(orders, dtype=np.float64)
    if width < NARROW or shift > LONG:
        return np.asarray(0.5 * k * (k - 1.0) * shift**2, dtype=np.float64)
    return np.asarray(np.logaddexp(0.0, log_excess_moments(k, shift, width)), dtype=np.float64)


def star_shape(orders: tuple[int, ...], shift: float, width: float) -> float:
    """Maximum ratio (h_k(u) / u^2) / (h_k(v) / v^2) over ``orders`` k and 16 values u in (0, v], with h_k = ln A_k.

    At most 1 if the one-hot gradient is the worst of the checked gradients; a numerical check, not a proof. If the
    ratio exceeds 1, the bounds replace h_k(v) by v^2 max h_k(u) / u^2.
    """
    if width < NARROW:
        return 1.0
    line = log_moments(orders, shift, width) / shift**2
    smaller = np.geomspace(shift / 1000.0, shift, 16).tolist()
    return max(float(np.max(log_moments(orders, u, width) / u**2 / line)) for u in smaller)


def without_mixing(segments: Sequence[Segment]) -> list[Segment]:
    return [plain_segment(s, s.effect) for s in segments]


def variance_matched(segments: Sequence[Segment]) -> list[Segment]:
    """DP-SGD whose Gaussian noise has the total variance of ModelMix's noise: z_vm = sqrt(z^2 + gap^2 z^2 / 12).

    Since I(t) >= 1 / (1 + t^2 / 12), its divergence is smaller at every integer order, and so is its epsilon.
    """
    return [replace(plain_segment(s, s.effect / math.sqrt(1.0 + s.gap**2 / 12.0)), noise="gaussian") for s in segments]


def plain_segment(segment: Segment, effect: float) -> Segment:
    """DP-SGD in which the mixed part has ``effect``; the embedded part does not change."""
    joint = math.hypot(effect, segment.embedded)
    return replace(segment, effect=joint, gap=0.0, sparsity=1, inflation=1.0, embedded=0.0)


def plain_epsilons(segments: Sequence[Segment], deltas: Sequence[float]) -> list[Interval]:
    """Epsilon of DP-SGD at each delta from its exact privacy loss with sampling; ``segments`` have no mixing."""
    if segments[0].noise == "gaussian":
        return PrivacyLoss.of_steps((1.0 / s.effect, s.rate, s.steps) for s in segments).epsilons(deltas)
    if max(s.laplace_loss for s in segments) > LARGEST_LOSS:
        total = math.fsum(s.steps * s.laplace_loss for s in segments)
        return [Interval(0.0, total).by("sum over steps")] * len(deltas)
    return PrivacyLoss(tuple((Laplace(1.0, s.laplace_loss, s.rate), s.steps) for s in segments)).epsilons(deltas)


def mixed_epsilon(segments: Sequence[Segment], delta: float, conversion: Conversion = "mironov") -> BestEpsilon:
    """Epsilon of the theorem for Gaussian noise: minimum over integer orders 2 to 256 of the sum over all steps."""
    return _search_orders(step_rdp, segments, delta, conversion)


def gaussian_epsilon(segments: Sequence[Segment], delta: float, conversion: Conversion = "mironov") -> BestEpsilon:
    return _search_orders(_gaussian_rdp, segments, delta, conversion)


def freedman_epsilon(segments: Sequence[Segment], delta: float) -> float:
    """Epsilon with mixing for Laplace noise: the minimum over a range of cuts and over basic composition.

    No cut is valid if the gap is at most the sensitivity, or useful if epsilon_0 exceeds ``LARGEST_LOSS``.
    """
    scaled = [(s.steps, s.laplace_loss, math.sqrt(2.0) * s.gap) for s in segments]
    epsilons = [math.fsum(steps * loss for steps, loss, _ in scaled)]
    if all(loss < min(width, LARGEST_LOSS) for _, loss, width in scaled):
        for cut in np.geomspace(1e-2, _FARTHEST, _CUTS).tolist():
            step_moments = [
                (n, step_loss_moments(loss, width, min(cut, 0.499 * (width - loss)))) for n, loss, width in scaled
            ]
            epsilons.append(freedman_total(step_moments, delta))
    return min(epsilons)


def equal_epsilon_noise(segments: Sequence[Segment], delta: float, *, amplified: bool) -> tuple[float, float]:
    """Factor on the noise of DP-SGD, at least 1, that gives the epsilon of ModelMix; and that epsilon.

    Both use integer orders; for Laplace noise, Freedman's inequality and the privacy loss.
    """
    bare = without_mixing(segments)

    def plain(factor: float) -> float:
        louder = [replace(s, effect=s.effect / factor) for s in bare]
        if louder[0].noise == "laplace":
            return plain_epsilons(louder, [delta])[0].upper
        return gaussian_epsilon(louder, delta, "improved").epsilon

    if not amplified:
        target = plain(1.0)
    elif segments[0].noise == "laplace":
        target = freedman_epsilon(segments, delta)
    else:
        target = mixed_epsilon(segments, delta, "improved").epsilon
    low, high = 1.0, 2.0
    if plain(low) <= target:
        return 1.0, target
    while plain(high) > target:
        low, high = high, 2.0 * high
    _, high = accounting.bisect(lambda factor: plain(factor) > target, low, high, relative=1e-4)
    return high, target


def inflate_one_hot(segments: Sequence[Segment], order: float) -> tuple[list[Segment], float]:
    """Set ``inflation`` of segments for which a numerical check finds a worse gradient than the one-hot one."""
    top = max(2, int(order))
    orders = sorted({2, min(3, top), max(2, top // 2), top})
    ratios = [star_shape(tuple(orders), s.shift, s.gap) for s in segments]
    inflated = [replace(s, inflation=r) if r > 1.0 + 1e-9 else s for s, r in zip(segments, ratios, strict=True)]
    return inflated, max(ratios)


class RepairedBound(NamedTuple):
    """Epsilon of the repaired theorem by the paper's conversion, and by a better one.

    ``ratio``: the largest ratio of :func:`star_shape`, with which the bound is inflated.
    """

    best: BestEpsilon
    improved: BestEpsilon
    ratio: float


@lru_cache(maxsize=64)
def repaired_bound(segments: tuple[Segment, ...], delta: float) -> RepairedBound:
    inflated, ratio = inflate_one_hot(segments, mixed_epsilon(segments, delta).order)
    return RepairedBound(mixed_epsilon(inflated, delta), mixed_epsilon(inflated, delta, "improved"), ratio)


def step_loss_moments(loss: float, width: float, cut: float) -> Moments:
    """The corrected lemma with any ``cut``, in noise scales; ``loss`` is epsilon_0, ``width`` is lambda tau."""
    if not (cut > 0.0 and 2.0 * cut + loss < width):
        raise ValueError(f"2 cut + loss must be below the width {width}, got a cut of {cut}")
    outside = mass_outside(width)
    reach = outside + (2.0 * cut + loss) / width
    inner = math.exp(-cut) * math.expm1(loss) / (-2.0 * math.expm1(-cut))
    mean = loss * math.expm1(loss) * reach + inner * math.expm1(min(inner, LARGEST_LOSS)) * (1.0 - outside)
    return Moments(mean, loss**2 * reach + inner**2 * (1.0 - outside), loss)


def mass_outside(width: float) -> float:
    """W, the mass beyond either end of a uniform of ``width`` scales of the Laplace noise."""
    return -math.expm1(-width) / width


def freedman_total(step_moments: Sequence[tuple[int, Moments]], delta: float) -> float:
    """sum T E + e0 L / 3 + sqrt((e0 L / 3)^2 + 2 L sum T V), L = ln(1 / delta), over (T, moments of one of T steps).

    Freedman's inequality for martingales with steps of at most the largest e0. It replaces the printed total.
    """
    log = -math.log(accounting.inside("delta", delta))
    mean = math.fsum(accounting.whole("steps", steps, 1) * moments.mean for steps, moments in step_moments)
    second = math.fsum(steps * moments.second for steps, moments in step_moments)
    linear = max(moments.largest for _, moments in step_moments) * log / 3.0
    return mean + linear + math.sqrt(linear**2 + 2.0 * second * log)


#: Divergences (n,) of one step of a segment at n orders.
Divergences: TypeAlias = Callable[[tuple[Any, ...], Segment], Floats]


def total_rdp(curve: Divergences, orders: Sequence[float], segments: Sequence[Segment]) -> Floats:
    total = np.zeros(len(orders))
    for segment in segments:
        total += segment.steps * curve(tuple(orders), replace(segment, steps=1))
    return total


def _search_orders(
    curve: Divergences, segments: Sequence[Segment], delta: float, conversion: Conversion
) -> BestEpsilon:
    """Search small orders first. (a - 1) D is convex in a, so an optimum below the last order is global."""
    for highest in _HIGHEST_ORDERS:
        orders = range(2, highest + 1)
        best = accounting.best_epsilon(orders, total_rdp(curve, orders, segments), delta, conversion)
        if best.order < highest:
            break
    return best._replace(at_edge=best.order in (INTEGER_ORDERS[0], INTEGER_ORDERS[-1]))


@lru_cache(maxsize=256)
def step_rdp(orders: tuple[int, ...], segment: Segment) -> Floats:
    """D_a of one step at integer ``orders``, shape (n,): Corollary 4.1, or Theorem 4.1 for p = 1."""
    if segment.noise != "gaussian":
        raise ValueError("moments require Gaussian noise")
    if segment.effect == 0.0 and segment.embedded == 0.0:
        return np.zeros(len(orders))
    top = tuple(range(2, max(orders) + 1))
    growth = np.zeros(max(orders) + 1)
    growth[2:] = segment.inflation * segment.sparsity * log_moments(top, segment.shift, segment.gap)
    growth[2:] += log_moments(top, segment.embedded, 0.0)
    divergences = []
    for a in orders:
        if segment.rate == 1.0:
            divergences.append(float(growth[a]) / (a - 1.0))
            continue
        with np.errstate(divide="ignore"):
            logs = growth[: a + 1] + np.log(-np.expm1(-growth[: a + 1])) + _log_weights(a, segment.rate)
        divergences.append(float(np.logaddexp(0.0, np.logaddexp.reduce(logs))) / (a - 1.0))
    return np.array(divergences)


@lru_cache(maxsize=1024)
def _gaussian_rdp(orders: tuple[int, ...], segment: Segment) -> Floats:
    return sampled_gaussian_integer_rdp(np.asarray(orders, dtype=np.float64), segment.rate, 1.0 / segment.effect)


@lru_cache(maxsize=4096)
def _log_weights(order: int, rate: float) -> Floats:
    weights = accounting.log_binomial(order, rate)
    weights.flags.writeable = False
    return weights


#: Orders that reproduce the paper's printed values. Its proof does not cover the fractional ones.
REAL_ORDERS = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *map(float, range(5, 64)), 128.0, 256.0)


def real_epsilon(segments: Sequence[Segment], delta: float) -> BestEpsilon:
    """The theorem's epsilon over the paper's fractional orders, which no theorem covers; without mixing at gap 0."""
    return accounting.best_epsilon(REAL_ORDERS, total_rdp(real_step_rdp, REAL_ORDERS, segments), delta, "mironov")


def real_step_rdp(orders: Sequence[float], segment: Segment) -> Floats:
    """D_a of one step at real ``orders`` > 1, shape (n,), for the one-hot pair."""
    if not segment.one_dimensional:
        raise ValueError("fractional orders are defined for p = 1 only")
    a = np.asarray(orders, dtype=np.float64)
    if segment.gap < NARROW:
        if segment.rate == 1.0:
            return accounting.gaussian_rdp(a, segment.effect)
        return accounting.sampled_gaussian_rdp(a, segment.rate, 1.0 / segment.effect)
    excess = log_excess_moments(a, segment.shift, segment.gap, segment.rate)
    return np.asarray(np.logaddexp(0.0, excess) / (a - 1.0), dtype=np.float64)


#: Reason why fractional orders prove nothing.
FRACTIONAL = "the proof expands a binomial and covers integer orders only; supported by numbers"

#: Fractional orders are omitted for larger shifts, because float64 cannot represent them.
_LARGEST_SHIFT = 30.0


def has_fractional_orders(segments: Sequence[Segment]) -> bool:
    return all(segment.one_dimensional and segment.shift <= _LARGEST_SHIFT for segment in segments)
