import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.contract import Evidence, FrozenMap, Scope
from dpspec.stats import binomial, utility
from dpspec.stats.attacks import evidence_tests, guess_counts, one_run, sequential, thresholds


def evidence(kind: str, **statistics: Any) -> Evidence:
    return Evidence(
        id="e", kind=kind, statistics=FrozenMap(statistics), scope=Scope(), method="an attack", source="a paper"
    )


ONE = evidence("one-run", canaries=100, guesses=60, correct=55)
MANY = evidence("many-run", present=50, absent=60, true_positives=45, false_positives=5)
LADDER = evidence("one-run-ladder", canaries=100, guesses=[20, 60], correct=[20, 55])
RANKED = evidence("many-run-ranked", outcomes=30 * "0" + "0101" + 30 * "1")
ACCURACY = evidence("binomial", successes=80, trials=100)
RUNS = evidence("average", successes=[700, 720], records=1000)
IN_TURN = evidence("many-run-sequential", coins=30 * "01", scores=30 * [1000, 1003])
LOSSES = evidence("bounded-average", billionths=[500_000_000, 520_000_000], records=1000, largest=4.0)
LOSS = evidence("bounded-mean", billionths=500_000_000, records=1000, largest=4.0)
KINDS = (ONE, MANY, LADDER, RANKED, IN_TURN, ACCURACY, RUNS, LOSSES, LOSS)


def test_each_kind_is_read_by_its_own_test() -> None:
    assert evidence_tests.p_value(ONE, 1.0, 1e-5) == one_run.p_value(100, 60, 55, 1.0, 1e-5)
    assert evidence_tests.p_value(MANY, 1.0, 1e-5) == thresholds.fixed_curve_p_value(50, 60, 45, 5, [(1.0, 1e-5)])
    assert evidence_tests.p_value(LADDER, 1.0, 1e-5) == guess_counts.p_value(100, (20, 60), (20, 55), ((1.0, 1e-5),))
    assert evidence_tests.p_value(RANKED, 1.0, 1e-5) == thresholds.p_value(
        RANKED.statistics["outcomes"], ((1.0, 1e-5),)
    )
    assert evidence_tests.epsilon_lower(ONE, 1e-5, 0.9) == one_run.epsilon_lower(100, 60, 55, 1e-5, 0.9)
    assert evidence_tests.epsilon_lower(LADDER, 1e-5, 0.9) == guess_counts.epsilon_lower(
        100, (20, 60), (20, 55), 1e-5, 0.9
    )
    in_turn = IN_TURN.statistics["coins"], IN_TURN.statistics["scores"]
    assert evidence_tests.p_value(IN_TURN, 0.5, 1e-5) == sequential.p_value(*in_turn, [(0.5, 1e-5)])
    assert evidence_tests.epsilon_lower(IN_TURN, 1e-5, 0.9) == sequential.epsilon_lower(*in_turn, 1e-5, 0.9)
    assert [e.kind for e in KINDS if evidence_tests.valid_anytime(e)] == [
        "many-run-sequential",
        "average",
        "bounded-average",
    ]
    assert evidence_tests.largest(ONE, 1e-5, 0.9) == one_run.epsilon_lower(100, 60, 60, 1e-5, 0.9)
    assert evidence_tests.largest(LADDER, 1e-5, 0.9) == guess_counts.largest(100, (20, 60), 1e-5, 0.9)
    assert evidence_tests.largest(RANKED, 1e-5, 0.9) == thresholds.largest(32, 32, 1e-5, 0.9)
    assert evidence_tests.largest(MANY, 1e-5, 0.9) == thresholds.fixed_largest(50, 60, 1e-5, 0.9)


def test_a_whole_curve_is_one_test_of_each_kind() -> None:
    points = ((0.2, 0.08), (0.8, 0.02), (1.6, 0.002))
    assert evidence_tests.curve_p_value(ONE, points) == one_run.curve_p_value(100, 60, 55, points)
    for e in (ONE, LADDER, MANY, RANKED):
        p = evidence_tests.curve_p_value(e, points)
        assert 0.0 < p <= 2 * min(evidence_tests.p_value(e, *point) for point in points)
        assert evidence_tests.curve_p_value(e, ()) == 1.0


@pytest.mark.parametrize("e", [ONE, LADDER, MANY, RANKED], ids=lambda e: e.kind)
def test_every_kind_is_monotone_in_epsilon_and_inverts(e: Evidence) -> None:
    p = [evidence_tests.p_value(e, epsilon, 1e-4) for epsilon in np.linspace(0, 6, 15)]
    assert all(b >= a for a, b in pairwise(p))
    low = evidence_tests.epsilon_lower(e, 1e-4, 0.95)
    assert 0.0 < low < evidence_tests.largest(e, 1e-4, 0.95)
    assert evidence_tests.p_value(e, low, 1e-4) <= 0.05 * (1 + 1e-6)
    assert evidence_tests.p_value(e, 1.02 * low + 0.01, 1e-4) > 0.05


def test_a_perfect_attack_has_the_same_design_and_no_errors() -> None:
    assert dict(evidence_tests.perfect(ONE).statistics) == {"canaries": 100, "guesses": 60, "correct": 60}
    best = evidence_tests.perfect(MANY)
    assert dict(best.statistics) == {"present": 50, "absent": 60, "true_positives": 50, "false_positives": 0}
    assert (best.id, best.scope) == (MANY.id, MANY.scope)
    assert evidence_tests.perfect(LADDER).statistics["correct"] == (20, 60)
    assert evidence_tests.perfect(RANKED).statistics["outcomes"] == 32 * "0" + 32 * "1"


def test_a_metric_is_tested_on_the_side_that_it_claims() -> None:
    assert evidence_tests.metric_p_value(ACCURACY, "at-least", 0.9) == binomial.at_most(80, 100, 0.9)
    assert evidence_tests.metric_p_value(ACCURACY, "at-most", 0.7) == binomial.at_least(80, 100, 0.7)
    assert evidence_tests.metric_p_value(RUNS, "at-least", 0.9) == utility.average_at_most([700, 720], 1000, 0.9)
    assert evidence_tests.metric_p_value(RUNS, "at-most", 0.1) == utility.average_at_least([700, 720], 1000, 0.1)
    assert (evidence_tests.about(RUNS), evidence_tests.about(ACCURACY), evidence_tests.about(ONE)) == (
        "pipeline",
        "model",
        "",
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evidence_tests.p_value(evidence("oracle"), 1.0, 0.0), "kind 'oracle' tests no privacy curve"),
        (lambda: evidence_tests.p_value(ACCURACY, 1.0, 0.0), "tests no privacy curve"),
        (lambda: evidence_tests.metric_p_value(ONE, "at-least", 0.5), "tests no metric"),
    ],
)
def test_what_no_test_reads_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


IMPOSSIBLE = "more than there can be"


@pytest.mark.parametrize(
    ("kind", "statistics", "message"),
    [
        ("one-run", {"canaries": 3}, "lacks the counts guesses, correct"),
        ("one-run", {"canaries": 3, "guesses": True, "correct": 1}, "counts guesses"),
        ("one-run-ladder", {"canaries": 3, "guesses": [1, 2.5], "correct": [1, 2]}, "counts guesses"),
        ("many-run-ranked", {"outcomes": [0, 1]}, "lacks the counts outcomes"),
        ("many-run-ranked", {"outcomes": "012"}, "text of 0 and 1"),
        ("many-run-sequential", {"coins": "01", "scores": [1]}, IMPOSSIBLE),
        ("average", {"successes": 3, "records": 4}, "lacks the counts"),
        ("average", {"successes": [1001], "records": 1000}, IMPOSSIBLE),
        ("average", {"successes": [0], "records": 0}, IMPOSSIBLE),
        ("bounded-average", {"billionths": [10**9 + 1], "records": 10}, "above 1000000000"),
        ("bounded-average", {"billionths": [5], "records": 10, "largest": 0.0}, "largest must be a positive number"),
        ("bounded-mean", {"billionths": 5, "records": 0}, IMPOSSIBLE),
        ("binomial", {"successes": 3, "trials": 2}, IMPOSSIBLE),
        ("binomial", {"successes": -1, "trials": 2}, "counts below 0"),
        ("binomial", {"successes": 1, "trials": 10**12}, "counts below 0 or above 1000000000"),
        ("one-run", {"canaries": 3, "guesses": 2, "correct": 3}, IMPOSSIBLE),
        ("one-run-ladder", {"canaries": 3, "guesses": [2, 2], "correct": [1, 1]}, IMPOSSIBLE),
        ("one-run-ladder", {"canaries": 3, "guesses": [1, 2], "correct": [1]}, IMPOSSIBLE),
        ("many-run", {"present": 1, "absent": 1, "true_positives": 1, "false_positives": 2}, IMPOSSIBLE),
    ],
)
def test_impossible_statistics_are_refused(kind: str, statistics: dict[str, Any], message: str) -> None:
    for possible in KINDS:
        evidence_tests.require_counts(possible)
    with pytest.raises(ValueError, match=message):
        evidence_tests.require_counts(evidence(kind, **statistics))


P_VALUES = st.lists(st.floats(0, 1), max_size=12)


@given(P_VALUES, st.floats(1e-6, 1))
def test_holm_rejects_what_the_step_down_procedure_rejects(values: list[float], level: float) -> None:
    rejected = set()
    for rank, index in enumerate(sorted(range(len(values)), key=lambda k: values[k])):
        if (len(values) - rank) * values[index] > level:
            break
        rejected.add(index)
    assert {i for i, p in enumerate(evidence_tests.holm(values)) if p <= level} == (
        rejected if level < 1 else set(range(len(values)))
    )


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_what_is_no_p_value_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="p-values"):
        evidence_tests.holm([0.5, bad])


def test_a_loss_is_tested_as_a_share_of_the_largest_one() -> None:
    """At the same shares an average of losses and an average of counts are one test, on another scale."""
    counted = evidence("average", successes=[500, 520], records=1000)
    for side in ("at-least", "at-most"):
        for value in (0.3, 0.45, 0.55, 0.7):
            of_losses = evidence_tests.metric_p_value(LOSSES, side, 4.0 * value)
            assert of_losses == pytest.approx(evidence_tests.metric_p_value(counted, side, value), rel=1e-4)
        extremes = [evidence_tests.metric_extreme(e, side, 0.05) for e in (LOSSES, counted)]
        assert extremes[0] == pytest.approx(4.0 * extremes[1], abs=1e-5)
        assert evidence_tests.metric_p_value(LOSS, side, 2.0) == pytest.approx(1.0, abs=1e-6)
    # One model: exp(-m KL) by Hoeffding's Theorem 1.
    bound = math.exp(-1000 * (0.5 * math.log(0.5 / 0.4) + 0.5 * math.log(0.5 / 0.6)))
    assert evidence_tests.metric_p_value(LOSS, "at-most", 1.6) == pytest.approx(bound, rel=1e-6)
