"""Input of the judge: the conclusions of each audit, and the number of tests of other audits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dpspec.contract import Check, Claim, Evidence, Finding, Scope, Series, Spec
from dpspec.contract.executed import ExecutedSection
from dpspec.results.evidence_weight import (
    claim_scope,
    covers,
    group_size,
    implied_pairs,
    is_metric,
    measures,
    proven_bound,
    usable,
)
from dpspec.results.inequalities import Part, Points, Statement, statement
from dpspec.stats.conformance.measurement import LEVEL

#: The default family-wise confidence.
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Concluded:
    """The conclusions of one audit by type.

    Tests of a fixed number of trials wait for the last of ``needed``. ``tests`` is the maximum number of privacy tests
    of all trials, one for each attack of the plan and each claim, which count as made while trials are missing.
    ``comparisons`` are the ``findings`` that decide no verdict.
    """

    spec: Spec
    findings: tuple[Finding, ...] = ()
    comparisons: tuple[Finding, ...] = ()
    series: tuple[Series, ...] = ()
    checks: tuple[Check, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    trials: int = 0
    needed: int = 0
    tests: int = 0
    promised: tuple[Check, ...] = ()
    recording: ExecutedSection | None = None
    seconds: float = 0.0

    @property
    def incomplete(self) -> bool:
        return self.trials < self.needed

    @property
    def judged_findings(self) -> tuple[Finding, ...]:
        """All findings except comparisons."""
        return tuple(finding for finding in self.findings if finding not in self.comparisons)

    @property
    def judged_evidence(self) -> tuple[Evidence, ...]:
        """All evidence of a complete audit; before, the kinds whose tests are valid after any number of trials."""
        if not self.incomplete:
            return self.evidence
        from dpspec.stats.attacks import evidence_tests

        return tuple(e for e in self.evidence if evidence_tests.valid_anytime(e))

    def is_early(self, finding: Finding) -> bool:
        return self.incomplete and finding.rigor == "statistical" and finding.scope.pipeline == "executed"


def confidence_of(specs: Sequence[Spec]) -> float:
    return max((spec.audit.confidence for spec in specs if spec.audit is not None), default=CONFIDENCE)


#: The audit and place of a piece of evidence, and ``curve`` with its points, or a metric's side with the claimed value
#: (and 0).
Hypothesis = tuple[int, int, str, Points]


#: A hypothesis with its evidence, and the part that counts test; None for an attack on the whole curve.
TestedHypothesis = tuple[Hypothesis, Evidence, Part | None]


@dataclass
class Family:
    others: int = 0
    _p_values: dict[Hypothesis, float] = field(default_factory=dict)

    def add(self, hypothesis: Hypothesis, evidence: Evidence) -> None:
        from dpspec.stats.attacks import evidence_tests

        if hypothesis in self._p_values:
            return
        _, _, kind, points = hypothesis
        if kind == "curve":
            p_value = evidence_tests.curve_p_value(evidence, points)
        else:
            p_value = evidence_tests.metric_p_value(evidence, kind, points[0][0])
        self._p_values[hypothesis] = p_value

    @cached_property
    def adjusted(self) -> dict[Hypothesis, float]:
        """The adjusted p-values, after all hypotheses were added."""
        from dpspec.stats.attacks import evidence_tests

        adjusted = evidence_tests.holm([*self._p_values.values(), *[1.0] * self.others])
        return dict(zip(self._p_values, adjusted, strict=False))

    def __len__(self) -> int:
        return len(self._p_values) + self.others


def bound_hypotheses(
    audit: int, findings: Sequence[Finding], evidence: Sequence[Evidence]
) -> list[tuple[Hypothesis, Evidence, tuple[Finding, ...]]]:
    """The hypotheses of the proved upper bounds: per attack and scope, the curve of the best bounds.

    The findings are the ones of the curve. A bound for larger groups covers an attack on smaller ones; a tighter bound
    at the same delta replaces it.
    """
    hypotheses: list[tuple[Hypothesis, Evidence, tuple[Finding, ...]]] = []
    for index, e in enumerate(evidence):
        if not usable(e.assumptions):
            continue
        bounds = [f for f in findings if f.bound == "upper" and proven_bound(f) and covers(f.scope, e.scope)]
        if e.kind == "binomial":
            # Per scope, the best bound on the success rate.
            counted = Part(quantity=e.quantity, claimed=1.0, at=e.at)
            lowest: dict[Scope, Finding] = {}
            for finding in bounds:
                if finding.quantity != e.quantity or not counted.matches(finding.at):
                    continue
                if finding.scope not in lowest or finding.value < lowest[finding.scope].value:
                    lowest[finding.scope] = finding
            best_bounds = lowest.values()
            hypotheses += [((audit, index, "at-most", ((b.value, 0.0),)), e, (b,)) for b in best_bounds]
        if e.quantity != "epsilon":
            continue
        best: dict[Scope, dict[float, tuple[float, Finding]]] = {}
        for finding in bounds:
            if group_size(finding) < group_size(e):
                continue
            curve = best.setdefault(finding.scope, {})
            for epsilon, delta in implied_pairs(finding):
                if epsilon < curve.get(delta, (float("inf"), finding))[0]:
                    curve[delta] = (epsilon, finding)
        for curve in best.values():
            points = tuple(sorted((epsilon, delta) for delta, (epsilon, _) in curve.items()))
            if points:
                made_of = tuple(dict.fromkeys(finding for _, finding in curve.values()))
                hypotheses.append(((audit, index, "curve", points), e, made_of))
    return hypotheses


#: The share of the level for claims about metrics if there are claims about privacy too. The families are separate, so
#: that no privacy verdict depends on evidence that a report may omit.
METRIC_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class TestedClaim:
    number: int
    claim: Claim
    statement: Statement
    scope: Scope
    hypotheses: list[TestedHypothesis]


class ClaimTests:
    """The two families of claims, with all tests made before any claim is judged."""

    def __init__(self, audits: Sequence[Concluded], findings: Sequence[tuple[Finding, ...]]) -> None:
        """``findings``: per audit, joined with its checks."""
        self._audits, self._findings = audits, findings
        self._evidence = [audit.judged_evidence for audit in audits]
        self.confidence = confidence_of([audit.spec for audit in audits])
        kinds = {statement(claim).about_privacy for audit in audits for claim in audit.spec.claims}
        metrics = METRIC_SHARE if len(kinds) == 2 else 1.0
        privacy = 1.0 - METRIC_SHARE if len(kinds) == 2 else 1.0
        level = 1.0 - self.confidence
        # By whether claims are about privacy.
        self._families = {True: Family(), False: Family()}
        self._levels = {True: level * privacy, False: level * metrics}
        self.claims: list[TestedClaim] = []
        for number, audit in enumerate(audits):
            for claim in audit.spec.claims:
                stated, scope = statement(claim), claim_scope(audit.spec, claim)
                tested = self.hypotheses(number, claim, self._evidence[number])
                for hypothesis, attack, _ in tested:
                    self._families[stated.about_privacy].add(hypothesis, attack)
                self.claims.append(
                    TestedClaim(number=number, claim=claim, statement=stated, scope=scope, hypotheses=tested)
                )
        # The maximum number of tests that missing trials can add to a family.
        for of_privacy, family in self._families.items():
            for number, audit in enumerate(audits):
                if audit.incomplete:
                    audit_claims = [
                        c for c in self.claims if c.number == number and c.statement.about_privacy == of_privacy
                    ]
                    most = audit.tests if of_privacy else sum(len(c.statement.parts) for c in audit_claims)
                    family.others += max(0, most - len({h for c in audit_claims for h, *_ in c.hypotheses}))

    def level(self, tested: TestedClaim) -> float:
        return self._levels[tested.statement.about_privacy]

    def smallest(self, tested: TestedClaim) -> tuple[float, Evidence] | None:
        family = self._families[tested.statement.about_privacy]
        adjusted = [(family.adjusted[hypothesis], evidence) for hypothesis, evidence, _ in tested.hypotheses]
        return min(adjusted, key=lambda test: test[0], default=None)

    def largest_refutable(self, tested: TestedClaim, part: Part) -> float | None:
        """The extreme claimed value that perfect evidence refutes in Holm's first step; None without one.

        Within about 5% for a curve of several lines: the search for their weights ends up to 15% above the minimum of
        valid p-values, and its distance from this minimum depends on the claimed value.
        """
        from dpspec.accounting import bisect
        from dpspec.stats.attacks import evidence_tests

        if not tested.hypotheses:
            return None
        level = self.level(tested) / len(self._families[tested.statement.about_privacy])
        counts = [evidence for _, evidence, counted in tested.hypotheses if counted == part]
        if counts:
            values = [evidence_tests.metric_extreme(evidence, part.side, level) for evidence in counts]
            return min(values) if part.side == "at-least" else max(values)
        curve = tested.statement.curve
        perfect = [evidence_tests.perfect(evidence) for _, evidence, counted in tested.hypotheses if counted is None]
        if curve is None or not perfect:
            return None

        def rejected(value: float) -> bool:
            return any(evidence_tests.curve_rejects(attack, curve(value), level) for attack in perfect)

        if not rejected(0.0):
            return 0.0
        low, high = 0.0, 1.0
        while rejected(high) and high < 1e6:
            low, high = high, 2.0 * high
        return bisect(rejected, low, high, relative=1e-4)[0]

    def hypotheses(self, number: int, claim: Claim, evidence: Sequence[Evidence]) -> list[TestedHypothesis]:
        """The hypotheses of a claim: its curve for each attack, and each part for each count in scope."""
        from dpspec.stats.attacks import evidence_tests

        stated, scope = statement(claim), claim_scope(self._audits[number].spec, claim)
        tested_hypotheses: list[TestedHypothesis] = []
        usable_evidence = [(index, e) for index, e in enumerate(evidence) if usable(e.assumptions)]
        if stated.about_privacy:
            usable_evidence = [(index, e) for index, e in usable_evidence if covers(scope, e.scope)]
            for index, e in usable_evidence:
                if stated.points and e.quantity == "epsilon" and group_size(e) <= claim.group_size:
                    tested_hypotheses.append(((number, index, "curve", stated.points), e, None))
        for part in stated.parts:
            if not stated.about_privacy and not is_metric(part.quantity, self._findings[number]):
                continue
            for index, e in usable_evidence:
                # Counts on one model's test records cover no other model, under any conditions.
                conditions = e.at if stated.about_privacy else {**e.at, "about": evidence_tests.about(e)}
                counts = e.kind == "binomial" if stated.about_privacy else measures(e)
                if counts and e.quantity == part.quantity and part.matches(conditions, opposing=True):
                    tested_hypotheses.append(((number, index, part.side, ((part.claimed, 0.0),)), e, part))
        return tested_hypotheses


@dataclass(frozen=True, kw_only=True)
class RejectedBound:
    """Bounds of one scope that an attack rejects: a curve's ``points``, or a bound on a success rate and 0."""

    evidence: Evidence
    findings: tuple[Finding, ...]
    points: Points
    p_value: float

    def hits(self, finding: Finding) -> bool:
        """Whether a finding is rejected with it, as a part of the curve or because it implies one of its points."""
        if finding.quantity != "epsilon" or finding.bound != "upper" or not set(finding.at) <= {"delta", "group_size"}:
            return finding in self.findings
        own_delta = float(finding.at.get("delta", 0.0))
        implied = any(finding.value <= epsilon and own_delta <= delta for epsilon, delta in self.points)
        in_scope = covers(finding.scope, self.evidence.scope)
        return implied and group_size(finding) >= group_size(self.evidence) and in_scope


def reject_bounds(
    findings: Sequence[Sequence[Finding]], evidence: Sequence[Sequence[Evidence]]
) -> list[list[RejectedBound]]:
    if not any(evidence):
        return [[] for _ in findings]
    family = Family()
    tests = [
        bound_hypotheses(number, of_audit, attacks)
        for number, (of_audit, attacks) in enumerate(zip(findings, evidence, strict=True))
    ]
    for of_audit in tests:
        for hypothesis, attack, _ in of_audit:
            family.add(hypothesis, attack)
    return [
        [
            RejectedBound(evidence=attack, findings=tested, points=hypothesis[3], p_value=p_value)
            for hypothesis, attack, tested in of_audit
            if (p_value := family.adjusted[hypothesis]) <= LEVEL
        ]
        for of_audit in tests
    ]


def rejection_of(finding: Finding, rejected: Sequence[RejectedBound]) -> RejectedBound | None:
    return next((bound for bound in rejected if bound.hits(finding)), None)
