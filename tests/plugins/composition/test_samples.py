"""Releases on one drawn sample, and guarantees on samples, against quadrature, enumeration and closed forms."""

import math
from dataclasses import replace

import numpy as np
import pytest
from plugins.composition import oracles

from dpspec import accounting
from dpspec_composition import theory
from dpspec_composition.options import Release
from dpspec_composition.theory import Composition

CLOSE = 1e-9


@pytest.mark.parametrize(
    ("rate", "noise", "delta", "group"),
    [(0.1, (1.0, 1.0), 1e-5, 1), (0.01, (0.7, 2.0), 1e-6, 1), (0.5, (3.0, 1.0), 1e-3, 1), (0.2, (1.5, 1.0), 1e-4, 2)],
)
def test_two_queries_of_one_sample_have_the_delta_of_a_quadrature(rate, noise, delta, group):
    sum_, count = (Release(kind="gaussian", sigma=sigma, rate=rate, sample="s") for sigma in noise)
    together = Composition([sum_, count], group).epsilons([delta])[0]
    exact = oracles.shared_sample_delta(rate, noise, together.upper, group)
    assert exact <= delta * (1.0 + 1e-4)
    assert oracles.shared_sample_delta(rate, noise, together.lower, group) >= delta * (1.0 - 1e-4)
    assert together.relative_width < 1e-3
    own = Composition([replace(sum_, sample=""), replace(count, sample="")], group).epsilons([delta])[0]
    assert oracles.shared_sample_delta(rate, noise, own.upper, group) > delta * 1.05  # false for one sample


def test_runs_and_sensitivities_of_one_sample_add_up() -> None:
    """Four runs are one query of half the noise; a sensitivity of 3 at sigma 6 is one of 1 at sigma 2."""
    one = Composition([Release(kind="gaussian", sigma=1.0, rate=0.1)]).epsilons([1e-6])[0]
    for shared in (
        [Release(kind="gaussian", sigma=2.0, rate=0.1, sample="s", times=4)],
        [Release(kind="gaussian", sigma=2.0, rate=0.1, sample="s")] * 3
        + [Release(kind="gaussian", sigma=6.0, sensitivity=3.0, rate=0.1, sample="s")],
    ):
        found = Composition(shared).epsilons([1e-6])[0]
        assert found.lower == pytest.approx(one.lower, rel=1e-3)
        assert found.upper == pytest.approx(one.upper, rel=1e-3)
        assert Composition(shared).rho().upper == 0.5
    own = Release(kind="gaussian", sigma=2.0, rate=0.1, times=4)
    assert Composition([own]).epsilons([1e-6])[0].upper < 0.8 * one.lower


def test_two_samples_are_two_samples() -> None:
    a, b = (Release(kind="gaussian", sigma=1.0, rate=0.1, sample=name) for name in "ab")
    named = Composition([a, b, replace(b, sigma=3.0)]).epsilons([1e-6])[0]
    joined = Release(kind="gaussian", sigma=1.0 / math.sqrt(1.0 + 1.0 / 9.0), rate=0.1)
    plain = Composition([replace(a, sample=""), joined]).epsilons([1e-6])[0]
    assert named.upper == pytest.approx(plain.upper, rel=1e-3)


def test_a_sample_of_fixed_size_is_shared_too() -> None:
    pair = [Release(kind="gaussian", sigma=sigma, batch_size=10, records=100, sample="s") for sigma in (3.0, 4.0)]
    alone = Release(kind="gaussian", sigma=2.4, batch_size=10, records=100)  # 1/9 + 1/16 = 1/2.4^2
    for k in (1, 2):
        found, one = (Composition(releases, k).epsilons([1e-6])[0] for releases in (pair, [alone]))
        assert found.upper == pytest.approx(one.upper, rel=1e-3)
        assert found.lower == pytest.approx(one.lower, rel=1e-3)


def test_a_gdp_guarantee_on_a_sample_has_no_lower_end() -> None:
    declared = Release(kind="gdp", mu=0.5, rate=0.1)
    found = Composition([declared]).epsilons([1e-6])[0]
    noisy = Release(kind="gaussian", sigma=2.0, rate=0.1)
    assert found.lower == 0.0
    assert found.upper == pytest.approx(Composition([noisy]).epsilons([1e-6])[0].upper, rel=1e-3)
    both = [replace(declared, sample="s"), replace(noisy, sample="s")]
    mixed = Composition(both).epsilons([1e-6])[0]
    assert mixed.lower == pytest.approx(Composition([noisy]).epsilons([1e-6])[0].lower, rel=1e-3)
    assert mixed.upper > found.upper


def test_a_lower_rho_counts_the_noise_alone() -> None:
    """A constant output meets every GDP guarantee: the joint output is then the noisy one, of rho 1 / (2 sigma^2)."""
    noisy = Release(kind="gaussian", sigma=10.0, rate=0.1, sample="s")
    rho = Composition([noisy, Release(kind="gdp", mu=3.0, rate=0.1, sample="s")]).rho()
    assert rho.lower == pytest.approx(0.005, rel=1e-9)
    assert rho.lower <= 0.005 * (1.0 + 1e-15)
    assert rho.upper == pytest.approx(4.505)


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.3, 0.9])
@pytest.mark.parametrize(("epsilon", "delta"), [(2.0, 1e-7), (0.1, 0.0), (5.0, 1e-3), (1e-3, 1e-9)])
def test_a_guarantee_on_a_sample_is_amplified(rate: float, epsilon: float, delta: float) -> None:
    """(log(1 + q (e^epsilon - 1)), q delta), and the exact profile of the worst mechanism below and above it."""
    release = Release(kind="approx-dp", epsilon=epsilon, delta=delta, rate=rate)
    loss = math.log1p(rate * math.expm1(epsilon))
    if delta:
        assert Composition([release]).epsilons([rate * delta])[0].upper == pytest.approx(loss, rel=1e-9)
        assert Composition([release]).epsilons([rate * delta * (1.0 - 1e-6)])[0].upper == math.inf
    else:
        assert Composition([release]).pure().upper == pytest.approx(loss, rel=1e-9)
    outcomes = oracles.outcomes_of(release)
    for share in (1e-3, 0.2):
        target = rate * delta + share * rate * math.tanh(0.5 * epsilon)
        found = Composition([release]).epsilons([target])[0].upper
        assert oracles.sampled_delta(outcomes, rate, found) <= target * (1.0 + CLOSE)
        assert oracles.sampled_delta(outcomes, rate, found * (1.0 - 1e-3)) >= target * (1.0 - CLOSE)


@pytest.mark.parametrize("few", [True, False])
def test_guarantees_on_one_sample_are_composed_before_they_are_amplified(few: bool, monkeypatch) -> None:
    """The exact pair of three guarantees, or a coarser one above it if they have too many outcomes."""
    if not few:
        monkeypatch.setattr(theory, "_MOST_OUTCOMES", 2)
    rate, delta = 0.05, 1e-4
    shared = [
        Release(kind="approx-dp", epsilon=0.5, delta=1e-5, rate=rate, sample="s", times=2),
        Release(kind="approx-dp", epsilon=1.0, rate=rate, sample="s"),
    ]
    found = Composition(shared).epsilons([delta])[0].upper
    exact = oracles.product(shared)
    assert oracles.sampled_delta(exact, rate, found) <= delta * (1.0 + CLOSE)
    assert found <= math.log1p(rate * math.expm1(2.0)) * (1.0 + CLOSE)
    if few:
        assert oracles.sampled_delta(exact, rate, found * (1.0 - 1e-3)) >= delta
    own = Composition([replace(release, sample="") for release in shared]).epsilons([delta])[0].upper
    assert oracles.sampled_delta(exact, rate, own) > delta


def test_other_kinds_on_one_sample_count_by_their_guarantees() -> None:
    """A sum with Gaussian and a count with Laplace noise: above both of the joint outcome and of its guarantee."""
    rate, delta = 0.1, 1e-5
    shared = [
        Release(kind="gaussian", sigma=2.0, rate=rate, sample="s"),
        Release(kind="laplace", scale=2.0, rate=rate, sample="s"),
    ]
    found = Composition(shared).epsilons([delta])[0]
    assert found.lower == 0.0
    x = np.linspace(-16.0, 17.0, 3301)
    gaussian = [np.exp(-0.5 * ((x - j) / 2.0) ** 2) for j in (0.0, 1.0)]
    laplace = [np.exp(-np.abs(x - j) / 2.0) for j in (0.0, 1.0)]
    absent, present = (np.outer(p / p.sum(), q / q.sum()).ravel() for p, q in zip(gaussian, laplace, strict=True))
    assert oracles.sampled_delta((present, absent), rate, found.upper) <= delta
    assert Composition(shared).rho().upper >= 0.125
    assert Composition(shared).pure().upper == math.inf


@pytest.mark.parametrize("kind", ["zcdp", "exponential"])
def test_known_mechanisms_on_a_sample_are_below_the_bound_of_their_guarantee(kind: str) -> None:
    """Gaussian noise and randomized response are concentrated; a choice of two answers has bounded range."""
    rate, delta = 0.1, 1e-5
    if kind == "zcdp":
        release = Release(kind="zcdp", rho=0.125, rate=rate, times=2)
        exact = oracles.shared_sample_delta
        one = Composition([replace(release, times=1)]).epsilons([delta])[0].upper
        assert oracles.sampled_gaussian_delta(rate, 2.0, one) <= delta
        assert exact(rate, (2.0, 1e6), one) <= delta * (1.0 + 1e-4)
    else:
        release = Release(kind="exponential", epsilon=1.0, rate=rate)
        one = Composition([release]).epsilons([delta])[0].upper
        for seed in range(20):
            for pair in oracles.choices(Release(kind="exponential", epsilon=1.0), np.random.default_rng(seed)):
                assert oracles.sampled_delta(pair, rate, one) <= delta * (1.0 + CLOSE)
    amplified = Composition([release]).epsilons([delta])[0].upper
    assert amplified < 0.6 * Composition([replace(release, rate=1.0)]).epsilons([delta])[0].upper
    assert Composition([release]).rho().upper <= Composition([replace(release, rate=1.0)]).rho().upper * (1.0 + 1e-3)


@pytest.mark.parametrize(
    ("release", "loss"),
    [
        (Release(kind="approx-dp", epsilon=1.0, rate=1e-17), 1.0),
        (Release(kind="approx-dp", epsilon=1e-3, rate=1e-14), 1e-3),
        (Release(kind="approx-dp", epsilon=1e-15, rate=1e-3), 1e-15),
        (Release(kind="laplace", scale=1.0, rate=1e-17, sample="s"), 1.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("times", [1, 10**9])
def test_a_loss_below_the_rounding_of_its_probabilities_counts(release: Release, loss: float, times: int) -> None:
    """Randomized response of the same loss has q tanh(loss / 2) in one run, and about sqrt(2 times / pi) that in all.

    Laplace noise has 1 - e^(-loss / 2), which is more. Its runs on one sample have the advantage of at least one run.
    """
    one = float(release.rate) * math.tanh(0.5 * loss)
    exact = one if times == 1 or release.sample else one * math.sqrt(2.0 * times / math.pi)
    advantage = Composition([replace(release, times=times)]).advantage().upper
    assert exact * (1.0 - 1e-3) <= advantage <= 2e-14 * times


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_guarantee_on_a_sample_of_fixed_size_with_a_replaced_record(size: int) -> None:
    epsilon, records = 1.5, 8
    release = Release(kind="approx-dp", epsilon=epsilon, batch_size=size, records=records)
    for delta in (1e-3, 0.02):
        found = Composition([release]).epsilons([delta])[0].upper
        assert oracles.replaced_delta([0] * 8, [1] + [0] * 7, size, epsilon, found) <= delta * (1.0 + CLOSE)
    loss = Composition([release]).pure().upper
    assert loss == pytest.approx(math.log1p(size / records * math.expm1(epsilon)), rel=1e-9)
    revealing = replace(release, delta=1e-6)
    assert Composition([revealing]).epsilons([1e-6 * size / records])[0].upper == pytest.approx(loss, rel=1e-9)
    assert Composition([revealing]).epsilons([0.99e-6 * size / records])[0].upper == math.inf
    # the pair of the theorem: at epsilon 0 it has q times the advantage of the guarantee
    advantage = Composition([release]).advantage().upper
    assert advantage == pytest.approx(size / records * math.tanh(0.5 * epsilon), rel=1e-6)


@pytest.mark.parametrize(
    "extreme",
    [
        Release(kind="approx-dp", epsilon=1e-15, rate=1e-30),
        Release(kind="approx-dp", epsilon=1e6, delta=1.0, rate=0.5),
        Release(kind="approx-dp", epsilon=800.0, batch_size=3, records=9),
        Release(kind="zcdp", rho=1e-30, rate=1e-30, times=1000),
        Release(kind="zcdp", rho=1e12, rate=1e-3),
        Release(kind="exponential", epsilon=1e4, rate=1e-3, times=10),
        Release(kind="gdp", mu=1e-15, rate=1e-3),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_extremes_of_samples_have_bounds(extreme: Release) -> None:
    for release in (extreme, replace(extreme, sample="s")):
        composition = Composition([release])
        curve = composition.epsilons([1e-9, 1e-3])
        assert curve[0].upper >= curve[1].upper >= 0.0
        assert composition.pure().upper >= curve[0].upper * (1.0 - 1e-9)
        assert 0.0 <= composition.advantage().upper <= 1.0
        assert composition.rdp(2.0).upper >= 0.0
        assert isinstance(composition.rho(), accounting.Interval)
