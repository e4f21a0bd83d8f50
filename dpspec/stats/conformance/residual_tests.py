"""Tests of residuals that hold for every adaptive run: sums along fixed directions, and noise that layers share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from scipy import special

from dpspec.json_records import Amount, Positive, Real, Record
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement

#: Ratio of successive points of the grid of V.
_RATIO = 1.25

#: Largest finite ratio of V to its lower bound.
_LARGEST = 1e307


def drift(
    total: float, variance: float, least: float, unit: float, *, test: str, declared: float = 0.0, tried: int = 1
) -> Measurement:
    """Test that a sum along predictable directions is centered, two-sided, by Freedman's inequality.

    Theorem 10 of ``docs/explanation/proofs/residuals.md``: ``variance`` is V, ``least`` its lower bound, known
    beforehand, and V is rounded up to a grid that shares the level. The sum changes by ``unit`` if the tested quantity
    is larger by 1. It is the largest of ``tried`` sums (Bonferroni).
    """
    if not (variance >= 0.0 and least > 0.0 and unit >= 0.0 and tried >= 1):
        raise ValueError(f"need variance, unit >= 0, least > 0, tried >= 1; got {variance}, {unit}, {least}, {tried}")
    measured = declared + (total / unit if unit > 0.0 else 0.0)
    ratio = max(variance, least) / least
    if ratio > _LARGEST:  # the model diverged
        return Measurement(test=test, declared=declared, measured=measured, p_value=1.0, detectable=None)
    point = max(0, math.ceil(math.log(ratio) / math.log(_RATIO) - 1e-9))
    v = least * _RATIO**point
    log_weight = math.log(2.0 * (point + 1) * (point + 2) * tried)
    x = abs(total)
    exponent = x if math.isinf(x) else x * x / (2.0 * (v + x / 3.0))
    needed = log_weight - math.log(LEVEL)
    threshold = needed / 3.0 + math.sqrt(needed * needed / 9.0 + 2.0 * needed * v)
    return Measurement(
        test=test,
        declared=declared,
        measured=measured,
        p_value=min(1.0, math.exp(log_weight - exponent)),
        detectable=(threshold + float(special.ndtri(POWER)) * math.sqrt(v)) / unit if unit > 0.0 else None,
    )


#: Name of the test of layers.
LAYERS_TEST = "products of residuals of two layers, Ville"

#: Maximum number of compared layers, the largest ones.
MOST_LAYERS = 8

#: a.
_MISSED = 1e-15

#: The p-value at which the bound is sharpest.
_AIMED = 1e-9


@dataclass(frozen=True, kw_only=True)
class SharedLayers(Record):
    """Products of the residuals of two layers, the worst of ``pairs`` pairs, in units of the declared noise.

    Layers with equally seeded generators share their noise: their difference has none. Theorem 11 of
    ``docs/explanation/proofs/residuals.md``, for all gradients: p = a + 2 exp(-l (|S| - sqrt(A H)) + l^2 A / 2).

    Attributes:
        squares: A and B, the squared norms of both residuals, including rounding.
        product: S, the sum over the steps of the inner products.
        rounding: Bound on the rounding error of ``product``.
        count: N, the number of coordinates of one layer, over all steps.
        planned: The same for all planned steps.
    """

    squares: Mapping[str, Amount]
    product: Real
    rounding: Amount
    count: Positive
    planned: Positive
    pairs: Positive

    def surprise(self) -> float:
        """The larger exponent of the p-value of both orders."""
        product = max(0.0, abs(self.product) - self.rounding)
        rate, (first, second) = _rate(self.planned), self.squares.values()
        return max(
            rate * (product - math.sqrt(known) * math.sqrt(_others(other, self.count, self.planned)))
            - 0.5 * rate * rate * known
            for known, other in ((first, second), (second, first))
        )

    def p_value(self) -> float:
        """At least 2e-15."""
        exponent = self.surprise()
        return min(1.0, 2.0 * self.pairs * (_MISSED + (2.0 * math.exp(-exponent) if exponent > 0.0 else 1.0)))

    def test(self) -> Measurement:
        return Measurement(
            test=f"{LAYERS_TEST}, {' and '.join(self.squares)}",
            declared=0.0,
            measured=self.product / self.count,
            p_value=self.p_value(),
            detectable=least_seen(self.count, self.pairs),
        )

    def problem(self) -> str | None:
        if len(self.squares) != 2:
            return "squares must name two layers"
        if abs(self.product) > (1.0 + 1e-9) * prod(square**0.5 for square in self.squares.values()):
            return f"product must be at most the product of the norms, got {self.product:g}"
        if self.planned < self.count:
            return f"planned must be at least count ({self.count}), got {self.planned}"
        return None


def least_seen(count: int, pairs: int) -> float | None:
    """Return the smallest correlation of two layers' noise that is rejected at ``LEVEL`` with probability ``POWER``.

    For ``count`` coordinates and no gradients; None if no correlation is rejected.
    """
    if 2.0 * pairs * _MISSED >= LEVEL:
        return None
    needed = math.log(2.0 / (LEVEL / (2.0 * pairs) - _MISSED))
    rate = _rate(count)
    least = math.sqrt(count * _others(float(count), count, count)) + needed / rate + 0.5 * rate * count
    # The variance of a product is at most 2; the factor 1.5 covers A and B, which grow with it.
    correlation = (least + 1.5 * float(special.ndtri(POWER)) * math.sqrt(2.0 * count)) / count
    return correlation if correlation <= 1.0 else None


def _rate(planned: int) -> float:
    """l."""
    return math.sqrt(2.0 * math.log(2.0 / _AIMED) / planned)


def _others(squares: float, count: int, planned: int) -> float:
    """H."""
    q = math.sqrt(-math.log(_MISSED) / planned)
    return (1.0 + 2.0 * q) / q * max(0.0, q * squares - 0.5 * count * math.log1p(2.0 * q) - math.log(_MISSED))
