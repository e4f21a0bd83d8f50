"""The words of all reports: verdicts, rigor, conformance, scopes, assumptions, tests and recordings.

Text from specs, plugins, papers and recordings is returned unescaped: each format escapes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpspec import decimals
from dpspec.contract import Assumption, Check, Finding, Json, Printed
from dpspec.contract.executed import ExecutedSection, FiredRule
from dpspec.contract.findings import AS_RUN, WEAKEST_FIRST
from dpspec.contract.results import AuditResult, Result, Verdict, accepted_cautions, claim_block
from dpspec.contract.spec import unit_in_words
from dpspec.results.conformance_status import family_sizes, rejected
from dpspec.results.evidence_weight import covers
from dpspec.results.executed_schedule import schedule_in_words
from dpspec.results.inequalities import EQUAL
from dpspec.results.status import Problem, is_doubted, is_pending, not_yet_tested
from dpspec.results.void_bounds import has_void_bounds
from dpspec.text import joined, several, shortened, spaced, unit_parts

if TYPE_CHECKING:
    from dpspec.results.evidence_weight import ProvenCurve

#: The condition of each verdict; the first that applies.
VERDICTS = {
    "contradicted": "The attack rejects the best upper bound itself, at 1e-6: theory, code or attack is wrong.",
    "refuted": "The attack rejects the claim, at the stated confidence over all claims and attacks of the run, or a "
    "certified lower bound exceeds the claim. With refuted_by: attack, only the attack counts.",
    "proved": "An upper bound in scope is within the claim, for the mechanism as declared. If the executed run "
    "deviates, the label is: proved as declared, run deviates.",
    "supported": "Only statistical, approximate or conditional evidence is within the claim.",
    "open": "Neither proved nor refuted. The reason names the bound that exceeds the claim.",
}

#: Follow an upper bound, and the lower bound of theory.
_UPPER_RIGOR = {"certified": "certified", "theorem": "proved formula", "statistical": "statistical"}
_LOWER_DATA = {
    "all": "worst-case data",
    "collection": "worst-case data of the declared collection",
    "this": "this dataset",
    "planted": "this dataset with canaries",
}

_RIGOR = {
    "certified": "certified, numerical error included",
    "theorem": "proved formula, evaluated in float64",
    "statistical": "statistical",
    "approximate": "approximate, no guarantee",
}

#: Words for the parts of a scope.
_SCOPE = {
    "adjacency": {
        "add-remove": "adding or removing records",
        "replace-one": "replacing a record",
        "zero-out": "replacing records by null records (zero-out)",
    },
    "access": {
        "all-iterates": "seeing every iterate",
        "final-model": "seeing the final model",
        "transcript": "seeing every iterate and the other drawn records",
    },
    "adversary": {
        "gradient": "an adversary who chooses gradients",
        "record": "an adversary who chooses records",
        "none": "no adversary",
    },
    "data": {
        "all": "any dataset",
        "collection": "the declared collection of datasets",
        "this": "this dataset",
        "planted": "this dataset with canaries",
    },
}

#: Adjacencies of units other than records.
_OF_UNITS = {"add-remove": "adding or removing a", "replace-one": "replacing a"}

#: The label of a proof if the executed run deviates from the declared mechanism, to which alone the proof applies.
AS_DECLARED = "proved as declared, run deviates"


#: The label of a proof on a recorded run with open cautions: the audit fails.
BUT_CAUTIONS = "proved, but cautions are open"


def verdict_label(audit: AuditResult, verdict: Verdict) -> str:
    if verdict.verdict != "proved" or verdict.kind == "metric":
        return verdict.verdict
    if audit.conformance.status == "deviates":
        return AS_DECLARED
    return BUT_CAUTIONS if is_doubted(audit, verdict) else "proved"


def verdict_status(audit: AuditResult, verdict: Verdict) -> str:
    """The verdict, or ``as-declared`` or ``but-cautions`` for a proof that does not hold for the run."""
    qualified = {AS_DECLARED: "as-declared", BUT_CAUTIONS: "but-cautions"}
    return qualified.get(verdict_label(audit, verdict), verdict.verdict)


def conformance_label(status: str) -> str:
    return "not tested" if status == "not-run" else status.replace("-", " ")


def headline(audit: AuditResult, verdict: Verdict) -> str:
    """A proof on a recording names accepted cautions and assumptions: ``proved, accepting X, assuming one-record``."""
    return ", ".join([verdict_label(audit, verdict), *qualifiers(audit, verdict)])


def qualifiers(audit: AuditResult, verdict: Verdict) -> list[str]:
    """The conditions of a proof on a recording, which follow its label: ``accepting X``, ``assuming one-record``."""
    recording = audit.recording
    if recording is None or verdict_label(audit, verdict) not in ("proved", BUT_CAUTIONS):
        return []
    names = (("accepting", [rule.name for rule in accepted_cautions(audit)]), ("assuming", recording.assumes))
    return [f"{condition} {', '.join(listed)}" for condition, listed in names if listed]


def outcome(audit: AuditResult, verdict: Verdict) -> str:
    if verdict.expected:
        return "as expected"
    state = "NOT YET DECIDED, trials are missing" if is_pending(audit, verdict) else "NOT AS EXPECTED"
    return f"{state} (expected {' or '.join(verdict.expect)})"


def refuted_by_attack(audit: AuditResult, verdict: Verdict) -> bool:
    """False if a certified lower bound refutes the claim: the attack may have found nothing."""
    if verdict.verdict != "refuted":
        return verdict.verdict == "contradicted"
    if claim_block(audit, verdict).get("refuted_by") == "attack":
        return True
    if verdict.left_out:
        return False
    lower, claimed, index = verdict.lower, verdict.claimed, verdict.lower_finding
    if verdict.kind == "metric" or lower is None or claimed is None or index is None:
        return True
    return audit.findings[index].rigor != "certified" or lower <= claimed


def refuted_by_bound(audit: AuditResult, verdict: Verdict) -> bool:
    """Whether a certified lower bound above the claim refutes it."""
    return verdict.verdict == "refuted" and not (verdict.left_out or refuted_by_attack(audit, verdict))


def unit(document: Mapping[str, Json]) -> str:
    threat, data = document.get("threat_model"), document.get("data")
    name = threat.get("unit") if isinstance(threat, Mapping) else None
    return unit_in_words(str(name or "record"), data if isinstance(data, Mapping) else {})


def conformance_outcome(audit: AuditResult) -> str:
    """Empty without an executed run."""
    conformance = audit.conformance
    if not_yet_tested(audit):
        return f"NOT YET TESTED, trials are missing (expected {conformance_label(conformance.expect)})"
    if not conformance.expected:
        return f"NOT AS EXPECTED (expected {conformance_label(conformance.expect)})"
    return "" if conformance.status == "not-run" and not audit.executed else "as expected"


#: The end of the bounds of a claim whose attack shows more than the bound, and which is not contradicted.
ATTACK_ABOVE = ", above the bound, but not at level 1e-6, which contradicts it: more trials decide"


@dataclass(frozen=True)
class Bounds:
    """The bounds of a claim in words, each with its number; an empty string for a missing one.

    Attributes:
        attack: ``attack shows at least 0.61``.
        upper: ``at most 2.349 (certified)``, or ``about 2.3`` without a guarantee.
        lower: ``at least 2.348 on worst-case data``, by theory; of a metric without the data.
        attacked: The attack's number; None without one.
        missing: The words for no bound at all.
        contradiction: Whether a lower bound exceeds the upper one.
        is_attack_above: Whether only the attack's does. The verdict ``contradicted`` has no upper bound, so this attack
            does not reject the bound at the level of that verdict.
        is_approximate: Whether the first end is an estimate without a guarantee.
    """

    attack: str
    upper: str
    lower: str
    attacked: float | None
    missing: str
    contradiction: bool
    is_attack_above: bool = False
    is_approximate: bool = False

    @property
    def brief(self) -> str:
        """Without theory's lower bound: ``attack shows at least 0.61 of at most 2.349 (certified)``."""
        within = " of " if self.upper and not self.is_approximate else "; "
        shown = f"{self.attack}{within if self.attack else ''}{self.upper or self.missing}"
        shown = shown if self.upper or self.attack else ""
        return shown or self.lower or self.missing

    def __str__(self) -> str:
        lower = f"; {self.lower}" if self.lower and self.brief != self.lower else ""
        above = ATTACK_ABOVE if self.is_attack_above else ", a contradiction" if self.contradiction else ""
        return f"{self.brief}{lower}{above}"


def bounds(audit: AuditResult, verdict: Verdict) -> Bounds:
    """The only words for the bounds of a claim. Each number is rounded against the claim."""
    lower_finding, upper_finding = (_finding(audit, i) for i in (verdict.lower_finding, verdict.upper_finding))
    by_attack = verdict.kind != "metric" and lower_finding is not None and lower_finding.rigor == "statistical"
    attacked = verdict.lower if by_attack else _attacked(audit, verdict, upper_finding or lower_finding)
    # Rounded by itself to four digits, an upper bound of 2.99996 would be 3, and seem to just meet a claim of 3.
    lower = upper = ""
    is_void = has_void_bounds(audit) and verdict.kind != "metric"
    if verdict.upper is not None and not is_void:
        upper = _end("at most", decimals.upper(verdict.upper, against=verdict.claimed), upper_finding)
        if upper_finding is not None and not _is_approximate(upper_finding):
            upper += f" ({upper_rigor(upper_finding)})"
            if charges := upper_finding.charged_above(verdict.claimed):
                upper += f", by {joined(charges)}"
        if verdict.claimed is not None and verdict.upper > verdict.claimed:
            upper += f", {EQUAL}" if decimals.is_equal(verdict.upper, verdict.claimed) else ""
    if verdict.lower is not None and not by_attack and not is_void:
        lower = _end("at least", decimals.lower(verdict.lower, against=verdict.claimed), lower_finding)
        if verdict.kind != "metric" and lower_finding is not None and not _is_approximate(lower_finding):
            lower += f" on {_LOWER_DATA.get(lower_finding.scope.data, lower_finding.scope.data)}"
    missing = "no upper bound" if attacked is not None else "no bound"
    if is_void:
        missing = "no bound applies to this run"
    elif verdict.left_out:
        missing = "hidden: depends on the data; --internal shows it"
    limit = verdict.upper if upper else None
    by_theory = None if by_attack else verdict.lower
    is_theory_above = limit is not None and by_theory is not None and by_theory > limit
    is_attack_above = limit is not None and attacked is not None and attacked > limit and not is_theory_above
    return Bounds(
        attack="" if attacked is None else f"attack shows at least {decimals.lower(attacked, against=verdict.claimed)}",
        upper=upper,
        lower=lower,
        attacked=attacked,
        missing=missing,
        is_approximate=_is_approximate(upper_finding if upper else lower_finding if lower else None),
        contradiction=is_theory_above or is_attack_above,
        is_attack_above=is_attack_above,
    )


def upper_rigor(finding: Finding) -> str:
    """``certified``, or ``certified by dpspec-demo 0.1.0`` if a third-party plugin computes the bound."""
    rigor = _UPPER_RIGOR[finding.rigor]
    return f"{rigor} by {finding.origin}" if finding.origin else rigor


def _finding(audit: AuditResult, index: int | None) -> Finding | None:
    return None if index is None or not 0 <= index < len(audit.findings) else audit.findings[index]


def _end(side: str, number: str, finding: Finding | None) -> str:
    return f"about {number}" if _is_approximate(finding) else f"{side} {number}"


def _is_approximate(finding: Finding | None) -> bool:
    return finding is not None and finding.rigor == "approximate"


def _attacked(audit: AuditResult, verdict: Verdict, bound: Finding | None) -> float | None:
    """The largest lower bound that an attack shows for the quantity, conditions and scope of ``bound``."""
    if bound is None or verdict.kind == "metric":
        return None
    scope = replace(bound.scope, access=claimed_access(audit, verdict))
    shown = [
        finding.value
        for finding in audit.findings
        if (finding.quantity, finding.bound, finding.rigor, finding.at)
        == (verdict.quantity, "lower", "statistical", bound.at)
        and covers(scope, finding.scope)
    ]
    return max(shown, default=None)


def verdict_line(audit: AuditResult, verdict: Verdict) -> str:
    head = f"{headline(audit, verdict)}: {verdict.text}; {bounds(audit, verdict)}"
    return f"{head}; {outcome(audit, verdict)}. {verdict.reason}"


def conformance_line(audit: AuditResult) -> str:
    labels = (conformance_label(audit.conformance.status), conformance_outcome(audit))
    return f"{', '.join(filter(None, labels))}. {audit.conformance.reason}"


def problem(audit: AuditResult, of_audit: Problem) -> str:
    """The numbers and the reason of a problem, in one line."""
    if of_audit.verdict is not None:
        return verdict_line(audit, of_audit.verdict)
    if of_audit.caution is not None:
        return f"caution {of_audit.caution.name}: {of_audit.caution.text} {of_audit.caution.fix}"
    return f"conformance {conformance_line(audit)}" if of_audit.kind == "conformance" else missing_trials(audit)


def problem_label(audit: AuditResult, of_audit: Problem) -> str:
    """The verdict, the conformance, the name of a caution, or ``incomplete``."""
    if of_audit.verdict is not None:
        return headline(audit, of_audit.verdict)
    return f"caution {of_audit.name}" if of_audit.kind == "caution" else conformance_label(of_audit.status)


def accepted(rule: FiredRule) -> str:
    """A caution that the user accepts, with the reason."""
    return f"accepted caution {rule.name}: {rule.text} Reason: {rule.accepted}"


def missing_trials(audit: AuditResult) -> str:
    return f"{len(audit.trials)} of {audit.planned_trials} trials are available; a run with the same store resumes"


def claimed(verdict: Verdict) -> str:
    """``epsilon 3``, unless the claim's text has it."""
    if verdict.claimed is None or decimals.exact(verdict.claimed) in verdict.text.split():
        return ""
    return f"{spaced(verdict.quantity)} {decimals.exact(verdict.claimed)}"


def access(audit: AuditResult, verdict: Verdict) -> str:
    """Empty for every iterate and for metrics."""
    if verdict.kind == "metric":
        return ""
    view = claimed_access(audit, verdict)
    return "" if view == "all-iterates" else scope_part("access", view)


def claimed_access(audit: AuditResult, verdict: Verdict) -> str:
    """The access of the adversary that a claim is about."""
    threat = audit.document.get("threat_model")
    view = claim_block(audit, verdict).get("access") or (threat.get("access") if isinstance(threat, Mapping) else None)
    return str(view or "all-iterates")


def statement(finding: Finding) -> str:
    """``epsilon <= 2.956``, ``accuracy = 0.941``; ``epsilon ~ 2.3`` if approximate."""
    sign = {"upper": "<=", "lower": ">=", "estimate": "="}[finding.bound]
    if finding.rigor == "approximate":
        sign = "~"
    rounded = {"upper": decimals.upper, "lower": decimals.lower}.get(finding.bound, decimals.nearest)
    return f"{spaced(finding.quantity)} {sign} {rounded(finding.value)}"


def rigor(finding: Finding) -> str:
    """An approximate value is never called a bound."""
    if finding.bound == "estimate":
        kind = "estimate"
    elif finding.rigor == "approximate":
        kind = f"{finding.bound} value"
    else:
        kind = f"{finding.bound} bound"
    text = f"{kind}: {_RIGOR[finding.rigor]}"
    if finding.rigor == "statistical" and finding.confidence is not None:
        text += f" at confidence {decimals.exact(finding.confidence)}"
    return text


def conditions(values: Mapping[str, Json]) -> str:
    """``delta 1e-6, group size 4``."""
    return ", ".join(f"{spaced(key)} {value(item)}" for key, item in values.items())


def scope(finding: Finding) -> str:
    """One sentence without a full stop; an estimate has no adversary."""
    domain = finding.scope
    data, record = scope_part("data", domain.data), f"any {unit_parts(domain.unit)[0]}"
    if isinstance(domain.record, int):
        record = f"record {domain.record}"
    elif domain.record != "all":  # a name that states why it was chosen
        record = f"the record {domain.record.removeprefix('record ')!r}"
    if finding.bound == "estimate":
        return f"the mechanism as {domain.pipeline}, {data}" + (f", {record}" if domain.record != "all" else "")
    direction = "" if domain.direction == "both" else f" (direction: {domain.direction})"
    # "this" is one dataset, whose size is known.
    least = (
        f" of at least {domain.min_records} records"
        if domain.min_records and domain.data in ("all", "collection")
        else ""
    )
    alike = (
        f" (neighbours: {domain.neighbours})"
        if domain.neighbours != "all" and domain.data in ("all", "collection")
        else ""
    )
    return (
        f"the mechanism as {domain.pipeline}, {neighbours(domain.adjacency, domain.unit)}{direction}{alike}, "
        f"{scope_part('access', domain.access)}, {scope_part('adversary', domain.adversary)}, {data}{least}, {record}"
    )


def neighbours(adjacency: str, unit: str) -> str:
    if unit == "record":
        return scope_part("adjacency", adjacency)
    return f"{_OF_UNITS[adjacency]} {unit}" if adjacency in _OF_UNITS else f"{adjacency} (unit: {unit})"


def scope_part(key: str, value: str) -> str:
    return _SCOPE[key].get(value, f"{key} {value}") if key in _SCOPE else f"{key} {value}"


def curve(proven_curve: ProvenCurve) -> str:
    """The group size, and the parts of the scope that vary among the curves."""
    scopes = varying_scopes(proven_curve)
    return groups(proven_curve.group_size, proven_curve.scope.unit) + "".join(f", {text}" for text in scopes)


def varying_scopes(proven_curve: ProvenCurve) -> list[str]:
    """The parts of a curve's scope that vary among the curves."""
    return [scope_part(key, str(getattr(proven_curve.scope, key))) for key in proven_curve.varying]


def groups(size: int, unit: str = "record") -> str:
    """``, groups of 8``, ``, one user``; empty for single records."""
    if unit != "record":
        return f", {several(size, unit)}"
    return "" if size == 1 else f", groups of {size}"


def value(item: Json) -> str:
    if isinstance(item, bool) or item is None:
        return {True: "true", False: "false", None: "none"}[item]
    if isinstance(item, float):
        return decimals.given(item)
    if isinstance(item, Mapping):
        return ", ".join(f"{spaced(key)} {value(part)}" for key, part in item.items())
    if isinstance(item, list | tuple):
        return "[" + ", ".join(value(part) for part in item) + "]"
    return str(item)


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


#: The maximum number of names in one sentence, and of characters of each.
MOST_NAMES, _LONGEST_NAME = 6, 80


def name_list(names: Sequence[str]) -> str:
    """``a, b and c``; of many the first ones and the number of the others."""
    shown = [shortened(name, _LONGEST_NAME) for name in names[:MOST_NAMES]]
    return f"{', '.join(shown)} and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else joined(shown)


def omitted(audit: AuditResult) -> str:
    if not audit.left_out:
        return ""
    counts = " and ".join(f"{number} {privacy}" for privacy, number in audit.left_out.items())
    plural = "" if sum(audit.left_out.values()) == 1 else "s"
    return f"Omitted: {counts} value{plural}; --internal includes them in a report for internal use."


#: A symbol for each status of a channel or an assumption, so that the color is not the only difference.
SYMBOLS = {
    "verified": "\u2713",
    "by-construction": "\u2713",
    "tested": "\u25c9",
    "not-rejected": "\u25c9",
    "reported": "\u25cb",
    "declared": "\u270e",
    "assumed": "\u270e",
    "open": "?",
    "unchecked": "?",
    "violated": "\u2717",
    "false": "\u2717",
}


def assumptions_of(audit: AuditResult) -> list[Assumption]:
    distinct = dict.fromkeys(assumption for finding in findings(audit) for assumption in finding.assumptions)
    distinct |= dict.fromkeys(assumption for evidence in audit.evidence for assumption in evidence.assumptions)
    return sorted(distinct, key=lambda assumption: WEAKEST_FIRST.index(assumption.status))


def assumption(assumed: Assumption, *, tested_above: bool = False) -> str:
    """In short if the report lists its test above."""
    text = assumed.text or assumed.name
    details = ["tested above" if tested_above else assumed.test or ""]
    if assumed.level is not None:
        details.append(f"level {decimals.nearest(assumed.level, digits=2)}")
    if assumed.detectable is not None and not tested_above:
        details.append(detectable(assumed.detectable))
    stated_details = ", ".join(detail for detail in details if detail)
    return f"{text} ({stated_details})" if stated_details else text


def printed(formula: Printed) -> str:
    state = "known to be wrong, backs no verdict" if formula.refuted else "not known to be wrong"
    return f"the formula as printed, {state}{f': {formula.reason}' if formula.reason else ''}"


def families(result: Result) -> list[int]:
    """For each audit the number of checks that its own were judged among."""
    return family_sizes([(len(audit.checks), len(audit.trials), audit.planned_trials) for audit in result.audits])


def ranked(checks: Sequence[Check], family: int) -> list[tuple[Check, bool]]:
    """Rejected checks first. A p-value that is not a probability counts as rejected: the result was edited."""
    judged = [(check, not 0.0 <= check.p_value <= 1.0 or rejected(check, family)) for check in checks]
    bad = sorted((check for check, is_rejected in judged if is_rejected), key=lambda check: check.p_value)
    return [*((check, True) for check in bad), *((check, False) for check, is_rejected in judged if not is_rejected)]


def check(tested: Check) -> str:
    note = f", {tested.subject}" if tested.subject else ""
    text = f"{tested.assumption}{note}: {tested.test}, p = {decimals.upper(tested.p_value, digits=2)}"
    if tested.declared is not None:
        text += f", declared {decimals.given(tested.declared)}"
    if tested.measured is not None:
        text += f", {tested.observed} {decimals.nearest(tested.measured)}"
    elif tested.observed == "reported":
        text += ", reported by the backend"
    return text if tested.detectable is None else f"{text}, {detectable(tested.detectable)}"


def foreseen(planned: Check) -> str:
    power = "detection limit depends on the run" if planned.detectable is None else detectable(planned.detectable)
    note = f", {planned.note}" if planned.note else ""
    return f"{planned.assumption}{note} ({planned.test}): {power}"


def detectable(deviation: float) -> str:
    """Rounded up."""
    if deviation == 0:
        return "detects any deviation"
    return f"smallest detectable deviation {detection_limit(deviation)}"


def detection_limit(deviation: float) -> str:
    """``1.3%`` of the declared value, rounded up; ``any`` if any deviation is detected."""
    return "any" if deviation == 0 else f"{decimals.upper(100 * deviation, digits=2)}%"


def findings(audit: AuditResult) -> tuple[Finding, ...]:
    """All except the epsilon of the executed run, and except bounds for one direction that hold for both."""
    both = {_undirected(finding) for finding in audit.findings if finding.scope.direction == "both"}
    shown = [f for f in audit.findings if f.scope.direction == "both" or _undirected(f) not in both]
    return tuple(finding for finding in shown if not _is_as_run(finding))


def alike(shown: Sequence[Finding]) -> list[list[Finding]]:
    """Findings that differ only in their quantity, conditions and values, together."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in shown:
        key = (finding.method, finding.source, finding.scope, rigor(finding), finding.printed)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def main_bounds(audit: AuditResult) -> tuple[Finding, ...]:
    """Proved upper bounds for any data and record, one for each quantity and condition, near a delta of 1e-6."""
    best: dict[tuple[object, ...], Finding] = {}
    for finding in findings(audit):
        proved = finding.bound == "upper" and finding.rigor in ("certified", "theorem")
        if not proved or (finding.scope.data, finding.scope.record) != ("all", "all"):
            continue
        key = (finding.quantity, finding.scope, *((k, v) for k, v in finding.at.items() if k != "delta"))
        if key not in best or _from_main_delta(finding) < _from_main_delta(best[key]):
            best[key] = finding
    return tuple(best.values())


def _from_main_delta(finding: Finding) -> float:
    delta = finding.at.get("delta")
    return abs(math.log(delta / 1e-6)) if isinstance(delta, float) and delta > 0.0 else 0.0


def _undirected(finding: Finding) -> Finding:
    return replace(finding, scope=replace(finding.scope, direction="both"))


def _is_as_run(finding: Finding) -> bool:
    return finding.quantity == AS_RUN and finding.bound == "estimate"


def as_run(audit: AuditResult) -> tuple[str, ...]:
    """The estimated epsilon of the executed run for each method, group size and delta, and the assumptions."""
    executed_epsilons = [finding for finding in audit.findings if _is_as_run(finding)]
    intervals = [finding for finding in executed_epsilons if finding.lower is not None]
    by_method: dict[str, list[str]] = {}
    for finding in executed_epsilons:
        text = f"not available; missing: {'; '.join(assumption.text for assumption in finding.assumptions)}"
        if finding.lower is not None:
            high = "no upper end" if math.isinf(finding.value) else decimals.upper(finding.value)
            at_conditions = f" at {conditions(finding.at)}" if finding.at else ""
            text = f"{decimals.lower(finding.lower)} to {high}{at_conditions}"
        by_method.setdefault(finding.method, []).append(text)
    lines = [
        f"Estimated epsilon of the executed run ({name}): {'; '.join(texts)}." for name, texts in by_method.items()
    ]
    if intervals:
        assumed = dict.fromkeys(assumption.text for finding in intervals for assumption in finding.assumptions)
        sure = {decimals.exact(finding.confidence) for finding in intervals if finding.confidence is not None}
        confidence_note = f" All intervals hold at joint confidence {', '.join(sorted(sure))}." if sure else ""
        deviates = audit.conformance.status == "deviates"
        doubt = " The run deviates and may violate this assumption." if deviates else ""
        lines.append(f"No claim depends on these estimates.{confidence_note} Assumption: {'; '.join(assumed)}.{doubt}")
    return tuple(lines)


def place(audit: str, path: str, part: object) -> str:
    """``quickstart: findings[3].value (epsilon <= 2.349, delta 1e-5)``: audit, path, and the audit's part there."""
    names = (getattr(part, name, "") for name in ("claim", "assumption", "test", "note", "title", "id"))
    stated_conditions, method = conditions(getattr(part, "at", {})), getattr(part, "method", "")
    texts = [statement(part) if isinstance(part, Finding) else "", *names, stated_conditions, method]
    subject = ", ".join(filter(None, texts))
    return (f"{audit}: {path}" if audit else path) + (f" ({subject})" if subject else "")


def phases(section: ExecutedSection) -> list[str]:
    return schedule_in_words(section.phases, section.more_phases)
