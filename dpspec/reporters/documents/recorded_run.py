"""The brief report of a recorded run: the claim and its number first, then facts, cautions and what to confirm."""

import math
from collections.abc import Iterator, Mapping

from dpspec import decimals
from dpspec.contract import Finding
from dpspec.contract.executed import ExecutedSection
from dpspec.contract.results import AuditResult, Verdict, accepted_cautions, claim_block, open_cautions
from dpspec.reporters import words
from dpspec.reporters.blocks import Badge, Block, Item, Items, Lead, Section, Sentence, Span, items
from dpspec.reporters.documents.parts import unmarked
from dpspec.reporters.limits import real_numbers
from dpspec.results.conformance_status import rejected
from dpspec.text import joined

#: The maximum numbers of facts, and of rejected checks without advice.
_MOST_FACTS, _MOST_CHECKS = 6, 5


def recorded_run(audit: AuditResult, *, internal: bool) -> Iterator[Block]:
    """The blocks of one audit. ``internal``: whether to state rejected tests with their numbers."""
    recording = audit.recording
    assert recording is not None
    deviates = audit.conformance.status != "no-deviation-found"
    verdict = audit.verdicts[0] if audit.verdicts else None
    label, sentence = _headline(audit, recording, verdict, deviates)
    if costs := _of_groups(audit, verdict, deviates):
        sentence += f" {words.sentence(costs)}." if sentence.endswith(".") else f"; {costs}"
    yield Lead(label, sentence)
    for further in audit.verdicts[1:]:
        label, sentence = _headline(audit, recording, further, deviates)
        yield Lead(label, f"{further.claim}: {sentence}")
    if counted := _counted(audit, recording, deviates):
        yield unmarked([counted])
    if deviates:
        yield items(*_facts(audit, recording, internal))
    # before the sections, which list only what keeps the exit code from 0
    yield unmarked([words.accepted(rule) for rule in accepted_cautions(audit)])
    yield items(*recording.cautions)
    if not deviates and recording.open:
        points = (
            (Span(point.name, "strong"), f": {point.text}") if point.name else point.text for point in recording.open
        )
        yield Section("OPEN", (items(*points),), level=4)
    yield from _cautions(audit)
    if not deviates:
        yield Section(
            "CONFIRM  this number also says that",
            (items(*recording.confirm, *filter(None, [real_numbers(audit)])),),
            level=4,
        )
    if recording.brief is not None:
        yield Section(recording.brief.title, tuple(map(Sentence, recording.brief.sentences)), level=4)
    for finding in audit.findings:
        attack = finding.bound == "lower" and finding.scope.data == "planted"
        size = finding.at.get("group_size", 1)
        grouped = isinstance(size, int) and size > 1
        if finding.quantity == "epsilon" and (finding.bound == "estimate" or attack or grouped):
            at = words.conditions(finding.at)
            yield items(f"{words.statement(finding)} at {at}, {words.rigor(finding)}: {finding.method}")
    if recording.closing:
        yield unmarked([recording.closing])


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
            costs[size] = "no finite epsilon"
            if math.isfinite(finding.value):
                costs[size] = f"at most {decimals.upper(finding.value)}"
    clauses = [f"for {size} record{'' if size == 1 else 's'} of one person {cost}" for size, cost in costs.items()]
    return joined(clauses)


def _headline(
    audit: AuditResult, recording: ExecutedSection, verdict: Verdict | None, deviates: bool
) -> tuple[Badge, str]:
    """The outcome of a claim, or of the run without one. Only a proof without open cautions has the status proved."""
    label, sentence = _outcome(audit, recording, verdict, deviates)
    is_doubted = bool(open_cautions(audit))
    return Badge(label.text, "but-cautions" if is_doubted else label.status), sentence


def _outcome(
    audit: AuditResult, recording: ExecutedSection, verdict: Verdict | None, deviates: bool
) -> tuple[Badge, str]:
    upper = _upper(audit)
    epsilon = "" if upper is None or math.isinf(upper.value) else decimals.upper(upper.value)
    if deviates and (verdict is None or verdict.verdict != "refuted"):
        return Badge("deviates", "deviates"), "the run is not what its accounting assumes: nothing is proved about it"
    if verdict is None:
        at = words.conditions(upper.at) if upper is not None else ""
        cost = f"the run costs epsilon at most {epsilon} at {at} (certified)" if epsilon else "no epsilon is finite"
        return Badge("no claim", "open"), f"{cost}; claim one with --epsilon"
    accepted = [rule.name for rule in accepted_cautions(audit)]
    conditions = (("accepting", accepted), ("assuming", recording.assumed), ("if public:", recording.public))
    stated_conditions = [f"{condition} {', '.join(names)}" for condition, names in conditions if names]
    stated = verdict.text if words.claimed(verdict) == "" else f"{verdict.text}, claimed {words.claimed(verdict)}"
    if verdict.verdict == "proved":
        cautions = len(open_cautions(audit))
        word = f"proved, but {words.count(cautions, 'caution')}" if cautions else "proved"
        label = Badge(", ".join([word, *stated_conditions]), "proved")
        return label, f"{stated}: {words.bounds(audit, verdict).brief}"
    exceeds = verdict.upper is not None and verdict.claimed is not None and verdict.upper > verdict.claimed
    advice = f" {words.sentence(recording.retraining)}." if exceeds and recording.retraining else ""
    if verdict.verdict not in ("open", "supported"):
        label = Badge(verdict.verdict, verdict.verdict)
        return label, f"{stated} ({words.bounds(audit, verdict)}): {verdict.reason}{advice}"
    label = Badge("not proved", "open")
    doubted = any(channel.status in ("open", "violated") for channel in recording.channels)
    if exceeds:
        return label, f"{stated}: {words.bounds(audit, verdict).brief}{advice and f'.{advice}'}"
    if doubted or not epsilon:
        return label, f"{stated}: the recording leaves the following open"
    return label, f"{stated}: {verdict.reason.removeprefix('Not proved: ')}"


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


def _facts(audit: AuditResult, recording: ExecutedSection, internal: bool) -> Iterator[str]:
    """The faults of a run that deviates, and the tests that reject it."""
    yield from recording.faults[:_MOST_FACTS]
    further = len(recording.faults) - _MOST_FACTS
    if further > 0:
        yield f"{words.count(further, 'further cause')}, with -v"
    bad = sorted((check for check in audit.checks if rejected(check, len(audit.checks))), key=lambda c: c.p_value)
    if not bad:
        yield audit.conformance.reason
        return
    names = list(dict.fromkeys(name for check in bad for name in check.tests or (check.test,)))
    if internal or not recording.faults:
        yield from (words.check(check) for check in bad) if internal else names[:_MOST_CHECKS]
        return
    more = len(names) - _MOST_CHECKS
    yield "rejected tests: " + "; ".join([*names[:_MOST_CHECKS], *([f"{more} more"] if more > 0 else [])])


def _cautions(audit: AuditResult) -> Iterator[Block]:
    open_rules = open_cautions(audit)
    if open_rules:
        cautions = tuple(
            Item((Span(rule.name, "strong"), f"  {rule.text}"), paragraphs=(rule.fix,)) for rule in open_rules
        )
        title = "CAUTIONS  exit code 1 until fixed, or accepted with --accept NAME"
        yield Section(title, (Items(cautions, marked=False),), level=4)
