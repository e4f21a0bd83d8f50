"""The shapes of synthetic data are what they say."""

from collections.abc import Callable

import numpy as np
import pytest

from dpspec.contract import DataError, DataSource

Make = Callable[..., DataSource]


def test_blobs_are_unit_vectors(source: Make) -> None:
    rows, other = (source("synthetic", records=100, features=5, classes=3, noise=0.0, seed=s).load() for s in (0, 1))
    assert not np.array_equal(rows.train_x, other.train_x)
    assert np.allclose(np.linalg.norm(rows.train_x, axis=1), 1, atol=1e-6)
    assert len(np.unique(rows.train_x, axis=0)) == len(set(rows.train_y)) == 3


def test_images_are_one_picture_per_class(source: Make) -> None:
    clean = source("synthetic", pattern="images", records=60, features=100, classes=3, noise=0.0).load()
    assert clean.train_x.shape == (60, 1, 10, 10)
    assert len(np.unique(clean.train_x, axis=0)) == 3
    noisy = source("synthetic", pattern="images", records=60, features=100, classes=3, noise=5.0).load()
    assert (noisy.train_x.min(), noisy.train_x.max()) == (0, 1)


def test_noise_has_the_declared_deviation(source: Make) -> None:
    clean, noisy = (source("synthetic", records=2000, noise=n).load().train_x for n in (0.0, 0.5))
    assert np.std(noisy - clean) == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "images", "features": 10}, "square number of features, got 10"),
        ({"records": 10_000_000, "features": 1_000_000}, "values; at most"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, object], message: str, source: Make) -> None:
    with pytest.raises(DataError, match=message):
        source("synthetic", **options).facts()
