"""The formulas against slow and obvious computations, and the releases against what is declared."""

import math
from itertools import product

import numpy as np
import pytest
from dpspec_laplace_histogram import theory
from dpspec_laplace_histogram.attack import Sees, score, with_group
from dpspec_laplace_histogram.backend import CarelessReleases, Histogram, Releases

from dpspec.contract import FrozenMap, TrainingJob


def density(x: float, centre: float, scale: float) -> float:
    return math.exp(-abs(x - centre) / scale) / (2.0 * scale)


def test_epsilon_at_delta_agrees_with_integration() -> None:
    scale, delta = 1.5, 0.05
    epsilon = theory.epsilon(scale, 1, delta)
    xs = np.linspace(-40.0, 41.0, 810_001)
    excess = [max(0.0, density(x, 1.0, scale) - math.exp(epsilon) * density(x, 0.0, scale)) for x in xs]
    assert math.fsum(excess) * (xs[1] - xs[0]) == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize(
    ("adjacency", "size"), [("add-remove", 1), ("add-remove", 3), ("replace-one", 1), ("replace-one", 2)]
)
def test_no_release_is_likelier_than_epsilon_allows(adjacency: str, size: int) -> None:
    labels, scale = np.array([0, 0, 0, 1, 2]), 0.7
    counts = [np.bincount(rows, minlength=3) for rows in (labels, with_group(labels, adjacency, size))]
    ratios = [
        sum(math.log(density(x, p, scale) / density(x, a, scale)) for x, a, p in zip(point, *counts, strict=True))
        for point in product(range(-1, 8), repeat=3)
    ]
    assert max(map(abs, ratios)) == pytest.approx(theory.epsilon(scale, theory.moved(adjacency, size)))


@pytest.mark.parametrize(("scale", "moved", "delta"), [(0.0, 1, 0.0), (1.0, 0, 0.0), (1.0, 1, 1.0), (1.0, 1, -0.1)])
def test_senseless_parameters_are_refused(scale: float, moved: int, delta: float) -> None:
    with pytest.raises(ValueError, match="need scale > 0"):
        theory.epsilon(scale, moved, delta)


def released(backend: Releases, seed: int, scale: float = 2.0) -> np.ndarray:
    sees = Sees()
    phases = (FrozenMap({"scale": scale}),)
    parts = {"options": FrozenMap(), "expected_batch_size": 5.0, "device": "cpu", "observers": (sees,)}
    model = Histogram(3)
    backend.train(
        TrainingJob(x=np.zeros((0, 1)), y=np.array([0, 0, 2]), model=model, phases=phases, seed=seed, **parts)
    )
    assert np.array_equal(model.counts, sees.counts)
    return sees.counts


def test_releases_are_counts_with_noise_of_the_declared_scale() -> None:
    noise = np.array([released(Releases(), seed) for seed in range(4000)]) - [2, 0, 1]
    assert noise.mean() == pytest.approx(0.0, abs=0.1)
    assert abs(noise).mean() == pytest.approx(2.0, rel=0.05)
    assert np.array_equal(released(Releases(), 5), released(Releases(), 5))


def test_the_careless_one_halves_it() -> None:
    noise = np.array([released(CarelessReleases(), seed) for seed in range(4000)]) - [2, 0, 1]
    assert abs(noise).mean() == pytest.approx(1.0, rel=0.05)


def test_the_score_is_the_log_likelihood_ratio() -> None:
    release, present, absent = np.array([2.3, 0.1]), np.array([1, 1]), np.array([2, 0])
    ratio = sum(
        math.log(density(r, p, 2.0) / density(r, a, 2.0)) for r, p, a in zip(release, present, absent, strict=True)
    )
    assert score(release, present, absent) / 2.0 == pytest.approx(ratio)
