"""Whether two layers of a model share their noise: a bound on the products of what is left of them at each step.

Setting. At step t two layers hold r_t = g_t + n_t and s_t = h_t + m_t, the first k coordinates of either in units of
the declared noise: n_t and m_t are noise, g_t and h_t whatever else is there (the gradients that were drawn, canaries,
more noise than declared). Null: given all steps before, g_t, h_t and n_t, m_t is N(0, I_k); and likewise n_t given m_t.
Nothing is said of g_t and h_t, which may depend on each other and on the past in any way. Noise that is drawn for every
layer from generators that were seeded alike breaks it, and with it every bound: the difference of two layers then holds
no noise at all, and their gradients as they are.

Statistic. S = sum of r_t . s_t, A = sum of |r_t|^2, B = sum of |s_t|^2 over the steps, N coordinates in all. For fixed
q > 0

    exp(-q |s_t|^2 + q |h_t|^2 / (1 + 2 q)) (1 + 2 q)^(k / 2)

has mean 1 given the past and h_t (the Laplace transform of a noncentral chi-square law), so that the products of these
are a martingale, and by Ville's inequality, with probability 1 - a at least,

    sum of |h_t|^2 <= H = (1 + 2 q) / q * (q B - N / 2 ln(1 + 2 q) + ln(1 / a)).

Then |sum of r_t . h_t| <= sqrt(A H), and what is left of S is the sum of r_t . m_t, which is normal given r_t, step by
step: exp(l r_t . m_t - l^2 |r_t|^2 / 2) has mean 1 for fixed l. Together, for both signs,

    p = a + 2 exp(-l (|S| - sqrt(A H)) + l^2 A / 2).

q and l follow from the coordinates that were planned, and which steps count is decided before each. The other way
round, with r_t and s_t in each other's places, it holds as well, and the better one of the two is taken, at twice the
p. It is conservative: it sees noise that is shared by some 700 coordinates and steps, and by more where gradients are
not small beside the noise. Of layers that use the same noise, but begin at different places of it, it sees nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scipy import special

#: What this test is called.
TEST = "products of what is left of two layers, Ville"

#: So many layers are compared at most, the largest.
MOST_LAYERS = 8

#: a of the module's docstring.
_MISSED = 1e-15

#: At about this p the bound on a normal sum is the sharpest.
_AIMED = 1e-9


class Shared(NamedTuple):
    """What two layers showed of each other, in units of the declared noise.

    product: S, less what rounding can have changed of it, at least 0. first, second: A and B, with what it can have
    added. number: N. planned: how many coordinates were planned, at least as many.
    """

    product: float
    first: float
    second: float
    number: int
    planned: int


def surprise(one: Shared) -> float:
    """The larger, the less likely under the null: the exponent of the p-value, at the better of both ways."""
    ways = ((one.first, one.second), (one.second, one.first))
    return max(_exponent(one, known, other) for known, other in ways)


def p_value(one: Shared, pairs: int) -> float:
    """The p-value of the null for the most surprising of so many pairs of layers, (0, 1]; never less than 2e-15."""
    exponent = surprise(one)
    return min(1.0, 2.0 * pairs * (_MISSED + (2.0 * math.exp(-exponent) if exponent > 0.0 else 1.0)))


def least_seen(count: int, pairs: int, level: float, power: float) -> float | None:
    """The least correlation of two layers' noise, of ``count`` coordinates and no gradients, that is rejected at
    ``level`` with at least the probability ``power``; None where none is."""
    if 2.0 * pairs * _MISSED >= level:
        return None
    needed = math.log(2.0 / (level / (2.0 * pairs) - _MISSED))
    rate = _rate(count)
    least = math.sqrt(count * _others(float(count), count, count)) + needed / rate + 0.5 * rate * count
    # At most, the variance of a product is 2; A and B, which are larger where it is, need a little more.
    correlation = (least + 1.5 * float(special.ndtri(power)) * math.sqrt(2.0 * count)) / count
    return correlation if correlation <= 1.0 else None


def _exponent(one: Shared, known: float, other: float) -> float:
    rate = _rate(one.planned)
    beyond = one.product - math.sqrt(known) * math.sqrt(_others(other, one.number, one.planned))
    return rate * beyond - 0.5 * rate * rate * known


def _rate(planned: int) -> float:
    """l of the module's docstring."""
    return math.sqrt(2.0 * math.log(2.0 / _AIMED) / planned)


def _others(squares: float, count: int, planned: int) -> float:
    """H of the module's docstring: how long all that is no noise can be, squared."""
    q = math.sqrt(-math.log(_MISSED) / planned)
    return (1.0 + 2.0 * q) / q * max(0.0, q * squares - 0.5 * count * math.log1p(2.0 * q) - math.log(_MISSED))
