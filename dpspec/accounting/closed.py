"""Answers that need no grid: plain Gaussian steps, and what can be said of any composition without one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import ndtri_exp

from dpspec.accounting import gaussian
from dpspec.accounting.checks import EPS, Direction
from dpspec.accounting.interval import Interval
from dpspec.accounting.pair import Pair
from dpspec.accounting.questions import Question, infinite_mass, largest_loss

#: Effects (sensitivity over sigma) above this are not discretised: losses would leave the range of any grid.
_STEEPEST = 1e6


def closed_form(question: Question, phases: Sequence[tuple[Pair, int]]) -> Interval | None:
    """The answer where every step is a plain Gaussian one or leaks nothing; None elsewhere."""
    effects = [(pair.effect, steps) for pair, steps in phases]
    squares = [steps * effect * effect for effect, steps in effects if effect is not None]
    return _gaussian(question, math.sqrt(math.fsum(squares))) if len(squares) == len(effects) else None


def too_steep(phases: Sequence[tuple[Pair, int]]) -> bool:
    """Whether a Gaussian step's losses are beyond any grid, so that ``without_grid`` has to do."""
    return any(_STEEPEST < pair.dominating_effect < math.inf for pair, _ in phases)


def without_grid(question: Question, phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction]) -> Interval:
    """What holds anyway: by the closed form of Gaussian pairs that dominate, and by the largest loss."""
    mu = math.sqrt(math.fsum(steps * pair.dominating_effect * pair.dominating_effect for pair, steps in phases))
    dominating = _gaussian(question, mu) if math.isfinite(mu) else None
    if question.log_power is not None:  # a test needs no lower level than of the dominating pair
        return Interval(0.0 if dominating is None else dominating.lower, question.trivial.upper)
    high = math.inf if question.log_delta is not None else 1.0
    if dominating is not None:
        high = dominating.upper
    if question.log_delta is not None and all(infinite_mass(phases, side).upper == 0.0 for side in sides):
        high = min(high, max(largest_loss(phases, side) for side in sides))
    return Interval(0.0, high)


def _gaussian(question: Question, mu: float) -> Interval:
    """One Gaussian pair of effect ``mu``; 0 for no mechanism at all."""
    if question.log_delta is not None:
        return gaussian.epsilon_interval(question.log_delta, mu) if mu > 0.0 else Interval(0.0, 0.0)
    if question.testing:
        return _gaussian_test(question, mu)
    assert question.epsilon is not None
    if mu > 0.0:
        return gaussian.delta_interval(question.epsilon, mu)
    value = max(0.0, -math.expm1(min(question.epsilon, 0.0)))
    return Interval(value, value)


def _gaussian_test(question: Question, mu: float) -> Interval:
    """Of tests of N(0, 1) against N(mu, 1), through the profile and its rounding error."""
    log = question.log_level if question.log_level is not None else question.log_power
    assert log is not None
    if mu == 0.0:
        return Interval(math.exp(log) * (1.0 - 4.0 * EPS), min(1.0, math.exp(log) * (1.0 + 4.0 * EPS)))
    # the threshold z of the best test, at the epsilon mu (z - mu / 2)
    threshold = -float(ndtri_exp(log)) + (0.0 if question.log_level is not None else mu)

    def bounds(epsilon: float) -> tuple[float, float]:
        value, error = float(gaussian.log_delta(epsilon, mu)), 2.0 * gaussian.relative_error(epsilon, mu)
        return value - error, min(0.0, value + error)

    start = mu * (threshold - 0.5 * mu)
    found, _ = question.read(lambda e: bounds(e)[0], lambda e: bounds(e)[1], start, min(mu, 1.0))
    return found.intersect(question.trivial)
