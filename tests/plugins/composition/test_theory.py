"""Intervals of composed releases against enumeration, mpmath and explicit mechanisms; properties at extremes."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from plugins.composition import oracles
from scipy.special import softmax

from dpspec import accounting
from dpspec.accounting import Interval
from dpspec_composition.options import Release
from dpspec_composition.theory import Composition

#: Relative distance of an oracle in float64 from the exact value.
CLOSE = 1e-9


def contains(interval: Interval, delta: float, oracle: Callable[[float], float], width: float = 2e-4) -> None:
    """The oracle's epsilon at ``delta`` is in a narrow interval."""
    assert oracle(interval.upper) <= delta * (1.0 + CLOSE)
    if interval.lower > 0.0:
        assert oracle(interval.lower) >= delta * (1.0 - CLOSE)
    assert interval.width <= width * max(interval.upper, 1e-6)


def finite_releases(rng: np.random.Generator) -> list[Release]:
    """One to three runs with finitely many outcomes and a known pair."""
    releases = []
    for _ in range(int(rng.integers(1, 4))):
        if rng.random() < 0.5:
            answers = int(rng.integers(2, 12))
            releases.append(Release(kind="randomized-response", epsilon=10.0 ** rng.uniform(-2, 0.7), answers=answers))
        else:
            sigma, shift = rng.uniform(0.4, 4.0), float(rng.integers(1, 4))
            releases.append(Release(kind="discrete-gaussian", sigma=sigma, sensitivity=shift))
    return releases


def enumerated(rng: np.random.Generator) -> None:
    releases, delta = finite_releases(rng), 10.0 ** rng.uniform(-7, -1)
    composition = Composition(releases)
    # losses on grids that do not fit each other, with more combinations than are multiplied, widen the interval
    contains(composition.epsilons([delta])[0], delta, lambda e: oracles.composed_delta(releases, e), width=1e-2)
    advantage = oracles.composed_delta(releases, 0.0)
    interval = composition.advantage()
    assert interval.lower * (1.0 - CLOSE) <= advantage <= interval.upper * (1.0 + CLOSE)
    assert interval.relative_width <= 1e-2
    order = 1.0 + 10.0 ** rng.uniform(-2, 1.5)
    exact = math.fsum(oracles.divergence_of(release, order) for release in releases)
    found = composition.rdp(order)
    assert found.lower * (1.0 - CLOSE) <= exact <= found.upper * (1.0 + CLOSE)
    assert found.relative_width <= 1e-9


def randomized_response(rng: np.random.Generator) -> None:
    release = Release(
        kind="randomized-response",
        epsilon=10.0 ** rng.uniform(-3, 0.7),
        answers=int(rng.integers(2, 9)),
        times=int(rng.integers(1, 6)),
    )
    delta = 10.0 ** rng.uniform(-7, -1)
    contains(Composition([release]).epsilons([delta])[0], delta, lambda e: oracles.composed_delta([release], e))
    rho = Composition([release]).rho()
    pair = oracles.outcomes_of(release)
    best = release.times * oracles.largest_ratio(lambda a: oracles.divergence(pair, a))
    assert best * (1.0 - 2e-4) <= rho.upper
    assert rho.lower <= best * (1.0 + 2e-4)
    assert rho.relative_width <= 3e-4


def approximate(rng: np.random.Generator) -> None:
    release = Release(
        kind="approx-dp",
        epsilon=10.0 ** rng.uniform(-3, 0.7),
        delta=10.0 ** rng.uniform(-9, -2),
        times=int(rng.integers(1, 5)),
    )
    spent = -math.expm1(release.times * math.log1p(-release.delta))
    delta = spent + 10.0 ** rng.uniform(-7, -1)
    interval = Composition([release]).epsilons([delta])[0]
    assert interval.lower == 0.0
    assert oracles.composed_delta([release], interval.upper) <= delta * (1.0 + CLOSE)
    # the best bound for the class: the pair is itself (epsilon, delta)-DP
    if interval.upper > 0.0:
        assert oracles.composed_delta([release], interval.upper * (1.0 - 3e-4)) >= delta * (1.0 - CLOSE)


def gaussian(rng: np.random.Generator) -> None:
    releases = [
        Release(kind="gaussian", sigma=10.0 ** rng.uniform(-0.3, 3), sensitivity=10.0 ** rng.uniform(-1, 0.3), times=t)
        for t in rng.integers(1, 200, int(rng.integers(1, 4))).tolist()
    ]
    mu = math.sqrt(math.fsum(r.times * (r.sensitivity / r.sigma) ** 2 for r in releases))
    delta = 10.0 ** rng.uniform(-9, -1)
    composition = Composition(releases)
    contains(composition.epsilons([delta])[0], delta, lambda e: oracles.gaussian_delta(mu, e))
    assert composition.rho().lower <= 0.5 * mu * mu <= composition.rho().upper
    declared = [Release(kind="gdp", mu=r.sensitivity / r.sigma, times=r.times) for r in releases]
    upper = Composition(declared).epsilons([delta])[0]
    assert upper.lower == 0.0
    assert oracles.gaussian_delta(mu, upper.upper) <= delta * (1.0 + CLOSE)


def laplace(rng: np.random.Generator) -> None:
    release = Release(kind="laplace", scale=10.0 ** rng.uniform(-0.5, 3), sensitivity=10.0 ** rng.uniform(-1, 0.3))
    edge, delta = release.sensitivity / release.scale, 10.0 ** rng.uniform(-9, -1)
    contains(Composition([release]).epsilons([delta])[0], delta, lambda e: oracles.laplace_delta(edge, e))
    many = Composition([Release(kind="laplace", scale=release.scale, sensitivity=release.sensitivity, times=7)])
    assert many.pure().lower <= 7.0 * edge <= many.pure().upper


def sampled(rng: np.random.Generator) -> None:
    rate, sigma = 10.0 ** rng.uniform(-2.5, -0.2), 10.0 ** rng.uniform(-0.3, 0.7)
    composition = Composition([Release(kind="gaussian", sigma=sigma, rate=rate)])
    delta = 10.0 ** rng.uniform(-8, -2)
    contains(composition.epsilons([delta])[0], delta, lambda e: oracles.sampled_gaussian_delta(rate, sigma, e))


def exponential(rng: np.random.Generator) -> None:
    release = Release(kind="exponential", epsilon=10.0 ** rng.uniform(-2, 0.7), times=int(rng.integers(1, 5)))
    composition, delta = Composition([release]), 10.0 ** rng.uniform(-6, -1)
    upper = composition.epsilons([delta])[0].upper
    for _ in range(5):  # random scores of sensitivity 1, on two neighbors
        present, absent, actual, order = np.ones(1), np.ones(1), 0.0, 1.0 + 10.0 ** rng.uniform(-2, 1.5)
        for _ in range(release.times):
            scores, changes = rng.normal(0.0, 3.0, 4), rng.choice([rng.uniform(-1.0, 1.0, 4), [1.0, -1.0, 1.0, 1.0]])
            pair = softmax(0.5 * release.epsilon * (scores + changes)), softmax(0.5 * release.epsilon * scores)
            present, absent = np.outer(present, pair[0]).ravel(), np.outer(absent, pair[1]).ravel()
            actual += oracles.divergence(pair, order)
        assert np.maximum(present - math.exp(upper) * absent, 0.0).sum() <= delta * (1.0 + CLOSE)
        assert np.maximum(present - absent, 0.0).sum() <= composition.advantage().upper * (1.0 + CLOSE)
        assert actual <= composition.rdp(order).upper * (1.0 + CLOSE)
    alone = accounting.PrivacyLoss.of(accounting.bounded_range(release.epsilon).above())
    at = float(rng.uniform(0.0, 0.98)) * release.epsilon
    brute = oracles.bounded_range_delta(release.epsilon, at)
    assert brute * (1.0 - CLOSE) <= alone.delta(at).upper <= brute * 1.01
    exact = oracles.bounded_range_divergence(release.epsilon, order)
    assert float(accounting.bounded_range_rdp(order, release.epsilon)[0]) == pytest.approx(exact, rel=1e-8)


def concentrated(rng: np.random.Generator) -> None:
    rho, delta = 10.0 ** rng.uniform(-5, 1), 10.0 ** rng.uniform(-9, -2)
    parts = rng.dirichlet([1.0, 1.0]) * rho
    upper = Composition([Release(kind="zcdp", rho=float(part)) for part in parts]).epsilons([delta])[0].upper
    assert oracles.concentrated_delta(rho, upper) <= delta * (1.0 + 1e-8)
    if upper > 1e-3:  # else delta above the total variation distance
        assert oracles.concentrated_delta(rho, upper * (1.0 - 1e-4)) >= delta or upper < 2.0 * math.sqrt(rho)
    # a Gaussian and a randomized response of this rho, beside a known release
    known = Release(kind="gaussian", sigma=10.0 ** rng.uniform(-0.3, 1))
    mixed = Composition([Release(kind="zcdp", rho=rho), known]).epsilons([delta])[0]
    mu = math.sqrt(2.0 * rho + known.sigma**-2)
    assert oracles.gaussian_delta(mu, mixed.upper) <= delta * (1.0 + CLOSE)
    assert mixed.lower * (1.0 - CLOSE) <= Composition([known]).epsilons([delta])[0].upper


def discrete_gaussian(rng: np.random.Generator) -> None:
    release = Release(
        kind="discrete-gaussian",
        sigma=10.0 ** rng.uniform(-0.7, 1.3),
        sensitivity=float(rng.integers(1, 6)),
        times=int(rng.integers(1, 3)),
    )
    delta, composition = 10.0 ** rng.uniform(-7, -1), Composition([release])
    contains(composition.epsilons([delta])[0], delta, lambda e: oracles.composed_delta([release], e))
    rho = 0.5 * release.times * (release.sensitivity / release.sigma) ** 2
    assert composition.rho().lower <= rho <= composition.rho().upper
    order = 1.0 + 10.0 ** rng.uniform(-2, 1.0)
    exact, found = release.times * oracles.divergence_of(release, order), composition.rdp(order)
    assert found.lower * (1.0 - CLOSE) <= exact <= found.upper * (1.0 + CLOSE)


KINDS = (
    *(enumerated, randomized_response, approximate, gaussian, laplace),
    *(sampled, exponential, concentrated, discrete_gaussian),
)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("check", KINDS, ids=lambda check: check.__name__)
def test_random_settings(check: Callable[[np.random.Generator], None], seed: int) -> None:
    check(np.random.default_rng(seed))


EXTREMES = {
    "noise 1e-8": Release(kind="gaussian", sigma=1e-8),
    "noise 1e8": Release(kind="gaussian", sigma=1e8, times=10**6),
    "laplace 1e-8": Release(kind="laplace", scale=1e-8, times=10),
    "laplace 1e8": Release(kind="laplace", scale=1e8, times=10**6),
    "integers 1e-8": Release(kind="discrete-gaussian", sigma=1e-8, times=3),
    "integers 0.02": Release(kind="discrete-gaussian", sigma=0.02, times=3),
    "integers 1e8": Release(kind="discrete-gaussian", sigma=1e8, times=10**6),
    "integers far": Release(kind="discrete-gaussian", sigma=1.0, sensitivity=1e6),
    "answer 1e4": Release(kind="randomized-response", epsilon=1e4),
    "choice 1e4": Release(kind="exponential", epsilon=1e4, times=10),
    "pure 1e4": Release(kind="approx-dp", epsilon=1e4, times=3),
    "delta 1": Release(kind="approx-dp", epsilon=1.0, delta=1.0),
    "delta 1e-300": Release(kind="approx-dp", epsilon=1.0, delta=1e-300, times=10**6),
    "rho 1e-30": Release(kind="zcdp", rho=1e-30, times=10**6),
    "rho 1e12": Release(kind="zcdp", rho=1e12),
    "mu 1e-15": Release(kind="gdp", mu=1e-15, times=10**6),
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.filterwarnings("error")
def test_extremes_have_ordered_intervals(name: str) -> None:
    release = EXTREMES[name]
    composition = Composition([release])
    curve = composition.epsilons([1e-12, 1e-6, 0.1])
    assert curve[0].upper >= curve[1].upper >= curve[2].upper
    assert curve[0].lower >= curve[2].lower * (1.0 - 1e-3)
    assert 0.0 <= composition.advantage().upper <= 1.0
    assert composition.tpr(0.01).upper >= 0.01
    pure, order, rho = composition.pure(), composition.rdp(2.0), composition.rho()
    assert pure.upper >= curve[0].upper * (1.0 - 1e-9)
    if math.isfinite(rho.upper):
        assert order.lower <= 2.0 * rho.upper * (1.0 + 1e-9)
        assert rho.lower * 2.0 <= max(order.upper, pure.upper) * 2.0


def test_both_descriptions_of_a_discrete_gaussian_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpspec.accounting import responses

    listed = [accounting.PrivacyLoss.of(pair).compose(400) for pair in accounting.discrete_gaussian(40.0, 2) if pair]
    monkeypatch.setattr(responses, "_WIDE", 20.0)
    smooth = [accounting.PrivacyLoss.of(pair).compose(400) for pair in accounting.discrete_gaussian(40.0, 2) if pair]
    for delta in (1e-3, 1e-9):
        low, high = smooth[1].epsilon(delta).lower, smooth[0].epsilon(delta).upper
        assert low <= listed[0].epsilon(delta).upper
        assert listed[1].epsilon(delta).lower <= high
        assert high - low <= 6e-3 * high


def test_a_group_of_answers_is_as_many_answers() -> None:
    group = Composition([Release(kind="randomized-response", epsilon=0.3, times=2)], 3).epsilons([1e-4])[0]
    answers = Release(kind="randomized-response", epsilon=0.3, times=6)
    contains(group, 1e-4, lambda e: oracles.composed_delta([answers], e))


def test_a_guarantee_beside_a_known_release_keeps_its_lower_end() -> None:
    known = Release(kind="laplace", scale=2.0, times=5)
    both = Composition([known, Release(kind="approx-dp", epsilon=0.1, delta=1e-9)]).epsilons([1e-5])[0]
    alone = Composition([known]).epsilons([1e-5])[0]
    assert both.lower == alone.lower
    assert both.upper > alone.upper
    assert Composition([Release(kind="approx-dp", epsilon=0.1, delta=1e-9)]).rdp(2.0).upper == math.inf


def test_a_bound_that_is_not_convex_is_dominated() -> None:
    losses = np.linspace(0.0, 4.0, 41)
    bound = np.where(losses < 1.0, -1.0, np.where(losses < 3.0, -1.5, -6.0))
    pair = accounting.ResponseMixture.from_profile(lambda x: bound, losses).above()
    assert np.array_equal(np.sort(pair.present), np.sort(pair.absent))
    rng, tried = np.random.default_rng(0), 0
    for _ in range(4000):  # members of the class of pairs below the bound
        loss, delta = rng.uniform(0.0, 4.0), 10.0 ** rng.uniform(-4, -1)
        release = [Release(kind="approx-dp", epsilon=loss, delta=delta)]
        if all(oracles.composed_delta(release, e) <= math.exp(b) for e, b in zip(losses[::4], bound[::4], strict=True)):
            for e in (-1.0, 0.03, 0.5, 1.7):
                tried += 1
                above = math.exp(pair.log_delta_bounds(e, "present-first")[1])
                assert oracles.composed_delta(release, e) <= above * (1.0 + CLOSE)
    assert tried > 500


@pytest.mark.parametrize(
    ("sigma", "batch_size", "records", "k", "epsilon"),
    [(1.0, 5, 50, 1, 5.28327351), (2.0, 30, 100, 3, 8.58535982), (0.7, 1, 9, 2, 11.40437639)],
)
def test_a_sample_of_fixed_size_has_the_epsilon_of_a_quadrature(sigma, batch_size, records, k, epsilon):
    """Each drawn member of the group moves the sum by 2."""
    composition = Composition([Release(kind="gaussian", sigma=sigma, batch_size=batch_size, records=records)], k)
    (interval,) = composition.epsilons([1e-4])
    assert interval.lower * (1.0 - 1e-6) <= epsilon <= interval.upper * (1.0 + 1e-6)
    assert interval.relative_width < 1e-3
    assert composition.rho().upper >= 0.5 * (2.0 * min(k, batch_size) / sigma) ** 2 * (1.0 - 1e-9)
