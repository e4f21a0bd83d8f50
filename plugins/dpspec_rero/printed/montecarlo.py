"""Monte Carlo estimate of gamma (Hayes, Mahloujifar and Balle 2023, Algorithm 1) with a valid confidence interval.

Outputs are drawn from the null distribution (record absent); r is the likelihood ratio of each. The estimate is the sum
of the ceil(kappa S) largest r divided by S. Its usual standard error ignores a heavy tail that the sample may have
missed. For any threshold c, with the bounded variable X = min(r, e^c),

    gamma(kappa) <= 1 + e^c kappa - E_null[X]                                                       (tangent at c)
    gamma(kappa) >= power(c) min(1, kappa / level(c)),  power(c) = 1 - E_null[r; r <= e^c] >= e^c level(c).

Thresholds come from the first half of the sample, means from the second, with empirical Bernstein limits (Maurer and
Pontil 2009, Theorem 4) and exact binomial limits. If no draw reaches the tail at level kappa, the interval is
correspondingly wide. Log-ratios are summed during sampling, so memory does not grow with the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpspec.accounting import Floats, Interval, inside, whole
from dpspec.stats import binomial
from dpspec_rero.options import Steps

SOURCE = "Hayes et al. 2023, Algorithm 1"
INTERVAL_SOURCE = f"{SOURCE}; Maurer & Pontil 2009; Clopper & Pearson 1934"

#: Draws held in memory at a time.
_BLOCK = 1 << 18

#: Largest logarithm whose exponential is used.
_LAST = 700.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """``value``, its usual standard error, and an interval that contains gamma at the requested confidence."""

    value: float
    standard_error: float
    interval: Interval


def gammas_monte_carlo(
    kappas: Sequence[float], phases: Sequence[Steps], samples: int, seed: int, confidence: float = 0.95
) -> list[Estimate]:
    """Estimates at each kappa from one sample of outputs; the intervals hold jointly with ``confidence``.

    Raises ``ValueError`` if an argument is out of range.
    """
    levels = [inside("kappa", kappa, one=True) for kappa in kappas]
    logs = log_ratios(phases, whole("samples", samples, 100), seed)
    miss = (1.0 - inside("confidence", confidence)) / max(1, len(levels))
    half = len(logs) // 2
    pilot, rest = np.sort(logs[:half])[::-1], np.sort(logs[half:])[::-1]
    ordered = np.sort(logs)[::-1]
    estimates = []
    for kappa in levels:
        value, error = _estimate(kappa, ordered)
        estimates.append(Estimate(value=value, standard_error=error, interval=_interval(kappa, pilot, rest, miss)))
    return estimates


def log_ratios(phases: Sequence[Steps], samples: int, seed: int) -> Floats:
    """ln of the composed likelihood ratio at ``samples`` outputs of the null distribution, shape (samples,)."""
    source = np.random.default_rng(seed)
    total = np.zeros(samples)
    for phase in phases:
        if phase.effect == 0.0:
            continue
        if phase.noise == "gaussian" and phase.rate == 1.0:  # the sum over the steps is normal
            mu = phase.effect * math.sqrt(phase.count)
            total += mu * source.standard_normal(samples) - 0.5 * mu * mu
            continue
        width = min(phase.count, 64)
        rows = max(1, _BLOCK // width)
        for start in range(0, samples, rows):
            end = min(start + rows, samples)
            for done in range(0, phase.count, width):
                total[start:end] += _draw(phase, source, end - start, min(width, phase.count - done))
    return total


def _draw(phase: Steps, source: np.random.Generator, rows: int, columns: int) -> Floats:
    """The log-ratios (rows,) of ``columns`` steps."""
    s = phase.effect
    if phase.noise == "gaussian":
        losses = source.standard_normal((rows, columns))
        losses *= s
        losses -= 0.5 * s * s
    else:
        x = source.laplace(size=(rows, columns))
        losses = np.clip(2.0 * x - s, -s, s)  # |x| - |x - s|
    if phase.rate == 1.0:
        return np.asarray(losses.sum(axis=1), dtype=np.float64)
    far = losses > _LAST
    np.expm1(np.minimum(losses, _LAST), out=losses, where=~far)
    losses *= np.where(far, 1.0, phase.rate)
    logs = np.where(far, losses + math.log(phase.rate), np.log1p(np.where(far, 0.0, losses)))
    return np.asarray(logs.sum(axis=1), dtype=np.float64)


def _estimate(kappa: float, ordered: Floats) -> tuple[float, float]:
    """The sum of the ceil(kappa S) largest ratios over S, and its usual standard error."""
    count = len(ordered)
    largest = np.exp(np.minimum(ordered[: math.ceil(kappa * count)], _LAST))
    value = float(largest.sum()) / count
    return value, math.sqrt(max(0.0, float(np.square(largest).sum()) / count - value**2) / count)


def _interval(kappa: float, pilot: Floats, rest: Floats, miss: float) -> Interval:
    """gamma(``kappa``) at confidence 1 - ``miss``, from log-ratios in falling order: thresholds from ``pilot``."""
    each = 0.25 * miss
    log_c = min(float(pilot[min(math.ceil(kappa * len(pilot)), len(pilot)) - 1]), _LAST)
    bounded = np.exp(np.minimum(rest, log_c))
    upper = 1.0 + math.exp(log_c) * kappa - _mean_limit(bounded, math.exp(log_c), each, upper=False)
    # A larger threshold, so that its level is almost certainly below kappa.
    spread = math.sqrt(kappa / len(rest))
    safe = max(kappa - 3.0 * spread, 0.0)
    log_c = min(float(pilot[min(math.ceil(safe * len(pilot)), len(pilot)) - 1 if safe > 0.0 else 0]), _LAST)
    above = int(np.count_nonzero(rest > log_c))
    level = Interval(
        binomial.lower(above, len(rest), 1.0 - each), max(binomial.upper(above, len(rest), 1.0 - each), 1e-300)
    )
    below = np.where(rest > log_c, 0.0, np.exp(np.minimum(rest, log_c)))
    power = max(
        1.0 - _mean_limit(below, math.exp(log_c), each, upper=True),
        math.exp(log_c) * level.lower,
        0.0,
    )
    lower = min(1.0, power) * min(1.0, kappa / level.upper)
    upper = min(1.0, max(upper, kappa))
    return Interval(min(max(lower, kappa), upper), upper)


def _mean_limit(values: Floats, largest: float, miss: float, *, upper: bool) -> float:
    """Confidence limit for the mean of a variable in [0, ``largest``]; it fails with probability ``miss``."""
    count = len(values)
    log = math.log(2.0 / miss)
    slack = math.sqrt(2.0 * float(values.var(ddof=1)) * log / count) + 7.0 * largest * log / (3.0 * (count - 1))
    mean = float(values.mean())
    return mean + slack if upper else mean - slack
