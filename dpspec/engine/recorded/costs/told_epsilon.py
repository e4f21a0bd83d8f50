"""What the script's own accountant makes of what it was told, recomputed from its history."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr

from dpspec.accounting import Mixture, PrivacyLoss, crossing, sampled_gaussian_rdp

#: The orders over which Opacus' accountant of Renyi divergences takes the least epsilon.
_ORDERS = np.array([1.0 + x / 10.0 for x in range(1, 100)] + list(range(12, 64)), dtype=np.float64)

#: (noise multiplier, sampling rate, steps).
History = Sequence[tuple[float, float, int]]

#: The errors, absolute in epsilon and relative in delta, that Opacus' PRV accountant allows itself and charges.
PRV_ERROR, _PRV_DELTA_ERROR = 0.01, 1e-3

#: What an accountant is called in sentences.
NAMES = {"rdp": "Renyi divergences (RDP)", "prv": "privacy loss random variables (PRV)", "gdp": "a central limit (GDP)"}


def told_epsilon(mechanism: str, history: History, delta: float) -> float | None:
    """Epsilon at ``delta`` as that accountant reports it; None for other mechanisms, and for what they refuse.

    ``rdp``: min over Opacus' orders a of D_a + ln((a - 1) / a) - (ln delta + ln a) / (a - 1), D_a added up over steps.
    ``gdp``: mu = q sqrt(T (e^(1 / s^2) - 1)) with Phi(-e/mu + mu/2) - e^e Phi(-e/mu - mu/2) = delta (Bu et al. 2020),
    which may be too small. ``prv``: what Opacus estimates at 0.999 delta, plus 0.01 for its own error (Gopi et al.
    2021); the estimate is the middle of the certified interval, to about 1e-4 of it.
    """
    if not history or any(not (sigma > 0.0 and 0.0 < rate <= 1.0 and steps >= 1) for sigma, rate, steps in history):
        return None
    if mechanism == "rdp":
        rdp = sum(steps * sampled_gaussian_rdp(_ORDERS, rate, sigma) for sigma, rate, steps in history)
        gain = np.log1p(-1.0 / _ORDERS) - (math.log(delta) + np.log(_ORDERS)) / (_ORDERS - 1.0)
        return max(0.0, float(np.min(rdp + gain)))
    if mechanism == "gdp":
        sigma, rate, steps = history[-1]
        return _gdp(rate * math.sqrt(steps * math.expm1(sigma**-2)), delta)
    if mechanism == "prv":
        interval = _composed(history).epsilon((1.0 - _PRV_DELTA_ERROR) * delta)
        return 0.5 * (interval.lower + interval.upper) + PRV_ERROR
    return None


def pld_epsilon(history: History, delta: float) -> float:
    """The certified upper end of epsilon of a history, each step a Poisson sample."""
    return _composed(history).epsilon(delta).upper


def _composed(history: History) -> PrivacyLoss:
    return PrivacyLoss(tuple((Mixture.poisson(1, rate, sigma), int(steps)) for sigma, rate, steps in history))


def _gdp(mu: float, delta: float) -> float:
    def excess(epsilon: float) -> float:
        low, high = float(log_ndtr(-epsilon / mu + mu / 2.0)), float(log_ndtr(-epsilon / mu - mu / 2.0))
        return math.exp(low) - math.exp(min(epsilon + high, 700.0)) - delta

    if excess(0.0) <= 0.0:
        return 0.0
    high = 1.0
    while excess(high) > 0.0 and high < 1e6:
        high *= 2.0
    return crossing(excess, 0.0, high)[1]
