"""Sensitivities of steps on random and explicit pairs."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.preprocessing_steps import apply_step, count_in_balls

from dpspec_preprocessing import attack, sensitivity, steps
from dpspec_preprocessing.sensitivity import read_step

Rows = npt.NDArray[np.float64]
Pair = tuple[Rows, Rows]


def in_ball(random: np.random.Generator, n: int, d: int) -> Rows:
    x = random.normal(size=(n, d)) * random.uniform(0.1, 1.0, size=d)
    return np.asarray(x / np.maximum(1.0, np.linalg.norm(x, axis=1))[:, None])


def replaced(random: np.random.Generator, x: Rows) -> Pair:
    one, other = x.copy(), x.copy()
    z = in_ball(random, 2, x.shape[1])
    if random.random() < 0.5:
        z /= np.linalg.norm(z, axis=1)[:, None]
    one[0], other[0] = z
    return one, other


def holed(random: np.random.Generator, pair: Pair, same: bool) -> Pair:
    one, other = pair
    n, d = one.shape
    holes = random.random((n, d)) < random.uniform(0.02, 0.4)
    holes[: max(3, n // 2)] = False
    one, other = np.where(holes, np.nan, one), np.where(holes, np.nan, other)
    for row in (one,) if same else (one, other):
        row[0, random.random(d) < 0.5] = np.nan
    if same:
        other[0, np.isnan(one[0])] = np.nan
    return one, other


def moved(pair: Pair, step: dict[str, Any]) -> tuple[int, float, float]:
    processed = [apply_step(x, step)[1:] for x in pair]
    return steps.moved_distance(*processed)


def extremes(pair: Pair, step: dict[str, Any]) -> dict[str, tuple[float, float]]:
    found = [steps.measure_limits(x, read_step(step)) for x in pair]
    return {key: (min(f[key] for f in found), max(f[key] for f in found)) for key in found[0]}


def imputed(random: np.random.Generator, by: str, same: bool) -> tuple[float, float]:
    n, d = int(random.integers(8, 40)), int(random.integers(1, 6))
    pair = holed(random, replaced(random, in_ball(random, n, d)), same)
    trim = 1 if by == "trimmed" else 0
    step: dict[str, Any] = {"impute": by, "trim": trim}
    limits = extremes(pair, step)
    changed, by_how_much, _ = moved(pair, step)
    missing = [np.isnan(x[1:]).any(axis=1).sum() for x in pair]
    assert changed <= max(missing)
    observed, q = int(limits["min_observed"][0]), int(limits["max_missing_in_row"][1])
    if by == "mean":
        mean_norm = limits["max_mean_norm"][1]
        bound = sensitivity.mean_same_mask(observed) if same else sensitivity.mean_any_mask(observed, d, mean_norm)
    elif by == "regression":
        least, largest = limits["min_eigenvalue"][0], limits["max_eigenvalue"][1]
        if least <= 1.0:
            return 0.0, 1.0
        bound = sensitivity.regression(least, largest, q)
    else:
        spread = 0.0
        for j in range(d):
            values = [np.sort(x[~np.isnan(x[:, j]), j]) for x in pair]
            counts = [len(v) for v in values]
            if by == "median":
                high = max(v[min(k, math.ceil((k + 1) / 2)) - 1] for v, k in zip(values, counts, strict=True))
                low = min(v[max(1, k // 2) - 1] for v, k in zip(values, counts, strict=True))
            else:
                high = max(v[k - trim - 1] for v, k in zip(values, counts, strict=True))
                low = min(v[trim - 1] for v in values)
            spread = max(spread, float(high - low))
        bound = sensitivity.median(spread, q) if by == "median" else sensitivity.trimmed_mean(spread, observed, trim, q)
    return by_how_much, bound


def clustered(random: np.random.Generator, name: str) -> tuple[float, float]:
    d, eta = int(random.integers(1, 4)), float(random.choice([0.0, 0.02, 0.05]))
    centres = in_ball(random, int(random.integers(2, 8)), d) * random.uniform(0.05, 0.8)
    x = centres[random.integers(len(centres), size=int(random.integers(6, 60)))]
    x = x + random.normal(size=x.shape) * eta * random.choice([0.0, 0.3, 1.0])
    x = x / np.maximum(1.0, np.linalg.norm(x, axis=1))[:, None]
    pair = replaced(random, x)
    for z in pair:
        if random.random() < 0.7:
            z[0] = x[int(random.integers(len(x)))] + random.normal(size=d) * eta
            z[0] /= max(1.0, float(np.linalg.norm(z[0])))
    changed, by_how_much, total = moved(pair, {name: eta})
    ball = max(int(count_in_balls(z, 8.0 * eta).max()) for z in pair)
    bound = 1.0 if name == "deduplicate" else 2.0 * eta
    assert by_how_much <= bound * (1.0 + 1e-9)
    assert total <= 2.0 * ball * bound * (1.0 + 1e-9)
    return changed, 2.0 * ball


def projected(random: np.random.Generator, affine: bool) -> tuple[float, float]:
    n, d = int(random.integers(40, 300)), int(random.integers(2, 7))
    k = int(random.integers(1, d))
    x = in_ball(random, n, d)
    x[:, :k] *= 2.0
    pair = replaced(random, np.asarray(x / np.maximum(1.0, np.linalg.norm(x, axis=1))[:, None]))
    step = {"pca": k, "affine": affine}
    low, high = extremes(pair, step)["min_eigengap"]
    assert high - low <= sensitivity.gap_sensitivity(n) * (1.0 + 1e-9)
    if low <= 0.0:
        return 0.0, 1.0
    bound = sensitivity.pca(low, n, affine=affine)
    return moved(pair, step)[1], bound.moved


def scaled(random: np.random.Generator) -> tuple[float, float]:
    n, d = int(random.integers(10, 100)), int(random.integers(1, 6))
    pair = replaced(random, in_ball(random, n, d))
    step = {"scale": "standard", "clip": 100.0}
    least = extremes(pair, step)["min_std"][0]
    return moved(pair, step)[1], sensitivity.scaling(least, n).moved


CASES: dict[str, Callable[[np.random.Generator], tuple[float, float]]] = {
    "mean-same": lambda r: imputed(r, "mean", True),
    "mean-any": lambda r: imputed(r, "mean", False),
    "median": lambda r: imputed(r, "median", False),
    "trimmed": lambda r: imputed(r, "trimmed", False),
    "regression": lambda r: imputed(r, "regression", False),
    "deduplicate": lambda r: clustered(r, "deduplicate"),
    "quantise": lambda r: clustered(r, "quantise"),
    "pca": lambda r: projected(r, False),
    "affine": lambda r: projected(r, True),
    "scale": lambda r: scaled(r),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("pairs", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_neighbours_keep_the_repaired_bound(name: str, pairs: int) -> None:
    random = np.random.default_rng(sum(map(ord, name)))
    for number in range(pairs):
        found, bound = CASES[name](random)
        assert found <= bound * (1.0 + 1e-9) + 1e-12, (name, number, found, bound)


@pytest.mark.parametrize(
    ("step", "changed"),
    [
        ({"deduplicate": 0.01}, 10),
        ({"quantise": 0.01}, 10),
        ({"impute": "mean"}, 20),
        ({"pca": 2}, 199),
        ({"scale": "standard", "clip": 10.0}, 199),
    ],
)
def test_canaries_change_what_they_are_planted_for(step: dict[str, Any], changed: int) -> None:
    x = in_ball(np.random.default_rng(9), 200, 6)
    planted = attack.build_neighbours(x, read_step(step), {"max_missing_rows": 20, "min_observed": 150}, 1.0)
    assert np.array_equal(planted[0][1:], planted[1][1:], equal_nan=True)
    found = moved(planted, step)
    assert changed - 2 <= found[0] <= changed
    assert found[2] > 0.0


def test_imputation_s_canary_attains_the_bound() -> None:
    x, step = in_ball(np.random.default_rng(9), 200, 6), {"impute": "mean"}
    planted = attack.build_neighbours(x, read_step(step), {"max_missing_rows": 20, "min_observed": 150}, 1.0)
    assert moved(planted, step)[1] == pytest.approx(sensitivity.mean_same_mask(180), rel=1e-9)


def test_directions_stand_apart() -> None:
    for count, features in ((5, 2), (4, 2), (12, 6), (2, 1)):
        around = attack.directions(count, features)
        cosines = around @ around.T - 2.0 * np.eye(count)
        assert cosines.max() <= math.cos(math.radians(72.0)) + 1e-12
    with pytest.raises(ValueError, match="do not fit"):
        attack.directions(3, 1)
