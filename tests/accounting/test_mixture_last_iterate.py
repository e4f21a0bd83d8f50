"""The heuristic of the last iterate (arXiv 2410.06186) against a training whose final model has the first release."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from dpspec.accounting import Mixture, PrivacyLoss

STEPS, RATE, NOISE, DELTA = 1000, 0.01, 0.5, 1e-5

#: By how much the other records amplify the first release in step 2. Their number bounds it.
GAIN = 1e4


def heuristic() -> float:
    """Epsilon of Binomial(T, q) + N(0, sigma^2 T) and N(0, sigma^2 T): the loss is taken for linear."""
    counts = np.arange(60)
    weights = binom.pmf(counts, STEPS, RATE)
    mixture = Mixture(counts.astype(float).tolist(), (weights / weights.sum()).tolist(), NOISE * math.sqrt(STEPS))
    return PrivacyLoss.of(mixture).epsilon(DELTA).upper


def final_model(record: float, noise: np.ndarray) -> float:
    """Gradients: the record's in step 1, of all others (GAIN * theta) in step 2, then none."""
    theta = record + noise[0]
    theta = theta + GAIN * theta + noise[1]
    return float(theta + noise[2:].sum())


def test_the_heuristic_of_the_last_iterate_is_exceeded() -> None:
    noise = np.random.default_rng(0).normal(0.0, NOISE, STEPS)
    scale = 1.0 + GAIN
    assert final_model(1.0, noise) / scale == pytest.approx(1.0 + noise[0] + noise[1:].sum() / scale)
    std = NOISE * math.sqrt(1.0 + (STEPS - 1) / scale**2)  # of the final model over scale
    released = PrivacyLoss.of(Mixture([0.0, 1.0], [1.0 - RATE, RATE], std)).epsilon(DELTA)
    assert heuristic() == pytest.approx(2.9715, abs=1e-4)
    assert released.lower == pytest.approx(3.0253, abs=1e-4)
    every = PrivacyLoss.of_steps([(NOISE, RATE, STEPS)]).epsilon(DELTA)
    assert released.lower < every.lower  # the bound of all iterates holds
