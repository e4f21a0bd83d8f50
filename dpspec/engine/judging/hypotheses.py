"""Every test that one invocation makes on its attacks' evidence, each hypothesis once, adjusted as one family.

What is tested of privacy is a curve, all its (epsilon, delta) points at once: one test on each piece of evidence.

Two families are kept apart: tests of what the claims say, at the stated confidence, and tests of what the proved
bounds say, at level 1e-6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dpspec.contract import Claim, Evidence, Finding, Scope
from dpspec.engine.judging.evidence_weight import covers, is_metric, measures, proven_bound, usable
from dpspec.engine.judging.inequalities import Part, Points, Statement

#: What is tested on one piece of evidence: its audit and place, and ``curve`` with its points or a metric's side with
#: what is claimed of it (and 0).
Hypothesis = tuple[int, int, str, Points]


@dataclass
class Family:
    """A set of hypotheses that are adjusted together by Holm's method, with ``others`` that are taken to be true."""

    others: int = 0
    _p_values: dict[Hypothesis, float] = field(default_factory=dict)
    _adjusted: dict[Hypothesis, float] | None = None

    def add(self, hypothesis: Hypothesis, evidence: Evidence) -> None:
        """Test a hypothesis unless it is there already; raises ``ValueError`` where no test reads the evidence."""
        from dpspec.stats.attacks import evidence_tests

        if hypothesis in self._p_values:
            return
        _, _, kind, points = hypothesis
        if kind == "curve":
            p_value = evidence_tests.curve_p_value(evidence, points)
        elif kind == "at-least":
            p_value = evidence_tests.metric_p_value(evidence, at_least=points[0][0])
        else:
            p_value = evidence_tests.metric_p_value(evidence, at_most=points[0][0])
        self._p_values[hypothesis] = p_value
        self._adjusted = None

    def adjusted(self, hypothesis: Hypothesis) -> float | None:
        """The p-value adjusted over the family; None for a hypothesis that is not in it."""
        from dpspec.stats import holm

        if self._adjusted is None:
            adjusted = holm.adjust([*self._p_values.values(), *[1.0] * self.others])
            self._adjusted = dict(zip(self._p_values, adjusted, strict=False))
        return self._adjusted.get(hypothesis)

    def __len__(self) -> int:
        return len(self._p_values) + self.others


def group_size(at: Evidence | Finding) -> int:
    """The number of records that a finding or an attack speaks of together; 1 where it does not say."""
    return int(at.at.get("group_size", 1))


def attacks_on(claim: Claim, scope: Scope, evidence: Sequence[Evidence]) -> list[tuple[int, Evidence]]:
    """The privacy attacks that tell against a claim: in its scope, on groups no larger, resting on nothing doubtful."""
    return [
        (index, e)
        for index, e in enumerate(evidence)
        if e.quantity == "epsilon"
        and covers(scope, e.scope)
        and group_size(e) <= claim.group_size
        and usable(e.assumptions)
    ]


def measurements_of(
    part: Part, evidence: Sequence[Evidence], findings: Sequence[Finding]
) -> list[tuple[int, Evidence]]:
    """The measurements that tell against a claim about a metric: of one model, or of all runs, as the claim is.

    findings: of the same audit, which say whether the quantity is a metric.
    """
    from dpspec.stats.attacks import evidence_tests

    if not is_metric(part.quantity, findings):
        return []
    # What counts of one model's test records say is of no other one, whatever the conditions that they state.
    measured = [
        (index, e, {**e.at, "about": evidence_tests.about(e)}) for index, e in enumerate(evidence) if measures(e)
    ]
    return [
        (index, e)
        for index, e, at in measured
        if e.quantity == part.quantity and part.speaks_of(at) and usable(e.assumptions)
    ]


def counts_of(part: Part, scope: Scope, evidence: Sequence[Evidence]) -> list[tuple[int, Evidence]]:
    """The privacy attacks that count how often they succeed at what a part of a claim bounds, in the claim's scope."""
    return [
        (index, e)
        for index, e in enumerate(evidence)
        if e.kind == "binomial" and e.quantity == part.quantity and part.speaks_of(e.at)
        if covers(scope, e.scope) and usable(e.assumptions)
    ]


def claim_hypotheses(
    audit: int,
    claim: Claim,
    said: Statement,
    scope: Scope,
    evidence: Sequence[Evidence],
    findings: Sequence[Finding],
) -> list[tuple[Hypothesis, Evidence]]:
    """What a claim says, on every piece of evidence that can tell against it."""
    if said.about_privacy:
        attacks = attacks_on(claim, scope, evidence) if said.points else []
        counted = [(part, index, e) for part in said.parts for index, e in counts_of(part, scope, evidence)]
        return [
            *(((audit, index, "curve", said.points), e) for index, e in attacks),
            *(((audit, index, part.side, ((part.claimed, 0.0),)), e) for part, index, e in counted),
        ]
    return [
        ((audit, index, part.side, ((part.claimed, 0.0),)), e)
        for part in said.parts
        for index, e in measurements_of(part, evidence, findings)
    ]


def bound_hypotheses(
    audit: int, findings: Sequence[Finding], evidence: Sequence[Evidence]
) -> list[tuple[Hypothesis, Evidence, tuple[Finding, ...]]]:
    """What the proved upper bounds say, on every attack in their scope: for each scope the curve of the best ones.

    The findings are those that the curve is made of. A bound for larger groups covers an attack on smaller ones; where
    there is a tighter one for those at the same delta, it is left out.
    """
    hypotheses: list[tuple[Hypothesis, Evidence, tuple[Finding, ...]]] = []
    for index, e in enumerate(evidence):
        if e.kind == "binomial" and usable(e.assumptions):
            hypotheses += [
                ((audit, index, "at-most", ((bound.value, 0.0),)), e, (bound,)) for bound in _bounds_on(e, findings)
            ]
        if e.quantity != "epsilon" or not usable(e.assumptions):
            continue
        best: dict[Scope, dict[float, tuple[float, Finding]]] = {}
        for finding in findings:
            if not (finding.bound == "upper" and proven_bound(finding) and covers(finding.scope, e.scope)):
                continue
            if group_size(finding) < group_size(e):
                continue
            curve = best.setdefault(finding.scope, {})
            for epsilon, delta in _points(finding):
                if epsilon < curve.get(delta, (float("inf"), finding))[0]:
                    curve[delta] = (epsilon, finding)
        for curve in best.values():
            points = tuple(sorted((epsilon, delta) for delta, (epsilon, _) in curve.items()))
            if points:
                made_of = tuple(dict.fromkeys(finding for _, finding in curve.values()))
                hypotheses.append(((audit, index, "curve", points), e, made_of))
    return hypotheses


def _bounds_on(evidence: Evidence, findings: Sequence[Finding]) -> list[Finding]:
    """The best proved upper bound of each scope on the probability of success that an attack counts, if any."""
    best: dict[Scope, Finding] = {}
    counted = Part(quantity=evidence.quantity, claimed=1.0, at=evidence.at)
    for finding in findings:
        if finding.quantity != evidence.quantity or finding.bound != "upper" or not proven_bound(finding):
            continue
        if not (covers(finding.scope, evidence.scope) and counted.holds_under(finding.at)):
            continue
        if finding.scope not in best or finding.value < best[finding.scope].value:
            best[finding.scope] = finding
    return list(best.values())


def worst_point(evidence: Evidence, points: Points) -> tuple[float, float]:
    """The point of a curve that a piece of evidence speaks against most."""
    from dpspec.stats.attacks import evidence_tests

    return min(points, key=lambda point: evidence_tests.p_value(evidence, *point))


def _points(finding: Finding) -> list[tuple[float, float]]:
    """The (epsilon, delta) pairs that an upper bound states, for the whole run and nothing narrower."""
    conditions = set(finding.at) - {"group_size"}
    if finding.quantity == "epsilon" and conditions <= {"delta"}:
        return [(max(0.0, finding.value), float(finding.at.get("delta", 0.0)))]
    if finding.quantity == "mu" and not conditions and finding.value < float("inf"):
        from dpspec.stats.attacks.curve_lines import gaussian

        return list(gaussian(finding.value))
    return []
