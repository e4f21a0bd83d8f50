from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from dpspec.stats.attacks import scores


@given(st.floats(1e-12, 1.0 - 1e-9))
def test_confidence_logit_is_the_logit_of_the_probability(p: float) -> None:
    assert scores.confidence_logit(-math.log(p)) == pytest.approx(float(special.logit(p)), rel=1e-6, abs=1e-6)


def test_confidence_logit_stays_finite_and_falls_with_the_loss() -> None:
    found = scores.confidence_logit([0.0, 1e-20, 1e-3, 1.0, 50.0, 800.0])
    assert np.all(np.isfinite(found))
    assert np.all(np.diff(found) < 0)
    assert found[1] == pytest.approx(math.log(1e20), rel=1e-9)


def test_loss_difference_is_higher_for_records_that_were_learned() -> None:
    assert scores.loss_difference([0.5, 2.0], [1.5, 2.0]).tolist() == [1.0, 0.0]


def test_gaussian_llr_is_the_ratio_of_densities() -> None:
    x = np.linspace(-3, 5, 9)
    exact = stats.norm.logpdf(x, 2.0, 0.5) - stats.norm.logpdf(x, 0.0, 1.5)
    np.testing.assert_allclose(scores.gaussian_llr(x, 2.0, 0.5, 0.0, 1.5), exact, rtol=1e-12)


def test_shadow_llr_takes_each_canarys_own_moments() -> None:
    present, absent = np.array([[1.0, 4.0], [3.0, 8.0]]), np.array([[0.0, 1.0], [0.0, 3.0], [3.0, 2.0]])
    found = scores.shadow_llr([1.0, 2.0], present, absent)
    exact = [
        stats.norm.logpdf(x, present[:, i].mean(), present[:, i].std(ddof=1))
        - stats.norm.logpdf(x, absent[:, i].mean(), absent[:, i].std(ddof=1))
        for i, x in enumerate((1.0, 2.0))
    ]
    np.testing.assert_allclose(found, exact, rtol=1e-12)
    pooled = scores.shadow_llr([1.0, 2.0], present, absent, common_std=True)
    spread = [math.sqrt(np.mean(side.var(axis=0, ddof=1))) for side in (present, absent)]
    exact = stats.norm.logpdf([1.0, 2.0], present.mean(axis=0), spread[0])
    exact = exact - stats.norm.logpdf([1.0, 2.0], absent.mean(axis=0), spread[1])
    np.testing.assert_allclose(pooled, exact, rtol=1e-12)


def test_shadow_scores_tell_present_from_absent() -> None:
    # 200 canaries of different difficulty, 16 shadow models: ranks by z and by ratio beat raw values. Seed 0.
    rng = np.random.default_rng(0)
    level, coins = 5 * rng.standard_normal(200), rng.integers(0, 2, 200)
    observed = level + 2 * coins + rng.standard_normal(200)
    absent, present = level + rng.standard_normal((16, 200)), level + 2 + rng.standard_normal((16, 200))

    def share(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        return float(np.mean(values[coins == 1][:, None] > values[coins == 0][None, :]))

    assert share(scores.shadow_llr(observed, present, absent, common_std=True)) > 0.85
    assert share(scores.shadow_llr(observed, present, absent)) > 0.8
    assert share(scores.shadow_z(observed, absent)) > 0.85
    assert share(scores.shadow_z(observed, absent, common_std=True)) > 0.85
    assert share(observed) < 0.7


def test_shadow_values_that_all_agree_do_not_divide_by_zero() -> None:
    flat = np.zeros((3, 2))
    assert np.all(np.isfinite(scores.shadow_z([0.0, 1.0], flat)))
    assert np.all(np.isfinite(scores.shadow_llr([0.0, 1.0], flat + 1.0, flat)))


@pytest.mark.parametrize("shadow", [np.zeros((1, 3)), np.zeros(3)])
def test_too_few_shadow_models_are_refused(shadow: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    with pytest.raises(ValueError, match="two models"):
        scores.shadow_z(np.zeros(3), shadow)
    with pytest.raises(ValueError, match="two models"):
        scores.shadow_llr(np.zeros(3), shadow, np.zeros((2, 3)))
