"""Truncated Poisson batches: against enumeration of all batches, closed forms at the ends, and dp-accounting 0.6."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, norm
from support.accounting_oracle import one_step_delta

from dpspec.accounting import Mixture, PrivacyLoss, Revealed, TruncatedPoisson, displacement_pair
from dpspec.accounting.numerics import DIRECTIONS, Direction
from dpspec.accounting.truncated_poisson import binomial_tail


def batches(records: int, rate: float, cap: int) -> dict[frozenset[int], float]:
    chances: dict[frozenset[int], float] = {}
    for size in range(records + 1):
        for entered in itertools.combinations(range(records), size):
            chance = rate**size * (1.0 - rate) ** (records - size)
            kept = list(itertools.combinations(entered, min(size, cap)))
            for batch in kept:
                chances[frozenset(batch)] = chances.get(frozenset(batch), 0.0) + chance / len(kept)
    return chances


def brute_delta(
    with_group: list[float], group: int, rate: float, cap: int, sigma: float, epsilon: float
) -> list[float]:
    """delta(epsilon) of one step, present-first and absent-first, by summing over a grid; error below 1e-6."""
    x = np.linspace(-12.0 * sigma - 6.0, 12.0 * sigma + 6.0, 6001)

    def density(values: list[float]) -> np.ndarray:
        drawn = batches(len(values), rate, cap).items()
        return np.asarray(sum(p * norm.pdf(x, sum(values[i] for i in batch), sigma) for batch, p in drawn))

    present, absent = density(with_group), density(with_group[group:])
    step = x[1] - x[0]
    pairs = ((present, absent), (absent, present))
    return [float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * step) for p, q in pairs]


@pytest.mark.parametrize(("n", "rate", "least"), [(40, 0.3, 5), (60000, 256 / 60000, 400), (10**9, 1e-3, 1005000)])
def test_the_tail_keeps_its_accuracy(n: int, rate: float, least: int) -> None:
    with mpmath.workdps(40):
        q = mpmath.mpf(rate)
        term = mpmath.exp(
            mpmath.loggamma(n + 1)
            - mpmath.loggamma(least + 1)
            - mpmath.loggamma(n - least + 1)
            + least * mpmath.log(q)
            + (n - least) * mpmath.log1p(-q)
        )
        total, count = mpmath.mpf(0), least
        while count <= n and (count <= n * rate or term > total * mpmath.mpf(10) ** -20):
            total += term
            term *= mpmath.mpf(n - count) / (count + 1) * q / (1 - q)
            count += 1
        assert abs(binomial_tail(n, rate, least) / total - 1) < 1e-11


@pytest.mark.parametrize(
    ("n", "k", "rate", "cap"),
    [(4, 1, 0.4, 2), (4, 2, 0.4, 2), (3, 3, 0.7, 2), (5, 2, 0.2, 6), (4, 2, 1.0, 3), (3, 2, 0.5, 4)],
)
def test_how_many_members_are_kept(n: int, k: int, rate: float, cap: int) -> None:
    law = batches(n + k, rate, cap)
    exact = [sum(p for batch, p in law.items() if sum(i < k for i in batch) == a) for a in range(k + 1)]
    kept = TruncatedPoisson(k, rate, cap, n, 1.0).kept()
    if cap <= n:
        assert kept == pytest.approx(exact, abs=1e-12)
    else:  # only what is told from others is counted
        assert np.all(np.cumsum(kept[::-1]) <= np.cumsum(exact[::-1]) + 1e-12)


@pytest.mark.family
@pytest.mark.parametrize(
    ("group", "fewest", "n", "sigma", "rate", "cap"),
    [
        *((g, 0, 3, *setting) for g in (1, 2) for setting in ((0.5, 0.4, 1), (0.8, 0.6, 2), (2.0, 0.5, 1))),
        *((g, 0, 3, *setting) for g in (1, 2) for setting in ((1.0, 0.9, 2), (0.7, 0.3, 3))),
        (1, 4, 4, 1.0, 0.6, 1),
        (1, 3, 4, 1.0, 0.9, 2),
        (2, 3, 4, 1.0, 0.8, 2),
        (1, 4, 4, 1.0, 0.8, 3),
        (2, 4, 4, 1.0, 0.7, 1),
    ],
)
def test_no_data_leaks_more_than_the_bound(group, fewest, n, sigma, rate, cap):
    """All batches of ``fewest`` to n others and the group, for any gradients; zeros attain the lower end.

    The bound of datasets of at least ``fewest`` records is below the one of any.
    """
    rng = np.random.default_rng(round(1000 * sigma) + cap)
    step, plain = TruncatedPoisson(group, rate, cap, n, sigma, fewest), TruncatedPoisson(group, rate, cap, n, sigma)
    above = step.above()
    assert isinstance(above, Revealed) or not fewest
    for epsilon in (-0.2, 0.0, 0.3, 1.0):
        most = np.exp([above.log_delta_bounds(epsilon, side)[1] for side in DIRECTIONS])
        loose = np.exp([plain.above().log_delta_bounds(epsilon, side)[1] for side in DIRECTIONS])
        least = np.exp([step.attained().log_delta_bounds(epsilon, side)[0] for side in DIRECTIONS])
        assert np.all(most <= loose * (1.0 + 1e-9))
        assert np.all(least <= most + 1e-12)
        assert not fewest or epsilon < 0.0 or most[0] < loose[0]
        for count in {fewest or n, n}:
            others = [[-1.0] * count, [0.0] * count, *rng.uniform(-1.0, 1.0, (2, count)).tolist()]
            for values in others:
                found = brute_delta([1.0] * group + values, group, rate, cap, sigma, epsilon)
                assert np.all(np.array(found) <= most + 1e-6), (values, epsilon)
                if not any(values) and cap <= n == count:
                    assert found == pytest.approx(least, abs=1e-6)


@pytest.mark.parametrize(
    ("n", "k", "rate", "cap"), [(4, 1, 0.4, 2), (4, 2, 0.4, 2), (5, 2, 0.7, 3), (4, 2, 0.9, 1), (6, 1, 0.5, 1)]
)
def test_how_many_members_are_kept_in_full_batches(n: int, k: int, rate: float, cap: int) -> None:
    """By enumeration of the drawn members: equal for one member, and never below the truth for two."""
    joint, full = np.zeros(k + 1), 0.0
    for entered in itertools.product([False, True], repeat=n + k):
        others, members = sum(entered[k:]), sum(entered[:k])
        if others < cap:
            continue
        chance = rate ** (others + members) * (1.0 - rate) ** (n + k - others - members)
        full += chance
        for a in range(members + 1):
            ways = math.comb(members, a) * math.comb(others, cap - a) if a <= cap else 0
            joint[a] += chance * ways / math.comb(others + members, cap)
    exact = np.cumsum(joint[::-1])[::-1][1:] / full
    found = TruncatedPoisson(k, rate, cap, n, 1.0, n).tails_when_full()
    assert np.all(found >= exact)
    if k == 1:
        assert found == pytest.approx(exact, rel=1e-8)


def test_revealing_full_batches_lowers_the_bound_where_a_cap_often_binds() -> None:
    """dp-accounting 0.6 has 2.53752 on a grid of 1e-4 for the first; 2.5591 and 51.68 without the case."""
    for rate, cap, n, most in ((256 / 60000, 300, 60000, 2.532), (0.25, 50, 200, 47.85)):
        steps = 1000 if n == 60000 else 100
        found = PrivacyLoss.of(TruncatedPoisson(1, rate, cap, n, 1.0, n - 1).above()).compose(steps).epsilon(1e-5)
        assert found.upper <= most
        assert found.relative_width <= 2e-4


def test_displaced_records_leak_more_than_poisson_batches_do() -> None:
    """The control: without the second case the bound would be false."""
    (found, _) = brute_delta([1.0, -1.0, -1.0, -1.0], 1, 0.97, 3, 1.0, 1.0)
    assert found > math.exp(Mixture.poisson(1, 0.97, 1.0).log_delta_bounds(1.0, "present-first")[1]) + 0.1


@pytest.mark.ci
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("epsilon", [-0.1, 0.0, 0.7, 2.5])
def test_the_revealed_pair_is_the_weighted_sum_of_its_cases(direction: Direction, epsilon: float) -> None:
    cases = [(0.8, Mixture.poisson(2, 0.3, 1.0)), (0.2, Mixture([0.0, 2.0], [0.7, 0.3], 1.0))]

    def excess(x: float, pair: Mixture) -> float:
        absent = norm.pdf(x)
        present = sum(p * norm.pdf(x, c) for c, p in zip(pair.sensitivities, pair.probabilities, strict=True))
        first, second = (present, absent) if direction == "present-first" else (absent, present)
        return max(first - math.exp(epsilon) * second, 0.0)

    exact = sum(w * quad(excess, -12.0, 14.0, (pair,), limit=400, epsabs=1e-12)[0] for w, pair in cases)
    step = PrivacyLoss.of(Revealed(cases), direction)
    assert exact == pytest.approx(step.delta(epsilon).upper, abs=1e-9)


@pytest.mark.ci
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_several_epsilons_at_once_have_the_profile_of_each(direction: Direction) -> None:
    pair = Revealed([(0.8, Mixture.poisson(2, 0.3, 1.0)), (0.2, Mixture([0.0, 2.0], [0.7, 0.3], 1.0))])
    epsilons = [-0.3, 0.0, 0.4, 3.0]
    for epsilon, bounds in zip(epsilons, pair.all_log_delta_bounds(epsilons, direction), strict=True):
        exact = mpmath.fsum(weight * one_step_delta(case, epsilon, direction) for weight, case in pair.cases)
        assert math.exp(bounds[0]) <= exact * (1 + 1e-12)
        assert exact * (1 - 1e-12) <= math.exp(bounds[1])
        assert math.exp(bounds[1]) - math.exp(bounds[0]) <= 1e-9


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_steps_are_composed_case_by_case(direction: Direction) -> None:
    cases = [(0.8, Mixture.poisson(2, 0.3, 1.0)), (0.2, Mixture([0.0, 2.0], [0.7, 0.3], 1.0))]
    both = PrivacyLoss.of(Revealed(cases), direction).compose(2).delta(0.5, width=1e-3)
    parts = [
        (v * w, PrivacyLoss(((one, 1), (other, 1)), direction).delta(0.5, width=1e-3))
        for (v, one), (w, other) in itertools.product(cases, cases)
    ]
    assert both.lower <= sum(weight * part.upper for weight, part in parts)
    assert both.upper >= sum(weight * part.lower for weight, part in parts)
    assert both.width <= 2e-3 * both.upper


def test_a_cap_that_is_never_reached_changes_nothing() -> None:
    step, plain = TruncatedPoisson(3, 0.2, 12, 9, 1.0), Mixture.poisson(3, 0.2, 1.0)
    assert step.displacing == 0.0
    assert step.above().key == plain.key
    assert step.attained().probabilities == pytest.approx(plain.probabilities, rel=1e-8)


def test_everybody_enters_and_a_subset_is_kept() -> None:
    """At rate 1 batches have a fixed size: zeros attain the lower end, and replacement gives the upper bound."""
    step = TruncatedPoisson(1, 1.0, 5, 20, 1.0)
    assert step.kept()[1] == pytest.approx(5 / 21, rel=1e-12)
    assert step.above().effect == 2.0
    assert TruncatedPoisson(1, 1.0, 40, 20, 1.0).above().effect == 1.0


#: (rate, cap, other records, sigma, steps, delta): epsilon by dp-accounting 0.6, TruncatedSubsampledGaussianDpEvent of
#: one record more, on a grid of 1e-4. It takes replacement in full batches, and so bounds from above what we bound.
PEER = {
    (0.01, 1200, 100000, 1.0, 2000, 1e-6): 2.955260910708148,
    (256 / 60000, 300, 59999, 1.0, 2000, 1e-5): 2.95999992619284,
    (0.3, 350, 999, 2.0, 100, 1e-5): 7.959448465055524,
    (0.5, 450, 999, 4.0, 50, 1e-5): 17.347464853192573,
}


@pytest.mark.family
@pytest.mark.parametrize(
    "setting", [pytest.param(one, marks=[pytest.mark.slow] * (i == 0)) for i, one in enumerate(PEER)]
)
def test_against_dp_accounting(setting: tuple[float, int, int, float, int, float]) -> None:
    rate, cap, others, sigma, steps, delta = setting
    step = TruncatedPoisson(1, rate, cap, others, sigma)
    above = PrivacyLoss.of(step.above()).compose(steps).epsilon(delta)
    attained = PrivacyLoss.of(step.attained()).compose(steps).epsilon(delta)
    theirs = PEER[setting]
    assert attained.lower <= theirs
    # its second rate knows that drawn records may be left out: it may be below ours by that factor, and is above anyway
    assert above.upper <= theirs * 1.01
    if steps * step.displacing < delta:
        assert above.lower - 2e-4 <= theirs <= above.upper + 2e-4


GRADIENTS = (-1.0, 0.0, 1.0)


def densities(x: np.ndarray, n: int, k: int, rate: float, cap: int, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Densities of a step with the group and without, (all gradients in -1, 0, 1; x), by summing over all batches."""
    gradients = np.array(list(itertools.product(GRADIENTS, repeat=n + k)))
    values = np.arange(-cap, cap + 1.0)
    shapes = norm.pdf(x, values[:, None], sigma)
    found = []
    for members in (gradients, gradients[:, k:]):
        weights = np.zeros((len(gradients), len(values)))
        for batch, probability in batches(members.shape[1], rate, cap).items():
            sums = members[:, sorted(batch)].sum(axis=1)
            weights[np.arange(len(gradients)), np.rint(sums).astype(int) + cap] += probability
        found.append(weights @ shapes)
    return found[0], found[1]


def check_setting(seed: int, *, two_steps: bool) -> int:
    """One random setting: no gradients leak more than a routed pair or Theorem 4b's or 4c's, for one step and two.

    Returns the number of comparisons.
    """
    rng = np.random.default_rng(seed)
    k, cap = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    k = min(k, cap)
    n = int(rng.integers(cap, max(cap, 6 - k) + 1))
    rate, sigma = float(rng.uniform(0.05, 0.95)), float(rng.choice([0.4, 0.7, 1.0, 2.0]))
    step, comparisons = TruncatedPoisson(k, rate, cap, n, sigma), 0
    x = np.linspace(-cap - 9.0 * sigma, cap + 9.0 * sigma, 4001)
    width, within = float(x[1] - x[0]), 0.2 * (float(x[1] - x[0]) / sigma) ** 2
    present, absent = densities(x, n, k, rate, cap, sigma)
    shares = (0.05, 0.5, float(rng.uniform(0.01, 0.99)), 0.999)
    routed = [*(step.routed(share) for share in shares), displacement_pair(step)]
    assert all(pair is not None for pair in routed)
    for side in DIRECTIONS:
        first, second = (present, absent) if side == "present-first" else (absent, present)
        for epsilon in (-0.3, 0.0, 0.4, 1.5, 3.0):
            leaks = np.maximum(first - math.exp(epsilon) * second, 0.0).sum(axis=1) * width
            worst = np.argsort(leaks)[-6:]
            for pair in routed:
                assert pair is not None
                assert leaks.max() <= math.exp(pair.log_delta_bounds(epsilon, side)[1]) + within, (seed, side, epsilon)
                comparisons += len(leaks)
            for a in worst[-2:] if two_steps and epsilon in (0.4, 3.0) else ():
                pairs = [values[[a, worst[-1]], ::10] for values in (first, second)]
                both = np.outer(*pairs[0]) - math.exp(epsilon) * np.outer(*pairs[1])
                least = float(np.maximum(both, 0.0).sum()) * 100.0 * width * width
                for pair in (*routed[1:3], routed[-1]):
                    assert pair is not None
                    found = PrivacyLoss.of(pair, side).compose(2).delta(epsilon, width=1e-3)
                    assert least <= found.upper + 200.0 * within, (seed, side, epsilon)
                    comparisons += 1
    return comparisons


@pytest.mark.family
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_gradients_leak_more_than_a_routed_pair(seed: int) -> None:
    assert check_setting(seed, two_steps=seed == 2) > 100


@pytest.mark.ci
def test_no_gradients_leak_more_than_a_routed_pair_in_30_settings() -> None:
    assert sum(check_setting(seed, two_steps=seed % 4 == 0) for seed in range(100, 130)) > 20_000


@pytest.mark.parametrize(
    ("n", "k", "rate", "cap", "sigma", "angle"),
    [(4, 1, 0.5, 2, 1.0, 0.0), (4, 2, 0.4, 2, 0.8, 0.3), (5, 1, 0.8, 3, 0.6, 0.5 * math.pi), (3, 3, 0.3, 3, 1.5, 0.7)],
)
def test_what_others_reveal_about_full_batches(n, k, rate, cap, sigma, angle):
    """By quadrature over the sums of all batches: never above the exact delta, and less than 2 % below it."""
    found = TruncatedPoisson(k, rate, cap, n, sigma).revealing(angle)
    assert found is not None
    x = np.linspace(-8.0 * sigma - cap, 8.0 * sigma + cap, 501)
    step = float(x[1] - x[0])

    def density(members: int) -> np.ndarray:
        total = np.zeros((len(x), len(x)))
        for batch, probability in batches(members + n, rate, cap).items():
            i = sum(record < members for record in batch)
            mean = (len(batch) - i - i * math.sin(angle), i * math.cos(angle))
            total += probability * np.outer(norm.pdf(x, mean[0], sigma), norm.pdf(x, mean[1], sigma))
        return total

    pair = density(k), density(0)
    for side, (first, second) in zip(DIRECTIONS, (pair, pair[::-1]), strict=True):
        for epsilon in (0.0, 0.5):
            exact = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum()) * step * step
            lower, upper = np.exp(found.log_delta_bounds(epsilon, side))
            assert lower <= exact + 1e-5
            assert upper >= 0.98 * exact - 2e-4


@pytest.mark.parametrize(
    ("n", "k", "rate", "cap"),
    [(6, 1, 0.4, 3), (5, 2, 0.7, 2), (7, 3, 0.5, 3), (400, 2, 0.1, 50), (20000, 1, 0.02, 460)],
)
def test_the_cases_of_a_routed_pair_are_the_sizes_of_batches(n: int, k: int, rate: float, cap: int) -> None:
    """Their weights without the group are binomial, and with it a member is as often in a batch as enumerated."""
    step = TruncatedPoisson(k, rate, cap, n, 1.0)
    pair = step.routed(1.0 - 1e-12)
    assert pair is not None
    weights = [weight for weight, _ in pair.cases]
    sizes = [*binom.pmf(np.arange(cap - 1, cap - k - 1, -1), n, rate)]
    expected = [binom.cdf(cap - k - 1, n, rate), binom.sf(cap - 1, n, rate), *sizes]
    assert weights == pytest.approx([weight for weight in expected if weight > 0.0], rel=4e-9)
    members = [float(mixture.sensitivities @ mixture.probabilities) for _, mixture in pair.cases]
    mean = sum(weight * members for weight, members in zip(pair.present, members, strict=True))
    assert mean == pytest.approx(float(np.arange(k + 1) @ step.kept()), rel=1e-7)


@pytest.mark.family
@pytest.mark.parametrize(
    "step",
    [
        TruncatedPoisson(1, 1.0, 5, 20, 1.0),
        TruncatedPoisson(2, 0.9, 10, 3000, 0.8),
        TruncatedPoisson(2, 1.0, 2, 9, 1.0),
    ],
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_caps_that_always_bind_are_fixed_batches(step: TruncatedPoisson, direction: Direction) -> None:
    """Both ends are the pair of fixed batches, at rate 1 and at rates at which no batch is smaller."""
    fixed = Mixture.fixed(step.group_size, step.n, step.cap, step.noise_multiplier)
    exact = PrivacyLoss.of(fixed, direction).compose(3).delta(0.3, width=1e-3)
    above, below = step.routed(0.5), step.revealing(0.5 * math.pi)
    assert above is not None
    assert below is not None
    assert PrivacyLoss.of(above, direction).compose(3).delta(0.3, width=1e-3).upper == pytest.approx(
        exact.upper, rel=2e-3
    )
    found = PrivacyLoss.of(below, direction).compose(3).delta(0.3, width=1e-3).lower
    assert 0.99 * exact.lower <= found <= exact.upper


@pytest.mark.parametrize(
    "step",
    [
        TruncatedPoisson(1, 1e-6, 900, 1000, 1.0),
        TruncatedPoisson(3, 0.5, 2, 10, 1.0),
        TruncatedPoisson(1, 0.5, 10, 5, 1.0),
        TruncatedPoisson(1, 0.5, 5 * 10**8, 10**9, 1.0),
    ],
)
def test_caps_out_of_range_have_no_routed_pair(step: TruncatedPoisson) -> None:
    assert step.routed(0.5) is None
    assert step.revealing(0.0) is None


def test_a_rare_gaussian_case_is_composed_over_many_steps() -> None:
    """On the grid of the other case, the first outputs moved each step by up to a grid step: no bound remained."""
    step = Revealed([(1.0 - 2e-7, Mixture.poisson(1, 0.005, 1.0)), (2e-7, Mixture.full(1, 1.0))])
    found = PrivacyLoss.of(step).compose(100_000).epsilon(1e-5, width=1e-3)
    plain = PrivacyLoss.of(Mixture.poisson(1, 0.005, 1.0)).compose(100_000).epsilon(1e-5, width=1e-3)
    assert plain.lower <= found.upper <= 1.05 * plain.upper
    assert found.relative_width <= 1e-3
