"""The formula against slow and obvious computations, and the releases against what is declared."""

import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dpspec_laplace_histogram import LaplaceHistogram
from dpspec_laplace_histogram.backend import CarelessReleases, Releases, released

LABELS = np.array([0, 0, 2])


@pytest.mark.parametrize("size", [1, 2])
def test_no_release_is_likelier_than_epsilon_allows(size: int) -> None:
    scale, absent = 0.7, np.array([3, 1, 1])
    present = absent + np.array([-size, size, 0])
    ratios = [
        sum(abs(x - a) - abs(x - p) for x, a, p in zip(point, absent, present, strict=True)) / scale
        for point in product(range(-1, 8), repeat=3)
    ]
    spec: Any = SimpleNamespace(mechanism={"scale": scale})
    assert max(map(abs, ratios)) == pytest.approx(LaplaceHistogram().epsilon(spec, 0.0, size))


@pytest.mark.parametrize(("backend", "scale"), [(Releases(), 2.0), (CarelessReleases(), 1.0)])
def test_releases_are_counts_with_noise(backend: Releases, scale: float) -> None:
    noise = np.array([released(backend, LABELS, 3, 2.0, seed) for seed in range(4000)]) - [2, 0, 1]
    assert noise.mean() == pytest.approx(0.0, abs=0.1)
    assert abs(noise).mean() == pytest.approx(scale, rel=0.05)
    assert np.array_equal(released(backend, LABELS, 3, 2.0, 5), released(backend, LABELS, 3, 2.0, 5))


def test_scores_are_log_likelihood_ratios_of_releases_with_and_without_the_group() -> None:
    context: Any = SimpleNamespace(
        data=SimpleNamespace(train_y=LABELS),
        facts=SimpleNamespace(classes=3),
        trainer=Releases(),
        cancelled=lambda: False,
        seed=lambda index, size, number: int(number),
    )
    inputs: Any = {"mechanism": {"scale": 2.0}}
    made = LaplaceHistogram().release(inputs, context, 0, 1, np.array([0, 1]))
    for number, labels in enumerate(([0, 0, 2], [1, 0, 2])):
        counts = released(Releases(), np.array(labels), 3, 2.0, number)
        densities = [math.exp(-float(abs(counts - truth).sum()) / 2.0) for truth in ([2, 0, 1], [1, 1, 1])]
        assert made.scores[number] == pytest.approx(math.log(densities[1] / densities[0]))
