"""Hand-made results for tests."""

import dataclasses
import math
from typing import Any

from dpspec.contract import Check, Evidence, Facts, Finding, FrozenMap, Power, Scope, Series
from dpspec.contract.results import AuditResult, Conformance, Result, TrialRecord, Verdict


def verdict(claim: str = "one", **changes: Any) -> Verdict:
    base = Verdict(
        claim=claim,
        kind="approx-dp",
        text="epsilon <= 3 at delta = 1e-06",
        verdict="proved",
        expect=("proved",),
        expected=True,
        reason="the upper bound is within the claim",
        quantity="epsilon",
        claimed=3.0,
        upper=2.5,
        lower=0.4,
        upper_finding=0,
        lower_finding=1,
        provable=2.5,
        refutable=3.7,
        p_value=1.0,
    )
    return dataclasses.replace(base, **changes)


def audit(name: str = "demo", **changes: Any) -> AuditResult:
    upper = Finding(
        quantity="epsilon",
        value=2.5,
        lower=2.4,
        bound="upper",
        rigor="theorem",
        method="pld",
        source="somewhere",
        at=FrozenMap({"delta": 1e-6, "group_size": 1}),
    )
    infinite = dataclasses.replace(upper, value=math.inf, lower=None)
    base = AuditResult(
        name=name,
        source="specs/demo.yaml",
        digest="0" * 64,
        document=FrozenMap({"dpspec": 1, "name": name.partition("[")[0]}),
        cell=FrozenMap(),
        facts=Facts(records=10, features=2, classes=2, shape=(2,), digest="d"),
        verdicts=(verdict(),),
        conformance=Conformance(status="not-run", expect="no-deviation-found", expected=True, reason="nothing ran"),
        findings=(upper, infinite),
        series=(
            Series(
                name="s",
                title="S",
                columns=FrozenMap({"x": [1, 2]}),
                units=FrozenMap({"x": ""}),
                rigor="theorem",
                source="",
            ),
        ),
        checks=(Check(assumption="noise-scale", test="chi-square", p_value=0.5, observed="measured"),),
        evidence=(
            Evidence(
                id="e",
                kind="one-run",
                statistics=FrozenMap({"canaries": 10, "guesses": 4, "correct": 3}),
                scope=Scope(data="this", pipeline="executed"),
                method="m",
                source="s",
            ),
        ),
        trials=(TrialRecord(index=0, key="a" * 64, evidence=FrozenMap({"n": 1})),),
        planned_trials=1,
        power=(Power(at=FrozenMap({"delta": 1e-6}), epsilon=3.7, method="one-run"),),
    )
    return dataclasses.replace(base, **changes)


def series(columns: dict[str, Any], plot: dict[str, Any] | None = None, **changes: Any) -> Series:
    held, drawn = FrozenMap(columns), FrozenMap(plot or {})
    base = Series(name="s", title="T", columns=held, units=FrozenMap(), rigor="theorem", source="s", plot=drawn)
    return dataclasses.replace(base, **changes)


def conformance(status: Any = "deviates", *, expected: bool = True, reason: str = "Why.") -> Conformance:
    return Conformance(status=status, expect="no-deviation-found", expected=expected, reason=reason)


def result(*audits: AuditResult, **changes: Any) -> Result:
    base = Result(
        audits=audits or (audit(),),
        confidence=0.95,
        created="2026-01-01T00:00:00+00:00",
        environment=FrozenMap({"python": "3"}),
    )
    return dataclasses.replace(base, **changes)
