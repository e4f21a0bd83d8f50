"""Checks that speak of the rows, told as coarsely as a verdict needs: whether they reject, and roughly what they see.

A p-value keeps its power of ten where it is surprising and none of its digits otherwise, what was measured goes, the
detectable deviation keeps one digit. The conformance's own words, and what findings say of the tests behind their
assumptions, are put together anew from that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from dpspec.contract import Assumption, Check
from dpspec.engine import numbers
from dpspec.engine.conformance import reason, rejected
from dpspec.engine.result import AuditResult
from dpspec.stats.measurement import LEVEL


def blurred(audit: AuditResult, family: int) -> AuditResult:
    """The audit with its data-dependent checks blurred; ``family`` is the number of checks of the invocation."""
    checks = tuple(_check(check) for check in audit.checks)
    if checks == audit.checks:
        return audit
    bad = [new for old, new in zip(audit.checks, checks, strict=True) if rejected(old, family)]
    told = {old.test: new for old, new in zip(audit.checks, checks, strict=True) if old.privacy != "public"}
    return dataclasses.replace(
        audit,
        checks=checks,
        conformance=dataclasses.replace(audit.conformance, reason=reason(bad, checks)),
        findings=tuple(dataclasses.replace(f, assumptions=_known(f.assumptions, told)) for f in audit.findings),
        evidence=tuple(dataclasses.replace(e, assumptions=_known(e.assumptions, told)) for e in audit.evidence),
    )


def _check(check: Check) -> Check:
    if check.privacy == "public":
        return check
    detectable = None if check.detectable is None else _coarse(check.detectable)
    return dataclasses.replace(check, measured=None, p_value=_power_of_ten(check.p_value), detectable=detectable)


def _power_of_ten(p_value: float) -> float:
    """Rounded up; one where nothing is surprising, zero where it is zero."""
    if p_value > LEVEL:
        return 1.0
    return 10.0 ** math.ceil(math.log10(p_value) - 1e-9) if p_value > 0.0 else 0.0


def _coarse(value: float) -> float:
    return float(numbers.upper(value, digits=1)) if 0.0 < value < math.inf else value


def _known(assumptions: Sequence[Assumption], told: Mapping[str, Check]) -> tuple[Assumption, ...]:
    found = []
    for assumption in assumptions:
        name = (assumption.test or "").partition(": rejected")[0]
        check = told.get(name)
        if check is None:
            found.append(assumption)
            continue
        test = name if assumption.test == name else f"{name}: rejected for what ran"
        found.append(dataclasses.replace(assumption, test=test, detectable=check.detectable))
    return tuple(found)
