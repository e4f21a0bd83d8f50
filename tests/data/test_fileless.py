"""The shapes of synthetic data are what they say."""

import math
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


def test_rows_of_low_rank_have_their_variance_in_the_first_features(source: Make) -> None:
    rows = source("synthetic", pattern="low-rank", records=4000, features=20, rank=5, noise=0.1).load()
    assert rows.train_x.std(axis=0) == pytest.approx([1.0] * 5 + [0.1] * 15, rel=0.1)
    wrong = np.mean((rows.train_x[:, 0] > 0.0) != rows.train_y)
    assert wrong == pytest.approx(math.atan(0.1) / math.pi, abs=0.01)


def test_the_parity_of_digits(source: Make) -> None:
    digits, parity = source("digits"), source("digits", target="parity")
    assert (parity.facts().classes, digits.facts().classes) == (2, 10)
    assert parity.facts().digest != digits.facts().digest
    assert np.array_equal(parity.load().train_y, digits.load().train_y % 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "low-rank", "classes": 3}, "have two classes, got 3"),
        ({"pattern": "low-rank", "features": 4, "rank": 4}, "rank must be below the 4 features"),
        ({"pattern": "images", "features": 10}, "square number of features, got 10"),
        ({"records": 10_000_000, "features": 1_000_000}, "values; at most"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, object], message: str, source: Make) -> None:
    with pytest.raises(DataError, match=message):
        source("synthetic", **options).facts()
