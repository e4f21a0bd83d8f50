"""The shapes of synthetic data are what they say."""

from __future__ import annotations

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


def test_rings_have_one_radius_per_class(source: Make) -> None:
    rows = source("synthetic", pattern="rings", records=100, features=4, classes=4, noise=0.0).load()
    assert np.allclose(np.linalg.norm(rows.train_x[:, :2], axis=1), (rows.train_y + 1) / 4, atol=1e-6)
    assert (rows.train_x[:, 2:] == 0).all()


def test_xor_is_decided_by_two_signs(source: Make) -> None:
    rows = source("synthetic", pattern="xor", records=100, features=3, noise=0.0).load()
    assert np.array_equal(rows.train_y, (rows.train_x[:, 0] * rows.train_x[:, 1] < 0).astype(int))
    assert np.abs(rows.train_x).max() <= 1


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
        ({"pattern": "rings", "features": 1}, "at least 2 features, got 1"),
        ({"pattern": "xor", "classes": 3}, "xor has 2 classes, got 3"),
        ({"records": 10_000_000, "features": 1_000_000}, "values; at most"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, object], message: str, source: Make) -> None:
    with pytest.raises(DataError, match=message):
        source("synthetic", **options).facts()
