"""Bounds of the number of right guesses against optimal attackers of finite mechanisms, exact sums and simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from dpspec.accounting import gaussian
from dpspec.stats.attacks import curve_lines
from dpspec.stats.several_targets import chance_of_right, mean_share, most_right, most_right_by_guessing

EPSILONS = (0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 5.0)


class Finite:
    """A mechanism of ``targets`` values below ``values``: their priors (m, k), and P[y | x] of shape (k, ..., k, y)."""

    def __init__(self, priors: np.ndarray, release: np.ndarray) -> None:
        self.priors, self.release = priors, release
        self.targets, self.values = priors.shape
        self.joint = (
            release * np.einsum(",".join("abc"[: self.targets]) + "->" + "abc"[: self.targets], *priors)[..., None]
        )

    def points(self) -> list[tuple[float, float]]:
        """The exact (epsilon, delta) of a change of one target."""
        worst = dict.fromkeys(EPSILONS, 0.0)
        for target in range(self.targets):
            by_value = np.moveaxis(self.release, target, 0)
            for one, other in itertools.permutations(by_value, 2):
                for epsilon in EPSILONS:
                    excess = np.maximum(0.0, one - math.exp(epsilon) * other).sum(axis=-1)
                    worst[epsilon] = max(worst[epsilon], float(excess.max()))
        return list(worst.items())

    def best_attack(self, right: int, near: int) -> float:
        """P[V >= right] of the best guesses, which are right up to a distance ``near``."""
        every = list(itertools.product(range(self.values), repeat=self.targets))
        chances = []
        for guess in every:
            hits = sum(
                (abs(np.indices(self.joint.shape[:-1])[i] - guess[i]) <= near).astype(int) for i in range(self.targets)
            )
            chances.append((self.joint * (hits >= right)[..., None]).reshape(-1, self.joint.shape[-1]).sum(axis=0))
        return float(np.max(chances, axis=0).sum())

    def baseline(self, near: int) -> float:
        guess, value = np.indices((self.values, self.values))
        return float((self.priors @ (abs(guess - value) <= near)).max())


def random_mechanism(generator: np.random.Generator) -> Finite:
    targets, values, outputs = generator.integers(2, 4), generator.integers(2, 5), generator.integers(2, 9)
    priors = generator.dirichlet(np.full(values, generator.choice([0.5, 2.0, 50.0])), size=targets)
    concentration = np.full(outputs, generator.choice([0.05, 0.3, 1.0, 10.0]))
    if generator.random() < 0.5:  # the sum of the values decides, or each combination of values alone
        of_sum = generator.dirichlet(concentration, size=targets * (values - 1) + 1)
        release = of_sum[np.indices((values,) * targets).sum(axis=0)]
    else:
        release = generator.dirichlet(concentration, size=(values,) * targets)
    return Finite(priors, release)


@pytest.mark.family
@pytest.mark.parametrize("near", [0, 1])
def test_no_attack_on_a_finite_mechanism_exceeds_the_bound(near: int) -> None:
    generator, closest, tested = np.random.default_rng(near), 0.0, 0
    for _ in range(120):
        mechanism = random_mechanism(generator)
        baseline = mechanism.baseline(near)
        if baseline > 0.999:
            continue
        points = mechanism.points()
        for right in range(1, mechanism.targets + 1):
            truth = mechanism.best_attack(right, near)
            bound = chance_of_right(points, mechanism.targets, right, baseline, exact=near == 0)
            assert truth <= bound * (1.0 + 1e-9), (mechanism.priors, right)
            closest, tested = max(closest, truth / bound if bound < 1.0 else 0.0), tested + (bound < 1.0)
    assert tested > 20
    assert closest > 0.9


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("values", [2, 5, 1000])
def test_randomized_response_attains_the_bound(epsilon: float, values: int) -> None:
    """The value remains with probability q = e^epsilon / (e^epsilon + k - 1): V is binomial."""
    q, targets = math.exp(epsilon) / (math.exp(epsilon) + values - 1), 40
    for right in (1, 5, 20, 40):
        truth = float(stats.binom.sf(right - 1, targets, q))
        assert chance_of_right([(epsilon, 0.0)], targets, right, 1.0 / values) == pytest.approx(truth, rel=1e-7)
    assert mean_share([(epsilon, 0.0)], 1.0 / values) == pytest.approx(q, rel=1e-8)


def linear_program(points: list[tuple[float, float]], targets: int, right: int, baseline: float) -> float:
    """The largest P[V >= right] that the sums over counts allow: an independent solver of the program of Theorem 61."""
    odds, m = baseline / (1.0 - baseline), targets
    counts, rows, limits = m + 1, [], []
    for line, (epsilon, delta) in enumerate(points):
        t = odds * math.exp(epsilon)
        for k in range(1, m + 1):  # k p_k - t (m - k + 1) p_(k - 1) <= slack
            row = np.zeros(counts + len(points) * m)
            row[k], row[k - 1], row[counts + line * m + k - 1] = k, -t * (m - k + 1), -1.0
            rows.append(row)
            limits.append(0.0)
        row = np.zeros(counts + len(points) * m)
        row[counts + line * m : counts + (line + 1) * m] = 1.0
        rows.append(row)
        limits.append(m * delta)
    objective, total = np.zeros(counts + len(points) * m), np.zeros((1, counts + len(points) * m))
    objective[right:counts], total[0, :counts] = -1.0, 1.0
    solution = optimize.linprog(objective, np.array(rows), limits, total, [1.0], method="highs")
    assert solution.status == 0
    return -float(solution.fun)


@pytest.mark.parametrize("baseline", [0.002, 0.1, 0.5, 0.8])
def test_the_bound_is_the_optimum_of_its_linear_program(baseline: float) -> None:
    curve = [(epsilon, float(gaussian.delta(np.array([epsilon]), 1.0)[0])) for epsilon in EPSILONS]
    for points in ([(1.0, 0.0)], [(1.0, 0.01)], curve):
        for right in (1, 3, 8, 12):
            truth = linear_program(points, 12, right, baseline)
            bound = chance_of_right(points, 12, right, baseline)
            assert truth <= bound * (1.0 + 1e-6) + 1e-9
            # of one line it is the optimum, of several it may stay above, and never above the best single one
            single = min(chance_of_right([point], 12, right, baseline) for point in points)
            assert bound <= (truth * (1.0 + 1e-5) + 1e-7 if len(points) == 1 else single * (1.0 + 1e-9))


@pytest.mark.parametrize("values", [2, 10])
def test_gaussian_noise_on_one_coordinate_of_each_value_stays_below(values: int) -> None:
    """30 targets, each the sum of its unit vector and noise 1: a replaced value moves the release by root of 2."""
    generator, targets, runs = np.random.default_rng(1), 30, 4000
    scores = generator.normal(size=(runs, targets, values))
    scores[:, :, 0] += 1.0
    right = (scores.argmax(axis=2) == 0).sum(axis=1)
    points = curve_lines.gaussian(math.sqrt(2.0))
    for count in range(1, targets + 1):
        bound = chance_of_right(points, targets, count, 1.0 / values)
        assert stats.binomtest(int((right >= count).sum()), runs, bound, alternative="greater").pvalue > 1e-9
    assert right.mean() / targets <= mean_share(points, 1.0 / values) + 0.02
    average = special.ndtr(1.0 / math.sqrt(2.0))
    if values == 2:  # the membership of one record: the mean share is attained
        assert mean_share(points, 0.5) == pytest.approx(average, rel=1e-6)


def test_the_numbers_of_right_guesses_are_the_smallest_with_the_level() -> None:
    points = [(1.0, 1e-5)]
    for baseline in (1e-6, 0.1, 0.5):
        for level in (0.5, 0.05, 1e-6):
            count = most_right(points, 100, level, baseline)
            assert chance_of_right(points, 100, min(100, count + 1), baseline) <= level or count == 100
            assert count == 0 or chance_of_right(points, 100, count, baseline) > level
            assert most_right_by_guessing(100, level, baseline) == stats.binom.isf(level * (1 + 1e-9), 100, baseline)


def test_without_privacy_and_with_wrong_arguments() -> None:
    assert chance_of_right([], 10, 10) == 1.0
    assert mean_share([]) == 1.0
    assert most_right([], 10, 0.05) == 10
    with pytest.raises(ValueError, match="right must be from 0"):
        chance_of_right([(1.0, 0.0)], 10, 11)
    with pytest.raises(ValueError, match="baseline"):
        chance_of_right([(1.0, 0.0)], 10, 5, 1.0)


def test_the_page_s_numbers() -> None:
    assert chance_of_right([(1.0, 1e-6)], 100, 90) == pytest.approx(2.8915e-5, rel=1e-4)
