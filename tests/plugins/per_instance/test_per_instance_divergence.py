"""One step: Theorem 3.2 against its reference values and against integration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support import per_instance_brute as brute
from support.per_instance_brute import integer_divergence, largest_mean_change, rounded_divergence

from dpspec_per_instance.theory import step_divergence

EIGHT, ELEVEN = 6e-8, 6e-11
MNIST = 128 / 60000


@pytest.mark.parametrize(
    ("q", "size", "sigma", "order", "present", "absent", "tolerance"),
    [
        (0.5, 1.0, 1.0, 2, 0.35737402, 0.18569442, EIGHT),
        (0.01, 1.0, 1.0, 8, 8.9364390761e-4, 5.7238889490204e-4, ELEVEN),
        (0.1, 0.5, 1.0, 4, 6.0032829645e-3, 5.0205189860e-3, ELEVEN),
        (MNIST, 1.0, 0.469, 8, 11.156390948, 4.0428164001e-4, ELEVEN),
        (0.5, 2.0, 1.5, 3, 1.6768723200, 0.33734986348, 6e-11),
    ],
)
def test_the_reference_values_of_theorem_3_2(q, size, sigma, order, present, absent, tolerance):
    """R0 to R4: the bound is the truth where no other record is drawn, and so is the sharper direction."""
    nu = size / sigma
    assert integer_divergence(order, q, nu) == pytest.approx(present, rel=tolerance)
    assert step_divergence(order, q, nu) == pytest.approx(present, rel=tolerance)
    assert step_divergence(order, q, nu, "present-first") == pytest.approx(present, rel=tolerance)
    assert step_divergence(order, q, nu, "absent-first") == pytest.approx(absent, rel=tolerance)


@pytest.mark.parametrize(
    ("order", "q", "size", "sigma", "value"),
    [
        (4, 1e-3, 0.01, 2.0, 5.0000627502e-11),
        (8, MNIST, 0.01, 0.469, 8.2781442776e-9),
        (64, MNIST, 1.0, 0.469, 139.23264542),
        (256, 0.01, 1.0, 1.0, 123.37677032),
    ],
)
def test_tiny_and_huge_values_keep_their_digits(order, q, size, sigma, value):
    """R5."""
    for found in (integer_divergence(order, q, size / sigma), step_divergence(order, q, size / sigma)):
        assert found == pytest.approx(value, rel=ELEVEN)


def test_orders_between_whole_ones():
    """R6: the closer the bound follows the order, the smaller it is."""
    found = {r: rounded_divergence([1.5, 2.5], 0.1, 0.8, r) for r in ("interpolated", "ceiling")}
    assert step_divergence([1.5, 2.5], 0.1, 0.8) == pytest.approx([6.4045367381e-3, 0.011701545743], rel=ELEVEN)
    assert found["interpolated"] == pytest.approx([8.9248635e-3, 0.012836284], rel=6e-8)
    assert found["ceiling"] == pytest.approx([8.9248635e-3, 0.014791994], rel=6e-8)


def test_rounding_orders_up_is_ordered_and_exact_at_whole_orders():
    orders = np.array([1.2, 1.9, 2.0, 2.3, 3.0, 7.7])
    ratios = [[0.3, 1.0, 2.0]]
    real = step_divergence(orders[:, None], 0.02, ratios)
    between, above = (rounded_divergence(orders[:, None], 0.02, ratios, r) for r in ("interpolated", "ceiling"))
    assert np.all(real <= between * (1 + 1e-12))
    assert np.all(between <= above * (1 + 1e-12))
    assert np.allclose(real[[2, 4]], above[[2, 4]], rtol=1e-12)


def test_limits_and_monotonicity():
    assert step_divergence(3.0, 1.0, 0.7) == pytest.approx(3 * 0.49 / 2, rel=1e-13)
    assert step_divergence(3.0, 1.0, 0.7, "absent-first") == pytest.approx(3 * 0.49 / 2, rel=1e-13)
    assert step_divergence(3.0, 0.3, 0.0) == 0.0
    assert step_divergence(3.0, 0.0, 0.7) == 0.0
    assert integer_divergence(3, 0.3, 0.0) == 0.0
    grid = step_divergence(
        np.array([1.3, 2.0, 5.5])[:, None, None], np.array([0.01, 0.1, 0.6])[:, None], [0.1, 0.5, 2.0]
    )
    for axis in range(3):
        assert np.all(np.diff(grid, axis=axis) > 0)
    orders = np.linspace(1.05, 9.0, 60)
    moments = (orders - 1) * step_divergence(orders, 0.05, 1.3)
    assert np.all(np.diff(moments, 2) > -1e-12)
    assert np.all(step_divergence(orders, 0.05, 1.3, "absent-first") <= step_divergence(orders, 0.05, 1.3))


def test_arguments_that_make_no_sense_are_refused():
    for wrong in ((1.0, 0.1, 1.0), (2.0, -0.1, 1.0), (2.0, 1.1, 1.0), (2.0, 0.1, -1.0), (2.0, 0.1, math.nan)):
        with pytest.raises(ValueError, match="must be"):
            step_divergence(*wrong)


def _random(rng):
    count = int(rng.integers(0, 4))
    others, record = rng.uniform(-1, 1, count), float(rng.uniform(-1, 1))
    q, sigma = float(rng.choice([0.05, 0.2, 0.5, 0.9])), float(rng.uniform(0.5, 2.0))
    return others, record, q, sigma, str(rng.choice(["sum", "mean"]))


def test_theorem_3_2_is_never_below_the_truth():
    """200 random mini-batches, both rules, both directions, whole and real orders: no violation."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        others, record, q, sigma, rule = _random(rng)
        largest = largest_mean_change(abs(record), np.abs(others - record)) if rule == "mean" else abs(record)
        present, absent = brute.pair(others, record, q, rule)
        order = float(rng.choice([1.5, 2.0, 3.0, 4.5]))
        bound = step_divergence(order, q, largest / sigma, "present-first")
        sharp = step_divergence(order, q, largest / sigma, "absent-first")
        assert brute.renyi(order, present, absent, sigma) <= bound * (1 + 1e-9) + 1e-12
        assert brute.renyi(order, absent, present, sigma) <= sharp * (1 + 1e-9) + 1e-12


def test_the_largest_change_of_a_mean_is_found_in_one_pass():
    rng = np.random.default_rng(2)
    for _ in range(300):
        rows = rng.normal(size=(int(rng.integers(1, 5)), 2))
        rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1))[:, None]
        record = rng.normal(size=2)
        record /= max(1.0, np.linalg.norm(record))
        law = brute.updates(np.vstack([rows]), [0.5] * len(rows), "mean")
        changes = [np.linalg.norm(record)]
        for size in range(1, len(rows) + 1):
            for some in brute.itertools.combinations(rows, size):
                mean = np.mean(some, axis=0)
                changes.append(np.linalg.norm(record - mean) / (size + 1))
        found = largest_mean_change(np.linalg.norm(record), np.linalg.norm(rows - record, axis=1))
        assert found == pytest.approx(max(changes), rel=1e-12)
        assert found <= (np.linalg.norm(record) + 1) / 2 + 1e-12 or found == pytest.approx(np.linalg.norm(record))
        assert len(law.values) >= 1
