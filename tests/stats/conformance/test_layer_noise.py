"""Noise that two layers share: the two bounds of the test, its level whatever gradients do, and what it sees."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from dpspec import json_records
from dpspec.stats.conformance import layer_noise
from dpspec.stats.conformance.evidence import SharedLayers
from dpspec.stats.conformance.layer_noise import Shared

Array = np.ndarray
STEPS, SIZE = 20, 100


def shown(one: Array, other: Array, planned: int | None = None) -> Shared:
    """Of what is left of two layers, (steps, k) each."""
    product = abs(float((one * other).sum()))
    return Shared(product, float((one**2).sum()), float((other**2).sum()), one.size, planned or one.size)


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


def test_the_transform_of_squares_has_mean_one() -> None:
    """E exp(-q (g + n)^2) = (1 + 2 q)^(-1/2) exp(-q g^2 / (1 + 2 q)), by quadrature."""
    for q, g in ((0.01, 0.3), (0.2, 2.0), (1.5, 0.7)):
        mean, _ = integrate.quad(lambda n, q=q, g=g: math.exp(-q * (g + n) ** 2) * stats.norm.pdf(n), -12.0, 12.0)
        assert mean == pytest.approx(math.exp(-q * g * g / (1.0 + 2.0 * q)) / math.sqrt(1.0 + 2.0 * q), rel=1e-9)


@pytest.mark.parametrize("gain", [0.0, 0.5, 2.0])
def test_the_bound_on_all_that_is_no_noise_holds(monkeypatch: pytest.MonkeyPatch, gain: float) -> None:
    """At a = 0.2 it is missed in at most 20% of 400 runs (99.9% quantile), and not by far more than it needs."""
    monkeypatch.setattr(layer_noise, "_MISSED", 0.2)
    missed, ratios = 0, []
    for seed in range(400):
        _, other, gradients = adaptive(np.random.default_rng(seed), gain)
        bound = layer_noise._others(float((other**2).sum()), other.size, other.size)
        missed += float((gradients**2).sum()) > bound
        ratios.append(bound / max(1.0, float((gradients**2).sum())))
    assert missed <= stats.binom.ppf(0.999, 400, 0.2)
    if gain == 2.0:
        assert 1.0 < np.median(ratios) < 1.2


def test_the_bound_on_the_rest_holds_and_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients, and none allowed for, p is that of a normal sum by Ville: rejected at 5% in at most 5%."""
    monkeypatch.setattr(layer_noise, "_others", lambda *_: 0.0)
    monkeypatch.setattr(layer_noise, "_AIMED", 0.1)
    shares = [layer_noise.p_value(shown(*noise(np.random.default_rng(seed))), 1) <= 0.2 for seed in range(400)]
    assert 1 <= sum(shares) <= stats.binom.ppf(0.999, 400, 0.2)


@pytest.mark.parametrize("gain", [0.0, 0.5, 2.0])
def test_layers_with_noise_of_their_own_are_not_rejected(gain: float) -> None:
    """400 seeds: however much their gradients are alike, and follow the noise."""
    runs = (adaptive(np.random.default_rng(seed), gain)[:2] for seed in range(400))
    assert sum(layer_noise.p_value(shown(*run), 1) <= 0.05 for run in runs) <= stats.binom.ppf(0.999, 400, 0.05)


def test_more_noise_than_declared_is_no_noise_that_is_shared() -> None:
    for seed in range(50):
        one, other = noise(np.random.default_rng(seed))
        assert layer_noise.p_value(shown(3.0 * one, 5.0 * other), 1) > 0.05


@pytest.mark.parametrize("gain", [0.0, 0.3])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_noise_that_two_layers_share_is_rejected(sign: float, gain: float) -> None:
    for seed in range(20):
        one, other = noise(np.random.default_rng(seed))
        assert layer_noise.p_value(shown(one, sign * one + gain * other), 28) < 1e-10


@pytest.mark.parametrize(("steps", "size", "pairs"), [(1, 1200, 1), (30, 100, 28)])
def test_the_least_that_is_seen_is_seen(steps: int, size: int, pairs: int) -> None:
    """Seeds 0 to 199: rejected in 99% at least, within what chance allows (1e-3)."""
    least = layer_noise.least_seen(steps * size, pairs, 1e-6, 0.99)
    assert least is not None
    seen = 0
    for seed in range(200):
        one, own = noise(np.random.default_rng(seed), steps, size)
        other = least * one + math.sqrt(1.0 - least**2) * own
        seen += layer_noise.p_value(shown(one, other), pairs) <= 1e-6
    assert seen >= stats.binom.ppf(1e-3, 200, 0.99)


def test_of_few_coordinates_or_many_pairs_nothing_is_seen() -> None:
    assert layer_noise.least_seen(300, 1, 1e-6, 0.99) is None
    assert layer_noise.least_seen(10**6, 10**9, 1e-6, 0.99) is None
    one, _ = noise(np.random.default_rng(0), 1, 300)
    assert layer_noise.p_value(shown(one, one), 1) > 1e-6


AMOUNTS = st.floats(1.0, 1e6)


@settings(deadline=None, max_examples=200)
@given(
    share=st.floats(0.0, 1.0),
    first=AMOUNTS,
    second=AMOUNTS,
    more=st.floats(1.0, 10.0),
    count=st.integers(1, 10**5),
    pairs=st.integers(1, 28),
)
def test_the_p_value_rises_with_what_is_left_and_falls_with_the_product(
    share: float, first: float, second: float, more: float, count: int, pairs: int
) -> None:
    product = share * math.sqrt(first * second)
    p = layer_noise.p_value(Shared(product, first, second, count, count), pairs)
    assert 2e-15 <= p <= 1.0
    assert p == layer_noise.p_value(Shared(product, second, first, count, count), pairs)
    assert p <= layer_noise.p_value(Shared(product / more, first, second, count, count), pairs)
    assert p <= layer_noise.p_value(Shared(product, more * first, second, count, count), pairs)


# --- what is kept of it ---------------------------------------------------------

KEPT = {
    "squares": {"0.weight": 1000.0, "0.bias": 950.0},
    "product": -900.0,
    "rounding": 10.0,
    "count": 1000,
    "planned": 1000,
    "pairs": 6,
}


def test_rounding_is_taken_off() -> None:
    kept = json_records.read(SharedLayers, KEPT, "kept")
    assert kept.shared == Shared(890.0, 1000.0, 950.0, 1000, 1000)
    hidden = json_records.read(SharedLayers, {**KEPT, "rounding": 1000.0}, "kept")
    assert hidden.shared.product == 0.0
    assert json_records.write(kept) == KEPT


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
def test_what_no_run_keeps_is_refused(key: str, value: object, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        json_records.read(SharedLayers, {**KEPT, key: value}, "kept")
