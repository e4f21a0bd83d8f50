"""What an audit stands behind, sorted by type: its bounds, and what follows from its trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dpspec.contract import Check, Evidence, Finding, Outcome, Series, Trial
from dpspec.engine.prepare import Prepared


@dataclass
class Outcomes:
    """What an audit's steps yielded, sorted by type."""

    findings: list[Finding] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """File one outcome; raises ``TypeError`` on anything that is none."""
        match outcome:
            case Finding():
                self.findings.append(outcome)
            case Series():
                self.series.append(outcome)
            case Check():
                self.checks.append(outcome)
            case Evidence():
                self.evidence.append(outcome)
            case _:
                raise TypeError(f"an audit yielded {type(outcome).__name__}, which is no outcome")


def conclude(prepared: Prepared, bounds: Sequence[Finding | Series], trials: Sequence[Trial]) -> Outcomes:
    """Everything that the audit stands behind: its bounds, and what follows from the trials."""
    outcomes = Outcomes()
    for bound in bounds:
        outcomes.add(bound)
    if trials:
        for outcome in prepared.audit.conclude(prepared.spec, trials):
            outcomes.add(outcome)
    return outcomes
