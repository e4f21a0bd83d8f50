"""Input of the judge: the conclusions of each audit, and the number of tests of other audits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpspec.contract import Check, Evidence, Finding, Power, Series, Spec
from dpspec.engine.judging.inequalities import about_privacy
from dpspec.engine.results.recording import Recording

#: The default family-wise confidence.
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Concluded:
    """The conclusions of one audit by type.

    Tests of a fixed number of trials wait for the last of ``needed``. ``tests`` is the maximum number of privacy tests
    of all trials, which count as made while trials are missing.
    """

    spec: Spec
    findings: tuple[Finding, ...] = ()
    series: tuple[Series, ...] = ()
    checks: tuple[Check, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    trials: int = 0
    needed: int = 0
    sequential: bool = False
    tests: int = 0
    promised: tuple[Check, ...] = ()
    recording: Recording | None = None
    seconds: float = 0.0

    @property
    def incomplete(self) -> bool:
        return self.trials < self.needed

    @property
    def executed(self) -> bool:
        return self.recording is not None or (self.trials > 0 and not self.incomplete)

    @property
    def judged_evidence(self) -> tuple[Evidence, ...]:
        from dpspec.stats.attacks import evidence_tests

        if not self.incomplete:
            return self.evidence
        return tuple(e for e in self.evidence if evidence_tests.holds_whenever_stopped(e))

    def is_early(self, finding: Finding) -> bool:
        executed = finding.rigor == "statistical" and finding.scope.pipeline == "executed"
        return self.incomplete and not self.sequential and executed


@dataclass(frozen=True, kw_only=True)
class PendingTests:
    """The tests of the other audits, and whether claims about metrics share the level."""

    confidence: float = 0.0
    tests: int = 0
    metrics: bool = False


#: No other audits.
NO_PENDING = PendingTests()


def confidence_of(specs: Sequence[Spec]) -> float:
    return max((spec.audit.confidence for spec in specs if spec.audit is not None), default=CONFIDENCE)


def planned_tests(claim_kinds: Iterable[str], planned_trials: int, power: Sequence[Power]) -> int:
    """The maximum number of privacy tests of an audit: one for each attack of its plan and each claim.

    A plan with trials and without ``power`` has one attack.
    """
    attacks = max(1, len(power)) if planned_trials else 0
    return attacks * sum(map(about_privacy, claim_kinds))


def pending_tests(
    audits: Sequence[tuple[Sequence[str], int, Sequence[Power]]], confidence: float
) -> list[PendingTests]:
    """For each audit of an invocation the tests of the others, before their trials are known.

    A claim that is decided with these stays decided for all results of the others. ``audits`` are the arguments of
    :func:`planned_tests`.
    """
    tests = [planned_tests(*audit) for audit in audits]
    # A kind that only a plugin knows shares the level as metrics do.
    metrics = not all(about_privacy(kind) for kinds, _, _ in audits for kind in kinds)
    return [PendingTests(confidence=confidence, tests=sum(tests) - own, metrics=metrics) for own in tests]
