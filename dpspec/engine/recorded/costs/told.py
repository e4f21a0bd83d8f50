"""The figure of the script's own accountant, and in a sentence why it differs from what the schedule that ran costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpspec.engine.recorded.costs.epsilons import Cost
from dpspec.engine.recorded.costs.told_epsilon import NAMES, PRV_ERROR, History, pld_epsilon, told_epsilon
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.engine.recorded.schedule import asked_multipliers, composed, poisson_rates

#: A history has at most so many entries that are composed.
_MOST = 2000


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the accountant was told, and makes of it: epsilon at delta, None where it cannot be recomputed."""

    mechanism: str
    history: History
    epsilon: float | None
    sentence: str


def told_of(run: RecordedRun, delta: float, cost: Cost | None) -> Told | None:
    """The accountant's figure beside ``cost``, what single records lose; None where no accountant was given."""
    mechanism = run.header.accountant
    if not mechanism:
        return None
    history = _history(run)
    if history is None or len(history) > _MOST:
        return Told(mechanism=mechanism, history=(), epsilon=None, sentence="The recording lacks part of its history.")
    epsilon = told_epsilon(mechanism, history, delta)
    if not history:
        return Told(mechanism=mechanism, history=history, epsilon=None, sentence="It counted no step.")
    if epsilon is None:
        return Told(mechanism=mechanism, history=history, epsilon=None, sentence="Its history has no finite epsilon.")
    sentence = _difference(run, mechanism, history, epsilon, delta, cost)
    return Told(mechanism=mechanism, history=history, epsilon=epsilon, sentence=sentence)


def _history(run: RecordedRun) -> History | None:
    """What the accountant was told, from the end of the recording, or step by step where it has none."""
    told = run.said("history")
    if isinstance(told, list):
        try:
            found = [(float(sigma), float(rate), int(steps)) for sigma, rate, steps in told]
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
    run: RecordedRun, mechanism: str, history: History, epsilon: float, delta: float, cost: Cost | None
) -> str:
    others = _other_schedule(run, history)
    told = pld_epsilon(history, delta)
    by = NAMES.get(mechanism, mechanism)
    if not others:
        apart = epsilon - told
        if mechanism == "prv":
            return (
                f"The accountant covers the same phases. Its value is {apart:.2g} higher because it adds {PRV_ERROR:g} "
                f"to its {by} value as an error margin."
            )
        if abs(apart) < 5e-3 * max(told, 1e-3):
            return "The accountant covers the same phases."
        more = "higher" if apart > 0.0 else "lower"
        return (
            f"The accountant covers the same phases. Its value is {abs(apart):.3g} {more} because it composes by {by}, "
            "not by PLD."
        )
    text = f"The accountant covers another schedule: {'; '.join(others)}."
    ran = cost.interval.upper if cost is not None and cost.interval is not None else None
    if ran is not None and math.isfinite(ran):
        text += f" By PLD, its schedule has epsilon {told:.4g} and the executed schedule {ran:.4g}."
    return text


def _other_schedule(run: RecordedRun, history: History) -> list[str]:
    """What of the schedule that the accountant was told is not what ran."""
    found = []
    steps = sum(count for _, _, count in history)
    before = run.header.told_before
    if steps != run.steps:
        earlier = f" ({before} of them before the recording)" if before else ""
        found.append(f"it counted {steps} steps{earlier}, the run has {run.steps}")
    rates, noise = poisson_rates(run), asked_multipliers(run)
    drawn = sorted({rate for rate in rates if rate is not None})
    told = sorted({rate for _, rate, _ in history})
    if len(drawn) == 0:
        scheme = run.header.scheme
        how = "the batches were not observed" if scheme in ("none", "poisson") else f"the batches are {scheme}"
        found.append(f"it assumes Poisson samples, but {how}")
    elif not _alike(drawn, told):
        found.append(f"its sampling rate is {_shown(told)}, that of the run {_shown(drawn)}")
    asked = sorted({sigma for sigma in noise if sigma is not None})
    reported = sorted({sigma for sigma, _, _ in history})
    if asked and not _alike(asked, reported):
        found.append(f"its noise multiplier is {_shown(reported)}, that of the run {_shown(asked)}")
    if not found and None not in noise and len(drawn) and None not in rates:
        ran = composed([sigma or 0.0 for sigma in noise], rates) if len(asked) < 20 else {}
        said: dict[tuple[float, float | None], int] = {}
        for sigma, rate, count in history:
            said[sigma, rate] = said.get((sigma, rate), 0) + count
        if ran and ran != said:
            found.append("its number of steps at each noise multiplier differs from that of the run")
    return found


def _alike(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(one, other, strict=True))


def _shown(values: list[float]) -> str:
    if not values:
        return "nothing"
    return f"{values[0]:.4g}" if len(values) == 1 else f"{values[0]:.4g} to {values[-1]:.4g}"
