"""Hand-made specs, findings and evidence for tests of the judge."""

import dataclasses
from typing import Any

import dpspec.contract as dps
from dpspec.contract.results import Verdict
from dpspec.engine.judging.claim_tests import Concluded
from dpspec.engine.judging.judge import judge
from support import specs

SCOPE_KEYS = ("adjacency", "access", "direction", "group_size", "min_records", "neighbours", "record", "over")

#: The scope of an attack on one trained model.
HERE = dps.Scope(data="this", pipeline="executed")

#: The scope of a measurement of one trained model.
MEASURED = dps.Scope(data="this", adversary="none", pipeline="executed")


def claim(kind: str = "approx-dp", expect: tuple[str, ...] = ("proved",), id: str = "c", **options: Any) -> dps.Claim:
    scope = {key: options.pop(key) for key in SCOPE_KEYS if key in options}
    scope = {"adjacency": "add-remove", "access": "all-iterates", "direction": "both", **scope}
    return dps.Claim(id=id, kind=kind, options=dps.FrozenMap(options), expect=expect, **scope)


def approx(epsilon: float = 3.0, delta: float = 1e-9, **more: Any) -> dps.Claim:
    return claim("approx-dp", epsilon=epsilon, delta=delta, **more)


def spec(*claims: dps.Claim, confidence: float = 0.95, expect: str = "no-deviation-found", **threat: Any) -> dps.Spec:
    audit = dps.AuditOptions(method="one-run", confidence=confidence, expect=expect)
    return specs.bare(threat_model=dps.ThreatModel(**threat), claims=claims, audit=audit)


def bound(value: float, delta: float | None = 1e-9, *, group_size: int = 1, **changes: Any) -> dps.Finding:
    at = {"group_size": group_size} if delta is None else {"delta": delta, "group_size": group_size}
    base = dps.Finding(
        quantity="epsilon",
        value=value,
        bound="upper",
        rigor="certified",
        method="an accountant",
        source="a theorem",
        at=dps.FrozenMap(at),
    )
    return dataclasses.replace(base, **changes)


def attack(canaries: int, guesses: int, correct: int, *, group_size: int = 1, **changes: Any) -> dps.Evidence:
    base = dps.Evidence(
        id="attack",
        kind="one-run",
        statistics=dps.FrozenMap({"canaries": canaries, "guesses": guesses, "correct": correct}),
        scope=HERE,
        method="one-run guesses",
        source="a paper",
        at=dps.FrozenMap({"group_size": group_size}),
    )
    return dataclasses.replace(base, **changes)


def counts(successes: int, trials: int, quantity: str = "accuracy", **changes: Any) -> dps.Evidence:
    """Return counts over test records of one model, or for another quantity than accuracy, of an attack."""
    base = dps.Evidence(
        id="counts",
        kind="binomial",
        statistics=dps.FrozenMap({"successes": successes, "trials": trials}),
        scope=MEASURED if quantity == "accuracy" else HERE,
        method="test records",
        source="",
        quantity=quantity,
    )
    return dataclasses.replace(base, **changes)


def average(successes: list[int], records: int, **changes: Any) -> dps.Evidence:
    """Return the average of several runs on the same test records."""
    base = dps.Evidence(
        id="average",
        kind="average",
        statistics=dps.FrozenMap({"successes": successes, "records": records}),
        scope=MEASURED,
        method=f"{len(successes)} runs",
        source="",
        quantity="accuracy",
    )
    return dataclasses.replace(base, **changes)


def check(p_value: float, assumption: str = "noise-scale", **changes: Any) -> dps.Check:
    base = dps.Check(
        assumption=assumption,
        test="chi-square",
        p_value=p_value,
        observed="measured",
        declared=1.0,
        measured=0.9,
        detectable=0.02,
    )
    return dataclasses.replace(base, **changes)


def verdicts(audited: dps.Spec, *outcomes: dps.Finding | dps.Evidence | dps.Check) -> tuple[Verdict, ...]:
    return judge([unjudged(audited, *outcomes)])[0].verdicts


def verdict(stated: dps.Claim, *outcomes: dps.Finding | dps.Evidence | dps.Check) -> Verdict:
    return verdicts(spec(stated), *outcomes)[0]


def unjudged(audited: dps.Spec, *outcomes: dps.Finding | dps.Evidence | dps.Check) -> Concluded:
    return Concluded(
        spec=audited,
        findings=tuple(o for o in outcomes if isinstance(o, dps.Finding)),
        checks=tuple(o for o in outcomes if isinstance(o, dps.Check)),
        evidence=tuple(o for o in outcomes if isinstance(o, dps.Evidence)),
    )
