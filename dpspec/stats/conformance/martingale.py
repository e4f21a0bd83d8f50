"""Test that a sum along predictable directions is centered: Freedman's inequality, for every adaptive run.

A direction of norm 1 is fixed before each step. The step adds Gaussian noise of known variance along it, and for each
record a centered inclusion bit times an inner product of at most 1, in clip norms. V is the sum of the conditional
variances. It is random, so it is rounded up to a grid that shares the level: Theorem 10 of
``docs/explanation/proofs/residuals.md``.
"""

from __future__ import annotations

import math

from scipy import special

from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement

#: Ratio of successive points of the grid of V.
_RATIO = 1.25

#: Largest finite ratio of V to its lower bound.
_LARGEST = 1e307


def _seen(needed: float, v: float) -> float:
    """Return the shift of a sum that is rejected with probability POWER; ``needed``: ln(weight / level)."""
    threshold = needed / 3.0 + math.sqrt(needed * needed / 9.0 + 2.0 * needed * v)
    return threshold + float(special.ndtri(POWER)) * math.sqrt(v)


def drift(
    total: float, variance: float, least: float, unit: float, *, test: str, declared: float = 0.0, tried: int = 1
) -> Measurement:
    """Test a sum along predictable directions; two-sided.

    Args:
        total: The sum.
        variance: V.
        least: Lower bound on V, known beforehand, above 0.
        unit: Change of the sum if the tested quantity were larger by 1. ``measured`` is declared + total / unit, and
            ``detectable`` has the same unit; None if ``unit`` is 0.
        test: Name of the test.
        declared: Declared value of the tested quantity.
        tried: Number of sums of which this is the largest (Bonferroni).
    """
    if not (variance >= 0.0 and least > 0.0 and unit >= 0.0 and tried >= 1):
        raise ValueError(f"need variance, unit >= 0, least > 0, tried >= 1; got {variance}, {unit}, {least}, {tried}")
    ratio = max(variance, least) / least
    if ratio > _LARGEST:  # the model diverged
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
