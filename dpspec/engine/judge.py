"""Gives every claim of an invocation its verdict, and every audit its conformance: the first that applies of

contradicted, an attack rejects a proved upper bound itself at 1e-6 over the invocation; refuted, an attack rejects
what the claim says at the stated family-wise confidence, or a certified bound lies beyond it; proved, a certified or
theorem bound in scope is within it; supported, only weaker evidence is; open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpspec.contract import Check, Claim, Evidence, Finding, Scope, Spec
from dpspec.engine import nulltests, power, reasons
from dpspec.engine.claims import Part, Points, Statement, statement
from dpspec.engine.conformance import conforms, join_checks
from dpspec.engine.nulltests import Family, Hypothesis, group_size
from dpspec.engine.result import Conformance, Verdict, VerdictName
from dpspec.engine.scope import claim_scope, covers
from dpspec.engine.standing import Standing, opposing, outside, proving, reaches
from dpspec.stats.measurement import LEVEL

#: The family-wise confidence where no spec states one.
CONFIDENCE = 0.95

#: The share of the family-wise level that claims about metrics get where there are claims about privacy too. Each of
#: the two is a family of its own, so that no verdict about privacy depends on evidence that a report may leave out.
METRIC_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Unjudged:
    """One audit before its judgement."""

    spec: Spec
    findings: tuple[Finding, ...] = ()
    checks: tuple[Check, ...] = ()
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One audit's verdicts in the order of its claims, its conformance, and its findings joined with its checks."""

    verdicts: tuple[Verdict, ...]
    conformance: Conformance
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class Among:
    """What is known of an invocation besides the audits at hand.

    confidence: the highest that a spec states. tests: how many more tests of claims about privacy there are, at most.
    metrics: whether there are claims about metrics.
    """

    confidence: float = 0.0
    tests: int = 0
    metrics: bool = False


#: Nothing besides.
ALONE = Among()


def judge(audits: Sequence[Unjudged], among: Among = ALONE) -> tuple[Judged, ...]:
    """Judge all audits of one invocation together: their tests are one family, and so are their checks.

    ``among``: where others of the invocation are not at hand, what is refuted now is refuted among all of them too.
    """
    checks = sum(len(audit.checks) for audit in audits)
    bench = _Bench([join_checks(audit.findings, audit.checks, checks) for audit in audits], audits, among)
    judged = []
    for number, audit in enumerate(audits):
        expect = audit.spec.audit.expect if audit.spec.audit is not None else "conforms-within"
        conformance = conforms(expect, audit.checks, checks)
        judged.append(
            Judged(
                verdicts=tuple(bench.verdict(case, conformance) for case in bench.cases if case.number == number),
                conformance=conformance,
                findings=bench.findings[number],
            )
        )
    return tuple(judged)


def test(audit: Unjudged) -> None:
    """Make the tests that judging this audit takes, alone as among others, so that they are known when it is judged."""
    _Bench([join_checks(audit.findings, audit.checks, len(audit.checks))], [audit], ALONE)


def confidence_of(specs: Sequence[Spec]) -> float:
    """The family-wise confidence of an invocation: the highest that a spec states."""
    return max((spec.audit.confidence for spec in specs if spec.audit is not None), default=CONFIDENCE)


def as_expected(verdict: VerdictName, expect: Sequence[str]) -> bool:
    """Whether a verdict is one of those expected; ``supported`` accepts ``proved``, ``refuted`` ``contradicted``."""
    stronger = {"supported": "proved", "refuted": "contradicted"}
    return verdict in expect or verdict in [stronger.get(name) for name in expect]


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One claim with everything that is tested of it."""

    number: int
    claim: Claim
    said: Statement
    scope: Scope
    hypotheses: list[tuple[Hypothesis, Evidence]]


@dataclass(frozen=True, kw_only=True)
class _Rejection:
    """A curve of proved bounds that an attack rejects, and the findings that it is made of, all of one scope."""

    evidence: Evidence
    findings: tuple[Finding, ...]
    points: Points
    p_value: float


class _Bench:
    """The two families of tests, settled before any claim is judged."""

    def __init__(self, findings: list[tuple[Finding, ...]], audits: Sequence[Unjudged], among: Among) -> None:
        self.findings = findings
        self._evidence = [audit.evidence for audit in audits]
        self._confidence = max(among.confidence, confidence_of([audit.spec for audit in audits]))
        kinds = {statement(claim).about_privacy for audit in audits for claim in audit.spec.claims}
        kinds |= {False} if among.metrics else set()
        metrics = METRIC_SHARE if len(kinds) == 2 else 1.0
        privacy = 1.0 - METRIC_SHARE if len(kinds) == 2 else 1.0
        level = 1.0 - self._confidence
        # By whether claims are about privacy: their tests, and the level that they share.
        self._claims = {True: Family(others=among.tests), False: Family()}
        self._levels = {True: level * privacy, False: level * metrics}
        self.cases = [
            self._case(number, audit, claim) for number, audit in enumerate(audits) for claim in audit.spec.claims
        ]
        self._rejections = self._reject_bounds()

    def _case(self, number: int, audit: Unjudged, claim: Claim) -> _Case:
        said, scope = statement(claim), claim_scope(audit.spec, claim)
        hypotheses = nulltests.claim_hypotheses(number, claim, said, scope, audit.evidence)
        for hypothesis, evidence in hypotheses:
            self._claims[said.about_privacy].add(hypothesis, evidence)
        return _Case(number=number, claim=claim, said=said, scope=scope, hypotheses=hypotheses)

    def _reject_bounds(self) -> list[list[_Rejection]]:
        family, tests = Family(), []
        for number, (findings, evidence) in enumerate(zip(self.findings, self._evidence, strict=True)):
            tests.append(nulltests.bound_hypotheses(number, findings, evidence))
            for hypothesis, e, _ in tests[-1]:
                family.add(hypothesis, e)
        return [
            [
                _Rejection(evidence=e, findings=found, points=hypothesis[3], p_value=p)
                for hypothesis, e, found in of_audit
                if (p := family.adjusted(hypothesis)) is not None and p <= LEVEL
            ]
            for of_audit in tests
        ]

    def verdict(self, case: _Case, conformance: Conformance) -> Verdict:
        """Judge one claim."""
        findings, said = self.findings[case.number], case.said
        rejections = self._rejections[case.number]
        scope = case.scope if said.about_privacy else None
        views = [_View(part, scope, findings, rejections if said.about_privacy else []) for part in said.parts]
        view = min(views, key=lambda v: v.rank, default=None)
        family, level = self._claims[said.about_privacy], self._levels[said.about_privacy]
        tests = [(p, e) for h, e in case.hypotheses if (p := family.adjusted(h)) is not None]
        smallest = min(tests, key=lambda t: t[0], default=None)
        name: VerdictName
        broken = self._contradiction(case, views)
        beyond = next((v for v in views if v.beyond is not None), None)
        if broken is not None:
            name = "contradicted"
            attack = reasons.attack_name(broken.evidence)
            deviates = conformance.status == "deviates"
            if broken.evidence.kind == "binomial":
                reason = reasons.contradicted_count(attack, broken.findings[0], broken.p_value, deviates)
            else:
                worst = nulltests.worst(broken.evidence, broken.points)
                reason = reasons.contradicted(attack, *worst, len(broken.points), broken.p_value, deviates)
        elif smallest is not None and smallest[0] <= level:
            name = "refuted"
            clash = view is not None and view.rank == 2
            reason = reasons.refuted(_tester(smallest[1], said), smallest[0], self._confidence, clash)
        elif beyond is not None and beyond.beyond is not None:
            name, view = "refuted", beyond
            reason = reasons.refuted_by_bound(beyond.part, beyond.beyond)
        elif view is not None and view.best is not None:
            name = "proved" if view.rank == 2 else "supported"
            say = reasons.proved if view.rank == 2 else reasons.supported
            reason = say(view.part, view.best)
        else:
            name, reason = "open", ""
        provable, refutable = view.provable if view is not None else None, self._refutable(case, view)
        if name == "open":
            part = view.part if view is not None else None
            unbounded = view is not None and view.unbounded
            beside = outside(part, scope, findings) if part is not None and scope is not None else ""
            reason = reasons.undecided(
                part, provable, refutable, attacked=bool(case.hypotheses), unbounded=unbounded, beside=beside
            )
        upper, lower = view.ends() if view is not None else (None, None)
        return Verdict(
            claim=case.claim.id,
            kind=case.claim.kind,
            text=said.text,
            verdict=name,
            expect=case.claim.expect,
            expected=as_expected(name, case.claim.expect),
            reason=reason,
            quantity=view.part.quantity if view is not None else "",
            claimed=view.part.claimed if view is not None else None,
            upper=upper.value if upper is not None else None,
            lower=lower.value if lower is not None else None,
            upper_finding=upper.index if upper is not None else None,
            lower_finding=lower.index if lower is not None else None,
            provable=provable,
            refutable=refutable,
            p_value=smallest[0] if smallest is not None else None,
        )

    def _contradiction(self, case: _Case, views: Sequence[_View]) -> _Rejection | None:
        """The rejected bound that the claim runs into, if any.

        Either an attack in the claim's scope rejects a bound that reaches the claim, or the claim would be proved by a
        rejected bound alone. A bound for another, narrower scope that an attack rejects leaves the claim as it is.
        """
        if not case.said.about_privacy:
            return None
        rejections = self._rejections[case.number]
        met = [
            r
            for r in rejections
            if covers(case.scope, r.evidence.scope)
            and group_size(r.evidence) <= case.claim.group_size
            and reaches(r.findings[0], case.scope)
        ]
        met += [v.relied_on for v in views if v.relied_on is not None]
        return min(met, key=lambda r: r.p_value, default=None)

    def _refutable(self, case: _Case, view: _View | None) -> float | None:
        """What could have been refuted at the first step of Holm's procedure, the strictest one."""
        if view is None or not case.hypotheses:
            return None
        about_privacy = case.said.about_privacy
        level = self._levels[about_privacy] / len(self._claims[about_privacy])
        evidence = self._evidence[case.number]
        if not about_privacy:
            measured = [e for _, e in nulltests.measurements_of(view.part, evidence)]
            return power.extreme_metric(view.part, measured, level)
        counts = [e for _, e in nulltests.counts_of(view.part, case.scope, evidence)]
        if counts:
            return power.extreme_metric(view.part, counts, level)
        if case.said.curve is None:
            return None
        attacks = [e for _, e in nulltests.attacks_on(case.claim, case.scope, evidence)]
        return power.largest_refutable(case.said.curve, attacks, level)


class _View:
    """One part of a claim and the findings about it."""

    def __init__(
        self, part: Part, scope: Scope | None, findings: Sequence[Finding], rejections: Sequence[_Rejection]
    ) -> None:
        self.part = part
        standings = proving(part, scope, findings)
        within = [s for s in standings if not math.isinf(s.value)]
        #: Whether a proof is in scope, but only of an infinite value.
        self.unbounded = any(math.isinf(s.value) and s.strength == "proof" for s in standings)
        self._proving = [s for s in within if _rejection(s.finding, rejections) is None]
        self._opposing = [s for s in opposing(part, scope, findings) if not math.isinf(s.value)]
        self.best: Standing | None = next((s for s in self._proving if part.within(s.value)), None)
        self.rank = 0 if self.best is None else 2 if self.best.strength == "proof" else 1
        #: A certified bound beyond the claim.
        self.beyond: Standing | None = next((s for s in self._opposing if _disproves(part, s)), None)
        #: The rejection of the bound that alone would have proved this part.
        self.relied_on: _Rejection | None = None
        if self.rank < 2:
            proofs = (s for s in within if s.strength == "proof" and part.within(s.value))
            self.relied_on = next((r for s in proofs if (r := _rejection(s.finding, rejections)) is not None), None)

    @property
    def provable(self) -> float | None:
        """The best bound that a proof may rest on."""
        return next((s.value for s in self._proving if s.strength == "proof"), None)

    def ends(self) -> tuple[Standing | None, Standing | None]:
        """The best upper and lower bounds: the one that decides on the proving side, the farthest on the other."""
        near = self.best or next(iter(self._proving), None)
        far = self.beyond or next(iter(self._opposing), None)
        return (near, far) if self.part.side == "at-most" else (far, near)


def _rejection(finding: Finding, rejections: Sequence[_Rejection]) -> _Rejection | None:
    """The rejection that hits a finding: of a curve that it is a part of, or of a point that it implies."""
    if finding.quantity != "epsilon" or finding.bound != "upper" or not set(finding.at) <= {"delta", "group_size"}:
        return next((r for r in rejections if finding in r.findings), None)
    delta = float(finding.at.get("delta", 0.0))
    for r in rejections:
        implied = any(finding.value <= epsilon and delta <= at for epsilon, at in r.points)
        if implied and group_size(finding) >= group_size(r.evidence) and covers(finding.scope, r.evidence.scope):
            return r
    return None


def _disproves(part: Part, standing: Standing) -> bool:
    finding = standing.finding
    return standing.strength == "proof" and finding.rigor == "certified" and part.exceeded(standing.value)


def _tester(evidence: Evidence, said: Statement) -> str:
    name = reasons.attack_name(evidence)
    return f"The attack ({name})" if said.about_privacy else f"The measurement ({name})"
