"""The repaired theorem: from the segments of a schedule to Renyi divergences and epsilon.

Xiao, Wan and Devadas, Theorem 4.1 and Corollary 4.1, with what is missing put back: T steps, the denominator a - 1, the
mean instead of the sum, gaps that may change along the way. One step of rate q with s = 1 / z, gap t and coordinates
truncated at clip_norm / sqrt(p) has

    D_a = ln( sum_k C(a, k) (1 - q)^(a - k) q^k A_k(s / sqrt(p), t)^p ) / (a - 1)   at integer orders a >= 2,

divergences of steps add up, and epsilon = sum_j T_j D_a(t_j) + ln(1 / delta) / (a - 1) is minimised after summing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dpspec.accounting.checks import Floats
from dpspec.accounting.convert import Conversion, best_epsilon
from dpspec.accounting.rdp import gaussian_rdp, sampled_gaussian_integer_rdp, sampled_gaussian_rdp
from dpspec.accounting.weights import binomial
from dpspec_modelmix import density

SOURCE = "Xiao, Wan & Devadas, Theorem 4.1 and Corollary 4.1, repaired"

#: The integer orders that are searched: up to each of these in turn, as long as the best one is the last.
_LADDER = (32, 64, 128, 256)
INTEGER_ORDERS = tuple(range(2, _LADDER[-1] + 1))

#: The orders with which the paper's printed values come out; the fractional ones are not covered by its proof.
REAL_ORDERS = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *map(float, range(5, 64)), 128.0, 256.0)

#: Below this, in units of the Gaussian deviation, the uniform hides nothing: probably a mean taken for a sum.
NEGLIGIBLE_GAP = 0.5


@dataclass(frozen=True)
class Segment:
    """Steps that are alike.

    rate: q; effect: s = clip_norm / sigma = 1 / noise_multiplier; gap: t, the enforced gap in units of sigma on the
    scale of the sum; sparsity: p, how many coordinates share the worst gradient; inflation: at least 1, by how much the
    logarithms of moments are raised where a gradient other than the one-hot one was seen to be worse; embedded: what a
    second part of the gradient has for s, which meets Gaussian noise of its own and no mixing; noise: the law of sigma,
    of which this module knows the Gaussian one (:mod:`dpspec_modelmix.laplace` the other).
    """

    steps: int
    rate: float
    effect: float
    gap: float
    sparsity: int = 1
    inflation: float = 1.0
    embedded: float = 0.0
    noise: str = "gaussian"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if not 0.0 < self.rate <= 1.0:
            raise ValueError(f"rate must be above 0 and at most 1, got {self.rate}")
        for name in ("effect", "gap", "embedded"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} must be finite and not negative, got {value}")
        if self.sparsity < 1:
            raise ValueError(f"sparsity must be at least 1, got {self.sparsity}")

    @property
    def shift(self) -> float:
        """v = s / sqrt(p), by how much the worst gradient moves one coordinate."""
        return self.effect / math.sqrt(self.sparsity)


class Found(NamedTuple):
    """The least epsilon, the order that gives it, the divergence of all steps there, and whether it is an end order."""

    epsilon: float
    order: float
    divergence: float
    at_edge: bool


def gap(threshold_over_rate: float, batch_size: float, noise_multiplier: float, clip_norm: float) -> float:
    """t = (tau / eta) B / (z c); ``batch_size`` B is the divisor of the update: the expected batch size, or 1."""
    return threshold_over_rate * batch_size / (noise_multiplier * clip_norm)


def step_rdp(orders: Sequence[int], segment: Segment) -> Floats:
    """D_a of one step at integer ``orders``, (n,): Corollary 4.1, Theorem 4.1 where p = 1."""
    return np.array(_step_rdp(tuple(orders), replace(segment, steps=1)))


@lru_cache(maxsize=256)
def _step_rdp(orders: tuple[int, ...], segment: Segment) -> tuple[float, ...]:
    if segment.noise != "gaussian":
        raise ValueError("moments are those of Gaussian noise")
    if segment.effect == 0.0 and segment.embedded == 0.0:
        return (0.0,) * len(orders)
    growth = segment.inflation * segment.sparsity * density.log_moments(max(orders), segment.shift, segment.gap)
    growth = growth + density.log_moments(max(orders), segment.embedded, 0.0)
    found = []
    for a in orders:
        if segment.rate == 1.0:
            found.append(float(growth[a]) / (a - 1.0))
            continue
        with np.errstate(divide="ignore"):
            logs = growth[: a + 1] + np.log(-np.expm1(-growth[: a + 1])) + _weights(a, segment.rate)
        found.append(float(np.logaddexp(0.0, np.logaddexp.reduce(logs))) / (a - 1.0))
    return tuple(found)


def real_step_rdp(orders: Sequence[float], segment: Segment) -> Floats:
    """D_a of one step at real ``orders`` > 1, (n,), of the one-hot pair alone. Raises ``ValueError`` unless p = 1 and
    there is nothing embedded.

    That the one-hot gradient is the worst at fractional orders is supported by numbers only.
    """
    if not one_dimensional(segment):
        raise ValueError("fractional orders are defined for p = 1 only")
    a = np.asarray(orders, dtype=np.float64)
    if segment.gap < density.NARROW:
        return gaussian_curve(segment)(a)
    excess = density.log_excess_moments(a, segment.shift, segment.gap, segment.rate)
    return np.asarray(np.logaddexp(0.0, excess) / (a - 1.0), dtype=np.float64)


def epsilon(segments: Sequence[Segment], delta: float, conversion: Conversion = "mironov") -> Found:
    """The theorem's epsilon: integer orders from 2 to 256, the least after adding up all steps."""
    return _climb(lambda a: _total(step_rdp, a, segments), delta, conversion)


def real_epsilon(segments: Sequence[Segment], delta: float) -> Found:
    """The same over the paper's fractional orders: no theorem covers it."""
    return _least(REAL_ORDERS, _total(real_step_rdp, REAL_ORDERS, segments), delta, "mironov")


def gaussian_epsilon(
    segments: Sequence[Segment], delta: float, *, real: bool = False, conversion: Conversion = "mironov"
) -> Found:
    """Epsilon of DP-SGD with the segments' noise and no mixing, at the same integer or ``real`` orders."""
    if real:
        return _least(REAL_ORDERS, _total(_gaussian_rdp, REAL_ORDERS, segments), delta, conversion)
    return _climb(lambda a: _total(_gaussian_integer_rdp, a, segments), delta, conversion)


def variance_matched(segments: Sequence[Segment]) -> list[Segment]:
    """DP-SGD whose Gaussian noise has the variance of both parts of ModelMix's: z_vm = sqrt(z^2 + gap^2 z^2 / 12).

    I(t) >= 1 / (1 + t^2 / 12) makes its divergence the smaller one at every integer order, so its epsilon is too.
    """
    return [replace(_plain(s, s.effect / math.sqrt(1.0 + s.gap**2 / 12.0)), noise="gaussian") for s in segments]


def limit(segments: Sequence[Segment]) -> list[Segment]:
    """What ever larger p comes to: a Gaussian of noise multiplier z / sqrt(I(t)), below which truncation cannot go."""
    return [_plain(s, s.effect * math.sqrt(density.fisher_information(s.gap))) for s in segments]


def without_mixing(segments: Sequence[Segment]) -> list[Segment]:
    """The same noise, no mixing: what is left where a condition of the amplification fails."""
    return [_plain(s, s.effect) for s in segments]


def one_dimensional(segment: Segment) -> bool:
    """Whether the worst gradient moves a single coordinate."""
    return segment.sparsity == 1 and segment.embedded == 0.0


def _plain(segment: Segment, effect: float) -> Segment:
    """Plain DP-SGD in which the mixed part has ``effect``; what is embedded stays as it is."""
    joint = math.hypot(effect, segment.embedded)
    return replace(segment, effect=joint, gap=0.0, sparsity=1, inflation=1.0, embedded=0.0)


def gaussian_curve(segment: Segment) -> Callable[[Floats], Floats]:
    """D_a of one step without mixing at real orders, in closed form or by quadrature."""
    if segment.rate == 1.0:
        return lambda a: gaussian_rdp(a, segment.effect)
    return lambda a: sampled_gaussian_rdp(a, segment.rate, 1.0 / segment.effect)


def _gaussian_rdp(orders: Sequence[float], segment: Segment) -> Floats:
    return gaussian_curve(segment)(np.asarray(orders, dtype=np.float64))


def _gaussian_integer_rdp(orders: Sequence[int], segment: Segment) -> Floats:
    return np.array(_gaussian_integers(tuple(orders), segment.rate, segment.effect))


@lru_cache(maxsize=1024)
def _gaussian_integers(orders: tuple[int, ...], rate: float, effect: float) -> tuple[float, ...]:
    found = sampled_gaussian_integer_rdp(np.asarray(orders, dtype=np.float64), rate, 1.0 / effect)
    return tuple(float(x) for x in found)


@lru_cache(maxsize=4096)
def _weights(order: int, rate: float) -> Floats:
    weights = binomial(order, rate)
    weights.flags.writeable = False
    return weights


def _total(curve: Callable[..., Floats], orders: Sequence[float], segments: Sequence[Segment]) -> Floats:
    total = np.zeros(len(orders))
    for segment in segments:
        total += segment.steps * curve(orders, segment)
    return total


def _climb(total: Callable[[Sequence[int]], Floats], delta: float, conversion: Conversion) -> Found:
    """Small orders first: (a - 1) D is convex in a, so that a best order below the last searched is the best of all."""
    for highest in _LADDER:
        orders = range(2, highest + 1)
        found = _least(orders, total(orders), delta, conversion)
        if found.order < highest:
            break
    return found._replace(at_edge=found.order in (INTEGER_ORDERS[0], INTEGER_ORDERS[-1]))


def _least(orders: Sequence[float], divergences: Floats, delta: float, conversion: Conversion) -> Found:
    best = best_epsilon(orders, divergences, delta, conversion)
    at = list(orders).index(best.order)
    return Found(best.epsilon, best.order, float(divergences[at]), best.at_edge)
