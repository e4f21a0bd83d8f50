"""Exact binomial tails, and the confidence bounds of Clopper and Pearson."""

from __future__ import annotations

from scipy import special

#: Relative outward shift of bounds, larger than the error of the inverse beta function.
_MARGIN = 1e-12


def at_least(successes: int, trials: int, probability: float) -> float:
    """P[Bin(trials, probability) >= successes]: p-value of a success probability of at most ``probability``."""
    _check(successes, trials)
    if successes == 0:
        return 1.0
    return float(special.betainc(successes, trials - successes + 1, probability))


def at_most(successes: int, trials: int, probability: float) -> float:
    """P[Bin(trials, probability) <= successes]: p-value of a success probability of at least ``probability``."""
    _check(successes, trials)
    if successes == trials:
        return 1.0
    return float(special.betaincc(successes + 1, trials - successes, probability))


def lower(successes: int, trials: int, confidence: float) -> float:
    """One-sided Clopper-Pearson lower bound: the p with P[Bin(trials, p) >= successes] = 1 - confidence, or 0."""
    _check(successes, trials, confidence)
    if successes == 0:
        return 0.0
    value = float(special.betaincinv(successes, trials - successes + 1, 1.0 - confidence))
    return value * (1.0 - _MARGIN)


def upper(successes: int, trials: int, confidence: float) -> float:
    """One-sided Clopper-Pearson upper bound: the p with P[Bin(trials, p) <= successes] = 1 - confidence, or 1."""
    _check(successes, trials, confidence)
    if successes == trials:
        return 1.0
    value = float(special.betainccinv(successes + 1, trials - successes, 1.0 - confidence))
    return min(1.0, value * (1.0 + _MARGIN))


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Two-sided Clopper-Pearson interval (lower, upper), with an error of at most (1 - confidence) / 2 on each side.

    >>> low, high = clopper_pearson(8, 10, 0.95)
    >>> round(low, 4), round(high, 4)
    (0.4439, 0.9748)
    """
    one_sided = 1.0 - (1.0 - confidence) / 2.0
    return lower(successes, trials, one_sided), upper(successes, trials, one_sided)


def _check(successes: int, trials: int, confidence: float = 0.5) -> None:
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must lie between 0 and trials, got {successes} of {trials}")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
