"""What the judge is given: the conclusions of each audit, and how many tests the audits make that are not there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpspec.contract import Check, Evidence, Finding, Power, Series, Spec
from dpspec.engine.judging.inequalities import about_privacy
from dpspec.engine.results.recording import Recording

#: The family-wise confidence where no spec states one.
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Concluded:
    """The stage ``conclude`` of one audit: all that it yielded, sorted by type.

    trials: how many there are, of ``needed``. Where some are missing, tests of a fixed number of trials are not judged.
    sequential: whether the plan promises that its conclusions hold whenever trials stop.
    tests: the most tests of claims about privacy that all ``needed`` trials can lead to; while trials are missing, they
        count as made.
    promised: the checks of the plan. recording: the recorded run that takes the place of trials, if any.
    seconds: what concluding took.
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
        """Whether trials are missing."""
        return self.trials < self.needed

    @property
    def executed(self) -> bool:
        """Whether something ran and no trial is missing: then every check that was promised must be there."""
        return self.recording is not None or (self.trials > 0 and not self.incomplete)

    @property
    def judged_evidence(self) -> tuple[Evidence, ...]:
        """The evidence whose tests are valid with the trials that are there."""
        from dpspec.stats.attacks import evidence_tests

        if not self.incomplete:
            return self.evidence
        return tuple(e for e in self.evidence if evidence_tests.holds_whenever_stopped(e))

    def is_early(self, finding: Finding) -> bool:
        """Whether a finding is true with its confidence for all trials only, and some are missing."""
        executed = finding.rigor == "statistical" and finding.scope.pipeline == "executed"
        return self.incomplete and not self.sequential and executed


@dataclass(frozen=True, kw_only=True)
class OtherTests:
    """The tests of those audits of an invocation that are not judged here.

    confidence: the highest that a spec of the invocation states.
    tests: how many more tests of claims about privacy there are, at most.
    metrics: whether the invocation has claims about metrics.
    """

    confidence: float = 0.0
    tests: int = 0
    metrics: bool = False


#: All audits of the invocation are judged together.
NO_OTHERS = OtherTests()


def confidence_of(specs: Sequence[Spec]) -> float:
    """The family-wise confidence of an invocation: the highest that a spec states."""
    return max((spec.audit.confidence for spec in specs if spec.audit is not None), default=CONFIDENCE)


def planned_tests(claim_kinds: Iterable[str], planned_trials: int, power: Sequence[Power]) -> int:
    """The most tests of claims about privacy that an audit can make: one for each attack of its plan and each claim.

    power: what the plan says of each attack; a plan with trials that names none is taken to have one attack.
    """
    attacks = max(1, len(power)) if planned_trials else 0
    return attacks * sum(map(about_privacy, claim_kinds))


def other_tests(tests: Sequence[int], claim_kinds: Iterable[str], confidence: float) -> list[OtherTests]:
    """For each audit of an invocation the tests of the others, before anything is known of their trials.

    A claim that is decided with these stays decided whatever the others show, as far as their plans name their attacks.

    tests: of each audit, by :func:`planned_tests`. claim_kinds: of all claims of the invocation.
    """
    # A kind that only a plugin knows shares the level as metrics do.
    metrics = not all(about_privacy(kind) for kind in claim_kinds)
    return [OtherTests(confidence=confidence, tests=sum(tests) - own, metrics=metrics) for own in tests]
