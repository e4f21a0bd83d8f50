"""Lower bounds of published audits that take the best of several guess counts: their error, and the corrected bounds.

The oracle follows the number of right guesses count by count, in plain probabilities: under (epsilon, 0)-DP, each guess
of randomized response is right with probability e^epsilon / (1 + e^epsilon), independently.
"""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from dpspec.stats.attacks import guess_counts, one_run

#: The guess counts of "Privacy Auditing of Large Language Models" (ICLR 2025), best of ten at level 0.01.
TEN = range(10, 101, 10)


def false_claims(counts: Sequence[int], epsilon: float, level: float) -> float:
    """P[the best of the counts' bounds at ``level`` exceeds ``epsilon``] for randomized response with that epsilon."""
    right = 1.0 / (1.0 + math.exp(-epsilon))
    states, claimed = np.array([1.0]), 0.0
    for made in range(1, max(counts) + 1):
        states = np.append(states, 0.0) * (1.0 - right) + np.append(0.0, states) * right
        if made in counts:
            rejects = stats.binom.sf(np.arange(made + 1) - 1, made, right) < level
            claimed, states = claimed + float(states[rejects].sum()), np.where(rejects, 0.0, states)
    return claimed


@pytest.mark.parametrize(
    ("epsilon", "error"), [(0.0, 0.02857), (0.5, 0.03157), (1.0, 0.02824), (2.0, 0.01616), (4.0, 0.0)]
)
def test_the_best_of_ten_guess_counts_is_wrong_more_often_than_stated(epsilon: float, error: float) -> None:
    assert false_claims(TEN, epsilon, 0.01) == pytest.approx(error, abs=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 2.0])
def test_one_guess_count_keeps_its_level(epsilon: float) -> None:
    assert false_claims([100], epsilon, 0.01) <= 0.01


@pytest.mark.ci
@pytest.mark.parametrize(("epsilon", "error"), [(0.0, 0.38774), (1.0, 0.37199), (4.0, 0.22399)])
def test_the_best_of_all_thresholds_is_wrong_more_often_than_stated(epsilon: float, error: float) -> None:
    """The one-run baselines of ``run_auditing_comparison.py`` of dpsgd-auditbench: level 0.05, about 2,500 guesses."""
    assert false_claims(range(1, 2501), epsilon, 0.05) == pytest.approx(error, abs=1e-4)


def best_of(canaries: int, correct: Sequence[int], level: float) -> float:
    """The uncorrected bound at delta 0: the largest of the counts' own ones."""
    pairs = zip(TEN, correct, strict=True)
    return max(one_run.epsilon_lower(canaries, r, v, 0.0, 1.0 - level) for r, v in pairs)


@pytest.mark.parametrize(
    ("of_ten", "uncorrected", "corrected"), [(10, 3.055, 3.05), (9, 1.441, 1.36), (8, 0.804, 0.72)]
)
def test_corrected_bounds_of_ten_guess_counts(of_ten: int, uncorrected: float, corrected: float) -> None:
    """100 guesses of 1,000 canaries, of which 10, 9 or 8 of each ten are right."""
    correct = [of_ten * k for k in range(1, 11)]
    assert best_of(1000, correct, 0.01) == pytest.approx(uncorrected, abs=1e-3)
    assert guess_counts.epsilon_lower(1000, list(TEN), correct, 0.0, 0.99) == pytest.approx(corrected, abs=1e-3)


@pytest.mark.ci
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 2.0])
def test_the_corrected_bound_keeps_its_level_under_randomized_response(epsilon: float) -> None:
    """Simulated: bounds of 2,000 audits exceed the truth in at most 1 % of cases, within 5 standard errors."""
    rng, right = np.random.default_rng(7), 1.0 / (1.0 + math.exp(-epsilon))
    guesses = rng.random((2000, 100)) < right
    above: dict[tuple[int, ...], bool] = {}
    wrong = 0
    for row in guesses:
        correct = tuple(int(row[:count].sum()) for count in TEN)
        if correct not in above:
            uncorrected = any(stats.binom.sf(v - 1, r, right) < 0.01 for r, v in zip(TEN, correct, strict=True))
            above[correct] = uncorrected and guess_counts.epsilon_lower(1000, list(TEN), correct, 0.0, 0.99) > epsilon
        wrong += above[correct]
    assert wrong <= 2000 * 0.01 + 5.0 * math.sqrt(2000 * 0.01)
