"""The suite for attack methods: valid p-values and lower bounds under laws whose privacy is known exactly."""

from __future__ import annotations

import itertools
import math
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from dpspec.contract import FrozenMap, Json
from dpspec.contract.attacks import AttackMethod, EvidenceTest
from dpspec.testing.provider import ProviderSuite, impurities, require

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

Points: TypeAlias = tuple[tuple[float, float], ...]

#: Levels at which the share of rejections is compared, and the error probability of each comparison. The smallest
#: ones need the p-values of all laws together.
_LEVELS = (0.5, 0.2, 0.05, 0.01, 0.001)
_ERROR = 1e-7

#: Laws under which :meth:`AttackMethodSuite.weakest_passing` measures what would pass.
_SHOWN = ("randomized response of epsilon 1", "bits leaked with chance 0.05, epsilon 1", "Gaussian noise, mu 2")

#: Confidence of the lower bounds whose coverage is measured.
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class NullLaw:
    """Releases with exactly known privacy: scores (n,) for inclusion bits (n,), and the points that they satisfy."""

    name: str
    scores: Callable[[np.random.Generator, Array], Array]
    points: Points


def null_laws() -> tuple[NullLaw, ...]:
    """Twelve laws: none, randomized response, Laplace and Gaussian noise, leaked bits, ties, and sampled noise."""
    import numpy as np

    from dpspec.accounting import Mixture, PrivacyLoss
    from dpspec.stats.attacks.curve_lines import gaussian

    def response(epsilon: float) -> NullLaw:
        def scores(rng: np.random.Generator, coins: Array) -> Array:
            right = rng.random(len(coins)) < 1.0 / (1.0 + math.exp(-epsilon))
            return np.where(right, coins, 1 - coins) + 1e-6 * rng.random(len(coins))

        return NullLaw(f"randomized response of epsilon {epsilon:g}", scores, ((epsilon, 0.0),))

    def laplace(shift: float) -> NullLaw:
        deltas = (0.0, 0.01, 0.1)
        points = tuple((max(0.0, shift + 2.0 * math.log1p(-delta)), delta) for delta in deltas)
        return NullLaw(f"Laplace noise, shift {shift:g}", lambda rng, c: shift * c + rng.laplace(size=len(c)), points)

    def normal(mu: float) -> NullLaw:
        return NullLaw(f"Gaussian noise, mu {mu:g}", lambda rng, c: mu * c + rng.normal(size=len(c)), gaussian(mu))

    def leak(share: float, epsilon: float) -> NullLaw:
        of_response = response(epsilon).scores

        def scores(rng: np.random.Generator, coins: Array) -> Array:
            leaked = rng.random(len(coins)) < share
            return np.where(leaked, 20.0 * (coins - 0.5), of_response(rng, coins))

        return NullLaw(f"bits leaked with chance {share:g}, epsilon {epsilon:g}", scores, ((epsilon, share),))

    def sampled(rng: np.random.Generator, coins: Array) -> Array:
        return 2.0 * coins * (rng.random(len(coins)) < 0.3) + rng.normal(size=len(coins))

    loss = PrivacyLoss(((Mixture([0.0, 2.0], [0.7, 0.3], 1.0), 1),))
    of_sampled = tuple((loss.epsilon(delta).upper, delta) for delta in (1e-4, 1e-2, 0.1))
    return (
        NullLaw("no information", lambda rng, c: rng.random(len(c)), ((0.0, 0.0),)),
        NullLaw("equal scores", lambda rng, c: np.zeros(len(c)), ((0.0, 0.0),)),
        *(response(epsilon) for epsilon in (0.5, 1.0, 3.0)),
        *(laplace(shift) for shift in (0.5, 2.0)),
        *(normal(mu) for mu in (0.5, 2.0)),
        *(leak(*pair) for pair in ((0.1, 0.0), (0.05, 1.0))),
        NullLaw("noise that a record meets with chance 0.3", sampled, of_sampled),
    )


def own_statistics(kind: str, scores: Array, coins: Array) -> Mapping[str, Json] | None:
    """The statistics of dpspec's own kinds of evidence from scores and inclusion bits; None for other kinds."""
    import numpy as np

    # NaN scores are the lowest; ties are ordered against the attack.
    filled = np.nan_to_num(scores, nan=-1e300, posinf=1e300, neginf=-1e300)
    order = np.lexsort((-coins, filled))
    ordered, runs = coins[order], len(coins)
    half = runs // 2
    right = np.concatenate((1 - ordered[:half], ordered[half:])) if runs else ordered
    sure = np.argsort(-np.abs(np.arange(runs) - (runs - 1) / 2), kind="stable")
    match kind:
        case "one-run":
            return {"canaries": runs, "guesses": runs, "correct": int(right.sum())}
        case "one-run-ladder":
            guesses = sorted({runs // 8, runs // 2, runs} - {0})
            return {"canaries": runs, "guesses": guesses, "correct": [int(right[sure[:g]].sum()) for g in guesses]}
        case "many-run":
            positive = filled > 0.5
            return {
                "present": int(coins.sum()),
                "absent": int(runs - coins.sum()),
                "true_positives": int((positive & (coins == 1)).sum()),
                "false_positives": int((positive & (coins == 0)).sum()),
            }
        case "many-run-ranked":
            return {"outcomes": "".join(map(str, ordered.tolist()))}
        case "many-run-sequential":
            levels = np.clip(np.round(64.0 * (np.clip(filled, -12.0, 12.0) + 12.0)), 0, 1536).astype(int)
            return {"coins": "".join(map(str, coins.tolist())), "scores": levels.tolist()}
    return None


def too_small(p_values: Sequence[float]) -> str:
    """What shows that valid p-values are not these, with an error of at most 1e-7 per level; empty if nothing does."""
    from scipy.stats import binom

    for level in _LEVELS:
        count = sum(p <= level for p in p_values)
        if binom.sf(count - 1, len(p_values), level) <= _ERROR:
            return f"{count} of {len(p_values)} p-values are at most {level} although the law is within the bound"
    return ""


def too_often_above(bounds: Sequence[float], epsilon: float) -> str:
    """The number of lower bounds above ``epsilon`` if valid ones exceed it as often with a chance of 1e-7, or less."""
    from scipy.stats import binom

    count = sum(not bound <= epsilon + 1e-9 for bound in bounds)
    chance = binom.sf(count - 1, len(bounds), 1.0 - _CONFIDENCE)
    return "" if chance > _ERROR else f"{count} of {len(bounds)} lower bounds exceed"


class AttackMethodSuite(ProviderSuite):
    """Subclass it and set ``kind``; :meth:`statistics` lets it measure p-values under known laws.

    Attributes:
        releases: The number of releases of one attack.
        repeats: The number of attacks under each law.
        many_releases: The number of releases of a large attack, in which small errors of a test show.
        large_repeats: The number of large attacks under each law.
    """

    family: ClassVar[str] = "attack method"
    releases: ClassVar[int] = 60
    repeats: ClassVar[int] = 300
    many_releases: ClassVar[int] = 4000
    large_repeats: ClassVar[int] = 40

    def statistics(self, scores: Array, coins: Array) -> Mapping[str, Json] | None:
        """The evidence's statistics from scores (n,), higher for included, and inclusion bits (n,); None if unknown.

        Default: ``statistics`` of the method's test.
        """
        of_dpspec = own_statistics(self.kind, scores, coins)
        return of_dpspec if of_dpspec is not None else self._test().statistics(scores, coins)

    def test_p_values_are_valid_under_known_laws(self) -> None:
        """Under each of twelve laws, and all together, p-values at the law's own curve are uniform or larger."""
        together: list[float] = []
        for law, statistics in self._attacks(self.releases, self.repeats):
            p_values = self._p_values(statistics, law.points)
            require(not (problem := too_small(p_values)), f"{law.name}: {problem}")
            together += p_values
        require(not (problem := too_small(together)), f"all laws: {problem}")

    def test_p_values_are_valid_in_large_attacks(self) -> None:
        """The same in attacks with thousands of releases, where a chance of success that is 0.02 too small shows."""
        for law, statistics in self._attacks(self.many_releases, self.large_repeats):
            problem = too_small(self._p_values(statistics, law.points))
            require(not problem, f"{law.name}: {problem} ({self.many_releases} releases)")

    def test_lower_bounds_cover_under_known_laws(self) -> None:
        """Under each law, lower bounds at confidence 95 % exceed the true epsilon in at most 5 % of attacks."""
        for size in ((self.releases, self.repeats), (self.many_releases, self.large_repeats)):
            for law, statistics in self._attacks(*size):
                for epsilon, delta in {law.points[0], law.points[-1]}:
                    bounds = self._lower_bounds(statistics, delta)
                    problem = too_often_above(bounds, epsilon)
                    text = f"{problem} the true epsilon {epsilon:.4g} at delta {delta:g} ({size[0]} releases)"
                    require(not problem, f"{law.name}: {text}")

    def weakest_passing(self) -> Iterator[str]:
        """How wrong a test would still pass: a sentence for each of three laws, and one for p-values."""
        from dpspec.accounting import bisect

        together: list[float] = []
        try:
            for law, statistics in self._attacks(self.releases, self.repeats):
                together += self._p_values(statistics, law.points)
        except unittest.SkipTest:
            yield "any p-value and any lower bound that rises with the evidence would pass: define `statistics`"
            return
        shift = bisect(lambda by: bool(too_small([p - by for p in together])), 1.0, 0.0, within=1e-4)[0]
        yield f"p-values that are less than {shift:.2g} too small would pass {len(together)} attacks of all laws"
        for law, statistics in self._attacks(self.many_releases, self.large_repeats):
            if law.name not in _SHOWN:
                continue

            def found(share: float, law: NullLaw = law, statistics: Sequence[FrozenMap] = statistics) -> bool:
                points = [(share * epsilon, delta) for epsilon, delta in law.points]
                return bool(too_small(self._p_values(statistics, points)))

            share = bisect(found, 0.0, 1.0, within=1e-3)[1] if found(0.0) else 0.0
            epsilon, delta = max(law.points)

            def covered(true: float, bounds: Sequence[float] = self._lower_bounds(statistics, delta)) -> bool:
                return not too_often_above(bounds, true)

            least = bisect(covered, epsilon, 0.0, within=1e-3)[0]
            text = f"{law.name}: p-values for {share:.0%} of the true epsilon would pass {self.large_repeats} attacks"
            yield f"{text}, and lower bounds that are {epsilon - least:.2g} above the method's own at delta {delta:.3g}"

    def test_an_attack_that_sees_the_bits_is_noticed(self) -> None:
        """Scores equal to the bits reject epsilon 0; a test without power tests nothing."""
        import numpy as np

        coins = np.arange(self.releases) % 2
        statistics = self._statistics(coins.astype(float) * 9.0, coins)
        p_value = self._test().p_value(statistics, ((0.0, 0.0),))
        require(p_value < 1e-3, f"{self.releases} perfect scores have p = {p_value:.3g} at epsilon 0")

    def test_odd_scores_and_few_runs_are_possible(self) -> None:
        """NaN, infinite and equal scores, and none, one and two runs give valid numbers and no certainty."""
        import numpy as np

        coins = np.arange(self.releases) % 2
        odd = {
            "NaN": np.full(self.releases, np.nan),
            "infinite": np.full(self.releases, np.inf),
            "equal": np.zeros(self.releases),
        }
        cases = {name: (scores, coins) for name, scores in odd.items()}
        cases |= {f"{runs} runs": (coins[:runs].astype(float), coins[:runs]) for runs in (1, 2)}
        for name, (scores, bits) in cases.items():
            statistics = self._statistics(scores, bits)
            p_value = self._test().p_value(statistics, ((0.0, 0.0),))
            require(p_value >= 0.04, f"{name}: p = {p_value:.3g} at epsilon 0, although the scores show nothing")

    def test_the_order_of_runs_does_not_matter(self) -> None:
        """Runs in another order have the same p-value, unless the method declares ``anytime`` or ``ordered``."""
        import numpy as np

        if self._method().anytime:
            raise unittest.SkipTest("the method is valid at any time: it may depend on the order")
        if self._method().ordered:
            raise unittest.SkipTest("the method declares that it depends on the order")
        rng = np.random.default_rng(3)
        coins = rng.integers(0, 2, self.releases)
        scores = coins + rng.normal(size=self.releases)
        p_values = set()
        for _ in range(6):
            p_values.add(self._test().p_value(self._statistics(scores, coins), ((0.1, 0.0),)))
            order = rng.permutation(self.releases)
            scores, coins = scores[order], coins[order]
        text = f"another order of the runs changes the p-value: {sorted(p_values)}; a method may declare `ordered`"
        require(len(p_values) == 1, text)

    def test_numbers_are_valid_and_repeatable(self) -> None:
        """p-values lie in [0, 1] and lower bounds are 0 or more, the same each time, without side effects."""
        for statistics in self._some():
            for points in (((0.0, 0.0),), ((1.0, 1e-5),), ((2.0, 0.0), (1.0, 0.1))):
                first, touched = impurities(lambda s=statistics, p=points: self._numbers(s, p))  # type: ignore[misc]
                require(not touched, f"the test is not pure: {'; '.join(touched)}")
                again = self._numbers(statistics, points)
                p_value, bound = first
                require(0.0 <= p_value <= 1.0, f"p_value() returns {p_value!r}")
                require(bound >= 0.0, f"epsilon_lower() returns {bound!r}")
                require(first == again, f"the same statistics give {first} and {again}")

    def test_no_evidence_rejects_everything(self) -> None:
        """At delta 1 every pipeline is private: p-values there are not tiny, even of perfect guesses."""
        for statistics in self._some():
            p_value = self._test().p_value(statistics, ((0.0, 1.0),))
            # Tests of the coins may reject unlikely coins even there, at their level.
            require(p_value > 1e-3, f"p = {p_value:.3g} at delta 1, which every pipeline satisfies")

    def test_p_values_grow_with_epsilon_and_delta(self) -> None:
        """The p-value of a weaker claim is at least as large."""
        for statistics in self._some():
            for ladder in ([(e, 1e-3) for e in (0.0, 0.5, 1.0, 3.0)], [(0.5, d) for d in (0.0, 1e-3, 0.1, 0.5)]):
                p_values = [self._test().p_value(statistics, (point,)) for point in ladder]
                rises = all(a <= b * (1.0 + 1e-6) + 1e-12 for a, b in itertools.pairwise(p_values))
                require(rises, f"p-values {p_values} at {ladder} fall")

    def test_lower_bounds_are_what_the_p_value_rejects(self) -> None:
        """The p-value at the lower bound is at most 1 - confidence, and a higher confidence has a lower bound."""
        for statistics in self._some():
            bounds = [self._test().epsilon_lower(statistics, 1e-5, c) for c in (0.9, 0.99, 1.0 - 1e-6)]
            require(bounds == sorted(bounds, reverse=True), f"bounds {bounds} at rising confidence do not fall")
            for confidence, bound in zip((0.9, 0.99), bounds, strict=False):
                if bound > 0.0:
                    p_value = self._test().p_value(statistics, ((bound * (1.0 - 1e-3), 1e-5),))
                    text = f"the bound {bound:.4g} at confidence {confidence} has p = {p_value:.3g} there"
                    require(p_value <= (1.0 - confidence) * (1.0 + 1e-3), text)

    def test_perfect_statistics_are_the_strongest(self) -> None:
        """``perfect`` is possible, of the same design, and has the smallest p-value; ``rejects`` agrees with it."""
        for statistics in self._some():
            best = FrozenMap({**statistics, **self._test().perfect(statistics)})
            require(self._test().is_possible(best), "perfect() gives impossible statistics")
            p_values = [self._test().p_value(s, ((0.5, 1e-5),)) for s in (best, statistics)]
            require(p_values[0] <= p_values[1] * (1.0 + 1e-9), f"perfect() has the larger p-value: {p_values}")
            for level in (0.05, 1e-6):
                rejects = self._test().rejects(statistics, ((0.5, 1e-5),), level)
                clear = abs(p_values[1] - level) > 1e-6 * level
                agrees = rejects == (p_values[1] <= level)
                require(agrees or not clear, f"rejects() is {rejects} at {level}, and p = {p_values[1]:.3g}")
            rates = self._test().rates(statistics)
            require(all(0.0 <= rate <= 1.0 for pair in rates for rate in pair), f"rates() returns {rates}")

    # -- parts of the tests

    def _method(self) -> AttackMethod:
        method: AttackMethod = self.provider()
        return method

    def _test(self) -> EvidenceTest:
        test = self.code()()
        require(isinstance(test, EvidenceTest), f"{self._method().test} is not a dpspec.contract.attacks.EvidenceTest")
        return test  # type: ignore[no-any-return]

    def _numbers(self, statistics: FrozenMap, points: Points) -> tuple[float, float]:
        return self._test().p_value(statistics, points), self._test().epsilon_lower(statistics, points[0][1], 0.95)

    def _statistics(self, scores: Array, coins: Array) -> FrozenMap:
        values = self.statistics(scores, coins)
        if values is None:
            raise unittest.SkipTest("only the author can make statistics from scores: define `statistics`")
        statistics = FrozenMap(values)
        require(self._test().is_possible(statistics), f"is_possible() refuses {statistics}")
        return statistics

    def _attacks(self, releases: int, repeats: int) -> Iterator[tuple[NullLaw, list[FrozenMap]]]:
        """Per law, the statistics of ``repeats`` attacks of ``releases`` releases."""
        import numpy as np

        for number, law in enumerate(null_laws()):
            rng = np.random.default_rng([17, number])
            statistics = []
            for _ in range(repeats):
                coins = rng.integers(0, 2, releases)
                statistics.append(self._statistics(law.scores(rng, coins), coins))
            yield law, statistics

    def _p_values(self, statistics: Sequence[FrozenMap], points: Sequence[tuple[float, float]]) -> list[float]:
        test = self._test()
        return [test.p_value(s, points) for s in statistics]

    def _lower_bounds(self, statistics: Sequence[FrozenMap], delta: float) -> list[float]:
        test = self._test()
        return [test.epsilon_lower(s, delta, _CONFIDENCE) for s in statistics]

    def _some(self) -> Sequence[FrozenMap]:
        """Possible statistics: of attacks of several strengths, or numbers of the declared types."""
        import numpy as np

        rng = np.random.default_rng(5)
        try:
            attacks = []
            for strength in (0.0, 1.0, 4.0):
                coins = rng.integers(0, 2, self.releases)
                attacks.append(self._statistics(strength * coins + rng.normal(size=self.releases), coins))
            return attacks
        except unittest.SkipTest:
            drawn = (self._drawn(rng) for _ in range(2000))
            possible = [s for s in drawn if self._test().is_possible(s)][:5]
            if not possible:
                raise unittest.SkipTest("random statistics are impossible: define `statistics`") from None
            return possible

    def _drawn(self, rng: np.random.Generator) -> FrozenMap:
        def value(kind: str) -> Json:
            count = int(rng.integers(0, 40))
            if kind == "count":
                return count
            many = rng.integers(0, 40, 5).tolist()
            return many if kind == "counts" else "".join(map(str, rng.integers(0, 2, count + 1).tolist()))

        return FrozenMap({name: value(kind) for name, kind in self._method().statistics.items()})
