"""The two bounds of the test of layers, its level for all gradients, its power; and Freedman's inequality."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpspec import json_records
from dpspec.stats.conformance import noise_tests
from dpspec.stats.conformance.measurement import LEVEL
from dpspec.stats.conformance.noise_tests import SharedLayers, drift, least_seen

Array = np.ndarray
STEPS, SIZE = 20, 100


def shared(product: float, first: float, second: float, count: int, pairs: int = 1, **more: float) -> SharedLayers:
    squares = {"a": first, "b": second}
    return SharedLayers(
        **{"squares": squares, "product": product, "rounding": 0.0, "count": count, "planned": count, "pairs": pairs}
        | more
    )


def p_value(one: Array, other: Array, pairs: int = 1) -> float:
    """Of the residuals of two layers, (steps, k) each."""
    found = shared(float((one * other).sum()), float((one**2).sum()), float((other**2).sum()), one.size, pairs)
    return found.p_value()


def noise(source: np.random.Generator, steps: int = STEPS, size: int = SIZE) -> tuple[Array, Array]:
    return source.standard_normal((steps, size)), source.standard_normal((steps, size))


def adaptive(source: np.random.Generator, gain: float) -> tuple[Array, Array, Array]:
    """Both layers hold one gradient, which follows the noise of the step before and, in the second, of the first layer;
    with the gradients of the second."""
    one, other = noise(source)
    gradients = np.zeros_like(one)
    for step in range(1, STEPS):
        gradients[step] = gain * (0.5 * other[step - 1] + 0.5 * one[step - 1] + 0.5 * one[step])
    return one + gain * np.roll(other, 1, axis=0), other + gradients, gradients


@pytest.mark.parametrize("gain", [0.0, 0.5, 2.0])
def test_the_bound_on_all_that_is_no_noise_holds(monkeypatch: pytest.MonkeyPatch, gain: float) -> None:
    """At a = 0.2 it is missed in at most 20% of 400 runs (99.9% quantile), and not by far more than it needs."""
    monkeypatch.setattr(noise_tests, "_MISSED", 0.2)
    missed, ratios = 0, []
    for seed in range(400):
        _, other, gradients = adaptive(np.random.default_rng(seed), gain)
        bound = noise_tests._others(float((other**2).sum()), other.size, other.size)
        missed += float((gradients**2).sum()) > bound
        ratios.append(bound / max(1.0, float((gradients**2).sum())))
    assert missed <= stats.binom.ppf(0.999, 400, 0.2)
    if gain == 2.0:
        assert 1.0 < np.median(ratios) < 1.2


def test_the_bound_on_the_rest_holds_and_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients, and none allowed for, p is that of a normal sum by Ville: rejected at 5% in at most 5%."""
    monkeypatch.setattr(noise_tests, "_others", lambda *_: 0.0)
    monkeypatch.setattr(noise_tests, "_AIMED", 0.1)
    shares = [p_value(*noise(np.random.default_rng(seed))) <= 0.2 for seed in range(400)]
    assert 1 <= sum(shares) <= stats.binom.ppf(0.999, 400, 0.2)


@pytest.mark.parametrize("gain", [0.0, 0.5, 2.0])
def test_layers_with_noise_of_their_own_are_not_rejected(gain: float) -> None:
    """400 seeds, with similar gradients that follow the noise; and noise larger than declared."""
    runs = [adaptive(np.random.default_rng(seed), gain)[:2] for seed in range(400)]
    assert sum(p_value(*run) <= 0.05 for run in runs) <= stats.binom.ppf(0.999, 400, 0.05)
    assert all(p_value(3.0 * one, 5.0 * other) > 0.05 for one, other in runs[:50] if gain == 0.0)


@pytest.mark.parametrize("gain", [0.0, 0.3])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_noise_that_two_layers_share_is_rejected(sign: float, gain: float) -> None:
    for seed in range(20):
        one, other = noise(np.random.default_rng(seed))
        assert p_value(one, sign * one + gain * other, 28) < 1e-10


@pytest.mark.parametrize(("steps", "size", "pairs"), [(1, 1200, 1), (30, 100, 28)])
def test_the_least_that_is_seen_is_seen(steps: int, size: int, pairs: int) -> None:
    """Seeds 0 to 199: rejected in at least 99%, up to the 0.1% quantile."""
    least = least_seen(steps * size, pairs)
    assert least is not None
    seen = 0
    for seed in range(200):
        one, own = noise(np.random.default_rng(seed), steps, size)
        seen += p_value(one, least * one + math.sqrt(1.0 - least**2) * own, pairs) <= LEVEL
    assert seen >= stats.binom.ppf(1e-3, 200, 0.99)


def test_of_few_coordinates_or_many_pairs_nothing_is_seen() -> None:
    assert least_seen(300, 1) is least_seen(10**6, 10**9) is None
    one, _ = noise(np.random.default_rng(0), 1, 300)
    assert p_value(one, one) > LEVEL


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("squares", {"a": 1000.0}, "squares must name two layers"),
        ("squares", {"a": 1000.0, "b": 950.0, "c": 1.0}, "squares must name two layers"),
        ("product", 980.0, "product must be at most the product of the norms"),
        ("product", float("nan"), "product must be a number"),
        ("squares", {"a": 1000.0, "b": -1.0}, "squares.b must be a number from 0"),
        ("planned", 999, "planned must be at least count"),
        ("pairs", 0, "pairs must be an integer from 1"),
    ],
)
def test_evidence_of_layers_that_no_run_stores_is_refused(key: str, value: object, rule: str) -> None:
    kept = json_records.write(shared(-900.0, 1000.0, 950.0, 1000, 6, rounding=10.0))
    assert json_records.write(json_records.read(SharedLayers, kept, "kept")) == kept
    with pytest.raises(ValueError, match=rule):
        json_records.read(SharedLayers, {**kept, key: value}, "kept")


def adaptive_runs(runs: int, seed: int, shift: float = 0.0) -> list[tuple[float, float]]:
    """Sums of noise and of centered coins whose weights follow the path, with the conditional variances."""
    rng = np.random.default_rng(seed)
    q, sigma, steps, records = 0.1, 0.5, 40, 30
    found = []
    for _ in range(runs):
        total = variance = 0.0
        for _ in range(steps):
            weights = rng.uniform(-1, 1, records) * (1.0 if total > 0 else 0.2)
            coins = rng.random(records) < q
            total += sigma * rng.standard_normal() + float(((coins - q) * weights).sum()) + shift
            variance += sigma**2 + q * (1 - q) * float((weights**2).sum())
        found.append((total, variance))
    return found


def test_p_values_of_drift_hold_for_adaptive_runs() -> None:
    p = np.array([drift(t, v, 10.0, 1.0, test="").p_value for t, v in adaptive_runs(3000, 0)])
    for level in (0.3, 0.1, 0.01):
        assert (p <= level).mean() <= level
    assert p.min() < 0.5


def test_a_detectable_drift_is_detected() -> None:
    variances = [v for _, v in adaptive_runs(50, 1, shift=1.0)]
    detectable = drift(0.0, float(np.mean(variances)), 10.0, 1.0, test="").detectable
    assert detectable is not None
    found = [drift(t, v, 10.0, 1.0, test="") for t, v in adaptive_runs(300, 2, shift=detectable / 40)]
    assert sum(f.p_value <= LEVEL for f in found) >= stats.binom.ppf(0.001, 300, 0.99)
    half = [drift(t, v, 10.0, 1.0, test="") for t, v in adaptive_runs(300, 3, shift=0.4 * detectable / 40)]
    assert sum(f.p_value <= LEVEL for f in half) < 30


@pytest.mark.parametrize(("total", "variance"), [(30.0, 10.0), (80.0, 17.0), (-200.0, 400.0)])
def test_the_bound_is_freedmans_on_the_grid(total: float, variance: float) -> None:
    k = next(k for k in range(1000) if 10.0 * 1.25**k >= variance * (1 - 1e-9))
    v, x = 10.0 * 1.25**k, abs(total)
    expected = 2 * (k + 1) * (k + 2) * math.exp(-x * x / (2 * (v + x / 3)))
    assert drift(total, variance, 10.0, 1.0, test="").p_value == pytest.approx(min(1.0, expected))


def test_units_and_many_sums() -> None:
    found = drift(30.0, 10.0, 10.0, 60.0, test="t", declared=1.0)
    assert found.measured == 1.5
    tried = drift(30.0, 10.0, 10.0, 60.0, test="t", declared=1.0, tried=10)
    assert tried.p_value == pytest.approx(10 * found.p_value)
    assert tried.detectable > found.detectable
    assert drift(0.0, 1.0, 1.0, 0.0, test="t").detectable is None
    assert drift(math.inf, 1.0, 1.0, 1.0, test="t").p_value == 0.0
