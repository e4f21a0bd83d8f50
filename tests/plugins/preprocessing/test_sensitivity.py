"""Sensitivities of steps on explicit pairs."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.preprocessing_steps import apply_step, moved_distance

from dpspec_preprocessing import attack, sensitivity
from dpspec_preprocessing.sensitivity import read_step

Rows = npt.NDArray[np.float64]
Pair = tuple[Rows, Rows]


def in_ball(random: np.random.Generator, n: int, d: int) -> Rows:
    x = random.normal(size=(n, d)) * random.uniform(0.1, 1.0, size=d)
    return np.asarray(x / np.maximum(1.0, np.linalg.norm(x, axis=1))[:, None])


def moved(pair: Pair, step: dict[str, Any]) -> tuple[int, float, float]:
    processed = [apply_step(x, step)[1:] for x in pair]
    return moved_distance(*processed)


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
