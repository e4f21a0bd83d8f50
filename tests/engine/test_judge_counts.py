"""Attacks that count their successes: reconstruction claims held against exact binomial tests."""

from __future__ import annotations

import dataclasses

import pytest
from support import audits

from dpspec.contract import Evidence, Finding, FrozenMap, Scope
from dpspec.engine.judging.judge import judge
from dpspec.engine.judging.judge_input import Concluded
from dpspec.engine.results.result import Verdict
from dpspec.stats import binomial

KAPPA = 1.0 / 16.0


def counted(successes: int, trials: int = 400, kappa: float = KAPPA, **scope: str) -> Evidence:
    return Evidence(
        id=f"reconstruction/{kappa}",
        kind="binomial",
        quantity="gamma",
        statistics=FrozenMap({"trials": trials, "successes": successes}),
        scope=dataclasses.replace(audits.HERE, adversary="record", **scope),
        at=FrozenMap({"kappa": kappa}),
        method="reconstruction",
        source="test",
    )


def gamma(value: float, kappa: float = KAPPA, **changes: object) -> Finding:
    base = Finding(
        quantity="gamma",
        value=value,
        bound="upper",
        rigor="theorem",
        method="test",
        source="test",
        at=FrozenMap({"kappa": kappa}),
        scope=Scope(),
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def verdict(claimed: float, findings: list[Finding], evidence: list[Evidence], kappa: float = KAPPA) -> Verdict:
    spec = audits.spec(audits.claim("rero", kappa=kappa, gamma=claimed))
    (judged,) = judge([Concluded(spec=spec, findings=tuple(findings), evidence=tuple(evidence))])
    return judged.verdicts[0]


def test_more_successes_than_the_claim_allows_refute_it() -> None:
    found = verdict(0.2, [gamma(0.5)], [counted(120)])
    assert found.verdict == "refuted"
    assert found.p_value == pytest.approx(binomial.at_least(120, 400, 0.2))
    assert verdict(0.29, [gamma(0.5)], [counted(120)]).verdict == "open"


def test_successes_within_the_claim_leave_it_to_the_bound() -> None:
    assert verdict(0.3, [gamma(0.25)], [counted(100)]).verdict == "proved"


def test_more_successes_than_the_bound_allows_contradict_it() -> None:
    found = verdict(0.9, [gamma(0.2)], [counted(200)])
    assert found.verdict == "contradicted"
    assert "gamma <= 0.2 at kappa = 0.0625" in found.reason
    assert verdict(0.9, [gamma(0.2)], [counted(95)]).verdict == "proved"  # p = 0.03: not at one in a million


def test_a_bound_at_a_larger_baseline_speaks_of_the_attack_and_one_at_a_smaller_does_not() -> None:
    assert verdict(0.9, [gamma(0.2, kappa=0.1)], [counted(200)]).verdict == "contradicted"
    assert verdict(0.9, [gamma(0.2, kappa=0.01)], [counted(200)]).verdict != "contradicted"


def test_an_attack_from_a_smaller_baseline_tells_against_a_claim_at_a_larger_one() -> None:
    assert verdict(0.2, [], [counted(120)], kappa=0.1).verdict == "refuted"
    assert verdict(0.2, [], [counted(120)], kappa=0.01).verdict == "open"


def test_an_estimate_is_no_bound_to_contradict() -> None:
    assert verdict(0.9, [gamma(0.2, bound="estimate", rigor="approximate")], [counted(200)]).verdict == "supported"


def test_a_narrower_attack_counts_and_a_wider_one_does_not() -> None:
    spec = audits.spec(audits.claim("rero", kappa=KAPPA, gamma=0.2, access="final-model"))
    for access, expected in (("final-model", "refuted"), ("all-iterates", "open")):
        evidence = (counted(120, access=access),)
        assert judge([Concluded(spec=spec, evidence=evidence)])[0].verdicts[0].verdict == expected


def test_an_open_claim_says_what_could_have_been_refuted() -> None:
    found = verdict(0.29, [gamma(0.5)], [counted(120)])
    assert found.refutable == pytest.approx(binomial.lower(400, 400, 0.95))
