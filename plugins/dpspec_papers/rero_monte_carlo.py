"""Monte Carlo estimates of gamma with simultaneous intervals (Hayes et al. 2023, Algorithm 1)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

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


class Estimate(NamedTuple):
    value: float
    interval: Interval


def gammas_monte_carlo(
    kappas: Sequence[float], phases: Sequence[Steps], samples: int, seed: int, confidence: float = 0.95
) -> list[Estimate]:
    """Estimates at each kappa from one sample of outputs; the intervals hold jointly with ``confidence``.

    The sum of likelihood ratios estimates a probability and can exceed one; the estimate is then one.
    """
    levels = [inside("kappa", kappa, one=True) for kappa in kappas]
    logs = log_ratios(phases, whole("samples", samples, 100), seed)
    miss = (1.0 - inside("confidence", confidence)) / max(1, len(levels))
    half = len(logs) // 2
    pilot, held_back = np.sort(logs[:half])[::-1], np.sort(logs[half:])[::-1]
    ordered = np.sort(logs)[::-1]
    estimates = []
    for kappa in levels:
        largest = np.exp(np.minimum(ordered[: math.ceil(kappa * len(logs))], _LAST))
        value = min(1.0, float(largest.sum()) / len(logs))
        estimates.append(Estimate(value, _interval(kappa, pilot, held_back, miss)))
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
                total[start:end] += _draw_losses(phase, source, end - start, min(width, phase.count - done))
    return total


def _draw_losses(phase: Steps, source: np.random.Generator, rows: int, columns: int) -> Floats:
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


def _interval(kappa: float, pilot: Floats, held_back: Floats, miss: float) -> Interval:
    """gamma(``kappa``) at confidence 1 - ``miss``, from log-ratios in falling order: thresholds from ``pilot``."""
    share = 0.25 * miss
    log_c = min(float(pilot[min(math.ceil(kappa * len(pilot)), len(pilot)) - 1]), _LAST)
    bounded = np.exp(np.minimum(held_back, log_c))
    upper = 1.0 + math.exp(log_c) * kappa - _mean_limit(bounded, math.exp(log_c), share, upper=False)
    # A larger threshold, so that its level is almost certainly below kappa.
    spread = math.sqrt(kappa / len(held_back))
    safe = max(kappa - 3.0 * spread, 0.0)
    log_c = min(float(pilot[min(math.ceil(safe * len(pilot)), len(pilot)) - 1 if safe > 0.0 else 0]), _LAST)
    above = int(np.count_nonzero(held_back > log_c))
    level = Interval(
        binomial.lower(above, len(held_back), 1.0 - share),
        max(binomial.upper(above, len(held_back), 1.0 - share), 1e-300),
    )
    below = np.where(held_back > log_c, 0.0, np.exp(np.minimum(held_back, log_c)))
    power = max(1.0 - _mean_limit(below, math.exp(log_c), share, upper=True), math.exp(log_c) * level.lower, 0.0)
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
