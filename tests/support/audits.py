"""Specs, findings and evidence made by hand, for tests of the judge."""

from __future__ import annotations

import dataclasses
from typing import Any

from dpspec.contract import (
    AuditOptions,
    Check,
    Claim,
    Evidence,
    Finding,
    FrozenMap,
    Scope,
    Section,
    Spec,
    ThreatModel,
)
from dpspec.engine.judging.claim_tests import Concluded
from dpspec.engine.judging.judge import judge
from dpspec.engine.results.result import Verdict

SCOPE_KEYS = ("adjacency", "access", "direction", "group_size", "min_records", "neighbours", "record", "over")

#: What an attack on one trained model speaks of.
HERE = Scope(data="this", pipeline="executed")

#: What a measurement of what was trained speaks of.
MEASURED = Scope(data="this", adversary="none", pipeline="executed")


def claim(kind: str = "approx-dp", expect: tuple[str, ...] = ("proved",), id: str = "c", **options: Any) -> Claim:
    scope = {key: options.pop(key) for key in SCOPE_KEYS if key in options}
    scope = {"adjacency": "add-remove", "access": "all-iterates", "direction": "both", **scope}
    return Claim(id=id, kind=kind, options=FrozenMap(options), expect=expect, **scope)


def approx(epsilon: float = 3.0, delta: float = 1e-9, **more: Any) -> Claim:
    return claim("approx-dp", epsilon=epsilon, delta=delta, **more)


def spec(*claims: Claim, confidence: float = 0.95, expect: str = "no-deviation-found", **threat: Any) -> Spec:
    return Spec(
        name="demo",
        description="",
        mechanism=Section("demo"),
        data=Section("declared"),
        model=None,
        training=Section("native"),
        threat_model=ThreatModel(**threat),
        claims=claims,
        audit=AuditOptions(method="one-run", confidence=confidence, expect=expect),
        cell=FrozenMap(),
        document=FrozenMap(),
        digest="0" * 64,
    )


def bound(value: float, delta: float | None = 1e-9, *, group_size: int = 1, **changes: Any) -> Finding:
    at = {"group_size": group_size} if delta is None else {"delta": delta, "group_size": group_size}
    base = Finding(
        quantity="epsilon",
        value=value,
        bound="upper",
        rigor="certified",
        method="an accountant",
        source="a theorem",
        at=FrozenMap(at),
    )
    return dataclasses.replace(base, **changes)


def attack(canaries: int, guesses: int, correct: int, *, group_size: int = 1, **changes: Any) -> Evidence:
    base = Evidence(
        id="attack",
        kind="one-run",
        statistics=FrozenMap({"canaries": canaries, "guesses": guesses, "correct": correct}),
        scope=HERE,
        method="one-run guesses",
        source="a paper",
        at=FrozenMap({"group_size": group_size}),
    )
    return dataclasses.replace(base, **changes)


def counts(successes: int, trials: int, quantity: str = "accuracy", **changes: Any) -> Evidence:
    """Of the test records of one model; of another quantity, of an attack."""
    base = Evidence(
        id="counts",
        kind="binomial",
        statistics=FrozenMap({"successes": successes, "trials": trials}),
        scope=MEASURED if quantity == "accuracy" else HERE,
        method="test records",
        source="",
        quantity=quantity,
    )
    return dataclasses.replace(base, **changes)


def average(successes: list[int], records: int, **changes: Any) -> Evidence:
    """Of several runs, on the same test records."""
    base = Evidence(
        id="average",
        kind="average",
        statistics=FrozenMap({"successes": successes, "records": records}),
        scope=MEASURED,
        method=f"{len(successes)} runs",
        source="",
        quantity="accuracy",
    )
    return dataclasses.replace(base, **changes)


def check(p_value: float, assumption: str = "noise-scale", **changes: Any) -> Check:
    base = Check(
        assumption=assumption,
        test="chi-square",
        p_value=p_value,
        observed="measured",
        declared=1.0,
        measured=0.9,
        detectable=0.02,
    )
    return dataclasses.replace(base, **changes)


def verdicts(audited: Spec, *outcomes: Finding | Evidence | Check) -> tuple[Verdict, ...]:
    return judge([unjudged(audited, *outcomes)])[0].verdicts


def verdict(stated: Claim, *outcomes: Finding | Evidence | Check) -> Verdict:
    """Judge one claim by itself."""
    return verdicts(spec(stated), *outcomes)[0]


def unjudged(audited: Spec, *outcomes: Finding | Evidence | Check) -> Concluded:
    return Concluded(
        spec=audited,
        findings=tuple(o for o in outcomes if isinstance(o, Finding)),
        checks=tuple(o for o in outcomes if isinstance(o, Check)),
        evidence=tuple(o for o in outcomes if isinstance(o, Evidence)),
    )
