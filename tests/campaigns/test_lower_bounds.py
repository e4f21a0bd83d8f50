"""The bounds of one run do not exceed the truth; the table by hand: ``python tests/campaigns/lower_bounds.py``."""

import pytest
from campaigns import lower_bounds
from scipy.stats import binom, norm

#: The gaussian mechanism whose bound uses the last rung, pure privacy with the least variance, and shared coin.
_FEW = ("Gaussian 4", "response 1", "Gaussian 2, shared coin 0.3")


@pytest.mark.family
@pytest.mark.parametrize(
    ("name", "runs"),
    [
        *((name, 40) for name in _FEW),
        *(pytest.param(each.name, 200, marks=pytest.mark.slow) for each in lower_bounds.mechanisms()),
    ],
)
def test_bounds_of_one_run_exceed_the_truth_of_any_mechanism_in_five_of_a_hundred_runs(name: str, runs: int) -> None:
    (mechanism,) = (each for each in lower_bounds.mechanisms() if each.name == name)
    for truth, lower in zip(
        (mechanism.epsilon(), mechanism.mu()), lower_bounds.bounds(mechanism, 200, runs), strict=True
    ):
        assert (lower > truth).sum() <= binom.ppf(0.999, runs, 0.05)


def test_the_truth_of_a_gaussian_and_of_randomized_response_is_their_formula() -> None:
    of = {each.name: each for each in lower_bounds.mechanisms()}
    assert of["Gaussian 1"].mu() == pytest.approx(1.0, abs=2e-3)
    assert of["Gaussian 1"].epsilon() == pytest.approx(4.3775, abs=2e-3)
    assert of["response 1"].epsilon() == pytest.approx(1.0, abs=1e-4)
    assert of["response 1"].mu() == pytest.approx(2.0 * norm.ppf(1.0 / (1.0 + 2.718281828**-1)), abs=1e-6)


@pytest.mark.family
@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("Laplace 1", 20),
        ("Gaussian 1, shared coin 0.97", 20),
        *(pytest.param(each.name, 200, marks=pytest.mark.slow) for each in lower_bounds.hostile()),
    ],
)
def test_bounds_of_independent_scores_exceed_the_truth_of_hostile_mechanisms_in_five_of_a_hundred_audits(name, seeds):
    (mechanism,) = (each for each in lower_bounds.hostile() if each.name == name)
    delta, lower = lower_bounds.if_independent(mechanism, 500, seeds)
    assert (lower > mechanism.epsilon(delta)).sum() <= binom.ppf(0.999, seeds, 0.05)
