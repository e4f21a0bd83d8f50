"""The largest claim that an attack's design could have refuted, had every guess been right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpspec.contract import Evidence
from dpspec.engine.claims import Part, Points


def largest_refutable(curve: Callable[[float], Points], attacks: Sequence[Evidence], level: float) -> float | None:
    """The largest claimed value whose curve a perfect attack rejects at ``level``; None without attacks.

    Bisection, the rejected end; 0 where not even the claim of 0 could have been refuted.
    """
    from dpspec.stats import nulls

    best = [nulls.perfect(attack) for attack in attacks]
    if not best:
        return None

    def rejected(value: float) -> bool:
        return any(nulls.curve_p_value(e, curve(value)) <= level for e in best)

    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high) and high < 1e6:
        low, high = high, 2.0 * high
    while high - low > 1e-4 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def extreme_metric(part: Part, measurements: Sequence[Evidence], level: float) -> float | None:
    """The least at-least (largest at-most) value of a metric that its counts could have refuted at ``level``."""
    from dpspec.stats import binomial

    trials = [int(e.statistics["trials"]) for e in measurements]
    if not trials:
        return None
    if part.side == "at-least":
        return binomial.upper(0, max(trials), 1.0 - level)
    return binomial.lower(max(trials), max(trials), 1.0 - level)
