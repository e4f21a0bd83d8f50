"""The epsilon of the script's own accountant, recomputed, and why it differs from the executed schedule's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr

from dpspec.accounting import Mixture, PrivacyLoss, crossing, sampled_gaussian_rdp
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.engine.recorded.schedule import ScheduleEpsilon, composed, configured_multipliers, poisson_rates
from dpspec.engine.results.recording import AccountantReport

#: The Renyi orders over which Opacus' RDP accountant minimizes.
_ORDERS = np.array([1.0 + x / 10.0 for x in range(1, 100)] + list(range(12, 64)), dtype=np.float64)

#: Entries (noise multiplier, sampling rate, steps).
History = Sequence[tuple[float, float, int]]

#: Error margins of Opacus' PRV accountant: absolute in epsilon and relative in delta.
PRV_ERROR, _PRV_DELTA_ERROR = 0.01, 1e-3

#: Names of the accountants in sentences.
NAMES = {"rdp": "Renyi divergences (RDP)", "prv": "privacy loss random variables (PRV)", "gdp": "a central limit (GDP)"}


def accountant_epsilon(mechanism: str, history: History, delta: float) -> float | None:
    """Epsilon at ``delta`` as the accountant reports it; None for other mechanisms and for invalid histories.

    ``rdp``: min over Opacus' orders a of D_a + ln((a - 1) / a) - (ln delta + ln a) / (a - 1), with D_a summed over
    steps.
    ``gdp``: mu = q sqrt(T (e^(1 / s^2) - 1)) with Phi(-e/mu + mu/2) - e^e Phi(-e/mu - mu/2) = delta (Bu et al. 2020),
    which may be too small. ``prv``: the estimate of Opacus at 0.999 delta plus 0.01 for its error (Gopi et al. 2021);
    the
    estimate is the middle of the certified interval, to a relative 1e-4.
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
    """The certified upper end of epsilon of a history of Poisson samples."""
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


#: Maximum number of entries of a history that is composed.
_MOST = 2000


def accountant_report(run: RecordedRun, delta: float, cost: ScheduleEpsilon) -> AccountantReport | None:
    """The accountant's epsilon and why it differs from ``cost``; None if no accountant was recorded."""
    mechanism = run.header.accountant
    if not mechanism:
        return None
    history = _history(run)
    epsilon = None
    if history is None or len(history) > _MOST:
        difference = "The recording lacks part of its history."
    elif not history:
        difference = "It counted no step."
    elif (epsilon := accountant_epsilon(mechanism, history, delta)) is None:
        difference = "Its history has no finite epsilon."
    else:
        difference = _difference(run, mechanism, history, epsilon, delta, cost)
    return AccountantReport(mechanism=mechanism, delta=delta, epsilon=epsilon, difference=difference)


def _history(run: RecordedRun) -> History | None:
    """The accountant's history from the end record, or from the steps if the recording has no end."""
    reported = run.at_end("history")
    if isinstance(reported, list):
        try:
            found = [(float(sigma), float(rate), int(steps)) for sigma, rate, steps in reported]
        except (TypeError, ValueError, OverflowError):
            return None
        sane = all(0.0 <= s < 1e9 and 0.0 <= q <= 1.0 and 0 <= n < 2**40 for s, q, n in found)
        return found if sane else None
    counts: dict[tuple[float, float], int] = {}
    for sigma, rate in zip(run["told_noise"].tolist(), run["told_rate"].tolist(), strict=True):
        if not (math.isnan(sigma) or math.isnan(rate)):
            counts[sigma, rate] = counts.get((sigma, rate), 0) + 1
    return [(sigma, rate, steps) for (sigma, rate), steps in counts.items()]


def _difference(
    run: RecordedRun, mechanism: str, history: History, epsilon: float, delta: float, cost: ScheduleEpsilon
) -> str:
    others = _other_schedule(run, history)
    own = pld_epsilon(history, delta)
    by = NAMES.get(mechanism, mechanism)
    if not others:
        excess = epsilon - own
        if mechanism == "prv":
            return (
                f"The accountant covers the same phases. Its value is {excess:.2g} higher because it adds "
                f"{PRV_ERROR:g} to its {by} value as an error margin."
            )
        if abs(excess) < 5e-3 * max(own, 1e-3):
            return "The accountant covers the same phases."
        more = "higher" if excess > 0.0 else "lower"
        return (
            f"The accountant covers the same phases. Its value is {abs(excess):.3g} {more} because it composes by "
            f"{by}, not by PLD."
        )
    text = f"The accountant covers another schedule: {'; '.join(others)}."
    executed = None if cost.interval is None else cost.interval.upper
    if executed is not None and math.isfinite(executed):
        text += f" By PLD, its schedule has epsilon {own:.4g} and the executed schedule {executed:.4g}."
    return text


def _other_schedule(run: RecordedRun, history: History) -> list[str]:
    """Differences between the accountant's schedule and the executed one."""
    found = []
    steps = sum(count for _, _, count in history)
    before = run.header.told_before
    if steps != run.steps:
        earlier = f" ({before} before the recording)" if before else ""
        found.append(f"it counted {steps} steps{earlier}, the run has {run.steps}")
    rates, noise = poisson_rates(run), configured_multipliers(run)
    drawn = sorted({rate for rate in rates if rate is not None})
    counted_rates = sorted({rate for _, rate, _ in history})
    if len(drawn) == 0:
        scheme = run.header.scheme
        how = "the batches were not observed" if scheme in ("none", "poisson") else f"the batches are {scheme}"
        found.append(f"it assumes Poisson samples, but {how}")
    elif not _equal(drawn, counted_rates):
        found.append(f"its sampling rate is {_range_text(counted_rates)}, the run's is {_range_text(drawn)}")
    configured = sorted({sigma for sigma in noise if sigma is not None})
    multipliers = sorted({sigma for sigma, _, _ in history})
    if configured and not _equal(configured, multipliers):
        found.append(f"its noise multiplier is {_range_text(multipliers)}, the run's is {_range_text(configured)}")
    if not found and None not in noise and len(drawn) and None not in rates:
        executed = composed([sigma or 0.0 for sigma in noise], rates) if len(configured) < 20 else {}
        counted: dict[tuple[float, float | None], int] = {}
        for sigma, rate, count in history:
            counted[sigma, rate] = counted.get((sigma, rate), 0) + count
        if executed and executed != counted:
            found.append("its number of steps at each noise multiplier differs from the run's")
    return found


def _equal(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(one, other, strict=True))


def _range_text(values: list[float]) -> str:
    if not values:
        return "nothing"
    return f"{values[0]:.4g}" if len(values) == 1 else f"{values[0]:.4g} to {values[-1]:.4g}"
