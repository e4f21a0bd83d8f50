"""Noise has the law and the size that it is named by. Tests reject at 1e-6, with fixed seeds.

40,000 numbers: a Kolmogorov-Smirnov distance of 0.0135 rejects, where the Laplace and the Gaussian law of one deviation
are 0.06 apart and a scale that is off by 6% is 0.0142 (Gaussian) or 0.0108 (Laplace) away; the second moment sees 4%.
"""

from __future__ import annotations

import pytest
import torch
from scipy.stats import kstest, laplace, norm

from dpspec.training.device import generator
from dpspec.training.loop.dpsgd import GaussianNoise, LaplaceNoise, noise_of

LAWS = {"gaussian": norm(), "laplace": laplace(scale=0.5**0.5)}
COUNT = 40_000


def drawn(kind, deviation=1.0, seed=3):
    return noise_of(kind)(torch.zeros(COUNT), deviation, generator(seed, "noise"))


@pytest.mark.parametrize("kind", LAWS)
def test_the_law_is_the_one_named(kind):
    sample = drawn(kind, 2.5).double().numpy() / 2.5
    assert kstest(sample, LAWS[kind].cdf).pvalue > 1e-6
    (other,) = set(LAWS) - {kind}
    assert kstest(sample, LAWS[other].cdf).pvalue < 1e-12


@pytest.mark.parametrize("kind", LAWS)
def test_the_deviation_is_the_one_named(kind):
    """The mean of squares over the variance is one within 4.9 standard errors, sqrt((kurtosis - 1) / n)."""
    sample = drawn(kind, 0.3).double() / 0.3
    error = ((5.0 if kind == "laplace" else 2.0) / COUNT) ** 0.5
    assert abs(float(sample.square().mean()) - 1.0) < 4.9 * error
    assert abs(float((1.04 * sample).square().mean()) - 1.0) > 4.9 * error
    assert abs(float(sample.mean())) < 4.9 / COUNT**0.5
    assert abs(float((sample[1:] * sample[:-1]).mean())) < 4.9 / COUNT**0.5


@pytest.mark.parametrize("kind", LAWS)
def test_the_generator_alone_decides(kind):
    torch.manual_seed(1)
    first = drawn(kind)
    torch.manual_seed(2)
    assert torch.equal(first, drawn(kind))
    assert not torch.equal(first, drawn(kind, seed=4))
    assert bool(first.isfinite().all())


@pytest.mark.parametrize("noise", [GaussianNoise(), LaplaceNoise()])
def test_noise_of_no_deviation_is_nothing(noise):
    assert not noise(torch.zeros(50), 0.0, generator(0, "noise")).any()


def test_other_laws_are_refused():
    with pytest.raises(ValueError, match="gaussian or laplace, got 'cauchy'"):
        noise_of("cauchy")
