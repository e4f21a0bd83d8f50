"""The tests of the claims of an invocation, as two families: claims about privacy, and claims about metrics.

Beside them, proved upper bounds that an attack rejects at 1e-6 over the invocation: theory, implementation or attack is
wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpspec.contract import Claim, Evidence, Finding, Scope
from dpspec.engine.judging import hypotheses
from dpspec.engine.judging.evidence_weight import claim_scope, covers
from dpspec.engine.judging.hypotheses import Family, Hypothesis, group_size
from dpspec.engine.judging.inequalities import Part, Points, Statement, statement
from dpspec.engine.judging.judge_input import Concluded, OtherTests, confidence_of
from dpspec.stats.conformance.measurement import LEVEL

#: The share of the family-wise level that claims about metrics get where there are claims about privacy too. Each of
#: the two is a family of its own, so that no verdict about privacy depends on evidence that a report may leave out.
METRIC_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class TestedClaim:
    """A claim of audit ``number``, taken apart, with what is tested of it on which evidence."""

    number: int
    claim: Claim
    statement: Statement
    scope: Scope
    hypotheses: list[tuple[Hypothesis, Evidence]]

    @property
    def about_privacy(self) -> bool:
        """Whether the claim is about privacy: one about a metric is of the other family."""
        return self.statement.about_privacy


class ClaimTests:
    """The two families, with all their tests made before any claim is judged.

    claims: those of all audits, in their order. confidence: the family-wise one of the invocation.
    """

    def __init__(
        self, audits: Sequence[Concluded], findings: Sequence[tuple[Finding, ...]], others: OtherTests
    ) -> None:
        """``findings``: those of each audit, joined with its checks."""
        self._audits, self._findings = audits, findings
        self._evidence = [audit.judged_evidence for audit in audits]
        self.confidence = max(others.confidence, confidence_of([audit.spec for audit in audits]))
        kinds = {statement(claim).about_privacy for audit in audits for claim in audit.spec.claims}
        kinds |= {False} if others.metrics else set()
        metrics = METRIC_SHARE if len(kinds) == 2 else 1.0
        privacy = 1.0 - METRIC_SHARE if len(kinds) == 2 else 1.0
        level = 1.0 - self.confidence
        # By whether claims are about privacy.
        self._families = {True: Family(others=others.tests), False: Family()}
        self._levels = {True: level * privacy, False: level * metrics}
        self.claims = [self._test(number, claim) for number, audit in enumerate(audits) for claim in audit.spec.claims]
        for about_privacy, family in self._families.items():
            family.others += sum(self._to_come(number, about_privacy) for number in range(len(audits)))

    def level(self, tested: TestedClaim) -> float:
        """The level of the claim's family."""
        return self._levels[tested.about_privacy]

    def smallest(self, tested: TestedClaim) -> tuple[float, Evidence] | None:
        """The smallest adjusted p-value among a claim's tests, with its evidence; None without tests."""
        family = self._families[tested.about_privacy]
        adjusted = [(p, evidence) for h, evidence in tested.hypotheses if (p := family.adjusted(h)) is not None]
        return min(adjusted, key=lambda test: test[0], default=None)

    def largest_refutable(self, tested: TestedClaim, part: Part) -> float | None:
        """The farthest claimed value of a part that the evidence could have refuted, had every guess been right.

        Taken at the first step of Holm's procedure, the strictest one. None where there is no such value.
        """
        if not tested.hypotheses:
            return None
        level = self.level(tested) / len(self._families[tested.about_privacy])
        evidence = self._evidence[tested.number]
        if not tested.about_privacy:
            findings = self._findings[tested.number]
            measured = [e for _, e in hypotheses.measurements_of(part, evidence, findings)]
            return _extreme_metric(part, measured, level)
        counts = [e for _, e in hypotheses.counts_of(part, tested.scope, evidence)]
        if counts:
            return _extreme_metric(part, counts, level)
        if tested.statement.curve is None:
            return None
        attacks = [e for _, e in hypotheses.attacks_on(tested.claim, tested.scope, evidence)]
        return _largest_refutable(tested.statement.curve, attacks, level)

    def waits_for_trials(self, tested: TestedClaim) -> bool:
        """Whether there is evidence against the claim that is judged only once all trials are there."""
        every = self._hypotheses(tested.number, tested.claim, self._audits[tested.number].evidence)
        return len(every) > len(tested.hypotheses)

    def _test(self, number: int, claim: Claim) -> TestedClaim:
        said, scope = statement(claim), claim_scope(self._audits[number].spec, claim)
        tested = self._hypotheses(number, claim, self._evidence[number])
        for hypothesis, evidence in tested:
            self._families[said.about_privacy].add(hypothesis, evidence)
        return TestedClaim(number=number, claim=claim, statement=said, scope=scope, hypotheses=tested)

    def _hypotheses(self, number: int, claim: Claim, evidence: Sequence[Evidence]) -> list[tuple[Hypothesis, Evidence]]:
        said, scope = statement(claim), claim_scope(self._audits[number].spec, claim)
        return hypotheses.claim_hypotheses(number, claim, said, scope, evidence, self._findings[number])

    def _to_come(self, number: int, about_privacy: bool) -> int:
        """How many tests may join a family once an audit's missing trials are there: the tests that are made now are
        adjusted for them too."""
        audit = self._audits[number]
        if not audit.incomplete:
            return 0
        own = [c for c in self.claims if c.number == number and c.about_privacy == about_privacy]
        most = audit.tests if about_privacy else sum(len(c.statement.parts) for c in own)
        return max(0, most - len({hypothesis for c in own for hypothesis, _ in c.hypotheses}))


def _largest_refutable(curve: Callable[[float], Points], attacks: Sequence[Evidence], level: float) -> float | None:
    """The largest claimed value whose curve a perfect attack rejects at ``level``; None without attacks.

    Bisection, the rejected end; 0 where not even the claim of 0 could have been refuted.
    """
    from dpspec.stats.attacks import evidence_tests

    perfect = [evidence_tests.perfect(attack) for attack in attacks]
    if not perfect:
        return None

    def rejected(value: float) -> bool:
        return any(evidence_tests.curve_rejects(attack, curve(value), level) for attack in perfect)

    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high) and high < 1e6:
        low, high = high, 2.0 * high
    while high - low > 1e-4 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def _extreme_metric(part: Part, measurements: Sequence[Evidence], level: float) -> float | None:
    """The least at-least (largest at-most) value of a metric that its counts could have refuted at ``level``."""
    from dpspec.stats.attacks import evidence_tests

    values = [evidence_tests.metric_extreme(e, part.side, level) for e in measurements]
    if not values:
        return None
    return min(values) if part.side == "at-least" else max(values)


@dataclass(frozen=True, kw_only=True)
class RejectedBound:
    """A curve of proved bounds that an attack rejects.

    findings: what the curve is made of, all of one scope. points: its (epsilon, delta) pairs; of a bound on the success
        that an attack counts, its value and 0.
    p_value: adjusted by Holm over all tests of bounds.
    """

    evidence: Evidence
    findings: tuple[Finding, ...]
    points: Points
    p_value: float

    def hits(self, finding: Finding) -> bool:
        """Whether a finding is rejected with it: as a part of the curve, or for implying one of its points."""
        if finding.quantity != "epsilon" or finding.bound != "upper" or not set(finding.at) <= {"delta", "group_size"}:
            return finding in self.findings
        own_delta = float(finding.at.get("delta", 0.0))
        implied = any(finding.value <= epsilon and own_delta <= delta for epsilon, delta in self.points)
        in_scope = covers(finding.scope, self.evidence.scope)
        return implied and group_size(finding) >= group_size(self.evidence) and in_scope


def reject_bounds(
    findings: Sequence[Sequence[Finding]], evidence: Sequence[Sequence[Evidence]]
) -> list[list[RejectedBound]]:
    """The rejected bounds of each audit of an invocation; the tests of all audits are one family."""
    family = Family()
    tests = [
        hypotheses.bound_hypotheses(number, of_audit, attacks)
        for number, (of_audit, attacks) in enumerate(zip(findings, evidence, strict=True))
    ]
    for of_audit in tests:
        for hypothesis, attack, _ in of_audit:
            family.add(hypothesis, attack)
    return [
        [
            RejectedBound(evidence=attack, findings=tested, points=hypothesis[3], p_value=p_value)
            for hypothesis, attack, tested in of_audit
            if (p_value := family.adjusted(hypothesis)) is not None and p_value <= LEVEL
        ]
        for of_audit in tests
    ]


def rejection_of(finding: Finding, rejected: Sequence[RejectedBound]) -> RejectedBound | None:
    """The first rejected bound that a finding is rejected with; None where there is none."""
    return next((bound for bound in rejected if bound.hits(finding)), None)
