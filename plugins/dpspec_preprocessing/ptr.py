"""Propose, test, release: an unconditional guarantee for pipelines whose bound holds on a collection only.

A distance J to the data sets outside the collection, 1-Lipschitz under replacement, is tested with Laplace noise:
refuse where J + Lap(1 / e) <= ln(2 / delta) / e. If at least one of two neighbours lies inside with a margin, one
Davis-Kahan bound covers the pair; if neither does, both release with probability delta / 4 at most. So the whole is
(mechanism + e, delta)-DP for all data sets. (Theorem 7 argues differently when one neighbour lies outside; its
argument gives delta e^e / 4, more than delta for e > ln 4.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dpspec_preprocessing import private, sensitivity, totals
from dpspec_preprocessing.private import Private
from dpspec_preprocessing.theorem2 import closed_form

#: Theorem 7's slope of the distance to the closest data set with a small gap, 1 / (12.2 / n).
_PRINTED_SLOPE = 12.2


class Printed(NamedTuple):
    """Theorem 7: its total epsilon, the order that its proof takes, the largest delta that it states, and the largest
    that its proof allows, which needs an order of 11.
    """

    total: float
    order: float
    largest_delta: float
    needed_delta: float


def distance_gap(gap: float, beta: float, records: int, *, printed: bool = False) -> float:
    """How many records have to be replaced, at least, before the eigengap is below ``beta``."""
    each = _PRINTED_SLOPE / records if printed else sensitivity.gap_sensitivity(records)
    return max(0.0, (gap - beta) / each)


def distance_count(count: float, most: float) -> float:
    """The same for a count that one replaced record moves by at most one, and that must stay at most ``most``."""
    return max(0.0, most + 1.0 - count)


def threshold(epsilon: float, delta: float) -> float:
    """ln(2 / delta) / epsilon: what the noisy distance has to exceed."""
    return math.log(2.0 / delta) / epsilon


def refusal(distance: float, epsilon: float, delta: float) -> float:
    """The exact probability of a refusal at a true distance J."""
    gap = epsilon * (distance - threshold(epsilon, delta))
    return 0.5 * math.exp(-gap) if gap >= 0.0 else 1.0 - 0.5 * math.exp(gap)


def refusal_printed(distance: float, delta: float, epsilon: float) -> float:
    """Proposition 8's bound, half of the truth for the algorithm's own threshold."""
    return math.exp(-distance * epsilon) / (2.0 * delta)


def mechanism(epsilon: float, delta: float, slope: float) -> float:
    """c + 2 sqrt(c ln(1 / delta)) + epsilon: a mechanism of divergence c a behind a test of ``epsilon``."""
    return slope + 2.0 * math.sqrt(slope * math.log(1.0 / delta)) + epsilon


def certified_gap(m: Private, beta: float, epsilon: float, delta: float) -> float:
    """The total for a projection and noisy full gradients: the smooth share at gap ``beta`` less the margin 4 / n.

    Raises ``ValueError`` where ``beta`` is not above 4 / n.
    """
    e = 4.0 / m.records
    if not beta > e:
        raise ValueError(f"beta must exceed 4 / n = {e:g}")
    tau = m.records * min(1.0, e / (beta - e))
    return certified(m, tau, m.records, epsilon, delta)


def certified(m: Private, tau: float, changed: float, epsilon: float, delta: float) -> float:
    """The total at distance ``tau``; infinite for curves that are no lines, where no closed form is proved."""
    if m.kind not in ("gaussian", "dp-gd"):
        return math.inf
    by_group = totals.group(m, 2.0, changed) / 2.0
    slope = min(closed_form(private.rdp_slope(m), private.srdp_slope(m, tau)), by_group)
    return mechanism(epsilon, delta, slope)


def theorem7(m: Private, beta: float, epsilon: float, delta: float) -> Printed:
    """3 e sqrt(1.05 (1 + 12.2^2 mu^2 / (L^2 beta^2)) ln(1 / delta)) + e, as printed."""
    squared = 1.05 * (1.0 + (_PRINTED_SLOPE * m.reach / beta) ** 2)
    total = 3.0 * epsilon * math.sqrt(squared * math.log(1.0 / delta)) + epsilon
    order = 1.0 + math.sqrt(math.log(1.0 / delta) / squared) / epsilon
    spent = epsilon**2 * squared
    return Printed(total, order, math.exp(-spent), math.exp(-100.0 * spent))
