"""Good clusters by a tree and by blocked products: both agree with the definition."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.preprocessing_steps import count_in_balls

from dpspec.contract import DataError, FrozenMap
from dpspec_papers.preprocessing import pca_printed
from dpspec_preprocessing import sensitivity, steps
from dpspec_preprocessing.options import Declaration
from dpspec_preprocessing.sensitivity import read_step
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


@pytest.mark.family
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
    """Integer distances are exact in float64, and closer to the radius than float32 products resolve."""
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


NAN = math.nan
TWO = np.array(
    [
        [0.5, NAN, 0.1],
        [NAN, 0.2, -0.3],
        [0.4, 0.6, NAN],
        [-0.2, 0.3, 0.5],
        [0.6, -0.1, 0.2],
        [0.1, 0.1, 0.1],
        [0.3, -0.5, 0.4],
        [-0.4, 0.2, NAN],
    ]
)


def test_missing_values() -> None:
    measured = steps.measure_limits(TWO, read_step({"impute": "mean"}))
    assert int(np.isnan(TWO).sum()) == 4
    assert measured["max_missing_rows"] == 4
    assert measured["min_observed"] == 6
    assert measured["max_missing_in_row"] == 1
    mean = np.nanmean(TWO, axis=0)
    assert mean == pytest.approx([0.1857142857, 0.1142857143, 0.1666666667], abs=1e-10)
    printed, same = sensitivity.mean_same_mask(8 - 4), sensitivity.mean_same_mask(6)
    # M = min(sqrt(d), ||mean|| + 2 sqrt(d) / N)
    any_mask = sensitivity.mean_any_mask(6, 3, measured["max_mean_norm"])
    bound = measured["max_mean_norm"] + 2.0 * math.sqrt(3.0) / 6.0
    assert bound == pytest.approx(0.8518111921, rel=1e-8)
    assert (printed, same) == (0.5, pytest.approx(0.3333333333, rel=1e-8))
    assert any_mask == pytest.approx(0.3891288209, rel=1e-8)
    assert [4 * v for v in (printed, same, any_mask)] == pytest.approx([2.0, 1.3333333333, 1.5565152837], rel=1e-8)
    imputed = steps.fit_imputation(TWO, "mean")(TWO)
    assert imputed[0, 1] == pytest.approx(mean[1], rel=1e-12)
    assert not np.isnan(imputed).any()


@pytest.mark.parametrize(
    ("step", "limits"),
    [
        ({"impute": "median"}, {"max_missing_rows": 1, "max_spread": 1.0}),
        ({"impute": "trimmed", "trim": 2}, {"max_missing_rows": 1, "min_observed": 6, "max_spread": 1.0}),
        ({"impute": "mean"}, {"max_missing_rows": 1, "min_observed": 6}),
    ],
)
def test_a_feature_without_a_value_is_named(step: dict[str, object], limits: dict[str, float]) -> None:
    x = TWO.copy()
    x[:, 1] = NAN
    private = {"kind": "gaussian", "eps_noise": 0.5, "lipschitz": 0.3}
    declared = Declaration.of(FrozenMap({"pipeline": [step], "private": private, "collection": limits}))
    pipeline = declared.pipeline(records=8, features=3)
    with pytest.raises(DataError, match="feature 2 of 3 has no observed value"):
        steps.require_in_collection(x, pipeline, tested=False)
    broken = steps.broken_limits(steps.require_in_collection(x, pipeline, tested=True), limits)
    assert "max_missing_rows" in broken
    assert ("max_spread" in broken) == ("max_spread" in limits)


def test_test_rows_are_mapped_by_what_training_rows_gave() -> None:
    test = np.array([[NAN, 0.1, 0.2]])
    rows, others = steps.run_steps(TWO, [read_step({"impute": "mean"})], test=test)
    assert others[0, 0] == pytest.approx(np.nanmean(TWO[:, 0]))
    assert np.linalg.norm(rows, axis=1).max() <= 1.0
    for by, trim in (("median", 0), ("trimmed", 1), ("regression", 0)):
        processed, _ = steps.run_steps(TWO, [read_step({"impute": by, "trim": trim})])
        assert np.isfinite(processed).all()
    with pytest.raises(ValueError, match="missing or infinite"):
        steps.run_steps(TWO, [])


def test_trimmed_means_and_medians_are_those_of_other_libraries() -> None:
    from scipy.stats import trim_mean

    filled = steps.fit_imputation(TWO, "trimmed", 1)(TWO)
    assert filled[0, 1] == pytest.approx(trim_mean(TWO[1:, 1], 1.0 / 7.0))
    assert steps.fit_imputation(TWO, "median")(TWO)[0, 1] == np.nanmedian(TWO[:, 1])


ONE = np.array([-0.82, -0.77, -0.74, 0.0, 0.25, 0.6, 0.61, 0.66, 0.95])[:, None]


def test_clusters_of_nine_points() -> None:
    found = steps.Neighbourhoods(ONE).good_clusters(0.1)
    assert np.flatnonzero(found.centres).tolist() == [0, 1, 2, 5, 6]
    assert found.largest == 3
    kept = np.flatnonzero(steps.deduplicate(ONE, 0.1)[:, 0]).tolist()
    assert [*kept, 3] == [0, 4, 5, 8, 3]  # record 3 is kept too: it is the zero vector already
    expected = [-0.82, -0.82, -0.82, 0.0, 0.25, 0.6, 0.6, 0.6, 0.95]
    assert steps.quantise(ONE, 0.1)[:, 0].tolist() == expected
    measured = steps.measure_limits(ONE, read_step({"quantise": 0.1}))
    assert measured == {"max_ball": 7.0, "max_cluster": 3.0}
    assert sensitivity.merging(sensitivity.Step(name="quantise", eta=0.1), 7, 100).tau == pytest.approx(2.8)


THREE = np.array(
    [
        [0.9, 0.1, 0.0],
        [-0.8, 0.2, 0.05],
        [0.7, -0.3, 0.1],
        [-0.6, -0.2, -0.1],
        [0.5, 0.4, 0.02],
        [-0.9, 0.1, -0.05],
        [0.8, -0.2, 0.03],
        [-0.7, 0.05, 0.08],
    ]
)


def test_spectrum_of_eight_points() -> None:
    values = steps.covariance_spectrum(THREE)
    assert values == pytest.approx([0.6437214031, 0.0536284490, 0.0039394336], rel=1e-8)
    gaps = [steps.measure_limits(THREE, read_step({"pca": k}))["min_eigengap"] for k in (1, 2)]
    assert gaps == pytest.approx([0.5900929541, 0.0496890154], rel=1e-8)
    taus = [pca_printed(gap, 8).tau for gap in gaps]
    assert taus == pytest.approx([25.17763134, 299.0025610], rel=1e-8)
    assert [sensitivity.pca(gap, 8).tau for gap in gaps] == [8.0, 8.0]
    assert values[1:].sum() == pytest.approx(0.0575678826, rel=1e-8)
