"""Explicit small data sets whose quantities were computed beforehand."""

import math

import numpy as np
import pytest

from dpspec.contract import DataError, FrozenMap
from dpspec_preprocessing import collection, sensitivity, steps
from dpspec_preprocessing.options import Declaration
from dpspec_preprocessing.sensitivity import read_step
from dpspec_preprocessing.tables import pca_printed

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
    measured = collection.measure_limits(TWO, read_step({"impute": "mean"}))
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
        collection.require_in_collection(x, pipeline, tested=False)
    broken = collection.broken_limits(collection.require_in_collection(x, pipeline, tested=True), limits)
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
    measured = collection.measure_limits(ONE, read_step({"quantise": 0.1}))
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
    values = collection.covariance_spectrum(THREE)
    assert values == pytest.approx([0.6437214031, 0.0536284490, 0.0039394336], rel=1e-8)
    gaps = [collection.measure_limits(THREE, read_step({"pca": k}))["min_eigengap"] for k in (1, 2)]
    assert gaps == pytest.approx([0.5900929541, 0.0496890154], rel=1e-8)
    taus = [pca_printed(gap, 8).tau for gap in gaps]
    assert taus == pytest.approx([25.17763134, 299.0025610], rel=1e-8)
    assert [sensitivity.pca(gap, 8).tau for gap in gaps] == [8.0, 8.0]
    assert values[1:].sum() == pytest.approx(0.0575678826, rel=1e-8)
