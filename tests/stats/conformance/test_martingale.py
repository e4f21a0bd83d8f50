from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpspec.stats.conformance import martingale
from dpspec.stats.conformance.measurement import LEVEL


def adaptive_runs(runs: int, seed: int, shift: float = 0.0) -> list[tuple[float, float]]:
    """Sums of noise and of centred coins whose weights follow the path, with the conditional variances."""
    rng = np.random.default_rng(seed)
    q, sigma, steps, records = 0.1, 0.5, 40, 30
    found = []
    for _ in range(runs):
        total = variance = 0.0
        for _ in range(steps):
            weights = rng.uniform(-1, 1, records) * (1.0 if total > 0 else 0.2)  # more is sampled after good luck
            coins = rng.random(records) < q
            total += sigma * rng.standard_normal() + float(((coins - q) * weights).sum()) + shift
            variance += sigma**2 + q * (1 - q) * float((weights**2).sum())
        found.append((total, variance))
    return found


def test_p_values_hold_for_adaptive_runs() -> None:
    p = np.array([martingale.drift(t, v, 10.0, 1.0, test="").p_value for t, v in adaptive_runs(3000, 0)])
    for level in (0.3, 0.1, 0.01):
        assert (p <= level).mean() <= level
    assert p.min() < 0.5  # it is no test that never speaks


def test_a_detectable_drift_is_detected() -> None:
    variances = [v for _, v in adaptive_runs(50, 1, shift=1.0)]
    detectable = martingale.drift(0.0, float(np.mean(variances)), 10.0, 1.0, test="").detectable
    assert detectable is not None
    found = [martingale.drift(t, v, 10.0, 1.0, test="") for t, v in adaptive_runs(300, 2, shift=detectable / 40)]
    assert sum(f.p_value <= LEVEL for f in found) >= stats.binom.ppf(0.001, 300, 0.99)
    half = [martingale.drift(t, v, 10.0, 1.0, test="") for t, v in adaptive_runs(300, 3, shift=0.4 * detectable / 40)]
    assert sum(f.p_value <= LEVEL for f in half) < 30


@pytest.mark.parametrize(("total", "variance"), [(30.0, 10.0), (80.0, 17.0), (-200.0, 400.0)])
def test_the_bound_is_freedmans_on_the_grid(total: float, variance: float) -> None:
    k = next(k for k in range(1000) if 10.0 * 1.25**k >= variance * (1 - 1e-9))
    v, x = 10.0 * 1.25**k, abs(total)
    expected = 2 * (k + 1) * (k + 2) * math.exp(-x * x / (2 * (v + x / 3)))
    assert martingale.drift(total, variance, 10.0, 1.0, test="").p_value == pytest.approx(min(1.0, expected))


def test_units_and_many_sums() -> None:
    found = martingale.drift(30.0, 10.0, 10.0, 60.0, test="t", declared=1.0)
    assert found.measured == 1.5
    tried = martingale.drift(30.0, 10.0, 10.0, 60.0, test="t", declared=1.0, tried=10)
    assert tried.p_value == pytest.approx(10 * found.p_value)
    assert tried.detectable > found.detectable
    assert martingale.drift(0.0, 1.0, 1.0, 0.0, test="t").detectable is None
    assert martingale.drift(math.inf, 1.0, 1.0, 1.0, test="t").p_value == 0.0
    with pytest.raises(ValueError, match="least > 0"):
        martingale.drift(1.0, 1.0, 0.0, 1.0, test="t")
