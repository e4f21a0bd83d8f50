from __future__ import annotations

import numpy as np
import pytest

from dpspec.stats.conformance import freshness, noise_size
from dpspec.stats.conformance.measurement import LEVEL


@pytest.mark.parametrize("steps", [1, 2, 7, 300])
def test_products_agree_with_loops(steps: int) -> None:
    rng = np.random.default_rng(steps)
    rows, earlier = rng.standard_normal((steps, 5)), rng.standard_normal((steps, 5))
    found = freshness.products(rows, earlier)
    lags, largest = np.zeros(steps), 0.0
    for t in range(steps):
        for s in range(t):
            product = float(rows[t] @ earlier[s])
            lags[t - s] += product
            if abs(product) > abs(largest):
                largest = product
    np.testing.assert_allclose(found.lags, lags, atol=1e-9)
    assert found.largest == pytest.approx(largest)


def test_two_runs() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.standard_normal((9, 4)), rng.standard_normal((7, 4))
    assert abs(freshness.largest_across(one, other)) == pytest.approx(np.abs(one @ other.T).max())


def p_values(rows: np.ndarray) -> tuple[float, float]:
    steps, width = rows.shape
    found = freshness.products(rows)
    lag = freshness.worst_lag(found.lags)
    pairs = steps * (steps - 1) // 2
    return (
        noise_size.correlation(float(found.lags[lag]), (steps - lag) * width, steps * width, steps // 2, "").p_value,
        noise_size.correlation(found.largest, width, 2 * width, pairs, "").p_value,
    )


def test_fresh_noise_passes() -> None:
    rng = np.random.default_rng(1)
    found = np.array([p_values(rng.standard_normal((30, 64))) for _ in range(300)])
    for level in (0.1, 0.01):
        assert (found <= level).mean() <= level


def test_noise_that_returns_is_seen_at_its_lag_or_in_its_pair() -> None:
    rng = np.random.default_rng(2)
    epoch = np.tile(rng.standard_normal((10, 256)), (4, 1))  # a generator seeded anew each epoch
    assert freshness.worst_lag(freshness.products(epoch).lags) % 10 == 0
    assert p_values(epoch)[0] < LEVEL
    pool = rng.standard_normal((200, 1024))
    drawn = pool[rng.integers(0, 200, 60)]  # a pool that is drawn from
    assert p_values(drawn)[1] < LEVEL


def test_the_worst_lag_of_few_rows() -> None:
    assert freshness.worst_lag(np.zeros(1)) == 0
    assert freshness.worst_lag(np.array([0.0, -3.0, 1.0])) == 1
    assert freshness.worst_lag(np.array([0.0, 1.0, 3.0, 9.0])) == 2  # lags beyond half of the run are not tested
