"""What an audit stands behind, sorted by type: its bounds, and what follows from its trials."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import get_args

from dpspec.contract import Check, Evidence, Finding, Outcome, Series, Trial
from dpspec.contract.findings import Rigor
from dpspec.engine.claims import statement
from dpspec.engine.prepare import Prepared
from dpspec.errors import PluginError


@dataclass
class Outcomes:
    """What an audit's steps yielded, sorted by type."""

    findings: list[Finding] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """File one outcome."""
        match outcome:
            case Finding():
                self.findings.append(outcome)
            case Series():
                self.series.append(outcome)
            case Check():
                self.checks.append(outcome)
            case Evidence():
                self.evidence.append(outcome)


def conclude(prepared: Prepared, bounds: Sequence[Finding | Series], trials: Sequence[Trial]) -> Outcomes:
    """Everything that the audit stands behind: its bounds, and what follows from the trials.

    Raises ``PluginError`` where the audit yields what no verdict could be based on.
    """
    outcomes = Outcomes()
    read = {part.quantity for claim in prepared.spec.claims for part in statement(claim).parts}
    read |= {bound.quantity for bound in bounds if isinstance(bound, Finding)}
    for outcome in chain(bounds, prepared.audit.conclude(prepared.spec, trials) if trials else ()):
        if flaw := _flaw(outcome, read):
            kind = prepared.spec.mechanism.kind
            raise PluginError(f"mechanism {kind!r} yields {flaw}: tell its authors, or see `dpspec plugins --check`")
        outcomes.add(outcome)
    return outcomes


def _flaw(outcome: object, read: Container[str]) -> str:
    """Why the judge could not read an outcome; empty where it can. All that may be wrong besides, the conformance suite
    says (``dpspec.testing``).

    read: the quantities that claims and bounds are of: evidence of other ones is not tested.
    """
    if not isinstance(outcome, Finding | Series | Check | Evidence):
        return f"a {type(outcome).__name__}, which is no outcome"
    if isinstance(outcome, Finding) and outcome.rigor not in get_args(Rigor):
        return f"a finding whose rigor is {outcome.rigor!r} (valid: {', '.join(get_args(Rigor))})"
    if isinstance(outcome, Check) and not 0.0 <= outcome.p_value <= 1.0:
        return f"a check of {outcome.assumption!r} whose p-value is {outcome.p_value}"
    if isinstance(outcome, Evidence) and (outcome.quantity == "epsilon" or outcome.quantity in read):
        from dpspec.stats import nulls

        try:
            nulls.require_counts(outcome)
            if outcome.quantity == "epsilon":
                nulls.require_privacy(outcome)
            else:
                nulls.require_metric(outcome)
        except ValueError as error:
            return str(error)
    return ""
