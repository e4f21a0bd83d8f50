"""The brief report of a recorded run: the claim and its number first, then facts, cautions and what to confirm."""

import math
from collections.abc import Mapping

from dpspec import decimals
from dpspec.contract import Finding
from dpspec.contract.executed import ExecutedSection
from dpspec.contract.results import AuditResult, Verdict, accepted_cautions, claim_block, open_cautions
from dpspec.reporters import words
from dpspec.reporters.layout import Page
from dpspec.reporters.summary import retraining
from dpspec.results.conformance_status import rejected
from dpspec.text import joined

#: The maximum numbers of facts, and of rejected checks without advice.
_MOST_FACTS, _MOST_CHECKS = 6, 5

_STYLES = {"PROVED": "bold green", "NO CLAIM": "bold yellow", "NOT PROVED": "bold yellow"}


def checked_run(page: Page, audit: AuditResult, *, internal: bool) -> None:
    recording = audit.recording
    assert recording is not None
    deviates = audit.conformance.status != "no-deviation-found"
    verdict = audit.verdicts[0] if audit.verdicts else None
    word, sentence = _headline(audit, recording, verdict, deviates)
    if costs := _of_groups(audit, verdict, deviates):
        sentence += f" {words.sentence(costs)}." if sentence.endswith(".") else f"; {costs}"
    page.line((word, _style(audit, word)), f"  {sentence}", hang=2)
    for further in audit.verdicts[1:]:
        word, sentence = _headline(audit, recording, further, deviates)
        page.line((word, _style(audit, word)), f"  {further.claim}: {sentence}", hang=2)
    if counted := _counted(audit, recording, deviates):
        page.line(counted, indent=2, hang=2)
    _facts(page, audit, recording, deviates, internal)
    _open(page, recording, deviates)
    _cautions(page, audit, recording)
    if not deviates:
        page.heading("CONFIRM  this number also says that")
        for sentence in recording.confirm:
            page.item(sentence)
    if recording.brief is not None:
        page.heading(recording.brief.title)
        for sentence in recording.brief.sentences:
            page.line(sentence, indent=2)
    for finding in audit.findings:
        attack = finding.bound == "lower" and finding.scope.data == "planted"
        size = finding.at.get("group_size", 1)
        grouped = isinstance(size, int) and size > 1
        if finding.quantity == "epsilon" and (finding.bound == "estimate" or attack or grouped):
            at = words.conditions(finding.at)
            page.item(f"{words.statement(finding)} at {at}, {words.rigor(finding)}: {finding.method}")
    if recording.closing:
        page.line(recording.closing, indent=2, hang=2)


def _style(audit: AuditResult, word: str) -> str:
    """Only a proof without open cautions is green."""
    return "bold red" if open_cautions(audit) else _STYLES.get(word.partition(",")[0], "bold red")


def _of_groups(audit: AuditResult, verdict: Verdict | None, deviates: bool) -> str:
    """``for 8 records of one person at most 42.33``: the costs of the group sizes other than the claim's."""
    if deviates:
        return ""
    block = {} if verdict is None else claim_block(audit, verdict)
    claimed_size = block.get("group_size", 1)
    delta = block.get("delta")
    costs = {}
    for finding in audit.findings:
        size = finding.at.get("group_size", 1)
        same_delta = delta is None or finding.at.get("delta") == delta
        if (finding.quantity, finding.bound) == ("epsilon", "upper") and size != claimed_size and same_delta:
            costs[size] = decimals.upper(finding.value) if math.isfinite(finding.value) else "no finite epsilon"
    clauses = [
        f"for {size} record{'' if size == 1 else 's'} of one person {'at most ' if value[0].isdigit() else ''}{value}"
        for size, value in costs.items()
    ]
    return joined(clauses)


def _headline(
    audit: AuditResult, recording: ExecutedSection, verdict: Verdict | None, deviates: bool
) -> tuple[str, str]:
    upper = _upper(audit)
    epsilon = "" if upper is None or math.isinf(upper.value) else decimals.upper(upper.value)
    if deviates and (verdict is None or verdict.verdict != "refuted"):
        return "DEVIATES", "the run is not what its accounting assumes: nothing is proved about it"
    if verdict is None:
        at = words.conditions(upper.at) if upper is not None else ""
        cost = f"the run costs epsilon at most {epsilon} at {at} (certified)" if epsilon else "no epsilon is finite"
        return "NO CLAIM", f"{cost}; claim one with --epsilon"
    accepted = [rule.name for rule in accepted_cautions(audit)]
    conditions = (("accepting", accepted), ("assuming", recording.assumed), ("if public:", recording.public))
    stated_conditions = [f"{condition} {', '.join(names)}" for condition, names in conditions if names]
    stated = verdict.text if words.claimed(verdict) == "" else f"{verdict.text}, claimed {words.claimed(verdict)}"
    if verdict.verdict == "proved":
        cautions = len(open_cautions(audit))
        word = f"PROVED, but {words.count(cautions, 'caution')}" if cautions else "PROVED"
        return ", ".join([word, *stated_conditions]), f"{stated}: {words.bounds(audit, verdict).brief}"
    if verdict.verdict not in ("open", "supported"):
        return verdict.verdict.upper(), f"{stated} ({words.bounds(audit, verdict)}): {verdict.reason}"
    doubted = any(channel.status in ("open", "violated") for channel in recording.channels)
    if verdict.upper is not None and verdict.claimed is not None and verdict.upper > verdict.claimed:
        return "NOT PROVED", f"{stated}: {words.bounds(audit, verdict).brief}. T{retraining(audit)[1:]}"
    if doubted or not epsilon:
        return "NOT PROVED", f"{stated}: the recording leaves the following open"
    return "NOT PROVED", f"{stated}: {verdict.reason.removeprefix('Not proved: ')}"


def _upper(audit: AuditResult) -> Finding | None:
    """The first certified bound on epsilon for the smallest group."""
    bounds = [f for f in audit.findings if f.quantity == "epsilon" and f.bound == "upper"]
    return min(bounds, key=lambda finding: finding.at.get("group_size", 1), default=None)


def _counted(audit: AuditResult, recording: ExecutedSection, deviates: bool) -> str:
    cautions, threat = len(open_cautions(audit)), audit.document.get("threat_model")
    adjacency = threat.get("adjacency") if isinstance(threat, Mapping) else None
    parts = [f"adjacency {adjacency}"] if adjacency else []
    parts += [f"{words.count(cautions, 'caution')} (exit code 1)"] if cautions else []
    if not deviates:
        parts.append(f"{words.count(len(recording.confirm), 'thing')} that no recording can see")
    return ", ".join(parts)


def _facts(page: Page, audit: AuditResult, recording: ExecutedSection, deviates: bool, internal: bool) -> None:
    if not deviates:
        return
    for sentence in recording.faults[:_MOST_FACTS]:
        page.item(sentence)
    further = len(recording.faults) - _MOST_FACTS
    if further > 0:
        page.item(f"{words.count(further, 'further cause')}, with -v")
    bad = sorted((check for check in audit.checks if rejected(check, len(audit.checks))), key=lambda c: c.p_value)
    if not bad:
        page.item(audit.conformance.reason)
        return
    tests = [name for check in bad for name in check.test.removesuffix(", exact").split("; ")]
    names = list(dict.fromkeys(tests))
    if internal or not recording.faults:
        for text in [words.check(check) for check in bad] if internal else names[:_MOST_CHECKS]:
            page.item(text)
        return
    more = len(names) - _MOST_CHECKS
    page.item("rejected tests: " + "; ".join([*names[:_MOST_CHECKS], *([f"{more} more"] if more > 0 else [])]))


def _open(page: Page, recording: ExecutedSection, deviates: bool) -> None:
    if deviates or not recording.open:
        return
    page.heading("OPEN")
    for point in recording.open:
        page.item(*([(point.name, "bold"), f": {point.text}"] if point.name else [point.text]))


def _cautions(page: Page, audit: AuditResult, recording: ExecutedSection) -> None:
    open_rules = open_cautions(audit)
    if open_rules:
        page.heading("CAUTIONS  exit code 1 until fixed, or accepted with --accept NAME")
        for rule in open_rules:
            page.line((rule.name, "bold"), f"  {rule.text}", indent=2, hang=2)
            page.line(rule.fix, indent=4)
    for rule in accepted_cautions(audit):
        page.line(words.accepted(rule), indent=2, hang=2)
    for note in recording.cautions:
        page.item(note)
