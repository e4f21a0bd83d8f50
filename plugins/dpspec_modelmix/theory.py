"""Epsilon with mixing: the repaired theorem for Gaussian noise, Freedman's inequality for Laplace noise.

*Gaussian* (Xiao, Wan and Devadas, Theorem 4.1 and Corollary 4.1, with what is missing put back: T steps, the
denominator a - 1, the mean instead of the sum, gaps that may change along the way). One step of rate q with s = 1 / z,
gap t and coordinates truncated at clip_norm / sqrt(p) has

    D_a = ln( sum_k C(a, k) (1 - q)^(a - k) q^k A_k(s / sqrt(p), t)^p ) / (a - 1)   at integer orders a >= 2,

divergences of steps add up, and epsilon = sum_j T_j D_a(t_j) + ln(1 / delta) / (a - 1) is minimised after summing.

*Laplace* (Lemma D.2, corrected). Noise of density (lambda / 2) e^(-lambda |o|), l1 sensitivity c, e0 = lambda c, a
uniform of width tau (all in units of the gradient). The lemma cuts ln(tau) / lambda off either end of the uniform,
which compares tau with 1 and so depends on units. Nothing in its proof does: any cut u > 0 with 2 u + c < tau will do,
and with y = e^(-lambda u)

    mean    e0 (e^e0 - 1) R + e_I (e^e_I - 1) (1 - W),      W = (1 - e^(-lambda tau)) / (lambda tau),
    square  e0^2 R + e_I^2 (1 - W),                         R = W + (2 u + c) / tau,  e_I = y (e^e0 - 1) / (2 (1 - y)),

which is the lemma's own where y = 1 / tau. Both bounds rise relative to c: of all gradients within the clip norm the
one-hot one has the largest sum of them, and no convexity has to be taken on trust. A wider gap only helps, as with
Gaussian noise, since Laplace noise is log-concave too. Sampling can only help: nothing is gained from it here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

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

#: For every data set. The plain bound asks nothing of their number, and the attacks' estimates speak of no other.
SCOPE = dps.Scope(direction="both", access="all-iterates", adversary="gradient")

#: The integer orders that are searched: up to each of these in turn, as long as the best one is the last.
_HIGHEST_ORDERS = (32, 64, 128, 256)
INTEGER_ORDERS = tuple(range(2, _HIGHEST_ORDERS[-1] + 1))

#: Laplace noise: how many cuts are tried, and up to how many scales of the noise.
_CUTS, _FARTHEST = 200, 40.0

#: Where one step's epsilon_0 is above this, e^epsilon_0 is out of all range, and epsilon is taken to add up.
LARGEST_LOSS = 300.0


class OrderEpsilon(NamedTuple):
    """The least epsilon, the order that gives it, the divergence of all steps there, and whether it is an end order."""

    epsilon: float
    order: float
    divergence: float
    at_edge: bool


class Moments(NamedTuple):
    """Upper bounds on the mean of one step's loss, on its second moment, and on the loss itself."""

    mean: float
    second: float
    largest: float


def without_mixing(segments: Sequence[Segment]) -> list[Segment]:
    """The same noise, no mixing: what is left where a condition of the amplification fails."""
    return [plain_segment(s, s.effect) for s in segments]


def variance_matched(segments: Sequence[Segment]) -> list[Segment]:
    """DP-SGD whose Gaussian noise has the variance of both parts of ModelMix's: z_vm = sqrt(z^2 + gap^2 z^2 / 12).

    I(t) >= 1 / (1 + t^2 / 12) makes its divergence the smaller one at every integer order, so its epsilon is too.
    """
    return [replace(plain_segment(s, s.effect / math.sqrt(1.0 + s.gap**2 / 12.0)), noise="gaussian") for s in segments]


def plain_segment(segment: Segment, effect: float) -> Segment:
    """Plain DP-SGD in which the mixed part has ``effect``; what is embedded stays as it is."""
    joint = math.hypot(effect, segment.embedded)
    return replace(segment, effect=joint, gap=0.0, sparsity=1, inflation=1.0, embedded=0.0)


def plain_epsilons(segments: Sequence[Segment], deltas: Sequence[float]) -> list[Interval]:
    """Epsilon of DP-SGD at each delta from its exact privacy loss, sampling included; ``segments`` without mixing."""
    if segments[0].noise == "gaussian":
        return PrivacyLoss(tuple((Mixture.poisson(1, s.rate, 1.0 / s.effect), s.steps) for s in segments)).epsilons(
            deltas
        )
    if max(s.laplace_loss for s in segments) > LARGEST_LOSS:
        total = math.fsum(s.steps * s.laplace_loss for s in segments)
        return [Interval(0.0, total).by("sum over steps")] * len(deltas)
    return PrivacyLoss(tuple((Laplace(1.0, s.laplace_loss, s.rate), s.steps) for s in segments)).epsilons(deltas)


def mixed_epsilon(segments: Sequence[Segment], delta: float, conversion: Conversion = "mironov") -> OrderEpsilon:
    """The theorem's epsilon: integer orders from 2 to 256, the least after adding up all steps. Gaussian noise."""
    return _search_orders(lambda orders: total_rdp(step_rdp, orders, segments), delta, conversion)


def gaussian_epsilon(segments: Sequence[Segment], delta: float, conversion: Conversion = "mironov") -> OrderEpsilon:
    """Epsilon of DP-SGD with the segments' noise and no mixing, at the same integer orders."""
    return _search_orders(lambda orders: total_rdp(_gaussian_step_rdp, orders, segments), delta, conversion)


def freedman_epsilon(segments: Sequence[Segment], delta: float) -> float:
    """Epsilon with mixing for Laplace noise: the least over a range of cuts, and over adding up epsilon_0 as it is.

    A gap that is no wider than what one record moves leaves no cut, and an epsilon_0 above ``LARGEST_LOSS`` none worth
    it.
    """
    scaled = [(s.steps, s.laplace_loss, math.sqrt(2.0) * s.gap) for s in segments]
    epsilons = [math.fsum(steps * loss for steps, loss, _ in scaled)]
    if all(loss < min(width, LARGEST_LOSS) for _, loss, width in scaled):
        for cut in np.geomspace(1e-2, _FARTHEST, _CUTS).tolist():
            parts = [(n, cut_moments(loss, width, min(cut, 0.499 * (width - loss)))) for n, loss, width in scaled]
            epsilons.append(freedman_total(parts, delta))
    return min(epsilons)


def equal_epsilon_noise(segments: Sequence[Segment], delta: float, *, amplified: bool) -> tuple[float, float]:
    """By what to multiply the noise of DP-SGD for the epsilon of ModelMix, at least 1, and that epsilon.

    Both are at integer orders; where the noise is Laplace, by Freedman's total and by the privacy loss. Where mixing is
    not ``amplified``, that epsilon is DP-SGD's own.
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
    """The segments with ``inflation`` where a look at smaller shifts shows a worse gradient than the one-hot one.

    Also the largest ratio that was seen: at most 1 where all is as the paper asserts. No proof.
    """
    top = max(2, int(order))
    orders = sorted({2, min(3, top), max(2, top // 2), top})
    ratios = [density.star_shape(orders, s.shift, s.gap) for s in segments]
    inflated = [replace(s, inflation=r) if r > 1.0 + 1e-9 else s for s, r in zip(segments, ratios, strict=True)]
    return inflated, max(ratios)


def step_rdp(orders: Sequence[int], segment: Segment) -> Floats:
    """D_a of one step at integer ``orders``, (n,): Corollary 4.1, Theorem 4.1 where p = 1."""
    return np.array(_step_rdp(tuple(orders), replace(segment, steps=1)))


def cut_moments(loss: float, width: float, cut: float) -> Moments:
    """The corrected lemma with any ``cut``, in units of the noise's scale: ``loss`` epsilon_0, ``width`` lambda tau."""
    if not (cut > 0.0 and 2.0 * cut + loss < width):
        raise ValueError(f"2 cut + loss must be below the width {width}, got a cut of {cut}")
    outside = mass_outside(width)
    reach = outside + (2.0 * cut + loss) / width
    inner = math.exp(-cut) * math.expm1(loss) / (-2.0 * math.expm1(-cut))
    mean = loss * math.expm1(loss) * reach + inner * math.expm1(min(inner, LARGEST_LOSS)) * (1.0 - outside)
    return Moments(mean, loss**2 * reach + inner**2 * (1.0 - outside), loss)


def mass_outside(width: float) -> float:
    """W, what lies beyond either end of a uniform of ``width`` scales of the Laplace noise."""
    return -math.expm1(-width) / width


def freedman_total(parts: Sequence[tuple[int, Moments]], delta: float) -> float:
    """sum T E + e0 L / 3 + sqrt((e0 L / 3)^2 + 2 L sum T V), L = ln(1 / delta), over (T, moments of one of T steps).

    Freedman's inequality for martingales whose steps stay below the largest e0; in place of the printed total.
    """
    log = -math.log(inside("delta", delta))
    mean = math.fsum(whole("steps", steps, 1) * one.mean for steps, one in parts)
    second = math.fsum(steps * one.second for steps, one in parts)
    linear = max(one.largest for _, one in parts) * log / 3.0
    return mean + linear + math.sqrt(linear**2 + 2.0 * second * log)


def total_rdp(curve: Callable[..., Floats], orders: Sequence[float], segments: Sequence[Segment]) -> Floats:
    """The divergences of all steps at ``orders``, (n,); ``curve`` gives those of one."""
    total = np.zeros(len(orders))
    for segment in segments:
        total += segment.steps * curve(orders, segment)
    return total


def least_epsilon(orders: Sequence[float], divergences: Floats, delta: float, conversion: Conversion) -> OrderEpsilon:
    """The least epsilon at ``delta`` over ``orders`` with ``divergences`` (n,)."""
    best = best_epsilon(orders, divergences, delta, conversion)
    index = list(orders).index(best.order)
    return OrderEpsilon(best.epsilon, best.order, float(divergences[index]), best.at_edge)


def _search_orders(total: Callable[[Sequence[int]], Floats], delta: float, conversion: Conversion) -> OrderEpsilon:
    """Small orders first: (a - 1) D is convex in a, so that a best order below the last searched is the best of all."""
    for highest in _HIGHEST_ORDERS:
        orders = range(2, highest + 1)
        best = least_epsilon(orders, total(orders), delta, conversion)
        if best.order < highest:
            break
    return best._replace(at_edge=best.order in (INTEGER_ORDERS[0], INTEGER_ORDERS[-1]))


@lru_cache(maxsize=256)
def _step_rdp(orders: tuple[int, ...], segment: Segment) -> tuple[float, ...]:
    if segment.noise != "gaussian":
        raise ValueError("moments are those of Gaussian noise")
    if segment.effect == 0.0 and segment.embedded == 0.0:
        return (0.0,) * len(orders)
    growth = segment.inflation * segment.sparsity * density.log_moments(max(orders), segment.shift, segment.gap)
    growth = growth + density.log_moments(max(orders), segment.embedded, 0.0)
    divergences = []
    for a in orders:
        if segment.rate == 1.0:
            divergences.append(float(growth[a]) / (a - 1.0))
            continue
        with np.errstate(divide="ignore"):
            logs = growth[: a + 1] + np.log(-np.expm1(-growth[: a + 1])) + _log_weights(a, segment.rate)
        divergences.append(float(np.logaddexp(0.0, np.logaddexp.reduce(logs))) / (a - 1.0))
    return tuple(divergences)


def _gaussian_step_rdp(orders: Sequence[int], segment: Segment) -> Floats:
    return np.array(_gaussian_rdp(tuple(orders), segment.rate, segment.effect))


@lru_cache(maxsize=1024)
def _gaussian_rdp(orders: tuple[int, ...], rate: float, effect: float) -> tuple[float, ...]:
    divergences = sampled_gaussian_integer_rdp(np.asarray(orders, dtype=np.float64), rate, 1.0 / effect)
    return tuple(float(x) for x in divergences)


@lru_cache(maxsize=4096)
def _log_weights(order: int, rate: float) -> Floats:
    weights = log_binomial(order, rate)
    weights.flags.writeable = False
    return weights
