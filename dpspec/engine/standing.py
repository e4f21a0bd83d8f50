"""How much a finding counts for a claim: as proof, as weaker evidence, or not at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from dpspec.contract import Assumption, Finding, Scope
from dpspec.engine.claims import Part
from dpspec.engine.scope import covers, shortfall

#: From strong to weak. ``conditional``: an inequality that holds for fewer data sets than the claim speaks of, or under
#: an assumption that nobody checked.
Strength: TypeAlias = Literal["proof", "conditional", "statistical", "approximate"]
STRENGTHS: tuple[Strength, ...] = ("proof", "conditional", "statistical", "approximate")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One finding as it stands towards one part of a claim; ``index`` is its place among the audit's findings."""

    index: int
    finding: Finding
    strength: Strength

    @property
    def value(self) -> float:
        """The finding's number."""
        return self.finding.value


def proving(part: Part, scope: Scope | None, findings: Sequence[Finding]) -> list[Standing]:
    """The findings on the proving side of a part (upper bounds for an at-most claim), strongest and tightest first.

    ``scope`` is the claim's, or None where scopes do not apply (metrics). Estimates count as approximate, and only
    where their scope covers the claim's and they speak of the declared mechanism: what an attack estimates is none.
    """
    side = "upper" if part.side == "at-most" else "lower"
    found = [
        Standing(index=index, finding=finding, strength=strength)
        for index, finding in enumerate(findings)
        if finding.quantity == part.quantity
        and finding.bound in (side, "estimate")
        and part.holds_under(finding.at)
        and (strength := _strength(finding, scope)) is not None
    ]
    sign = 1.0 if part.side == "at-most" else -1.0
    return sorted(found, key=lambda s: (STRENGTHS.index(s.strength), sign * s.value, s.index))


def opposing(part: Part, scope: Scope | None, findings: Sequence[Finding]) -> list[Standing]:
    """The findings on the other side of a part (lower bounds for an at-most claim), strongest and farthest first.

    A lower bound counts only if the claim's scope covers its own. The lower end that an accountant gives beside an
    upper bound is no finding of its own and never comes here.
    """
    side = "lower" if part.side == "at-most" else "upper"
    found = [
        Standing(index=index, finding=finding, strength=strength)
        for index, finding in enumerate(findings)
        if finding.quantity == part.quantity
        and finding.bound == side
        and part.speaks_of(finding.at)
        and (scope is None or covers(scope, finding.scope))
        and (strength := _strength(finding, None)) is not None
    ]
    sign = -1.0 if part.side == "at-most" else 1.0
    weak = ("approximate",)
    return sorted(found, key=lambda s: (s.strength in weak, sign * s.value, s.index))


def proven_bound(finding: Finding) -> bool:
    """Whether a finding is an inequality that a verdict may rest on, wherever its scope reaches."""
    return finding.bound != "estimate" and _strength(finding, None) == "proof"


def outside(part: Part, scope: Scope, findings: Sequence[Finding]) -> str:
    """In what a proof falls short of a claim's scope that would do otherwise, of several the one that does in least."""
    side = "upper" if part.side == "at-most" else "lower"
    short = [
        (f.method, shortfall(f.scope, scope))
        for f in findings
        if (f.quantity, f.bound) == (part.quantity, side) and proven_bound(f) and part.holds_under(f.at)
    ]
    method, reasons = min((each for each in short if each[1]), key=lambda each: len(each[1]), default=("", []))
    return f"{method}: {'; '.join(reasons)}" if reasons else ""


def reaches(finding: Finding, scope: Scope) -> bool:
    """Whether a finding speaks of a claim's scope, if only for fewer data sets."""
    return covers(replace(finding.scope, data="all"), scope)


def usable(assumptions: Sequence[Assumption]) -> bool:
    """Whether no assumption is known to be false or left unchecked."""
    return all(a.status not in ("false", "unchecked") for a in assumptions)


def _strength(finding: Finding, scope: Scope | None) -> Strength | None:
    if math.isnan(finding.value) or (finding.printed is not None and finding.printed.refuted):
        return None
    if any(a.status == "false" for a in finding.assumptions):
        return None
    full = scope is None or covers(finding.scope, scope)
    if not full and scope is not None and not reaches(finding, scope):
        return None
    if finding.bound == "estimate":
        # What an attack estimates of the pipeline that ran is no evidence that a claim about privacy holds.
        attacked = scope is not None and finding.scope.pipeline == "executed"
        return "approximate" if full and not attacked else None
    if finding.rigor == "approximate":
        return "approximate"
    if finding.rigor == "statistical":
        return "statistical"
    return "proof" if full and usable(finding.assumptions) else "conditional"
