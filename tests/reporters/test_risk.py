"""Success rates of attackers follow from proved curves and claims, rounded up."""

import dataclasses
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import results as factory

from dpspec.contract import Finding, FrozenMap
from dpspec.engine.results.result import AuditResult
from dpspec.reporters.risk import compared, rates, risk


def audit(name: str = "demo", **changes: object) -> AuditResult:
    return factory.audit(name, **changes)


def _bound(epsilon: float, access: str = "all-iterates") -> Finding:
    found = dataclasses.replace(factory.audit().findings[0], value=epsilon, lower=None)
    return dataclasses.replace(found, scope=dataclasses.replace(found.scope, access=access))


@given(epsilon=st.floats(0.0, 6.0), delta=st.sampled_from([1e-12, 1e-6, 1e-3]))
def test_rates_are_those_of_the_curve_of_one_pair(epsilon: float, delta: float) -> None:
    """Oracle: power at rate a is at most min(delta + e^eps a, 1 - e^-eps (1 - delta - a)), rounded up."""
    held = dataclasses.replace(_bound(epsilon), at=FrozenMap({"delta": delta}))
    (rate,) = rates(audit(findings=(held,), series=()))
    power = [min(delta + math.exp(epsilon) * a, 1.0 - math.exp(-epsilon) * (1.0 - delta - a)) for a in (0.01, 0.1)]
    if power[0] > 0.999:
        assert str(rate) == "The proved bound allows an attacker to identify all members."
        return
    found = [float(text) for text in re.findall(r"at most ([0-9.e-]+)%", str(rate))]
    for shown, true in zip(found, power, strict=True):
        assert 100.0 * true * (1.0 - 1e-12) <= shown <= min(100.0, 100.0 * true * 1.01)


def test_a_run_that_deviates_and_a_contradicted_bound_have_no_rate_to_rely_on() -> None:
    (sentence,) = risk(audit(conformance=factory.conformance()))
    assert sentence.startswith("The executed run deviates from the declared mechanism. No bound applies to it")
    broken = audit(verdicts=(factory.verdict("c", verdict="contradicted", expected=False),))
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
