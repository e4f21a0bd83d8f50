"""Products of residuals of two layers equal those of a loop over coordinates."""

import math
from itertools import combinations

import numpy as np
import pytest

from dpspec.training.measure.update_statistics import LayerProducts

PARTS = [("a", 7), ("b", 3), ("c", 40), ("d", 12)]
TOTAL = sum(size for _, size in PARTS)


def steps(seed: int, count: int = 5) -> np.ndarray:
    return 2.0 * np.random.default_rng(seed).standard_normal((count, TOTAL))


def added(rows: np.ndarray, error: float = 0.0, planned: int = 5) -> LayerProducts:
    products = LayerProducts(PARTS, planned)
    for row in rows:
        products.add(row, error, 2.0)
    return products


def test_every_pair_has_the_sums_of_its_first_coordinates() -> None:
    """Noise of deviation 2, and rounding that can have changed 0.1 of a step's length."""
    rows, found = steps(0), added(steps(0), 0.1)
    starts = {"a": 0, "b": 7, "c": 10, "d": 50}
    for (one, other, _, _, size), (product, rounding, first, second) in zip(found._pairs, found.sums, strict=True):
        x = [[row[starts[one] + k] / 2.0 for k in range(size)] for row in rows]
        y = [[row[starts[other] + k] / 2.0 for k in range(size)] for row in rows]
        lengths = [(math.hypot(*a), math.hypot(*b)) for a, b in zip(x, y, strict=True)]
        assert product == pytest.approx(
            sum(p * q for a, b in zip(x, y, strict=True) for p, q in zip(a, b, strict=True))
        )
        assert rounding == pytest.approx(sum(0.05 * (a + b + 0.05) for a, b in lengths))
        assert (first, second) == pytest.approx(
            tuple(sum((v + 0.05) ** 2 for v in one) for one in zip(*lengths, strict=True))
        )
    assert [pair[:2] for pair in found._pairs] == list(combinations("abcd", 2))


def test_the_pair_that_is_kept_is_the_one_that_shares() -> None:
    rows = steps(1, 200)
    rows[:, 50:62] = -rows[:, 10:22]
    kept = added(rows, planned=200).worst()
    assert kept is not None
    assert (list(kept.squares), kept.count, kept.planned, kept.pairs) == (["c", "d"], 2400, 2400, 6)
    assert kept.problem() is None
    assert kept.p_value() < 1e-12


def test_a_diverged_model_gives_no_evidence() -> None:
    rows = steps(3)
    rows[:, 50:62] = rows[:, 10:22]
    rows[4] = np.inf
    kept = added(rows).worst()
    assert kept is not None
    assert kept.problem() is None
    assert kept.p_value() == 1.0
