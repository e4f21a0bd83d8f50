"""Summarize a result for readers outside the field: verdict, audited mechanism, risk, and untested properties.

Text from specs and plugins is returned unescaped: each format escapes it.
"""

import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dpspec import decimals
from dpspec.contract import Assumption, FrozenMap, Json
from dpspec.contract.results import AuditResult, Result, Verdict
from dpspec.reporters import matrices, words
from dpspec.reporters.deviations import sizes, worst_deviation
from dpspec.text import joined, shortened

_Claims: TypeAlias = list[tuple[AuditResult, Verdict]]

#: The maximum number of assumptions of one kind; half as many for several audits.
_ASSUMED = 4

#: The maximum number of characters for one part of a spec.
_LONGEST = 400

#: For each status of an assumption its label, and whether assumptions with a test are listed too.
_HELD = {
    "false": ("False assumption of some numbers", True),
    "unchecked": ("Unchecked assumption", True),
    "declared": ("Declared by the spec, not tested", False),
}

_ALWAYS = "Floating-point noise, timing and other side channels, and other releases from the same data."

#: Predicates of verdicts, the worst first; ``{is}`` is the verb.
_PREDICATES = {
    "contradicted": "{is} contradicted by an attack: theory, code or attack is wrong",
    "refuted": "{is} refuted",
    "open": "{is} neither proved nor refuted",
    "supported": "{is} supported by evidence without a proof",
    words.AS_DECLARED: "{is} proved for the declared mechanism only",
    "proved": "{is} proved",
}


@dataclass(frozen=True)
class Answer:
    """The answer of a result: the first line in a terminal and the tile of a page.

    Attributes:
        tone: ``good`` if everything is proved or as expected, ``bad`` for a failure, ``open`` otherwise.
        headline: One sentence without a full stop.
        detail: Sentences on the executed run and on controls.
    """

    tone: str
    headline: str
    detail: str


def answer(result: Result) -> Answer:
    """The decisive fact, with its number."""
    audits = result.audits
    detail = " ".join(_execution(audits))
    judged = [(audit, verdict) for audit in audits for verdict in audit.verdicts]
    wrong = [pair for pair in judged if _wrong(*pair)]
    deviating = [audit for audit in audits if words.wrong_conformance(audit)]
    cautions = [name for audit in audits for name in words.cautioned(audit)]
    sentence = verdict_sentence(result).rstrip(".")
    broken = [verdict for _, verdict in wrong if verdict.verdict == "contradicted"]
    if broken:
        return Answer("bad", "An attack contradicts a proof: the theory, the code or the attack is wrong", detail)
    if deviating:
        named = words.name_list([audit.name for audit in deviating])
        fact = worst_deviation(deviating[0]) if len(deviating) == 1 else ""
        run = "The executed run" if len(audits) == 1 else f"The executed run of {named}"
        texts = {
            "deviates": f"{run} deviates from its declaration: {fact}" if fact else sentence,
            "checks-missing": f"Planned checks of the executed run are missing: {named}",
        }
        return Answer(
            "bad", texts.get(deviating[0].conformance.status, f"The executed run was not tested: {named}"), detail
        )
    if len(wrong) == 1:
        return Answer("bad", _failure(*wrong[0], alone=len(judged) == 1), detail)
    if wrong:
        claims = words.count(len(judged), "claim")
        return Answer("bad", f"{len(wrong)} of {claims} failed: {words.name_list(_names(result, _wrong))}", detail)
    if not result.complete:
        return Answer("open", "Not finished: trials are missing", detail)
    if cautions:
        return Answer("open", f"{sentence}, with {words.count(len(cautions), 'caution')}", detail)
    if not judged:
        bounds = [finding for audit in audits for finding in words.main_bounds(audit)][:1]
        number = "".join(
            f": {words.statement(bound)}{f' at {words.conditions(bound.at)}' if bound.at else ''}" for bound in bounds
        )
        return Answer("open", f"Nothing is claimed{number if len(audits) == 1 else ''}", detail)
    proved = all(words.verdict_label(*pair) == "proved" for pair in _claims(audits)[0])
    return Answer("good" if proved else "open", sentence, detail)


def _failure(audit: AuditResult, verdict: Verdict, *, alone: bool) -> str:
    """An unexpected verdict with the number that decides it."""
    name = "The claim" if alone else f"The claim {verdict.claim}"
    if words.is_control(verdict):
        return f"The control {verdict.claim} was not refuted: the audit does not detect such violations"
    label = "is not met" if verdict.verdict == "refuted" else f"is {words.verdict_label(audit, verdict)}"
    if verdict.verdict in ("open", "supported") and "proved" in verdict.expect:
        label = "is not proved"
    claimed = "" if verdict.claimed is None else f"claimed {verdict.quantity} {decimals.exact(verdict.claimed)}, "
    bounds = words.bounds(audit, verdict)
    deciding = bounds.lower if verdict.verdict == "refuted" and bounds.lower else bounds.brief
    return f"{name} {label}: {claimed}{deciding}"


#: The words of a bound's method for adaptive clipping, which charges its noisy count.
_ADAPTIVE = "adaptive clipping"


def retraining(audit: AuditResult) -> str:
    """Advice on the schedule of a recorded training whose epsilon exceeds the claim."""
    if any(_ADAPTIVE in finding.method for finding in audit.findings if finding.bound == "upper"):
        return (
            "train with a larger unclipped_num_std or noise multiplier, a smaller rate or fewer steps, or with flat "
            "clipping"
        )
    return (
        "train with a larger noise multiplier, a smaller rate or fewer steps (dpspec epsilon --target finds the noise)"
    )


def remedies(audit: AuditResult) -> Iterator[str]:
    """Changes that would prove the failed claims, each alone, with the present values."""
    for remedy in audit.remedies:
        now = "" if remedy.now is None else f" (now {decimals.exact(remedy.now)})"
        yield f"{remedy.place}: {decimals.exact(remedy.value)}{now}"
    failed = [v for v in audit.verdicts if _wrong(audit, v) and "proved" in v.expect and v.quantity == "epsilon"]
    provable = [
        f"{decimals.upper(v.provable, digits=3)}{'' if len(failed) == 1 else f' for {v.claim}'}"
        for v in failed
        if v.provable is not None and math.isfinite(v.provable) and v.verdict in ("open", "refuted")
    ]
    if audit.recording is not None and any(v.claimed is not None and v.claimed < (v.upper or 0.0) for v in failed):
        yield retraining(audit)
    if provable and len(provable) == len(failed):
        yield f"claim epsilon {joined(provable)} instead, which the present values prove"


def remedies_by_audit(audits: Sequence[AuditResult], titles: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The title and the remedies of each audit with failed claims, joined if all have the same.

    Args:
        audits: All audits of a result.
        titles: The titles of the audits.

    Returns:
        Pairs of a title, which is empty for a single audit, and remedies.
    """
    groups = [(title, tuple(remedies(audit))) for audit, title in zip(audits, titles, strict=True)]
    groups = [(title, changes) for title, changes in groups if changes]
    if len(audits) == 1:
        return [("", changes) for _, changes in groups]
    if len(groups) > 1 and len({changes for _, changes in groups}) == 1:
        return [(f"The same for each of {len(groups)} audits", groups[0][1])]
    return groups


def principal(audits: Sequence[AuditResult]) -> tuple[AuditResult, Verdict] | None:
    """The privacy claim that decides: an unexpected one first, then the weakest verdict."""
    private, _, controls = _claims(audits)
    order = list(_PREDICATES)
    return min(
        private or controls,
        key=lambda pair: (pair[1].expected, order.index(words.verdict_label(*pair))),
        default=None,
    )


def _claims(audits: Sequence[AuditResult]) -> tuple[_Claims, _Claims, _Claims]:
    """Privacy claims, utility claims and controls."""
    judged = [(audit, verdict) for audit in audits for verdict in audit.verdicts]
    claims = [pair for pair in judged if not words.is_control(pair[1])]
    private = [pair for pair in claims if pair[1].kind != "metric"]
    metrics = [pair for pair in claims if pair[1].kind == "metric"]
    return private, metrics, [pair for pair in judged if words.is_control(pair[1])]


def verdict_sentence(result: Result) -> str:
    """On all privacy claims, or the reason why no claim counts."""
    conformances = [(audit.name, audit.conformance) for audit in result.audits]
    broken = [
        name for name, conformance in conformances if conformance.status == "deviates" and not conformance.expected
    ]
    if broken:
        return f"The executed run deviates from its declaration: {words.name_list(broken)}."
    private, metrics, controls = _claims(result.audits)
    if private or metrics:
        return _counted("privacy claim" if private else "claim", private or metrics)
    return next(_controls(controls), "No claim was made.")


def _execution(audits: Sequence[AuditResult]) -> Iterator[str]:
    """Sentences on the executed run, its tests and the controls."""
    alone = len(audits) == 1
    deviating = [audit for audit in audits if audit.conformance.status == "deviates"]
    if deviating:
        where = "" if alone else f" in {words.name_list([audit.name for audit in deviating])}"
        intended = ", as this control intends" if alone and deviating[0].conformance.expected else ""
        yield f"The executed run deviates from its declaration{where}{intended}: no bound applies to that run."
    elif any(audit.conformance.status == "checks-missing" for audit in audits):
        yield "Planned checks of the executed run are missing: its conformance is unknown."
    bare = [audit for audit in audits if _untrained(audit)]
    if bare:
        counted = "" if len(bare) == len(audits) else f" for {len(bare)} of {len(audits)} audits"
        yield f"No training code was run{counted}: results apply to the specification."
    fine = [audit for audit in audits if audit.conformance.status == "no-deviation-found"]
    if fine:
        tests = sum(len(audit.checks) for audit in fine)
        where = "" if alone else f" in {words.count(len(fine), 'audit')}"
        limit = "its detection limit" if tests == 1 else "their detection limits"
        yield f"{words.count(tests, 'conformance test')} of the executed run{where} found no deviation above {limit}."
    if any(audit.conformance.status == "not-run" and not _untrained(audit) for audit in audits):
        yield "The conformance of the executed run was not tested."
    yield from _controls(_claims(audits)[2])


def _counted(noun: str, claims: _Claims) -> str:
    labels = [words.verdict_label(audit, verdict) for audit, verdict in claims]
    count_by_label = {name: labels.count(name) for name in _PREDICATES if name in labels}
    assumed = {name for audit, _ in claims if audit.recording is not None for name in audit.recording.assumes}
    under = f" under {words.count(len(assumed), 'assumption')}" if assumed else ""
    predicates = {**_PREDICATES, "proved": _PREDICATES["proved"] + under}
    if len(count_by_label) == 1:
        number = len(labels)
        subject = {1: f"The {noun}", 2: f"Both {noun}s"}.get(number, f"All {number} {noun}s")
        return f"{subject} {predicates[labels[0]].replace('{is}', 'is' if number == 1 else 'are')}."
    clauses = [
        f"{n} {predicates[name].replace('{is}', 'is' if n == 1 else 'are')}" for name, n in count_by_label.items()
    ]
    count, _, predicate = clauses[0].partition(" ")
    return f"{joined([f'{count} of {len(labels)} {noun}s {predicate}', *clauses[1:]])}."


def _controls(controls: _Claims) -> Iterator[str]:
    if not controls:
        return
    refuted = [pair for pair in controls if pair[1].expected]
    by_theory = sum(not words.refuted_by_attack(*pair) for pair in refuted)
    remark = f", {by_theory} of them by a certified bound, which does not test the attack" if by_theory else ""
    if not refuted and all(_untrained(audit) for audit, _ in controls):
        yield f"{words.count(len(controls), 'negative control')} not tested, because no attack was run."
        return
    if len(refuted) < len(controls):
        remark += ": the audit does not detect such violations"
    elif not by_theory:
        remark = ": the audit detects such violations"
    were = "was" if len(refuted) == 1 else "were"
    yield f"{len(refuted)} of {words.count(len(controls), 'negative control')} {were} refuted{remark}."


def _untrained(audit: AuditResult) -> bool:
    return not audit.planned_trials and audit.recording is None


def untested(audits: Sequence[AuditResult]) -> Iterator[str]:
    if any(audit.conformance.status == "no-deviation-found" for audit in audits):
        yield "Deviations below the detection limits, or of kinds that no test covers."
    assumptions = [assumption for audit in audits for assumption in words.assumptions_of(audit)]
    most = _ASSUMED if len(audits) == 1 else _ASSUMED // 2
    for status, (label, with_test) in _HELD.items():
        if status == "declared" and all(audit.recording is not None and audit.recording.confirm for audit in audits):
            continue  # the report lists them as sentences to confirm
        texts = {
            assumption.name: _plainly(assumption)
            for assumption in assumptions
            if assumption.status == status and (assumption.test is None or with_test)
        }
        if texts:
            named = list(texts.values())
            further = f"; and {len(named) - most} more" if len(named) > most else ""
            yield f"{label}: {'; '.join(named[:most])}{further}."
    if any(audit.planned_trials for audit in audits):
        yield (
            "Never release a model that this audit trained: its seed is known, and canaries are inserted. "
            "Proved claims cover a model of the same pipeline, trained without canaries and with a secret seed, if "
            "its run conforms to the declaration."
        )
    yield _ALWAYS


def _plainly(stated: Assumption) -> str:
    """The text to its first semicolon or stop, and the name. A long text ends at the last clause in 160 characters."""
    text = re.split(r";|\. ", stated.text, maxsplit=1)[0].strip()
    if len(text) > 160:
        clause = re.match(r".{20,156}(?=[,:] | \()", text)
        text = f"{clause[0]} ..." if clause else textwrap.shorten(text, 160, placeholder="...")
    return f"{text} ({stated.name})" if text else stated.name


def details(audit: AuditResult) -> Iterator[tuple[str, str]]:
    document, facts = audit.document, audit.facts
    for term in ("System", "Owner", "Contact"):
        if document.get(term.lower()):
            yield term, shortened(str(document[term.lower()]), _LONGEST)
    mechanism = document.get("mechanism")
    yield "Mechanism", _block(mechanism, "kind")
    if audit.recording is not None and isinstance(mechanism, Mapping) and mechanism.get("kind") == "recorded":
        yield "Recorded training", audit.recording.ran  # other numbers of the document are defaults
        yield "Adversary", adversary(document)
        return
    sizes = [words.count(facts.records, "record")]
    if facts.features:
        sizes.append(words.count(facts.features, "token" if facts.vocabulary else "feature"))
    if facts.classes:
        sizes.append(f"{facts.classes} classes" if facts.classes != 1 else "a real-valued target")
    if facts.test_records:
        sizes.append(f"{facts.test_records} test records")
    yield "Data", "; ".join(filter(None, (_block(document.get("data"), "kind"), ", ".join(sizes))))
    if document.get("model"):
        size = f"; {words.count(facts.parameters, 'parameter')}" if facts.parameters is not None else ""
        yield "Model", f"{_block(document.get('model'), 'kind')}{size}"
    if not _untrained(audit):
        yield "Training", _block(document.get("training"), "backend")
    yield "Adversary", adversary(document)
    if document.get("audit"):
        yield "Attack", _block(document.get("audit"), "method", omit=("expect", "confidence"))


def _block(block: Json, kind: str, omit: tuple[str, ...] = ()) -> str:
    """``group: noise_multiplier 1.5, clip_norm 1``; a list of blocks as their number."""
    if not isinstance(block, Mapping):
        return ""
    name = words.value(block.get(kind)) if block.get(kind) is not None else ""
    options = {key: value for key, value in block.items() if key not in (kind, *omit) and value != ()}
    cells = options.get("cells")
    if isinstance(cells, list | tuple) and len(cells) > 1 and all(isinstance(cell, Mapping) for cell in cells):
        options["cells"] = f"({len(cells)})"
    for key, value in options.items():
        if isinstance(value, Mapping) and len(value) > 1:
            options[key] = f"({words.conditions(value)})"
    return shortened(": ".join(part for part in (name, words.conditions(options)) if part), _LONGEST)


def adversary(document: FrozenMap) -> str:
    threat, unit = document.get("threat_model"), words.unit(document)
    if not isinstance(threat, Mapping):
        return ""
    clauses = [words.neighbours(str(threat["adjacency"]), unit)] if threat.get("adjacency") else []
    clauses += [words.scope_part("access", str(threat["access"]))] if threat.get("access") else []
    sizes = threat.get("group_size")
    if sizes is not None:
        listed = list(sizes) if isinstance(sizes, list | tuple) else [sizes]
        units = "" if unit == "record" else f" {unit.partition(' (')[0]}{'' if listed == [1] else 's'}"
        clauses.append(f"groups of {joined([words.value(size) for size in listed])}{units}")
    return ", ".join(clauses)


def tally(result: Result) -> str:
    """``2 audits, 5 claims: all as expected``, or the failures by name."""
    number = words.count(sum(len(audit.verdicts) for audit in result.audits), "claim")
    everything = f"{words.count(len(result.audits), 'audit')}, {number}"
    clauses = []
    wrong = sum(_wrong(audit, verdict) for audit in result.audits for verdict in audit.verdicts)
    if wrong:
        clauses.append(f"FAILED {wrong} of {number}: {words.name_list(_names(result, _wrong))}")
    deviating = [audit for audit in result.audits if words.wrong_conformance(audit)]
    if deviating:
        clauses.append(f"{'' if wrong else 'FAILED '}{words.name_list([_deviation(audit) for audit in deviating])}")
    named = [name for audit in result.audits for name in words.cautioned(audit)]
    if named:
        clauses.append(
            f"{'' if wrong or deviating else 'FAILED '}{words.count(len(named), 'caution')}: {words.name_list(named)}"
        )
    if later := _names(result, words.pending):
        clauses.append(f"not yet decided: {words.name_list(later)}")
    if not result.complete:
        clauses.append("INCOMPLETE, trials are missing")
    if clauses:
        return f"{'' if failed(result) else f'{everything}; '}{'; '.join(clauses)}"
    intended = [audit.name for audit in result.audits if audit.conformance.status == "deviates"]
    if not intended:
        claimed = any(audit.verdicts for audit in result.audits)
        return f"{everything}: all as expected" if claimed else f"{everything}: nothing claimed"
    verb = "deviates" if len(intended) == 1 else "deviate"
    return f"{everything}: as expected; {words.name_list(intended)} {verb} on purpose"


def failed(result: Result) -> bool:
    """Whether there is a failure that missing trials cannot change."""
    return any(
        words.wrong_conformance(audit)
        or words.cautioned(audit)
        or any(_wrong(audit, verdict) for verdict in audit.verdicts)
        for audit in result.audits
    )


def _wrong(audit: AuditResult, verdict: Verdict) -> bool:
    return not verdict.expected and not words.pending(audit, verdict)


def _names(result: Result, holds: Callable[[AuditResult, Verdict], bool]) -> list[str]:
    """Names of claims by audit, and by matrix if several of its cells share one."""
    within = {number: matrix for matrix in result.matrices for number in matrix.numbers}
    names: dict[str, None] = {}
    for number, audit in enumerate(result.audits):
        for verdict in [verdict for verdict in audit.verdicts if holds(audit, verdict)]:
            name, matrix = f"{audit.name}.{verdict.claim}", within.get(number)
            if matrix is not None:
                judged = [(cell_audit, matrices.verdict_of(cell_audit, verdict.claim)) for cell_audit in matrix.audits]
                cells = sum(
                    cell_verdict is not None and holds(cell_audit, cell_verdict) for cell_audit, cell_verdict in judged
                )
                name = f"{matrix.name}.{verdict.claim} in {cells} of {len(matrix.audits)} cells"
                if cells == 1:
                    name = f"{matrix.name} ({matrices.cell_title(matrix, audit)}).{verdict.claim}"
            names[name] = None
    return list(names)


def _deviation(audit: AuditResult) -> str:
    """By the check with the smallest p-value."""
    status = audit.conformance.status
    if status != "deviates":
        texts = {"checks-missing": "lacks planned checks", "not-run": "was not tested"}
        return f"{audit.name} {texts.get(status, words.conformance_label(status))}"
    worst = min(audit.checks, key=lambda check: check.p_value, default=None)
    if worst is None:
        return f"{audit.name} deviates"
    size = "" if audit.recording is not None else sizes(worst)  # the values of a recording may describe a record
    return f"{audit.name} {status} ({worst.assumption}{size})"
