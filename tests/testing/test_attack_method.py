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


def method_suite(test: type[EvidenceTest], statistics: bool = True) -> Any:
    name = f"method_{test.__name__.lower()}"
    module = types.ModuleType(name)
    descriptor = AttackMethod(
        kind="fair-guesses",
        summary="Correct guesses",
        statistics={"guesses": "count", "correct": "count"},
        test=f"{test.__module__}:{test.__name__}",
    )
    module.DPSPEC_API = 1  # type: ignore[attr-defined]
    module.dpspec_attack_methods = dps.hookimpl(lambda: [descriptor])  # type: ignore[attr-defined]
    sys.modules[name] = module
    registry = build([OURS, Candidate(distribution="d", version="1", plugin="p", value=name)])

    def counted(self: Any, scores: Any, coins: Any) -> Any:
        guesses = np.nan_to_num(scores) > 0.5
        return {"guesses": len(coins), "correct": int((guesses == coins).sum())}

    found: dict[str, Any] = {"kind": "fair-guesses", "registry": classmethod(lambda cls: registry)}
    if statistics:
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
    suite = type("Suite", (AttackMethodSuite,), {"kind": kind, "repeats": 60})()
    assert failures(suite) == {}


LIGHT = "test_importing_the_descriptor_is_light"  # the module is not on the path of another process
OTHERS = [test for test in TESTS if test != LIGHT]


@pytest.mark.family
@pytest.mark.parametrize("statistics", [True, False])
def test_a_valid_method_passes(statistics: bool) -> None:
    assert failures(method_suite(FairGuesses, statistics), OTHERS) == {}


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
