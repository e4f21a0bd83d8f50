"""One step of a known profile: large groups, against the whole sum over the group's members in the batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import binom

from dpspec.accounting import Direction, Mixture, PrivacyLoss


def largest_delta(members: int, rate: float, sigma: float, epsilon: float, direction: Direction) -> float:
    """delta(epsilon) by scipy's binomial masses and no component left out, the threshold by a fine search."""
    counts = np.arange(members + 1)
    logs = binom.logpmf(counts, members, rate)

    def excess(x: float) -> float:
        if direction == "present-first":
            with_group = np.exp(np.logaddexp.reduce(logs + log_ndtr((counts - x) / sigma)))
            return float(with_group - math.exp(epsilon + log_ndtr(-x / sigma)))
        with_group = np.logaddexp.reduce(logs + log_ndtr((x - counts) / sigma))
        return float(math.exp(log_ndtr(x / sigma)) - np.exp(epsilon + with_group))

    low, high = -20.0 * sigma, members * rate + 40.0 * sigma + epsilon * sigma
    for _ in range(12):
        points = np.linspace(low, high, 41)
        best = int(np.argmax([excess(float(x)) for x in points]))
        low, high = points[max(best - 1, 0)], points[min(best + 1, 40)]
    return excess(0.5 * (low + high))


@pytest.mark.parametrize("direction", ["present-first", "absent-first"])
@pytest.mark.parametrize(
    ("members", "rate", "sigma", "delta"), [(3000, 0.01, 20.0, 1e-5), (3000, 0.2, 100.0, 1e-3), (2000, 1e-4, 1.0, 1e-6)]
)
def test_epsilon_of_a_large_group_is_where_the_whole_sum_is_delta(
    members: int, rate: float, sigma: float, delta: float, direction: Direction
) -> None:
    found = PrivacyLoss.of(Mixture.poisson(members, rate, sigma), direction).epsilon(delta)
    assert found.relative_width <= 1e-8
    at_lower, at_upper = (largest_delta(members, rate, sigma, end, direction) for end in (found.lower, found.upper))
    assert at_upper == pytest.approx(delta, rel=1e-6)
    assert at_lower == pytest.approx(delta, rel=1e-6)


def test_a_group_of_a_hundred_thousand_takes_few_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bisection of both ends took 248; the closed form of such a group takes milliseconds each."""
    pair, evaluations = Mixture.poisson(100_000, 0.01, 50.0), 0
    bounds = Mixture.log_delta_bounds

    def counted(self: Mixture, epsilon: float, direction: Direction) -> tuple[float, float]:
        nonlocal evaluations
        evaluations += 1
        return bounds(self, epsilon, direction)

    monkeypatch.setattr(Mixture, "log_delta_bounds", counted)
    found = PrivacyLoss.of(pair).epsilon(1e-5)
    assert found.lower == pytest.approx(303.687812756, rel=1e-9)
    assert evaluations <= 100
    assert len(pair.ratio.relevant(np.array([2.0]), np.array([np.inf])).shifts) < 5000
