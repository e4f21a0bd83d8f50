"""The suite for attack methods passes dpspec's own, and finds tests that are not valid."""

import math
import sys
import types
import unittest
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, binom
from support.votes_suite import OURS

import dpspec.contract as dps
from dpspec.contract.attacks import AttackMethod, EvidenceTest
from dpspec.registry.loader import Candidate, build
from dpspec.stats.attacks.methods import OWN_METHODS
from dpspec.testing.attack_method import AttackMethodSuite, null_laws

TESTS = [name for name in dir(AttackMethodSuite) if name.startswith("test_")]


class FairGuesses(EvidenceTest):
    """Correct guesses of fair bits, each from one release."""

    def is_possible(self, statistics: Any) -> bool:
        return bool(statistics["correct"] <= statistics["guesses"])

    def p_value(self, statistics: Any, points: Any) -> float:
        most = min((1.0 + delta * math.exp(-epsilon)) / (1.0 + math.exp(-epsilon)) for epsilon, delta in points)
        return float(binom.sf(statistics["correct"] - 1, statistics["guesses"], most))

    def epsilon_lower(self, statistics: Any, delta: float, confidence: float) -> float:
        correct, guesses = statistics["correct"], statistics["guesses"]
        share = float(beta.ppf(1.0 - confidence, correct, guesses - correct + 1)) if correct else 0.0
        return max(0.0, math.log((share - delta) / (1.0 - share))) if delta < share < 1.0 else 0.0

    def perfect(self, statistics: Any) -> Any:
        return {**statistics, "correct": statistics["guesses"]}


class AlwaysZero(FairGuesses):
    def p_value(self, statistics: Any, points: Any) -> float:
        return 0.0


class NotANumber(FairGuesses):
    def p_value(self, statistics: Any, points: Any) -> float:
        return math.nan


class Random(FairGuesses):
    def p_value(self, statistics: Any, points: Any) -> float:
        return float(np.random.default_rng().random())


class NoConfidence(FairGuesses):
    """The observed share, as if it were the true one."""

    def epsilon_lower(self, statistics: Any, delta: float, confidence: float) -> float:
        share = min(0.999, statistics["correct"] / max(1, statistics["guesses"]))
        return max(0.0, math.log((share - delta) / (1.0 - share))) if delta < share < 1.0 else 0.0


class OneTooMany(FairGuesses):
    """P[X > correct] for P[X >= correct]."""

    def p_value(self, statistics: Any, points: Any) -> float:
        most = min(1.0 / (1.0 + math.exp(-epsilon)) + delta / 2 for epsilon, delta in points)
        return float(binom.sf(statistics["correct"], statistics["guesses"], min(1.0, most)))


class DeltaIgnored(FairGuesses):
    def p_value(self, statistics: Any, points: Any) -> float:
        return super().p_value(statistics, [(epsilon, 0.0) for epsilon, _ in points])


class EpsilonIgnored(FairGuesses):
    def p_value(self, statistics: Any, points: Any) -> float:
        return super().p_value(statistics, [(0.0, delta) for _, delta in points])


class WeakerIsEasier(FairGuesses):
    def p_value(self, statistics: Any, points: Any) -> float:
        return 1.0 - min(1.0, points[0][0] / 4.0) if points[0][1] < 1.0 else 1.0


class TwoHundredths(FairGuesses):
    """The chance of a right guess is 0.02 too small, in p-values and in lower bounds."""

    def p_value(self, statistics: Any, points: Any) -> float:
        most = min((1.0 + delta * math.exp(-epsilon)) / (1.0 + math.exp(-epsilon)) for epsilon, delta in points)
        most = most - 0.02 if most < 1.0 else 1.0
        return float(binom.sf(statistics["correct"] - 1, statistics["guesses"], most))

    def epsilon_lower(self, statistics: Any, delta: float, confidence: float) -> float:
        correct, guesses = statistics["correct"], statistics["guesses"]
        share = float(beta.ppf(1.0 - confidence, correct, guesses - correct + 1)) + 0.02 if correct else 0.0
        if share >= 1.0:
            return super().epsilon_lower(statistics, delta, confidence)
        return max(0.0, math.log((share - delta) / (1.0 - share))) if delta < share else 0.0


class SmallerByTwoHundredths(FairGuesses):
    """p-values are 0.02 too small."""

    def p_value(self, statistics: Any, points: Any) -> float:
        return max(0.0, super().p_value(statistics, points) - 0.02)

    def epsilon_lower(self, statistics: Any, delta: float, confidence: float) -> float:
        return super().epsilon_lower(statistics, delta, confidence - 0.02)


def area(epsilon: float, delta: float) -> float:
    """The area under the ROC curve of (epsilon, delta)."""
    return 1.0 - (1.0 - delta) ** 2 / (1.0 + math.exp(epsilon))


class PairedChoice(EvidenceTest):
    """Which of two releases has the group: a choice is right with at most the area under the ROC curve."""

    def is_possible(self, statistics: Any) -> bool:
        return bool(statistics["correct"] <= statistics["guesses"])

    def most(self, points: Any) -> float:
        return min(area(*point) for point in points)

    def p_value(self, statistics: Any, points: Any) -> float:
        return float(binom.sf(statistics["correct"] - 1, statistics["guesses"], self.most(points)))

    def epsilon_lower(self, statistics: Any, delta: float, confidence: float) -> float:
        correct, guesses = statistics["correct"], statistics["guesses"]
        share = float(beta.ppf(1.0 - confidence, correct, guesses - correct + 1)) if correct else 0.0
        ratio = (1.0 - delta) ** 2 / (1.0 - share) - 1.0 if share < 1.0 else math.inf
        return max(0.0, math.log(ratio)) if ratio > 0.0 else 0.0

    def perfect(self, statistics: Any) -> Any:
        return {**statistics, "correct": statistics["guesses"]}

    def statistics(self, scores: Any, coins: Any) -> Any:
        present, absent = scores[coins == 1], scores[coins == 0]
        pairs = min(len(present), len(absent))
        return {"guesses": pairs, "correct": int((present[:pairs] > absent[:pairs]).sum())}


class TiesWin(PairedChoice):
    """A choice between equal scores counts as right."""

    def statistics(self, scores: Any, coins: Any) -> Any:
        present, absent = scores[coins == 1], scores[coins == 0]
        pairs = min(len(present), len(absent))
        return {"guesses": pairs, "correct": int((present[:pairs] >= absent[:pairs]).sum())}


class SmallerArea(PairedChoice):
    """The area of a pair is 0.02 too small."""

    def most(self, points: Any) -> float:
        most = super().most(points)
        return most - 0.02 if most < 1.0 else 1.0


def method_suite(test: type[EvidenceTest], statistics: bool = True, *, ordered: bool | None = None) -> Any:
    """The suite of a method; without ``statistics`` it has those of the test itself, if any."""
    name = f"method_{test.__name__.lower()}"
    pairs = issubclass(test, PairedChoice)
    module = types.ModuleType(name)
    descriptor = AttackMethod(
        kind="fair-guesses",
        summary="Correct guesses",
        statistics={"guesses": "count", "correct": "count"},
        test=f"{test.__module__}:{test.__name__}",
        ordered=pairs if ordered is None else ordered,
    )
    module.DPSPEC_API = 1  # type: ignore[attr-defined]
    module.dpspec_attack_methods = dps.hookimpl(lambda: [descriptor])  # type: ignore[attr-defined]
    sys.modules[name] = module
    registry = build([OURS, Candidate(distribution="d", version="1", plugin="p", value=name)])

    def counted(self: Any, scores: Any, coins: Any) -> Any:
        guesses = np.nan_to_num(scores) > 0.5
        return {"guesses": len(coins), "correct": int((guesses == coins).sum())}

    found: dict[str, Any] = {"kind": "fair-guesses", "registry": classmethod(lambda cls: registry)}
    if statistics and not pairs:
        found["statistics"] = counted
    return type("Suite", (AttackMethodSuite,), found)()


def failures(suite: Any, tests: list[str] = TESTS) -> dict[str, str]:
    messages = {}
    for test in tests:
        try:
            getattr(suite, test)()
        except unittest.SkipTest:
            continue
        except AssertionError as error:
            messages[test] = str(error)
    return messages


@pytest.mark.ci
@pytest.mark.parametrize("kind", [method.kind for method in OWN_METHODS])
def test_own_methods_pass(kind: str) -> None:
    sizes = {"repeats": 60, "large_repeats": 10}
    if kind == "many-run-sequential":  # a p-value of 4,000 runs takes a third of a second
        sizes["many_releases"] = 1000
    suite = type("Suite", (AttackMethodSuite,), {"kind": kind, **sizes})()
    assert failures(suite) == {}


LIGHT = "test_importing_the_descriptor_is_light"  # the module is not on the path of another process
OTHERS = [test for test in TESTS if test != LIGHT]


@pytest.mark.family
@pytest.mark.parametrize(("test", "statistics"), [(FairGuesses, True), (FairGuesses, False), (PairedChoice, True)])
def test_a_valid_method_passes(test: type[EvidenceTest], statistics: bool) -> None:
    assert failures(method_suite(test, statistics), OTHERS) == {}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("test", "found_by"),
    [
        (SmallerArea, {"test_p_values_are_valid_in_large_attacks"}),
        (SmallerByTwoHundredths, {"test_p_values_are_valid_under_known_laws"}),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_small_errors_are_found_by_many_attacks_alone(test: type[EvidenceTest], found_by: set[str]) -> None:
    assert set(failures(method_suite(test), OTHERS)) == found_by


def test_statistics_in_another_order_need_a_declaration() -> None:
    test = "test_the_order_of_runs_does_not_matter"
    assert "declare `ordered`" in failures(method_suite(PairedChoice, ordered=False), [test])[test]
    assert failures(method_suite(PairedChoice), [test]) == failures(method_suite(FairGuesses), [test]) == {}


@pytest.mark.ci
def test_the_suite_says_how_wrong_a_test_would_pass() -> None:
    first, *laws = method_suite(FairGuesses).weakest_passing()
    shift = float(first.split("less than ")[1].split()[0])
    assert 0.001 < shift < 0.02
    shares = {law.split(":")[0]: float(law.split("for ")[1].split("%")[0]) / 100.0 for law in laws}
    assert 0.9 < shares["randomized response of epsilon 1"] < 1.0
    assert 0.0 < shares["Gaussian noise, mu 2"] < shares["randomized response of epsilon 1"]
    assert "define `statistics`" in next(method_suite(FairGuesses, statistics=False).weakest_passing())


@pytest.mark.parametrize(
    ("test", "found_by"),
    [
        (AlwaysZero, "test_no_evidence_rejects_everything"),
        (NotANumber, "test_numbers_are_valid_and_repeatable"),
        (Random, "test_numbers_are_valid_and_repeatable"),
        (NoConfidence, "test_lower_bounds_are_what_the_p_value_rejects"),
        (NoConfidence, "test_lower_bounds_cover_under_known_laws"),
        (OneTooMany, "test_odd_scores_and_few_runs_are_possible"),
        (EpsilonIgnored, "test_p_values_are_valid_under_known_laws"),
        (DeltaIgnored, "test_p_values_are_valid_under_known_laws"),
        (TwoHundredths, "test_p_values_are_valid_in_large_attacks"),
        (TiesWin, "test_odd_scores_and_few_runs_are_possible"),
        (WeakerIsEasier, "test_p_values_grow_with_epsilon_and_delta"),
    ],
    ids=lambda item: getattr(item, "__name__", item),
)
def test_methods_that_are_not_valid_are_found(test: type[EvidenceTest], found_by: str) -> None:
    assert found_by in failures(method_suite(test), [found_by])


@pytest.mark.family
@pytest.mark.parametrize("test", [AlwaysZero, NotANumber, Random, NoConfidence], ids=lambda item: item.__name__)
def test_they_are_found_without_an_author(test: type[EvidenceTest]) -> None:
    assert failures(method_suite(test, statistics=False), OTHERS)


def test_there_are_twelve_laws() -> None:
    assert len({law.name for law in null_laws()}) == 12
