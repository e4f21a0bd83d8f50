"""Success rates of attackers follow from proved curves and claims, rounded up."""

import dataclasses
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special
from support import results as factory

from dpspec.contract import Finding, FrozenMap
from dpspec.engine.results.result import AuditResult
from dpspec.reporters.risk import compared, rates, risk


def audit(name: str = "demo", **changes: object) -> AuditResult:
    return factory.audit(name, **changes)


def _bound(mu: float, access: str = "all-iterates") -> Finding:
    """A bound on the whole curve."""
    found = dataclasses.replace(factory.audit().findings[0], quantity="mu", value=mu, lower=None, at=FrozenMap())
    return dataclasses.replace(found, scope=dataclasses.replace(found.scope, access=access))


def _shown(audit: AuditResult) -> list[float]:
    (rate,) = rates(audit)
    return [float(text) for text in re.findall(r"at most ([0-9.e-]+)%", str(rate))]


@given(mu=st.floats(0.05, 3.5))
def test_rates_are_those_of_the_whole_curve(mu: float) -> None:
    """Oracle: the power of the best test of a Gaussian shift at level a is Phi(mu + Phi^-1(a))."""
    for shown, level in zip(_shown(audit(findings=(_bound(mu),), series=())), (0.01, 0.1), strict=True):
        true = 100.0 * special.ndtr(mu + special.ndtri(level))
        assert true <= shown <= min(100.0, 1.04 * true)


@given(epsilon=st.floats(0.0, 3.0))
def test_rates_of_pure_dp_are_those_of_randomized_response(epsilon: float) -> None:
    """Oracle: power at rate a is at most min(e^eps a, 1 - e^-eps (1 - a))."""
    pure = dataclasses.replace(_bound(0.0), quantity="epsilon", value=epsilon, at=FrozenMap({"delta": 0.0}))
    for shown, level in zip(_shown(audit(findings=(pure,), series=())), (0.01, 0.1), strict=True):
        true = 100.0 * min(math.exp(epsilon) * level, 1.0 - math.exp(-epsilon) * (1.0 - level))
        assert true * (1.0 - 1e-12) <= shown <= 1.01 * true


@pytest.mark.parametrize("deltas", [(1e-6,), (1e-6, 1e-5), (0.3,)])
def test_no_rate_follows_from_small_deltas_or_from_one(deltas: tuple[float, ...]) -> None:
    points = [
        dataclasses.replace(_bound(0.0), quantity="epsilon", value=epsilon, at=FrozenMap({"delta": delta}))
        for epsilon, delta in zip((1.44, 1.3), deltas, strict=False)
    ]
    alone = audit(findings=tuple(points), series=())
    assert rates(alone) == ()
    (reason,) = risk(alone)
    assert reason.startswith("Bounds at small deltas alone would overstate an attacker's success, so no rate is stated")
    (sentence,) = compared([alone], ["demo"])
    assert sentence.startswith("No attacker's rate follows")


def test_a_run_that_deviates_and_a_contradicted_bound_have_no_rate_to_rely_on() -> None:
    (sentence,) = risk(audit(conformance=factory.conformance()))
    assert sentence.startswith("The executed run deviates from the declared mechanism. No bound applies to it")
    contradicted = (factory.verdict("c", verdict="contradicted", expected=False),)
    broken = audit(findings=(_bound(1.0),), verdicts=contradicted)
    assert risk(broken)[0].endswith("do not rely on them.")
    weak = dataclasses.replace(factory.audit().findings[0], rigor="approximate")
    assert risk(audit(findings=(weak,), series=()))[0].startswith("No proved bound covers every record")


def test_a_bound_on_the_final_model_says_so() -> None:
    """Such a bound does not apply to an adversary who sees every iterate."""
    final, every = _bound(0.5, "final-model"), _bound(2.0)
    (rate,) = rates(audit(findings=(final,), series=()))
    assert str(rate).startswith("Seeing the final model: at a 1% false-positive rate")
    both = rates(audit(findings=(final, every), series=()))
    assert sorted(str(one).lower().count("seeing") for one in both) == [1, 1]
    one, other = audit("last", findings=(final,)), audit("every", findings=(every,))
    (sentence,) = compared([one, other], ["last", "every"])
    assert sentence.startswith("Highest in every. At a 1% false-positive rate an attacker identifies at most")


@pytest.mark.parametrize(
    "changes",
    [
        {"conformance": factory.conformance()},
        {"verdicts": (factory.verdict("c", verdict="contradicted", expected=False),)},
    ],
)
def test_audits_without_a_rate_are_not_compared(changes: dict[str, object]) -> None:
    audits = [audit("bad", findings=(_bound(0.1),), **changes), audit("good", findings=(_bound(2.0),))]
    text = " ".join(compared(audits, ["bad", "good"]))
    assert "bad" not in text
    assert "Highest in good. At a 1% false-positive rate" in text
    assert "No rate follows for 1 audit." in text
