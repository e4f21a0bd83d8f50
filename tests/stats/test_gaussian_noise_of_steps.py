"""Tests of noise across steps: brute force, uniform p-values for independent noise, rejection of dependent noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from dpspec.stats.conformance.measurement import Measurement
from dpspec.stats.gaussian_noise import earlier_sums, lag_correlation, pair_correlation, window_sums


def noise(steps: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((steps, width))


def everything(vectors: np.ndarray) -> list[Measurement]:
    return [
        pair_correlation(vectors, "p"),
        lag_correlation(vectors, "d"),
        *earlier_sums(vectors, "e"),
        *window_sums(vectors, "w"),
    ]


def smallest(vectors: np.ndarray) -> float:
    made = everything(vectors)
    return len(made) * min(one.p_value for one in made)


def test_values_and_p_values_are_those_of_the_definitions() -> None:
    n = noise(1100, 5, 1)  # more than one block
    steps, width = n.shape
    each = {(k, j): float(n[k] @ n[j] / np.linalg.norm(n[j])) for k in range(steps) for j in range(k)}
    worst = max(each.values(), key=abs)
    found = pair_correlation(n, "p")
    assert found.measured == pytest.approx(worst / math.sqrt(width))
    assert found.p_value == pytest.approx(min(1.0, len(each) * 2 * stats.norm.sf(abs(worst))))
    sums = {d: sum(each[k, k - d] for k in range(d, steps)) / math.sqrt(steps - d) for d in range(1, steps)}
    distance = max(sums, key=lambda d: abs(sums[d]))
    found = lag_correlation(n, "d")
    assert found.measured == pytest.approx(sums[distance] / math.sqrt((steps - distance) * width))
    assert found.p_value == pytest.approx(min(1.0, (steps - 1) * 2 * stats.norm.sf(abs(sums[distance]))))
    before = [n[:k].sum(axis=0) for k in range(1, steps)]
    scores = [n[k + 1] @ u / np.linalg.norm(u) for k, u in enumerate(before)]
    one, total = earlier_sums(n, "e")
    assert one.measured == pytest.approx(max(scores, key=abs) / math.sqrt(width))
    assert total.measured == pytest.approx(sum(scores) / (steps - 1) / math.sqrt(width))
    assert total.p_value == pytest.approx(2 * stats.norm.sf(abs(sum(scores)) / math.sqrt(steps - 1)))
    window = window_sums(n, "w")[3]
    parts = [n[i * 137 : (i + 1) * 137].sum(axis=0) for i in range(8)]
    squares = sum(float(part @ part) for part in parts) / 137
    assert window.measured == pytest.approx(math.sqrt(squares / 40))
    assert window.p_value == pytest.approx(2 * min(stats.chi2.cdf(squares, 40), stats.chi2.sf(squares, 40)))


@pytest.mark.parametrize(("steps", "width"), [(2, 1), (3, 128), (30, 20)])
def test_p_values_of_independent_noise_are_at_most_uniform(steps: int, width: int) -> None:
    repeats = 1000
    found = np.array([[one.p_value for one in everything(noise(steps, width, seed))] for seed in range(repeats)])
    for level in (0.2, 0.05, 0.01):
        allowed = stats.binom.isf(1e-5, repeats, level)
        assert ((found <= level).sum(axis=0) <= allowed).all()


def mean_reverting(n: np.ndarray) -> np.ndarray:
    n, total = n.copy(), np.zeros(n.shape[1])
    for k in range(len(n)):
        if k > 3:
            n[k] = -0.1 * total / total.std() + math.sqrt(0.99) * n[k]
        total += n[k]
    return n


def last_takes_back(n: np.ndarray) -> np.ndarray:
    return np.concatenate([n[:-1], -n[:-1].sum(axis=0, keepdims=True) / math.sqrt(len(n) - 1)])


def repeated_once(n: np.ndarray) -> np.ndarray:
    n = n.copy()
    n[151] = -n[37]
    return n


def cancels_in_windows(n: np.ndarray) -> np.ndarray:
    parts = n.reshape(-1, 25, n.shape[1])
    centered: np.ndarray = (parts - parts.mean(axis=1, keepdims=True)) * math.sqrt(25 / 24)
    return centered.reshape(n.shape)


def seventh_before(n: np.ndarray) -> np.ndarray:
    n = n.copy()
    for k in range(7, len(n)):
        n[k] = 0.1 * n[k - 7] + math.sqrt(0.99) * n[k]
    return n


CHANGES = [mean_reverting, last_takes_back, repeated_once, cancels_in_windows, seventh_before]


@pytest.mark.parametrize("change", CHANGES)
def test_dependent_noise_of_the_right_size_is_rejected(change: Callable[[np.ndarray], np.ndarray]) -> None:
    n = noise(200, 96, 5)
    assert smallest(n) > 1e-4
    assert smallest(change(n)) < 1e-9


def test_steps_without_noise_reject_nothing() -> None:
    n = noise(20, 8, 2)
    n[::3] = 0.0
    assert min(one.p_value for one in everything(n)[:4]) > 1e-4
