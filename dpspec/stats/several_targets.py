"""The number of targets that an attacker guesses right, from privacy and the success rate of guessing.

Targets have independent values, other records are known. Without the release, the best guess of a target is right with
probability at most the ``baseline`` kappa. If a change of one target's value costs (epsilon_i, delta_i) for several i,
the number V of right guesses obeys the inequalities of Theorem 8 of ``docs/explanation/proofs/one-run.md`` with
e^epsilon_i kappa / (1 - kappa) in place of e^epsilon_i: Theorem 61 of that page.

>>> round(chance_of_right([(1.0, 1e-6)], targets=100, right=90), 8)
2.892e-05
"""

import math
from collections.abc import Sequence

from scipy import special

from dpspec.stats.attacks import one_run
from dpspec.stats.attacks.curve_lines import Point

#: Relative error of incomplete beta functions and of the sums of :mod:`one_run`.
_ROUNDING = 1e-9


def chance_of_right(
    points: Sequence[Point], targets: int, right: int, baseline: float = 0.5, *, exact: bool = True
) -> float:
    """Upper bound on the probability that at least ``right`` of the ``targets`` are guessed right.

    Args:
        points: The (epsilon, delta) of a change of one target's value. For a membership one record is added
            or removed, for its content it is replaced.
        targets: The number m of targets.
        right: The number of right guesses, out of m guesses.
        baseline: The success probability kappa of the best guess of a target without the release.
        exact: Whether a guess is right only if it equals the value. For other criteria delta counts 1 / (1 - kappa)
            times.
    """
    if not 0 <= right <= targets:
        raise ValueError(f"right must be from 0 to targets = {targets}, got {right}")
    lines = _shifted(points, baseline, exact)
    return min(1.0, one_run.curve_p_value(targets, targets, right, lines) * (1.0 + _ROUNDING))


def most_right(
    points: Sequence[Point], targets: int, level: float, baseline: float = 0.5, *, exact: bool = True
) -> int:
    """The smallest n such that more than n right guesses have at most probability ``level``, by these bounds."""
    low, high = -1, targets  # more than ``targets`` are impossible
    while high - low > 1:
        middle = (low + high) // 2
        if chance_of_right(points, targets, middle + 1, baseline, exact=exact) <= level:
            high = middle
        else:
            low = middle
    return high


def most_right_by_guessing(targets: int, level: float, baseline: float = 0.5) -> int:
    """The same without the release: the number of right guesses is at most binomial."""
    low, high = -1, targets
    while high - low > 1:
        middle = (low + high) // 2
        if special.betainc(middle + 1, targets - middle, baseline) * (1.0 + _ROUNDING) <= level:
            high = middle
        else:
            low = middle
    return high


def mean_share(points: Sequence[Point], baseline: float = 0.5, *, exact: bool = True) -> float:
    """Upper bound on the expected share of right guesses: the minimum of (t + delta) / (1 + t), t the odds."""
    shares = [
        special.expit(log_odds) + delta * special.expit(-log_odds)
        for log_odds, delta in _shifted(points, baseline, exact)
    ]
    return min(1.0, min(shares, default=1.0) * (1.0 + _ROUNDING))


def _shifted(points: Sequence[Point], baseline: float, exact: bool) -> tuple[Point, ...]:
    """The logarithm of the odds of a right guess, and delta, for each point."""
    if not 0.0 < baseline < 1.0:
        raise ValueError(f"baseline must be above 0 and below 1, got {baseline}")
    shift = math.log(baseline) - math.log1p(-baseline)
    times = 1.0 if exact else 1.0 / (1.0 - baseline)
    return tuple((epsilon + shift, min(1.0, delta * times)) for epsilon, delta in points)
