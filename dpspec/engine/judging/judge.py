"""Verdicts of all claims of an invocation, and the conformance of its audits.

The first that applies: contradicted, if an attack rejects a proved upper bound at 1e-6 over the invocation; refuted, if
an attack rejects the claim at the stated family-wise confidence, or a certified bound is beyond it; proved, if a
certified or theorem bound in scope is within it; supported, if only weaker evidence is; open.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpspec.contract import Evidence, Finding, Scope
from dpspec.contract.results import Conformance, Verdict, VerdictName
from dpspec.decimals import exact, lower, upper
from dpspec.engine.judging.claim_tests import (
    ClaimTests,
    Concluded,
    RejectedBound,
    TestedClaim,
    reject_bounds,
    rejection_of,
)
from dpspec.engine.judging.implied_bounds import require_consistent
from dpspec.results.conformance_status import conformance_of, family_sizes, join_checks
from dpspec.results.conformance_status import rejected as is_rejected
from dpspec.results.evidence_weight import (
    WeighedFinding,
    covers,
    enough_records,
    false_assumption,
    group_size,
    reaches,
    scope_shortfall,
    series_bounds,
    weighed_findings,
)
from dpspec.results.inequalities import EQUAL, Part, Statement
from dpspec.text import joined, several, spaced


def as_expected(verdict: VerdictName, expect: Sequence[str]) -> bool:
    """Whether a verdict is expected; ``supported`` accepts ``proved``, ``refuted`` accepts ``contradicted``."""
    stronger = {"supported": "proved", "refuted": "contradicted"}
    return verdict in expect or verdict in [stronger.get(name) for name in expect]


class PartView:
    """The findings for one part of a claim.

    ``rank`` is 2 for a proof, 1 for a weaker finding, 0 without; ``refuting`` is a certified bound on the other side
    beyond the claim; ``attacked`` is the best bound of an attack; ``ends`` are the best upper and lower bounds;
    ``rejected_support`` is the rejection of the only bound that would have proved the part.
    """

    def __init__(
        self,
        part: Part,
        scope: Scope | None,
        findings: Sequence[Finding],
        rejected: Sequence[RejectedBound],
        is_early: Callable[[Finding], bool],
        only_attack: bool = False,
    ) -> None:
        """``scope``: the claim's, None for a metric. ``is_early``: whether a finding does not count yet.

        ``only_attack``: whether only an attack may refute the claim; its bound is then the end on the other side.
        """
        self.part = part
        in_scope = [weighed for weighed in weighed_findings(part, scope, findings) if not is_early(weighed.finding)]
        finite = [weighed for weighed in in_scope if not math.isinf(weighed.value)]
        infinite = [w.finding.method for w in in_scope if math.isinf(w.value) and w.strength == "proof"]
        self.unbounded, self.unbounded_by = bool(infinite), next(iter(infinite), "")
        proving = [weighed for weighed in finite if rejection_of(weighed.finding, rejected) is None]
        vacuous = -math.inf if part.side == "at-most" else math.inf
        opposing = [
            weighed
            for weighed in weighed_findings(part, scope, findings, opposing=True)
            if weighed.value != vacuous and not is_early(weighed.finding)
        ]
        self.best: WeighedFinding | None = next((w for w in proving if part.within(w.value)), None)
        self.rank = 0 if self.best is None else 2 if self.best.strength == "proof" else 1
        certified = (w for w in opposing if w.strength == "proof" and w.finding.rigor == "certified")
        self.refuting: WeighedFinding | None = next((w for w in certified if not part.within(w.value)), None)
        self.rejected_support: RejectedBound | None = None
        if self.rank < 2:
            proofs = (w.finding for w in finite if w.strength == "proof" and part.within(w.value))
            rejections = (rejection_of(finding, rejected) for finding in proofs)
            self.rejected_support = next((rejection for rejection in rejections if rejection is not None), None)
        self.proof: WeighedFinding | None = next((w for w in proving if w.strength == "proof"), None)
        # The deciding bound on the proving side, and the farthest on the other.
        self.attacked = next((w for w in opposing if w.strength == "statistical"), None)
        deciding, farthest = self.best or next(iter(proving), None), self.refuting or next(iter(opposing), None)
        farthest = self.attacked or farthest if only_attack else farthest
        self.ends = (deciding, farthest) if part.side == "at-most" else (farthest, deciding)


@dataclass(frozen=True, kw_only=True)
class ClaimEvaluator:
    audit: Concluded
    findings: tuple[Finding, ...]
    conformance: Conformance
    deviating: Sequence[str]
    deviating_recording: bool
    rejected: Sequence[RejectedBound]
    tests: ClaimTests

    def verdict(self, tested: TestedClaim) -> Verdict:
        claim, stated = tested.claim, tested.statement
        scope, rejected = (tested.scope, self.rejected) if stated.about_privacy else (None, [])
        only_attack = claim.refuted_by == "attack"
        views = [
            PartView(part, scope, self.findings, rejected, self.audit.is_early, only_attack) for part in stated.parts
        ]
        name, reason, view = self._decide(tested, views)
        refutable = self.tests.largest_refutable(tested, view.part) if view is not None else None
        if name == "open" and not reason:
            reason = self._undecided(tested, view, views, refutable)
        if self.audit.incomplete and stated.parts and name not in ("contradicted", "refuted"):
            tests = "their tests are"
            if len(self.tests.hypotheses(tested.number, claim, self.audit.evidence)) > len(tested.hypotheses):
                tests = "the tests of a fixed number of trials, for which there is evidence, are"
            available = f"{self.audit.trials} of {self.audit.needed} trials are available"
            reason += f" {available}; {tests} judged once all are."
        smallest = self.tests.smallest(tested)
        upper, lower = view.ends if view is not None else (None, None)
        return Verdict(
            claim=claim.id,
            kind=claim.kind,
            text=stated.text,
            verdict=name,
            expect=claim.expect,
            expected=as_expected(name, claim.expect),
            reason=reason,
            quantity=view.part.quantity if view is not None else "",
            claimed=view.part.claimed if view is not None else None,
            upper=None if upper is None or math.isinf(upper.value) else upper.value,
            lower=None if lower is None or math.isinf(lower.value) else lower.value,
            upper_finding=upper.index if upper is not None else None,
            lower_finding=lower.index if lower is not None else None,
            provable=view.proof.value if view is not None and view.proof is not None else None,
            refutable=refutable,
            p_value=smallest[0] if smallest is not None else None,
        )

    def _decide(self, tested: TestedClaim, views: Sequence[PartView]) -> tuple[VerdictName, str, PartView | None]:
        """The verdict, its reason (empty for ``open``), and the part that it shows: the weakest, or a refuted one."""
        stated = tested.statement
        weakest = min(views, key=lambda view: view.rank, default=None)
        if (rejected := self._contradiction(tested, views)) is not None:
            deviates = self.conformance.status == "deviates"
            return "contradicted", contradicted_reason(rejected, deviates), weakest
        smallest = self.tests.smallest(tested)
        if smallest is not None and smallest[0] <= self.tests.level(tested):
            clash = weakest is not None and weakest.rank == 2
            level = f"p = {upper(smallest[0])}, family-wise at confidence {exact(self.tests.confidence)}"
            shown = "" if weakest is None else _attacked(weakest)
            reason = f"{f'{shown}. ' if shown else ''}{_tester(smallest[1], stated)} rejects the claim: {level}."
            reason += " A proved bound is within the claim: one of the two is wrong." if clash else ""
            return "refuted", reason, weakest
        unproved = self._unproved(tested, weakest) if tested.claim.kind != "metric" else ""
        beyond = next((view for view in views if view.refuting is not None), None)
        # only a bound of the executed run refutes claims about a recording that deviates
        pipelines = ("executed",) if self.deviating_recording else ("declared", "executed")
        refuting = None if beyond is None else beyond.refuting
        if (
            refuting is not None
            and tested.claim.refuted_by != "attack"
            and refuting.finding.scope.pipeline in pipelines
        ):
            assert beyond is not None
            reason = f"{opposing_bound(beyond.part, refuting)}."
            if smallest is not None:
                reason += f" {_tester(smallest[1], stated)} is weaker and does not reject it, p = {upper(smallest[0])}."
            return "refuted", reason, beyond
        if unproved:
            return "open", unproved, weakest
        if weakest is None or weakest.best is None:
            return "open", "", weakest
        if weakest.rank == 2:
            deviates = tested.claim.kind != "metric" and self.conformance.status == "deviates"
            part, value = weakest.part, weakest.best.value
            reason = f"{_rigor(weakest.best)}: {_proving(part, value)}, {_within(part, value)}."
            warning = " Proved as declared, run deviates: the bound does not apply to the executed run."
            return "proved", reason + (warning if deviates else ""), weakest
        scope = tested.scope if tested.statement.about_privacy else None
        enough = enough_records(weakest.part, scope, self.findings)
        return "supported", supported_reason(weakest.part, weakest.best, enough), weakest

    def _unproved(self, tested: TestedClaim, view: PartView | None) -> str:
        """Why a recorded run proves nothing: it deviates, or an assumption is open. Empty for all others."""
        if self.audit.recording is None:
            return ""
        unbounded = view.unbounded_by if view is not None else ""
        if self.deviating_recording:
            if self.deviating:
                text = f"Nothing is proved of a run that deviates ({', '.join(self.deviating)})."
            else:
                text = f"Nothing is proved of this run. {self.conformance.reason}"
            return f"{text} No finite bound is proved either: {unbounded}." if unbounded else text
        if view is None or unbounded:
            return ""
        recording = self.audit.recording
        for finding in self.findings:
            in_scope = finding.scope.adjacency == tested.scope.adjacency and view.part.matches(finding.at)
            if in_scope and (finding.quantity, finding.bound) == (view.part.quantity, "upper"):
                for assumption in finding.assumptions:
                    if assumption.status == "unchecked" and recording.incomplete:
                        return recording.incomplete
                    if assumption.status in ("false", "unchecked"):
                        name = assumption.name
                        channel = next((c.name for c in recording.channels if name in c.sources), "")
                        how = "violated" if assumption.status == "false" else "open"
                        sentence_start = f"The channel {channel} is {how}" if channel else f"An assumption is {how}"
                        prefix = "" if name == channel else f"{name}: "
                        return f"{sentence_start}: {prefix}{assumption.text}."
        return ""

    def _contradiction(self, tested: TestedClaim, views: Sequence[PartView]) -> RejectedBound | None:
        """The rejected bound that affects the claim, if any.

        Either an attack in the claim's scope rejects a bound that reaches the claim, or only a rejected bound would
        prove the claim. A rejected bound of a narrower scope does not affect it.
        """
        if not tested.statement.about_privacy:
            return None
        met = [
            rejected
            for rejected in self.rejected
            if covers(tested.scope, rejected.evidence.scope)
            and group_size(rejected.evidence) <= tested.claim.group_size
            and reaches(rejected.findings[0], tested.scope)
        ]
        met += [view.rejected_support for view in views if view.rejected_support is not None]
        return min(met, key=lambda rejected: rejected.p_value, default=None)

    def _undecided(
        self, tested: TestedClaim, view: PartView | None, views: Sequence[PartView], refutable: float | None
    ) -> str:
        if view is None:
            return "Not proved: this claim kind has no numeric bound to compare with."
        for refuted in views:
            if refuted.refuting is not None:
                attack = "the attack does not reject it" if tested.hypotheses else "no attack tested it"
                return (
                    f"Not decided: only an attack may refute this claim (refuted_by: attack), and {attack}. "
                    f"{opposing_bound(refuted.part, refuted.refuting)}."
                )
        part, proof = view.part, view.proof
        scope = tested.scope if tested.statement.about_privacy else None
        short = false_assumption(part, scope, self.findings) if scope is not None else ""
        short = short or (view.unbounded_by if view.unbounded else scope_shortfall(part, scope, self.findings))
        if tested.claim.kind == "metric" and not (self.audit.trials or proof or short):
            return "Not decided: nothing was measured, because no training was run."
        at_most = part.side == "at-most"
        if proof is not None:
            value = (upper if at_most else lower)(proof.value, against=part.claimed)
            beyond = "exceeds" if at_most else "is below"
            text = f"the {_rigor(proof).lower()} bound {value} {beyond} the claimed {exact(part.claimed)}"
            if charges := proof.finding.charged_above(part.claimed):
                text += f" by {joined(charges)}, which data may not attain"
        else:
            side = "upper" if at_most else "lower"
            unproved = f"no proved {side} bound applies to this claim"
            text = f"no finite {side} bound is proved" if view.unbounded else unproved
            text += f" ({short})" if short else ""
        if refutable is not None:
            limit = f"up to {lower(refutable)}" if at_most else f"down to {upper(refutable)}"
            weak = f"with perfect results, the evidence could refute claims {limit}"
        else:
            weak = "the evidence cannot refute this claim" if tested.hypotheses else "no attack tested it"
        return f"Not proved: {text}. Not refuted: {weak}."


def _attacked(view: PartView) -> str:
    """The bound that the attack shows, if it is beyond the claim; empty otherwise."""
    if view.attacked is None or view.part.within(view.attacked.value):
        return ""
    finding, side = view.attacked.finding, ">=" if view.part.side == "at-most" else "<="
    value = (lower if side == ">=" else upper)(finding.value, against=view.part.claimed)
    sure = f" at confidence {exact(finding.confidence)}" if finding.confidence is not None else ""
    return f"Shown: {spaced(finding.quantity)} {side} {value}{sure}"


def _tester(evidence: Evidence, stated: Statement) -> str:
    name = attack_name(evidence)
    return f"The attack ({name})" if stated.about_privacy else f"The measurement ({name})"


@dataclass(frozen=True, kw_only=True)
class Judged:
    verdicts: tuple[Verdict, ...]
    conformance: Conformance
    findings: tuple[Finding, ...]


def judge(audits: Sequence[Concluded]) -> tuple[Judged, ...]:
    """Judge all audits of one invocation: their tests are one family, and so are their checks.

    Raises:
        ContradictoryBoundsError: A certified lower bound exceeds a proved upper one.
    """
    families = family_sizes([(len(audit.checks), audit.trials, audit.needed) for audit in audits])
    findings = [
        join_checks(audit.judged_findings, audit.checks, family) for audit, family in zip(audits, families, strict=True)
    ]
    # The points of profiles are bounds too: reports compute an attacker's success rates from them.
    bounds = [
        (*of_audit, *series_bounds(of_audit, audit.series)) for audit, of_audit in zip(audits, findings, strict=True)
    ]
    for audit, of_audit in zip(audits, bounds, strict=True):
        require_consistent(audit.spec.name, audit.spec.mechanism.kind, of_audit)
    tests = ClaimTests(audits, findings)
    claims: list[list[TestedClaim]] = [[] for _ in audits]
    for tested in tests.claims:
        claims[tested.number].append(tested)
    rejected = reject_bounds(bounds, [audit.judged_evidence for audit in audits])
    judged = []
    for number, audit in enumerate(audits):
        expect = audit.spec.audit.expect if audit.spec.audit is not None else "no-deviation-found"
        executed = audit.recording is not None or (audit.trials > 0 and not audit.incomplete)
        conformance = conformance_of(expect, audit.checks, families[number], audit.promised, executed=executed)
        deviating = dict.fromkeys(check.assumption for check in audit.checks if is_rejected(check, families[number]))
        evaluator = ClaimEvaluator(
            audit=audit,
            findings=findings[number],
            conformance=conformance,
            deviating=tuple(deviating),
            deviating_recording=audit.recording is not None and conformance.status != "no-deviation-found",
            rejected=rejected[number],
            tests=tests,
        )
        verdicts = tuple(map(evaluator.verdict, claims[number]))
        # Verdicts name findings by position, so comparisons come last.
        comparisons = join_checks(audit.comparisons, audit.checks, families[number])
        shown = (*findings[number], *comparisons)
        judged.append(Judged(verdicts=verdicts, conformance=conformance, findings=shown))
    return tuple(judged)


def contradicted_reason(rejected: RejectedBound, deviates: bool) -> str:
    from dpspec.stats.attacks import evidence_tests

    evidence, points, finding = rejected.evidence, rejected.points, rejected.findings[0]
    if evidence.kind == "binomial":
        conditions = ", ".join(f"{key} = {exact(value)}" for key, value in finding.at.items())
        proved = f"{spaced(finding.quantity)} <= {upper(finding.value)}"
        bound = f"the proved bound {proved}{' at ' + conditions if conditions else ''} itself"
    else:
        epsilon, delta = min(points, key=lambda point: evidence_tests.p_value(evidence, *point))
        subject, remark = ("bound", "") if len(points) == 1 else ("curve", f", all {len(points)} points")
        bound = f"the proved {subject} epsilon <= {upper(epsilon)} at delta = {exact(delta)} itself{remark}"
    text = (
        f"The attack ({attack_name(evidence)}) rejects {bound}, p = {upper(rejected.p_value)} over the invocation: "
        "theory, implementation or attack is wrong."
    )
    return text + (" The executed run deviates from its declaration, which can explain it." if deviates else "")


#: The name of a numerical method, such as ``pld/connect-the-dots``. Other parts of a method say why a bound holds.
_NUMERICAL = re.compile(r"[\w-]+/[\w-]+")


def opposing_bound(part: Part, weighed: WeighedFinding) -> str:
    bound = f"<= {upper(weighed.value, against=part.claimed)}, below"
    if part.side == "at-most" and weighed.value == math.inf:
        bound = "is infinite, above"
    elif part.side == "at-most":
        bound = f">= {lower(weighed.value, against=part.claimed)}, above"
    ways = [way for way in weighed.finding.method.split(", ") if not _NUMERICAL.fullmatch(way)]
    return ", ".join([f"Certified: {spaced(part.quantity)} {bound} the claimed {exact(part.claimed)}", *ways])


def supported_reason(part: Part, weighed: WeighedFinding, enough: int | None) -> str:
    finding, bound = weighed.finding, _proving(part, weighed.value)
    if weighed.strength == "approximate":
        value = (upper if part.side == "at-most" else lower)(weighed.value)
        return f"Approximate: {spaced(part.quantity)} is about {value}, within the claim, without a guarantee."
    if weighed.strength == "statistical":
        level = (
            f"confidence {exact(finding.confidence)}" if finding.confidence is not None else "an unstated confidence"
        )
        return f"Statistical: {bound} at {level}, {_within(part, weighed.value)}."
    whose = "for the declared collection of datasets" if finding.scope.data == "collection" else "for this dataset"
    unchecked = [a.name for a in finding.assumptions if a.status == "unchecked"]
    condition = f"under unchecked assumptions ({', '.join(unchecked)})" if unchecked else whose
    text = f"Proved only {condition}: {bound}, {_within(part, weighed.value)}."
    if unchecked:
        return text
    if enough is None:
        return f"{text} Set over: this in the claim." if finding.scope.data == "this" else text
    return f"{text} It is proved for datasets of at least {enough} records: set min_records."


def attack_name(evidence: Evidence) -> str:
    groups = evidence.at.get("group_size", 1)
    if evidence.scope.unit != "record":
        return f"{evidence.method}, {several(groups, evidence.scope.unit)}"
    return evidence.method if groups == 1 else f"{evidence.method}, groups of {groups}"


def _proving(part: Part, value: float) -> str:
    against = part.claimed if _is_beyond(part, value) else None
    is_at_most = part.side == "at-most"
    number = (upper if is_at_most else lower)(value, against=against)
    return f"{spaced(part.quantity)} {'<=' if is_at_most else '>='} {number}"


def _within(part: Part, value: float) -> str:
    return EQUAL if _is_beyond(part, value) else "within the claim"


def _is_beyond(part: Part, value: float) -> bool:
    """Whether only the rounding of declared numbers lets a value meet the claim."""
    return value > part.claimed if part.side == "at-most" else value < part.claimed


def _rigor(weighed: WeighedFinding) -> str:
    word = "Certified" if weighed.finding.rigor == "certified" else "Proved"
    return f"{word} by {weighed.finding.origin}" if weighed.finding.origin else word
