from __future__ import annotations

from typing import Any

import pytest

from dpspec.contract import Evidence, FrozenMap, Scope
from dpspec.stats import binomial, manyrun, nulls, onerun


def evidence(kind: str, **statistics: Any) -> Evidence:
    return Evidence(
        id="e", kind=kind, statistics=FrozenMap(statistics), scope=Scope(), method="an attack", source="a paper"
    )


ONE = evidence("one-run", canaries=100, guesses=60, correct=55)
MANY = evidence("many-run", present=50, absent=60, true_positives=45, false_positives=5)
ACCURACY = evidence("binomial", successes=80, trials=100)


def test_each_kind_is_read_by_its_own_test() -> None:
    assert nulls.p_value(ONE, 1.0, 1e-5) == onerun.p_value(100, 60, 55, 1.0, 1e-5)
    assert nulls.p_value(MANY, 1.0, 1e-5) == manyrun.p_value(50, 60, 45, 5, 1.0, 1e-5)
    assert nulls.largest(ONE, 1e-5, 0.9) == onerun.largest(100, 60, 1e-5, 0.9)
    assert nulls.largest(MANY, 1e-5, 0.9) == manyrun.largest(50, 60, 1e-5, 0.9)


def test_a_perfect_attack_has_the_same_design_and_no_errors() -> None:
    assert dict(nulls.perfect(ONE).statistics) == {"canaries": 100, "guesses": 60, "correct": 60}
    best = nulls.perfect(MANY)
    assert dict(best.statistics) == {"present": 50, "absent": 60, "true_positives": 50, "false_positives": 0}
    assert (best.id, best.scope) == (MANY.id, MANY.scope)


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
        (lambda: nulls.metric_p_value(ONE, at_least=0.5), "tests no metric"),
        (lambda: nulls.metric_p_value(ACCURACY), "exactly one"),
        (lambda: nulls.metric_p_value(ACCURACY, at_least=0.5, at_most=0.6), "exactly one"),
    ],
)
def test_what_no_test_reads_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
