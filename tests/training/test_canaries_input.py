"""Planted records are what their kind says, follow from the seed, and stand where the coins put them."""

from __future__ import annotations

import numpy as np
import pytest
from support.canaries import KINDS, make

from dpspec.training.canaries import Records, plant

RNG = np.random.default_rng(5)
X = RNG.normal(size=(30, 2, 3)).astype(np.float32)
Y = RNG.integers(0, 4, size=30)


def rows_of(records: Records) -> list[int]:
    """Which training record each canary is a copy of."""
    found = [np.flatnonzero((x == X).all(axis=(1, 2))) for x in records.x]
    assert all(len(at) == 1 for at in found)
    return [int(at[0]) for at in found]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "least-variance"])
def test_the_seed_decides(kind: str) -> None:
    first, again, other = (make(kind, 4, X, Y, 4, seed) for seed in (1, 1, 2))
    assert first.x.shape == (4, 2, 3)
    assert first.x.dtype == np.float32
    assert set(first.y.tolist()) <= set(range(4))
    assert np.array_equal(first.x, again.x)
    assert np.array_equal(first.y, again.y)
    assert not (np.array_equal(first.x, other.x) and np.array_equal(first.y, other.y))


def test_mislabelled_records_have_another_label_and_duplicates_their_own() -> None:
    wrong, same = make("mislabelled", 30, X, Y, 4, 0), make("duplicate", 30, X, Y, 4, 0)
    assert sorted(rows_of(wrong)) == sorted(rows_of(same)) == list(range(30))
    assert np.all(wrong.y != Y[rows_of(wrong)])
    assert np.array_equal(same.y, Y[rows_of(same)])
    assert len(make("duplicate", 70, X, Y, 4, 0).x) == 70


def test_blank_records_differ_in_their_labels_and_noise_fills_the_range() -> None:
    blank = make("blank", 4, X, Y, 4, 0)
    assert np.all(blank.x == X.min())
    assert sorted(blank.y) == [0, 1, 2, 3]
    noise = make("noise", 500, X, Y, 4, 0)
    assert X.min() <= noise.x.min() < noise.x.max() <= X.max()
    assert abs(noise.x.mean() - 0.5 * (X.min() + X.max())) < 0.1
    assert min(np.bincount(noise.y)) > 80


def test_what_cannot_be_made_is_said() -> None:
    with pytest.raises(ValueError, match="4 blank records at most"):
        make("blank", 5, X, Y, 4, 0)
    with pytest.raises(ValueError, match="two classes"):
        make("mislabelled", 5, X, Y, 1, 0)
    with pytest.raises(ValueError, match="require training records"):
        make("noise", 5, X[:0], Y[:0], 4, 0)


def test_coins_decide_whole_groups() -> None:
    canaries = make("noise", 4, X, Y, 4, 0)
    rows = plant(X, Y, canaries, np.array([1, 3, 2, 1]), np.array([1, 0, 1, 1]))
    assert rows.owner.tolist() == [0, 2, 2, 3]
    assert np.array_equal(rows.x[:30], X)
    assert np.array_equal(rows.x[30:], canaries.x[[0, 2, 2, 3]])
    assert np.array_equal(rows.y[30:], canaries.y[[0, 2, 2, 3]])


def test_least_variance_is_the_last_singular_vector_with_the_least_likely_label() -> None:
    """Against the singular values of the rows, and against least squares with the penalty as rows of its own."""
    rng = np.random.default_rng(8)
    y = rng.integers(0, 3, size=60)
    x = (rng.normal(size=(60, 6)) * np.array([3.0, 2.0, 1.0, 0.5, 0.2, 0.05]) + y[:, None]).astype(np.float32)
    made = make("least-variance", 36, x.reshape(60, 2, 3), y, 3, 0)
    assert made.x.shape == (36, 2, 3)
    flat = made.x.reshape(36, 6).astype(np.float64)
    assert np.allclose(np.linalg.norm(flat, axis=1), np.linalg.norm(x, axis=1).max(), rtol=1e-5)
    directions = np.linalg.svd(x.astype(np.float64))[2][::-1]
    cosines = np.abs(np.sum(flat * np.tile(directions, (6, 1)), axis=1)) / np.linalg.norm(flat, axis=1)
    assert np.allclose(cosines, 1.0, atol=1e-4)
    penalty = np.sqrt(1e-3 * (x.astype(np.float64) ** 2).sum() / 6)
    rows = np.concatenate([x.astype(np.float64), penalty * np.eye(6)])
    weights = np.linalg.lstsq(rows, np.concatenate([np.eye(3)[y], np.zeros((6, 3))]), rcond=None)[0]
    likely = flat @ weights
    assert np.array_equal(made.y[:6], likely[:6].argmin(1))
    assert np.array_equal(made.y[12:18], likely[12:18].argmax(1))
    assert len({(*row.round(4), label) for row, label in zip(flat, made.y, strict=True)}) == 36


def test_least_variance_knows_its_limits() -> None:
    with pytest.raises(ValueError, match="at most 4096 features"):
        make("least-variance", 1, np.ones((2, 4097), dtype=np.float32), np.array([0, 1]), 2, 0)
    with pytest.raises(ValueError, match="texts"):
        make("least-variance", 1, X, Y, 4, 0, vocabulary=9)
