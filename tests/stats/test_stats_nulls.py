from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dpspec.contract import Evidence, FrozenMap, Scope
from dpspec.stats import binomial, curves, ladder, manyrun, nulls, onerun, onerun_curve, thresholds


def evidence(kind: str, **statistics: Any) -> Evidence:
    return Evidence(
        id="e", kind=kind, statistics=FrozenMap(statistics), scope=Scope(), method="an attack", source="a paper"
    )


ONE = evidence("one-run", canaries=100, guesses=60, correct=55)
MANY = evidence("many-run", present=50, absent=60, true_positives=45, false_positives=5)
LADDER = evidence("one-run-ladder", canaries=100, guesses=[20, 60], correct=[20, 55])
RANKED = evidence("many-run-ranked", outcomes=30 * "0" + "0101" + 30 * "1")
ACCURACY = evidence("binomial", successes=80, trials=100)


def test_each_kind_is_read_by_its_own_test() -> None:
    assert nulls.p_value(ONE, 1.0, 1e-5) == onerun.p_value(100, 60, 55, 1.0, 1e-5)
    assert nulls.p_value(MANY, 1.0, 1e-5) == manyrun.p_value(50, 60, 45, 5, 1.0, 1e-5)
    assert nulls.p_value(LADDER, 1.0, 1e-5) == ladder.p_value(100, (20, 60), (20, 55), ((1.0, 1e-5),))
    assert nulls.p_value(RANKED, 1.0, 1e-5) == thresholds.p_value(RANKED.statistics["outcomes"], ((1.0, 1e-5),))
    assert nulls.epsilon_lower(ONE, 1e-5, 0.9) == onerun.epsilon_lower(100, 60, 55, 1e-5, 0.9)
    assert nulls.epsilon_lower(LADDER, 1e-5, 0.9) == ladder.epsilon_lower(100, (20, 60), (20, 55), 1e-5, 0.9)
    assert nulls.largest(ONE, 1e-5, 0.9) == onerun.largest(100, 60, 1e-5, 0.9)
    assert nulls.largest(LADDER, 1e-5, 0.9) == ladder.largest(100, (20, 60), 1e-5, 0.9)
    assert nulls.largest(RANKED, 1e-5, 0.9) == thresholds.largest(32, 32, 1e-5, 0.9)
    assert nulls.largest(MANY, 1e-5, 0.9) == manyrun.largest(50, 60, 1e-5, 0.9)


def test_a_whole_curve_is_one_test_of_each_kind() -> None:
    points = curves.gaussian(0.8)
    assert nulls.curve_p_value(ONE, points) == onerun_curve.p_value(100, 60, 55, points)
    for e in (ONE, LADDER, MANY, RANKED):
        p = nulls.curve_p_value(e, points)
        assert 0.0 < p <= 2 * min(nulls.p_value(e, *point) for point in points)
        assert nulls.curve_p_value(e, ()) == 1.0


@pytest.mark.parametrize("e", [ONE, LADDER, MANY, RANKED], ids=lambda e: e.kind)
def test_every_kind_is_monotone_in_epsilon_and_inverts(e: Evidence) -> None:
    p = [nulls.p_value(e, epsilon, 1e-4) for epsilon in np.linspace(0, 6, 40)]
    assert all(b >= a for a, b in pairwise(p))
    low = nulls.epsilon_lower(e, 1e-4, 0.95)
    assert 0.0 < low < nulls.largest(e, 1e-4, 0.95)
    assert nulls.p_value(e, low, 1e-4) <= 0.05 * (1 + 1e-6)
    assert nulls.p_value(e, 1.02 * low + 0.01, 1e-4) > 0.05


def test_a_perfect_attack_has_the_same_design_and_no_errors() -> None:
    assert dict(nulls.perfect(ONE).statistics) == {"canaries": 100, "guesses": 60, "correct": 60}
    best = nulls.perfect(MANY)
    assert dict(best.statistics) == {"present": 50, "absent": 60, "true_positives": 50, "false_positives": 0}
    assert (best.id, best.scope) == (MANY.id, MANY.scope)
    assert nulls.perfect(LADDER).statistics["correct"] == (20, 60)
    assert nulls.perfect(RANKED).statistics["outcomes"] == 32 * "0" + 32 * "1"


def test_a_metric_is_tested_on_the_side_that_it_claims() -> None:
    assert nulls.metric_p_value(ACCURACY, at_least=0.9) == binomial.at_most(80, 100, 0.9)
    assert nulls.metric_p_value(ACCURACY, at_most=0.7) == binomial.at_least(80, 100, 0.7)
    assert nulls.metric_p_value(ACCURACY, at_least=0.9) < 0.01 < 0.5 < nulls.metric_p_value(ACCURACY, at_least=0.8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nulls.p_value(evidence("oracle"), 1.0, 0.0), "kind 'oracle' tests no privacy curve"),
        (lambda: nulls.p_value(ACCURACY, 1.0, 0.0), "tests no privacy curve"),
        (lambda: nulls.p_value(evidence("one-run", canaries=3), 1.0, 0.0), "lacks the counts guesses, correct"),
        (lambda: nulls.p_value(evidence("one-run", canaries=3, guesses=True, correct=1), 1.0, 0.0), "counts guesses"),
        (
            lambda: nulls.p_value(evidence("one-run-ladder", canaries=3, guesses=[1, 2.5], correct=[1, 2]), 1.0, 0.0),
            "counts guesses",
        ),
        (lambda: nulls.p_value(evidence("many-run-ranked", outcomes=[0, 1]), 1.0, 0.0), "lacks the counts outcomes"),
        (lambda: nulls.metric_p_value(ONE, at_least=0.5), "tests no metric"),
        (lambda: nulls.metric_p_value(ACCURACY), "exactly one"),
        (lambda: nulls.metric_p_value(ACCURACY, at_least=0.5, at_most=0.6), "exactly one"),
    ],
)
def test_what_no_test_reads_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_test_that_is_known_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nulls, "_made", {})
    value = nulls.p_value(MANY, 0.5, 0.0)
    ((key, kept),) = nulls.made().items()
    assert kept == value
    monkeypatch.setattr(nulls, "_made", {})
    nulls.learn({key: 0.125})
    assert nulls.p_value(MANY, 0.5, 0.0) == 0.125
    assert nulls.p_value(MANY, 0.25, 0.0) < value


def test_only_so_many_tests_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nulls, "_made", {})
    monkeypatch.setattr(nulls, "_REMEMBERED", 3)
    nulls.learn({(str(n), (), ()): float(n) for n in range(5)})
    assert [name for name, _, _ in nulls.made()] == ["2", "3", "4"]
