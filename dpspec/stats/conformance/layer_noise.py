"""Test whether two layers of a model share their noise, by the inner products of their residuals at each step.

Noise that every layer draws from an equally seeded generator breaks every bound: the difference of two layers has none.
With S the sum of the products, A and B the squared norms of both residuals and N the number of coordinates, the p-value
is a + 2 exp(-l (|S| - sqrt(A H)) + l^2 A / 2), where H bounds everything except noise in the second layer. It holds for
all gradients, by Theorem 11 of ``docs/explanation/proofs/residuals.md``. q and l follow from the planned number of
coordinates. Both orders of the layers are tried, at twice the p-value.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scipy import special

#: Name of the test.
TEST = "products of residuals of two layers, Ville"

#: Maximum number of compared layers, the largest ones.
MOST_LAYERS = 8

#: a.
_MISSED = 1e-15

#: The p-value at which the bound is sharpest.
_AIMED = 1e-9


class Shared(NamedTuple):
    """Sums over two layers in units of the declared noise.

    Attributes:
        product: S less a bound on its rounding error, at least 0.
        first: A plus rounding.
        second: B plus rounding.
        number: N.
        planned: Planned number of coordinates, at least N.
    """

    product: float
    first: float
    second: float
    number: int
    planned: int


def surprise(one: Shared) -> float:
    """Return the larger exponent of the p-value of both orders."""
    ways = ((one.first, one.second), (one.second, one.first))
    return max(_exponent(one, known, other) for known, other in ways)


def p_value(one: Shared, pairs: int) -> float:
    """Return the p-value of the worst of ``pairs`` pairs of layers, at least 2e-15."""
    exponent = surprise(one)
    return min(1.0, 2.0 * pairs * (_MISSED + (2.0 * math.exp(-exponent) if exponent > 0.0 else 1.0)))


def least_seen(count: int, pairs: int, level: float, power: float) -> float | None:
    """Return the smallest correlation of two layers' noise that is rejected at ``level`` with probability ``power``.

    For ``count`` coordinates and no gradients; None if no correlation is rejected.
    """
    if 2.0 * pairs * _MISSED >= level:
        return None
    needed = math.log(2.0 / (level / (2.0 * pairs) - _MISSED))
    rate = _rate(count)
    least = math.sqrt(count * _others(float(count), count, count)) + needed / rate + 0.5 * rate * count
    # The variance of a product is at most 2; the factor 1.5 covers A and B, which grow with it.
    correlation = (least + 1.5 * float(special.ndtri(power)) * math.sqrt(2.0 * count)) / count
    return correlation if correlation <= 1.0 else None


def _exponent(one: Shared, known: float, other: float) -> float:
    rate = _rate(one.planned)
    beyond = one.product - math.sqrt(known) * math.sqrt(_others(other, one.number, one.planned))
    return rate * beyond - 0.5 * rate * rate * known


def _rate(planned: int) -> float:
    """Return l."""
    return math.sqrt(2.0 * math.log(2.0 / _AIMED) / planned)


def _others(squares: float, count: int, planned: int) -> float:
    """Return H."""
    q = math.sqrt(-math.log(_MISSED) / planned)
    return (1.0 + 2.0 * q) / q * max(0.0, q * squares - 0.5 * count * math.log1p(2.0 * q) - math.log(_MISSED))
