"""The epsilon that Opacus' accountants report for a history, recomputed."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dpspec.accounting import Floats, PrivacyLoss, sampled_gaussian_rdp
from dpspec.stats.attacks.curve_lines import gaussian_epsilon

#: The Renyi orders over which Opacus' RDP accountant minimizes.
_ORDERS = np.array([1.0 + x / 10.0 for x in range(1, 100)] + list(range(12, 64)), dtype=np.float64)

#: Entries (noise multiplier, sampling rate, steps).
History = Sequence[tuple[float, float, int]]

#: Error margins of Opacus' PRV accountant: absolute in epsilon and relative in delta.
_PRV_ERROR, _PRV_DELTA_ERROR = 0.01, 1e-3

#: Names of the accountants in sentences.
ACCOUNTANT_NAMES = {
    "rdp": "Renyi divergences (RDP)",
    "prv": "privacy loss random variables (PRV)",
    "gdp": "a central limit (GDP)",
}


def accountant_epsilon(mechanism: str, history: History, delta: float) -> float | None:
    """Epsilon at ``delta`` as the accountant reports it; None for other mechanisms and for invalid histories.

    ``rdp``: min over Opacus' orders a of D_a + ln((a - 1) / a) - (ln delta + ln a) / (a - 1), with D_a summed over
    steps.
    ``gdp``: mu = q sqrt(T (e^(1 / s^2) - 1)) with Phi(-e/mu + mu/2) - e^e Phi(-e/mu - mu/2) = delta (Bu et al. 2020),
    which may be too small. ``prv``: the estimate of Opacus at 0.999 delta plus 0.01 for its error (Gopi et al. 2021);
    the estimate is the middle of the certified interval, to a relative 1e-4.
    """
    if not history or any(not (sigma > 0.0 and 0.0 < rate <= 1.0 and steps >= 1) for sigma, rate, steps in history):
        return None
    if mechanism == "rdp":
        rdp = sum(steps * _step_rdp(sigma, rate) for sigma, rate, steps in history)
        gain = np.log1p(-1.0 / _ORDERS) - (math.log(delta) + np.log(_ORDERS)) / (_ORDERS - 1.0)
        return max(0.0, float(np.min(rdp + gain)))
    if mechanism == "gdp":
        sigma, rate, steps = history[-1]
        return gaussian_epsilon(rate * math.sqrt(steps * math.expm1(min(sigma**-2, 700.0))), delta)
    if mechanism == "prv":
        interval = composed(history).epsilon((1.0 - _PRV_DELTA_ERROR) * delta)
        return 0.5 * (interval.lower + interval.upper) + _PRV_ERROR
    return None


@lru_cache(maxsize=256)  # the steps of a training, and many trainings, have the same noise and rate
def _step_rdp(sigma: float, rate: float) -> Floats:
    """Renyi divergences of one step at Opacus' orders."""
    return sampled_gaussian_rdp(_ORDERS, rate, sigma)


def composed(history: History) -> PrivacyLoss:
    return PrivacyLoss.of_steps((sigma, rate, int(steps)) for sigma, rate, steps in history)
