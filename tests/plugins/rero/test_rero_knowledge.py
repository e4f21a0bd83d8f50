"""Knowledge that an adversary has besides the prior: which baselines the bounds on reconstruction are about.

Guerra-Balboa et al. 2026 (arXiv 2603.12142) state that reconstruction robustness is violated under realistic knowledge:
Definition 2.3 has no knowledge of the target. Its baseline is 1/8 in their Figure 4, whose adversary knows more.
The mechanism here is one Gaussian release of a record of 16 values, of which the adversary knows a part.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from dpspec.accounting import Mixture, PrivacyLoss

#: 16 records: a public attribute of 8 values and a secret bit, which moves the release by one clip norm.
ATTRIBUTES, BITS = 8, 2

PRIORS = [(0.5, 0.5), (0.9, 0.1), (0.6, 0.4)]


def attained(noise: float) -> float:
    """P[the adversary names the record]: it knows the attribute, and guesses the bit from the release."""
    return float(stats.norm.cdf(1.0 / (2.0 * noise)))


def gamma(noise: float, kappa: float) -> float:
    return PrivacyLoss.of(Mixture.full(1, noise)).rero(kappa).upper


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
def test_the_baseline_of_a_prior_without_the_known_attribute_is_exceeded(noise: float) -> None:
    """1 / 16 is the baseline of somebody who knows nothing: the bound at it is about that adversary only."""
    assert attained(noise) > gamma(noise, 1.0 / (ATTRIBUTES * BITS))


def test_values_at_noise_1() -> None:
    assert attained(1.0) == pytest.approx(0.6915, abs=1e-4)
    assert [gamma(1.0, kappa) for kappa in (1 / 2, 1 / 16)] == pytest.approx([0.8413, 0.2966], abs=1e-4)


@pytest.mark.parametrize("noise", [0.3, 0.5, 1.0, 4.0])
def test_the_baseline_given_all_that_is_known_is_not_exceeded(noise: float) -> None:
    assert attained(noise) <= gamma(noise, 1.0 / BITS)


def test_the_bound_holds_at_the_mean_of_the_baselines_of_all_cases() -> None:
    """gamma(kappa) is concave, so that an average over what is known is at most gamma of the average baseline."""
    rng = np.random.default_rng(1)
    for noise in (0.5, 1.0, 2.0):
        kappas = rng.uniform(0.001, 1.0, 6)
        weights = rng.dirichlet(np.ones(6))
        by_case = math.fsum(w * gamma(noise, k) for w, k in zip(weights, kappas, strict=True))
        assert by_case <= gamma(noise, float(weights @ kappas)) * (1.0 + 1e-4)


@pytest.mark.family
@pytest.mark.parametrize(("prior", "noise"), [*itertools.product(PRIORS, [0.5, 1.0, 3.0])])
def test_the_best_adversary_between_two_records_stays_below_the_bound(prior: tuple[float, float], noise: float) -> None:
    """Bayes' success between releases of mean 0 and 1: the quadrature of the larger weighted density."""

    def larger(z: float) -> float:
        return max(prior[0] * stats.norm.pdf(z, 0.0, noise), prior[1] * stats.norm.pdf(z, 1.0, noise))

    best, _ = integrate.quad(larger, -12.0 * noise, 1.0 + 12.0 * noise, limit=200, points=[0.5])
    assert max(prior) <= best + 1e-9
    assert best <= gamma(noise, max(prior)) + 1e-9


@pytest.mark.parametrize("noise", [0.3, 1.0, 4.0])
def test_the_reconstruction_advantage_is_at_most_the_total_variation(noise: float) -> None:
    """Theorem 4.1: success on a member less success on a record that is not in the data. Two records attain it."""
    variation = 2.0 * float(stats.norm.cdf(1.0 / (2.0 * noise))) - 1.0
    advantage = attained(noise) - 0.5  # without the record the release is independent of its bit
    assert advantage <= variation * (1.0 - 1.0 / (ATTRIBUTES * BITS))
    assert advantage == pytest.approx(variation * (1.0 - 1.0 / BITS))
    if noise == 1.0:
        assert advantage == pytest.approx(0.1915, abs=1e-4)
        assert variation * (1.0 - 1.0 / (ATTRIBUTES * BITS)) == pytest.approx(0.3590, abs=1e-4)


def test_an_adversary_that_knows_the_record_has_the_baseline_one() -> None:
    """A(theta, z) = z names the record without the release: kappa given its knowledge is 1, and so is the bound."""
    assert gamma(4.0, 1.0) == 1.0
    assert gamma(4.0, 1.0 / 8.0) < 0.2 < 1.0  # the bound at the baseline of their figure
