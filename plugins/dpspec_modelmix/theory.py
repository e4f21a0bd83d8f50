"""Epsilon with mixing: the repaired theorem for Gaussian noise, Freedman's inequality for Laplace noise.

Formulas and corrections: ``docs/explanation/proofs/modelmix.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec.accounting import (
    Conversion,
    Floats,
    Interval,
    Laplace,
    Mixture,
    PrivacyLoss,
    best_epsilon,
    inside,
    log_binomial,
    sampled_gaussian_integer_rdp,
    whole,
)
from dpspec_modelmix import density
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


class OrderEpsilon(NamedTuple):
    """Minimum epsilon, its order, the divergence of all steps there, and whether the order ends the range."""

    epsilon: float
    order: float
    divergence: float
    at_edge: bool


class Moments(NamedTuple):
    """Upper bounds on the mean, the second moment and the maximum of one step's loss."""

    mean: float
    second: float
    largest: float


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
        return PrivacyLoss(tuple((Mixture.poisson(1, s.rate, 1.0 / s.effect), s.steps) for s in segments)).epsilons(
            deltas
        )
    if max(s.laplace_loss for s in segments) > LARGEST_LOSS:
        total = math.fsum(s.steps * s.laplace_loss for s in segments)
        return [Interval(0.0, total).by("sum over steps")] * len(deltas)
    return PrivacyLoss(tuple((Laplace(1.0, s.laplace_loss, s.rate), s.steps) for s in segments)).epsilons(deltas)


def mixed_epsilon(segments: Sequence[Segment], delta: float, conversion: Conversion = "mironov") -> OrderEpsilon:
    """Epsilon of the theorem for Gaussian noise: minimum over integer orders 2 to 256 of the sum over all steps."""
    return _search_orders(step_rdp, segments, delta, conversion)


def gaussian_epsilon(segments: Sequence[Segment], delta: float, conversion: Conversion = "mironov") -> OrderEpsilon:
    return _search_orders(_gaussian_rdp, segments, delta, conversion)


def freedman_epsilon(segments: Sequence[Segment], delta: float) -> float:
    """Epsilon with mixing for Laplace noise: the minimum over a range of cuts and over basic composition.

    No cut is valid if the gap is at most the sensitivity, or useful if epsilon_0 exceeds ``LARGEST_LOSS``.
    """
    scaled = [(s.steps, s.laplace_loss, math.sqrt(2.0) * s.gap) for s in segments]
    epsilons = [math.fsum(steps * loss for steps, loss, _ in scaled)]
    if all(loss < min(width, LARGEST_LOSS) for _, loss, width in scaled):
        for cut in np.geomspace(1e-2, _FARTHEST, _CUTS).tolist():
            parts = [(n, cut_moments(loss, width, min(cut, 0.499 * (width - loss)))) for n, loss, width in scaled]
            epsilons.append(freedman_total(parts, delta))
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
    while high - low > 1e-4 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if plain(middle) > target else (low, middle)
    return high, target


def inflate_one_hot(segments: Sequence[Segment], order: float) -> tuple[list[Segment], float]:
    """Set ``inflation`` of segments for which a numerical check finds a worse gradient than the one-hot one."""
    top = max(2, int(order))
    orders = sorted({2, min(3, top), max(2, top // 2), top})
    ratios = [density.star_shape(tuple(orders), s.shift, s.gap) for s in segments]
    inflated = [replace(s, inflation=r) if r > 1.0 + 1e-9 else s for s, r in zip(segments, ratios, strict=True)]
    return inflated, max(ratios)


def cut_moments(loss: float, width: float, cut: float) -> Moments:
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


def freedman_total(parts: Sequence[tuple[int, Moments]], delta: float) -> float:
    """sum T E + e0 L / 3 + sqrt((e0 L / 3)^2 + 2 L sum T V), L = ln(1 / delta), over (T, moments of one of T steps).

    Freedman's inequality for martingales with steps of at most the largest e0. It replaces the printed total.
    """
    log = -math.log(inside("delta", delta))
    mean = math.fsum(whole("steps", steps, 1) * one.mean for steps, one in parts)
    second = math.fsum(steps * one.second for steps, one in parts)
    linear = max(one.largest for _, one in parts) * log / 3.0
    return mean + linear + math.sqrt(linear**2 + 2.0 * second * log)


#: Divergences (n,) of one step of a segment at n orders.
Divergences: TypeAlias = Callable[[tuple[Any, ...], Segment], Floats]


def total_rdp(curve: Divergences, orders: Sequence[float], segments: Sequence[Segment]) -> Floats:
    total = np.zeros(len(orders))
    for segment in segments:
        total += segment.steps * curve(tuple(orders), replace(segment, steps=1))
    return total


def least_epsilon(orders: Sequence[float], divergences: Floats, delta: float, conversion: Conversion) -> OrderEpsilon:
    best = best_epsilon(orders, divergences, delta, conversion)
    index = list(orders).index(best.order)
    return OrderEpsilon(best.epsilon, best.order, float(divergences[index]), best.at_edge)


def _search_orders(
    curve: Divergences, segments: Sequence[Segment], delta: float, conversion: Conversion
) -> OrderEpsilon:
    """Search small orders first. (a - 1) D is convex in a, so an optimum below the last order is global."""
    for highest in _HIGHEST_ORDERS:
        orders = range(2, highest + 1)
        best = least_epsilon(orders, total_rdp(curve, orders, segments), delta, conversion)
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
    growth[2:] = segment.inflation * segment.sparsity * density.log_moments(top, segment.shift, segment.gap)
    growth[2:] += density.log_moments(top, segment.embedded, 0.0)
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
    weights = log_binomial(order, rate)
    weights.flags.writeable = False
    return weights
