"""Good clusters by a tree and by blocked products: both agree with the definition."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.preprocessing_steps import count_in_balls

from dpspec_preprocessing import steps
from dpspec_preprocessing.steps import Products, Tree

Rows = npt.NDArray[np.float64]

WAYS: dict[str, Callable[[Rows, Rows], Tree | Products]] = {
    "tree": Tree,
    "products": lambda x, weight: Products(x, weight, "cpu"),
}


def blobs(features: int, seed: int = 3) -> Rows:
    random = np.random.default_rng(seed)
    centres = random.normal(size=(40, features)) / np.sqrt(features)
    x = centres[random.integers(40, size=300)]
    jitter = random.normal(size=x.shape) / np.sqrt(features)
    return np.asarray(x + jitter * random.choice([0.0, 0.02, 0.05, 0.1], size=(300, 1)))


def by_definition(x: Rows, eta: float) -> tuple[list[bool], list[int], int]:
    distances = np.sqrt(np.square(x[:, None] - x[None]).sum(axis=2))
    near, wide = distances <= eta, distances <= 3.0 * eta
    centres = (near == wide).all(axis=1)
    representative = np.arange(len(x))
    for row in np.flatnonzero(centres)[::-1]:
        representative[near[row]] = row
    return centres.tolist(), representative.tolist(), int(near[centres].sum(axis=1).max(initial=1))


@pytest.mark.parametrize("features", [1, 3, 15, 16, 40])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("eta", [0.0, 0.05, 0.1, 0.2])
def test_good_clusters_by_definition(monkeypatch: pytest.MonkeyPatch, features: int, way: str, eta: float) -> None:
    monkeypatch.setattr(steps, "TREE_FEATURES", 40 if way == "tree" else 0)
    x = blobs(features)
    found = steps.Neighbourhoods(x).good_clusters(eta)
    centres, representative, largest = by_definition(x, eta)
    assert found.centres.tolist() == centres
    assert found.representative.tolist() == representative
    assert found.largest == largest
    distances = np.sqrt(np.square(x[:, None] - x[None]).sum(axis=2))
    assert count_in_balls(x, 8.0 * eta).tolist() == (distances <= 8.0 * eta).sum(axis=1).tolist()


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e20, 1e30])
def test_products_count_where_squares_are_out_of_range_of_float32(scale: float) -> None:
    x = np.unique(blobs(40), axis=0) * scale
    distances = np.sqrt(np.square(x[:, None] - x[None]).sum(axis=2))
    found = Products(x, np.ones(len(x)), "cpu")
    for radius in (0.05 * scale, 0.3 * scale, 1.5 * scale):
        assert found.weights_within(radius).tolist() == (distances <= radius).sum(axis=1).tolist()
    assert found.weights_within(1e200).tolist() == [len(x)] * len(x)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("features", [4, 30])
def test_small_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, way: str, features: int) -> None:
    x, weight = blobs(features), np.random.default_rng(1).integers(1, 4, size=300)
    whole = WAYS[way](x, weight)
    expected = whole.weights_within(0.3), [row.tolist() for row in whole.within(np.arange(5, 90), 0.3)]
    monkeypatch.setattr(steps, "_DIFFERENCES", 700)
    monkeypatch.setattr(steps, "_PRODUCTS", 2000)
    monkeypatch.setattr(steps, "_LISTED", 20)
    parts = WAYS[way](x, weight)
    assert parts.weights_within(0.3).tolist() == expected[0].tolist()
    assert [row.tolist() for row in parts.within(np.arange(5, 90), 0.3)] == expected[1]
    distances = np.sqrt(np.square(x[:, None] - x[None]).sum(axis=2))
    assert expected[0].tolist() == ((distances <= 0.3) @ weight).tolist()


def test_closed_balls_at_the_very_radius() -> None:
    """Integer distances are exact in float64, and closer to the radius than float32 products can tell."""
    grid = np.zeros((60, 20))
    grid[:, 0] = np.arange(60.0) * 1000.0
    for way in WAYS.values():
        counts = way(grid, np.ones(60, dtype=np.int64)).weights_within(2000.0)
        assert counts.tolist() == [3, 4, *[5] * 56, 4, 3]


def test_coarser_products_are_not_trusted() -> None:
    x, weight = blobs(20), np.ones(300, dtype=np.int64)
    expected = Products(x, weight, "cpu").weights_within(0.2).tolist()
    torch.set_float32_matmul_precision("medium")
    try:
        assert Products(x, weight, "cpu").weights_within(0.2).tolist() == expected
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_row_that_occurs_often_is_searched_for_once() -> None:
    """Half of all records are one row; listing its copies pair by pair would take 4e8 places."""
    x = np.random.default_rng(5).normal(size=(40_000, 6))
    x[::2] = x[0]
    found = steps.Neighbourhoods(x).good_clusters(1e-6)
    assert found.largest == 20_000
    assert np.count_nonzero(steps.deduplicate(x, 1e-6).any(axis=1)) == 20_001
