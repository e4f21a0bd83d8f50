"""A hand-made result with everything that a report must cope with: hostile names, infinities, hidden values."""

import dataclasses
import math

import pytest
from support import results as factory

from dpspec.contract import Assumption, Check, Facts, Finding, FrozenMap, Printed, Scope
from dpspec.contract.results import AuditResult, Conformance, Result, Verdict

#: A terminal escape, a right-to-left override, markup of three languages, a line end and a lone surrogate.
HOSTILE = "evil\x1b[31m\u202e[red]x[/red] <b>|`*\n::error::\udc80"

SOURCE = "Ganesh 2024, Theorem 3.1"
EXECUTED = Scope(data="this", pipeline="executed")
POISSON = Assumption(name="poisson", status="by-construction", text="every record enters a batch on its own")
NOISE = Assumption(
    name="noise-scale", status="not-rejected", text="the noise has the declared scale", test="chi-square", level=1e-6,
    detectable=0.0123,
)  # fmt: skip
FRESH = Assumption(name="independent-noise", status="unchecked", text="every step draws fresh noise")


def upper(value: float, group_size: int, **changes: object) -> Finding:
    finding = Finding(
        quantity="epsilon", value=value, bound="upper", rigor="certified", method="pld/mixture", source=SOURCE,
        at=FrozenMap({"delta": 1e-6, "group_size": group_size}), assumptions=(POISSON, NOISE),
    )  # fmt: skip
    return dataclasses.replace(finding, **changes)  # type: ignore[arg-type]


FINDINGS = (
    upper(2.95524591, 1, lower=2.9551),
    upper(14.5349764, 4),
    upper(math.inf, 64),
    upper(2.1, 1, rigor="approximate", method="clt", source="a plug-in"),
    upper(1.5, 1, rigor="theorem", method="printed", printed=Printed(refuted=True, reason="drops a factor of two")),
    Finding(
        quantity="accuracy", value=0.9412345, bound="estimate", rigor="statistical", method="held-out",
        source="360 test records", privacy="data-dependent", scope=EXECUTED, confidence=0.95,
    ),
    upper(
        1.2345678, 1, bound="lower", rigor="statistical", method="one-run", source="Steinke 2023, Theorem 5.2",
        confidence=0.95, scope=EXECUTED, assumptions=(FRESH,),
    ),
    upper(0.7777, 1, privacy="per-record", method="per-record", scope=Scope(record=3)),
)  # fmt: skip


def verdict(claim: str, name: str, expected: bool, claimed: float, **changes: object) -> Verdict:
    text = f"epsilon {claimed:g} at delta 1e-06 for groups of 1, add-remove, all iterates"
    unset = dict.fromkeys(("upper", "lower", "upper_finding", "lower_finding", "provable", "refutable", "p_value"))
    given = {"verdict": name, "expected": expected, "claimed": claimed, "text": text, "reason": ""}
    return factory.verdict(claim, **{**unset, **given, **changes})


VERDICTS = (
    verdict(
        "one-record", "proved", True, 3.0, upper=2.95524591, lower=1.2345678, upper_finding=0, lower_finding=6,
        reason="The upper bound lies within the claim.",
    ),
    verdict(
        "tight", "open", False, 2.9552, upper=2.95524591, upper_finding=0, reason="Nothing decides it.",
        provable=2.95524591,
    ),
    verdict("asymptotic", "supported", True, 2.5, upper=2.1, upper_finding=3, expect=("supported", "proved")),
    verdict("too-good", "refuted", True, 0.01, lower=1.2345678, lower_finding=6, expect=("refuted",), p_value=1e-9),
    verdict("record-3", "proved", True, 1.0, upper=0.7777, upper_finding=7, reason="0.7777 lies within the claim."),
    verdict(HOSTILE, "contradicted", False, 0.5, lower=4.2, text=HOSTILE, reason=HOSTILE),
)  # fmt: skip


def _audit() -> AuditResult:
    base = factory.audit()
    (series,), (evidence,), (trial,) = base.series, base.evidence, base.trials
    columns, units = FrozenMap({"epsilon": [1.0], "delta": [0.1]}), FrozenMap({"epsilon": "1", "delta": "1"})
    noise = Check(
        assumption="noise-scale", test="chi-square", p_value=0.4321, observed="measured", declared=1.0,
        measured=1.00312, detectable=0.0123,
    )  # fmt: skip
    return dataclasses.replace(
        base,
        name="digits-group",
        source="specs/quickstart.yaml",
        digest="0123456789abcdef" * 4,
        document=FrozenMap({"dpspec": 1, "audit": {"method": "one-run", "seed": 7}}),
        facts=Facts(records=1437, features=64, classes=10, digest="fedcba9876543210" * 4),
        verdicts=VERDICTS,
        conformance=Conformance(
            status="no-deviation-found",
            expect="no-deviation-found",
            expected=True,
            reason="no test saw a deviation; the coarsest would have seen 1.3%",
        ),
        findings=FINDINGS,
        series=(
            dataclasses.replace(
                series, name="profile", title="Privacy profile", columns=columns, units=units, rigor="certified",
                source=SOURCE,
            ),
            dataclasses.replace(
                series, name="losses", title="Loss of every record", columns=FrozenMap({"loss": [1.0]}),
                units=FrozenMap({"loss": "1"}), rigor="approximate", privacy="per-record",
            ),
        ),
        checks=(noise, Check(assumption="poisson", test="batch-size", p_value=0.05, observed="reported", note=HOSTILE)),
        evidence=(dataclasses.replace(evidence, id="one-run", method="one-run", source="Steinke 2023"),),
        trials=(
            dataclasses.replace(
                trial, evidence=FrozenMap({"correct": 45}), recorded=FrozenMap({"device": "cpu", "seconds": 12.5})
            ),
        ),
        power=(),
        notes=("The plan's own note.",),
        seconds=73.2,
    )  # fmt: skip


@pytest.fixture
def result() -> Result:
    """Six claims of every verdict, on one audit."""
    command = ["dpspec", "run", "specs/quickstart.yaml", "--set", "audit.seed=7", "--report", "json=out.json"]
    versions = {"python": "3.11.9", "torch": "2.13.0", "scipy": None}
    environment = FrozenMap({**versions, "command": command, "plugins": {"group": "dpspec 0.1.0"}})
    return factory.result(_audit(), created="2026-01-02T03:04:05+00:00", environment=environment)
