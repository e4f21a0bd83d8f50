"""Tests of sums that must stay near zero whatever the model does: noise and sampling along predictable directions.

Before each step a direction of length one is fixed by what was released so far. Along it the step adds Gaussian noise
of known variance, and for each record its own centred coin times an inner product of at most 1 (clipped gradients, in
units of the clip norm). The sum over steps is a martingale, and V, the sum of its conditional variances, is known step
by step. For fixed x and v (Freedman 1975, with the Gaussian part joined to the exponential supermartingale)

    P[sum >= x and V <= v] <= exp(-x^2 / (2 (v + x / 3))).

V is random because gradients are; it is rounded up to a grid v_0 ratio^k, and the k-th point of the grid is given the
share 1 / ((k + 1)(k + 2)) of the level, so that the test holds however the run adapted to its past. Batches of a fixed
size are covered with V for draws with replacement (Hoeffding 1963, Theorem 4).
"""

from __future__ import annotations

import math

from scipy import special

from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement

#: V is rounded up to the next power of this, times the least that it can be.
_RATIO = 1.25

#: Powers of the ratio up to here are finite.
_LARGEST = 1e307


def _seen(needed: float, v: float) -> float:
    """By how much a sum must be shifted to be rejected with probability POWER; ``needed``: ln(weight / level).

    The sum at which p = LEVEL, and the one at which a shifted sum lies beyond that.
    """
    threshold = needed / 3.0 + math.sqrt(needed * needed / 9.0 + 2.0 * needed * v)
    return threshold + float(special.ndtri(POWER)) * math.sqrt(v)


def drift(
    total: float, variance: float, least: float, unit: float, *, test: str, declared: float = 0.0, tried: int = 1
) -> Measurement:
    """Test that a sum along predictable directions is centred; two-sided, valid for any adaptive run.

    total: the sum. variance: V of the module's docstring. least: a lower bound on V that was known beforehand, above 0.
    unit: what the sum would be if the quantity looked at were larger by 1: ``measured`` is declared + total / unit, and
    ``detectable`` is in that unit too (None where the unit is 0). tried: of how many sums this one is the largest.
    """
    if not (variance >= 0.0 and least > 0.0 and unit >= 0.0 and tried >= 1):
        raise ValueError(f"need variance, unit >= 0, least > 0, tried >= 1; got {variance}, {unit}, {least}, {tried}")
    ratio = max(variance, least) / least
    if ratio > _LARGEST:  # a model that has diverged: nothing can be seen of it
        measured = declared + (total / unit if unit > 0.0 else 0.0)
        return Measurement(test=test, declared=declared, measured=measured, p_value=1.0, detectable=None)
    point = max(0, math.ceil(math.log(ratio) / math.log(_RATIO) - 1e-9))
    v = least * _RATIO**point
    log_weight = math.log(2.0 * (point + 1) * (point + 2) * tried)
    x = abs(total)
    exponent = x if math.isinf(x) else x * x / (2.0 * (v + x / 3.0))
    seen = _seen(log_weight - math.log(LEVEL), v)
    return Measurement(
        test=test,
        declared=declared,
        measured=declared + (total / unit if unit > 0.0 else 0.0),
        p_value=min(1.0, math.exp(log_weight - exponent)),
        detectable=seen / unit if unit > 0.0 else None,
    )
