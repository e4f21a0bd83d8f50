"""Outcomes whose losses are closer than any grid's nodes are put between these, and the rest keeps its precision."""

from __future__ import annotations

import math

from dpspec.accounting import Laplace, Mixture, PrivacyLoss, gaussian

DELTA = 1e-6


def test_outcomes_of_one_loss_but_for_rounding_are_like_one_outcome() -> None:
    """Oracle: the same law with the two outcomes' probabilities equal. The interval used to begin at 0."""
    absent = [0.2, 0.2, 0.25, 0.35]
    pairs = ([first, 0.3, 0.25, 0.15] for first in (0.3, 0.1 + 0.2))
    same, nearly = (PrivacyLoss.discrete(pair, absent, "present-first").compose(20) for pair in pairs)
    for width in (1e-2, 1e-3, 1e-4):
        found, exact = nearly.epsilon(DELTA, width=width), same.epsilon(DELTA, width=1e-6)
        assert found.relative_width <= width
        assert found.lower - 1e-12 <= exact.upper
        assert exact.lower - 1e-12 <= found.upper


def test_a_step_that_hardly_leaks_spoils_no_others() -> None:
    """Oracle: the Gaussian steps' closed form, to which the Laplace step adds at most its own epsilon, 1e-8."""
    true = gaussian.epsilon_interval(math.log(DELTA), math.sqrt(10.0))
    loss = PrivacyLoss(((Mixture.full(1, 1.0), 10), (Laplace(1e8), 1)))
    found = loss.epsilon(DELTA, width=1e-3)
    assert found.relative_width <= 1e-3
    assert found.lower <= true.upper + 1e-8
    assert true.lower <= found.upper
