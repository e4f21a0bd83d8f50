"""Summarize a result for readers outside the field: verdict, audited mechanism, risk, and untested properties.

Text from specs and plugins is returned unescaped: each format escapes it.
"""

import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dpspec import decimals
from dpspec.contract import Assumption, FrozenMap, Json
from dpspec.contract.results import AuditResult, Result, Verdict, accepted_cautions, open_cautions
from dpspec.errors import ExitCode
from dpspec.reporters import matrices, words
from dpspec.reporters.deviations import sizes, worst_deviation
from dpspec.results.status import has_failed, is_control, is_pending, narrowed_data, not_yet_tested, wrong_conformance
from dpspec.text import joined, shortened, spaced, unit_parts

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
    words.BUT_CAUTIONS: "{is} proved",
    "proved, collection": "{is} proved for datasets of the declared collection only",
    "proved, this": "{is} proved for this dataset and its neighbors only",
    "proved": "{is} proved",
}

#: The predicates that make the tone of a report good.
_SOUND = frozenset({"proved"})


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The outcome of a result in words: the first line in a terminal, the tile of a page, the last line of a log.

    Attributes:
        tone: ``bad`` if something failed, which missing trials cannot change; ``good`` if everything is proved for all
            datasets; ``open`` otherwise.
        headline: One sentence without a full stop. It names open and accepted cautions, and missing trials.
        detail: Sentences on the executed run and on controls.
        tally: The numbers of audits and claims, or the failures by name.
        exit_code: The exit code of the command.
    """

    tone: Literal["good", "bad", "open"]
    headline: str
    detail: str
    tally: str
    exit_code: ExitCode

    @property
    def passed(self) -> bool:
        """Whether a gate lets the result pass."""
        return self.exit_code is ExitCode.OK


def answer(result: Result) -> Answer:
    """The outcome, with the number that decides it; compared with an earlier result, what got worse decides."""
    private, metrics, _ = _claims(result.audits)
    sound = bool(private or metrics) and all(_predicate(*pair) in _SOUND for pair in private)
    tone: Literal["good", "bad", "open"] = "good" if sound and result.complete else "open"
    compared = _worse(result)
    details = [f"{_headline_of_audits(result)}."] if compared else []
    return Answer(
        tone="bad" if has_failed(result) else tone,
        headline=f"{compared} got worse than in the earlier result" if compared else _headline(result),
        detail=" ".join([*details, *_execution(result.audits)]),
        tally=tally(result),
        exit_code=result.exit_code,
    )


def _headline(result: Result) -> str:
    """The decisive fact of the audits, after the specs that have none."""
    text = _headline_of_audits(result)
    return f"{_unjudged(result)}. {text}" if result.unjudged else text


def _unjudged(result: Result) -> str:
    """``1 spec has errors and was not judged: a.yaml``; empty if all were."""
    if not result.unjudged:
        return ""
    files = list(dict.fromkeys(error.file for error in result.unjudged))
    verb = "has errors and was" if len(files) == 1 else "have errors and were"
    return f"{words.count(len(files), 'spec')} {verb} not judged: {words.name_list(files)}"


def _headline_of_audits(result: Result) -> str:
    """The decisive fact, then open cautions, accepted ones and missing trials, unless it is about them."""
    audits = result.audits
    judged = [(audit, verdict) for audit in audits for verdict in audit.verdicts]
    wrong = [pair for pair in judged if _wrong(*pair)]
    deviating = [audit for audit in audits if wrong_conformance(audit)]
    named = [rule.name for audit in audits for rule in open_cautions(audit)]
    cautions = f"{words.count(len(named), 'open caution')} ({words.name_list(named)})" if named else ""
    missing = missing_trials(audits)
    sentence = verdict_sentence(result).rstrip(".")
    failure = ""
    if any(verdict.verdict == "contradicted" for _, verdict in wrong):
        failure = "An attack contradicts a proof: the theory, the code or the attack is wrong"
    elif deviating:
        failure = _deviating(audits, deviating, sentence)
    elif len(wrong) == 1:
        claims = [""] if len(judged) == 1 else [wrong[0][1].claim] if len(audits) == 1 else _names(result, _wrong)
        failure = _failure(*wrong[0], claim=claims[0])
    elif wrong:
        names = words.name_list(_names(result, _wrong))
        failure = f"{len(wrong)} of {words.count(len(judged), 'claim')} failed: {names}"
    if failure:
        text = ", ".join(filter(None, (failure, f"with {cautions}" if cautions else "")))
    elif named:
        resolved = "it is resolved" if len(named) == 1 else "they are resolved"
        claim = f"{_lowered(sentence)} only if {resolved}" if judged else "nothing is claimed"
        text = f"{cautions}: {claim}"
    elif missing:
        return f"Not finished: {missing}{_accepting(audits)}"
    elif not judged:
        bounds = [finding for audit in audits for finding in words.main_bounds(audit)][:1]
        number = "".join(
            f": {words.statement(bound)}{f' at {words.conditions(bound.at)}' if bound.at else ''}" for bound in bounds
        )
        text = f"Nothing is claimed{number if len(audits) == 1 else ''}"
    else:
        text = sentence
    return f"{text}{_accepting(audits)}{f'; not finished: {missing}' if missing else ''}"


def _deviating(audits: Sequence[AuditResult], deviating: Sequence[AuditResult], sentence: str) -> str:
    named = words.name_list([audit.name for audit in deviating])
    fact = worst_deviation(deviating[0]) if len(deviating) == 1 else ""
    run = "The executed run" if len(audits) == 1 else f"The executed run of {named}"
    texts = {
        "deviates": f"{run} deviates from its declaration: {fact}" if fact else sentence,
        "checks-missing": f"Planned checks of the executed run are missing: {named}",
    }
    return texts.get(deviating[0].conformance.status, f"The executed run was not tested: {named}")


def missing_trials(audits: Sequence[AuditResult]) -> str:
    """``3 of 5 trials are missing``; empty for complete audits."""
    planned = sum(audit.planned_trials for audit in audits)
    absent = sum(audit.planned_trials - len(audit.trials) for audit in audits)
    if all(audit.complete for audit in audits):
        return ""
    return f"{absent} of {words.count(planned, 'trial')} {'is' if absent == 1 else 'are'} missing"


def _accepting(audits: Sequence[AuditResult]) -> str:
    names = list(dict.fromkeys(rule.name for audit in audits for rule in accepted_cautions(audit)))
    return f", accepting {words.name_list(names)}" if names else ""


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _predicate(audit: AuditResult, verdict: Verdict) -> str:
    """The key of :data:`_PREDICATES`: the label, and the datasets of a proof that does not hold for all."""
    label, data = words.verdict_label(audit, verdict), narrowed_data(audit, verdict)
    return f"{label}, {data}" if label == "proved" and f"{label}, {data}" in _PREDICATES else label


def _failure(audit: AuditResult, verdict: Verdict, *, claim: str) -> str:
    """An unexpected verdict with the number that decides it; ``claim`` is empty for the only one."""
    name = f"The claim {claim}".rstrip()
    if is_control(audit, verdict):
        return f"The control {claim or verdict.claim} was not refuted: the audit does not detect such violations"
    label = "is not met" if verdict.verdict == "refuted" else f"is {words.verdict_label(audit, verdict)}"
    if verdict.verdict in ("open", "supported") and "proved" in verdict.expect:
        label = "is not proved"
    claimed = (
        "" if verdict.claimed is None else f"claimed {spaced(verdict.quantity)} {decimals.exact(verdict.claimed)}, "
    )
    bounds = words.bounds(audit, verdict)
    deciding = bounds.lower if verdict.verdict == "refuted" and bounds.lower else bounds.brief
    return f"{name} {label}: {claimed}{deciding}"


def remedies(audit: AuditResult) -> Iterator[str]:
    """Changes that would prove the failed claims, each alone, with the present values."""
    for remedy in audit.remedies:
        now = "" if remedy.now is None else f" (now {decimals.exact(remedy.now)})"
        yield f"{remedy.place}: {decimals.exact(remedy.value)}{now}"
    failed = [v for v in audit.verdicts if _wrong(audit, v) and "proved" in v.expect and v.kind != "metric"]
    provable = [
        f"{decimals.upper(v.provable, digits=3)}{'' if len(failed) == 1 else f' for {v.claim}'}"
        for v in failed
        if v.quantity == "epsilon"
        and v.provable is not None
        and math.isfinite(v.provable)
        and v.verdict in ("open", "refuted")
    ]
    retraining = "" if audit.recording is None else audit.recording.retraining
    if retraining and any(v.claimed is not None and v.claimed < (v.upper or 0.0) for v in failed):
        yield retraining
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
        key=lambda pair: (pair[1].expected, order.index(_predicate(*pair))),
        default=None,
    )


def _claims(audits: Sequence[AuditResult]) -> tuple[_Claims, _Claims, _Claims]:
    """Privacy claims, utility claims and controls."""
    judged = [(audit, verdict) for audit in audits for verdict in audit.verdicts]
    claims = [pair for pair in judged if not is_control(*pair)]
    private = [pair for pair in claims if pair[1].kind != "metric"]
    metrics = [pair for pair in claims if pair[1].kind == "metric"]
    return private, metrics, [pair for pair in judged if is_control(*pair)]


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
        so_far = "" if all(audit.complete for audit in fine) else " so far"
        yield (
            f"{words.count(tests, 'conformance test')} of the executed run{where} found no deviation above "
            f"{limit}{so_far}."
        )
    waiting = [audit for audit in audits if not_yet_tested(audit)]
    untested = [audit for audit in audits if audit.conformance.status == "not-run" and not _untrained(audit)]
    for runs, text in ((waiting, "is not yet tested"), ([a for a in untested if a not in waiting], "was not tested")):
        if runs:
            where = "" if len(runs) == len(audits) else f" of {len(runs)} of {len(audits)} audits"
            yield f"The conformance of the executed run{where} {text}."
    yield from _controls(_claims(audits)[2])


def _counted(noun: str, claims: _Claims) -> str:
    labels = [_predicate(audit, verdict) for audit, verdict in claims]
    count_by_label = {name: labels.count(name) for name in _PREDICATES if name in labels}
    assumed = {name for audit, _ in claims if audit.recording is not None for name in audit.recording.assumes}
    under = f" under {words.count(len(assumed), 'assumption')}" if assumed else ""
    predicates = {**_PREDICATES, **{name: _PREDICATES[name] + under for name in ("proved", words.BUT_CAUTIONS)}}
    for name in ("contradicted", "refuted"):  # controls are counted separately
        if all(verdict.expected for _, verdict in claims if verdict.verdict == name):
            predicates[name] += " as expected"
    if len(count_by_label) == 1:
        number = len(labels)
        subject = {1: f"The {noun}", 2: f"Both {noun}s"}.get(number, f"All {number} {noun}s")
        return f"{subject} {predicates[labels[0]].replace('{is}', 'is' if number == 1 else 'are')}."
    first, *further = count_by_label.values()
    subjects = [f"{first} of {len(labels)} {noun}s", *map(str, further)]
    clauses = [
        f"{subject} {predicates[name].replace('{is}', 'is' if number == 1 else 'are')}"
        for subject, (name, number) in zip(subjects, count_by_label.items(), strict=True)
    ]
    return f"{joined(clauses)}."


def _controls(controls: _Claims) -> Iterator[str]:
    """The numbers of refuted controls, and of controls that no attack has tested."""
    refuted = [pair for pair in controls if pair[1].verdict in ("refuted", "contradicted")]
    remaining = [pair for pair in controls if pair not in refuted]
    bare = [pair for pair in remaining if _untrained(pair[0])]
    waiting = [pair for pair in remaining if not pair[0].complete]
    missed = [pair for pair in remaining if pair not in bare and pair not in waiting]
    if refuted or missed:
        by_theory = sum(not words.refuted_by_attack(*pair) for pair in refuted)
        of_them = "" if by_theory == len(refuted) else f"{by_theory} of them "
        remark = f", {of_them}by a certified bound, which does not test the attack" if by_theory else ""
        if any(not verdict.expected for _, verdict in missed):
            remark += ": the audit does not detect such violations"
        elif not by_theory and not missed:
            remark = ": the audit detects such violations"
        were = "was" if len(refuted) == 1 else "were"
        counted = words.count(len(refuted) + len(missed), "negative control")
        yield f"{len(refuted)} of {counted} {were} refuted{remark}."
    if waiting:
        yield f"{words.count(len(waiting), 'negative control')} not yet tested: trials are missing."
    if bare:
        yield f"{words.count(len(bare), 'negative control')} not tested, because no attack was run."


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
        if key == "split" and isinstance(value, Mapping):
            options[key] = f"({', '.join(_held_out(value))})"
        elif isinstance(value, Mapping) and len(value) > 1:
            options[key] = f"({words.conditions(value)})"
    return shortened(": ".join(part for part in (name, words.conditions(options)) if part), _LONGEST)


def _held_out(split: Mapping[str, Json]) -> Iterator[str]:
    """``20% of the records for tests``, ``seed 0``: a fraction, a number or a list of records."""
    test = split.get("test")
    if isinstance(test, list | tuple):
        yield f"{words.count(len(test), 'listed record')} for tests"
        return
    if isinstance(test, int | float):
        share = f"{decimals.percent(test)} of the records" if test < 1 else words.count(int(test), "record")
        yield f"{share} for tests"
    yield from (f"{spaced(key)} {words.value(item)}" for key, item in split.items() if key != "test")


def adversary(document: FrozenMap) -> str:
    threat, unit = document.get("threat_model"), words.unit(document)
    if not isinstance(threat, Mapping):
        return ""
    clauses = [words.neighbours(str(threat["adjacency"]), unit)] if threat.get("adjacency") else []
    clauses += [words.scope_part("access", str(threat["access"]))] if threat.get("access") else []
    sizes = threat.get("group_size")
    if sizes is not None:
        listed = list(sizes) if isinstance(sizes, list | tuple) else [sizes]
        units = "" if unit == "record" else f" {unit_parts(unit)[0]}{'' if listed == [1] else 's'}"
        clauses.append(f"groups of {joined([words.value(size) for size in listed])}{units}")
    return ", ".join(clauses)


def tally(result: Result) -> str:
    """``2 audits, 5 claims: all as expected``, or the failures by name."""
    number = words.count(sum(len(audit.verdicts) for audit in result.audits), "claim")
    everything = f"{words.count(len(result.audits), 'audit')}, {number}"
    clauses = [f"FAILED {unjudged}"] if (unjudged := _unjudged(result)) else []
    compared = _compared(result)
    if result.regressions:
        clauses.append(f"FAILED {compared}")
    mark = "FAILED " if result.regressions is None else "not as expected: "
    wrong = sum(_wrong(audit, verdict) for audit in result.audits for verdict in audit.verdicts)
    if wrong:
        clauses.append(f"{mark}{wrong} of {number}: {words.name_list(_names(result, _wrong))}")
    deviating = [audit for audit in result.audits if wrong_conformance(audit)]
    if deviating:
        clauses.append(f"{'' if wrong else mark}{words.name_list([_deviation(audit) for audit in deviating])}")
    named = [rule.name for audit in result.audits for rule in open_cautions(audit)]
    if named:
        clauses.append(
            f"{'' if wrong or deviating else mark}{words.count(len(named), 'caution')}: {words.name_list(named)}"
        )
    if later := _names(result, is_pending):
        clauses.append(f"not yet decided: {words.name_list(later)}")
    if not result.complete:
        clauses.append(f"INCOMPLETE, {missing_trials(result.audits)}")
    accepting = _accepting(result.audits)
    if compared and not result.regressions:
        accepting += f"; {compared}"
    if clauses:
        return f"{'' if has_failed(result) else f'{everything}; '}{'; '.join(clauses)}{accepting}"
    intended = [audit.name for audit in result.audits if audit.conformance.status == "deviates"]
    if not intended:
        claimed = any(audit.verdicts for audit in result.audits)
        return f"{everything}: {'all as expected' if claimed else 'nothing claimed'}{accepting}"
    verb = "deviates" if len(intended) == 1 else "deviate"
    return f"{everything}: as expected; {words.name_list(intended)} {verb} on purpose{accepting}"


def _worse(result: Result) -> str:
    """``3 claims and 1 audit``, those that got worse; empty without an earlier result or a regression."""
    regressions = result.regressions or ()
    claims = sum(bool(regression.claim) for regression in regressions)
    numbers = ((claims, "claim"), (len(regressions) - claims, "audit"))
    return joined([words.count(number, unit) for number, unit in numbers if number])


def _compared(result: Result) -> str:
    """``no regression from the earlier result``, or their number; empty if there is no earlier result."""
    if result.regressions is None:
        return ""
    number = len(result.regressions)
    return f"{words.count(number, 'regression') if number else 'no regression'} from the earlier result"


def _wrong(audit: AuditResult, verdict: Verdict) -> bool:
    return not verdict.expected and not is_pending(audit, verdict)


def _names(result: Result, holds: Callable[[AuditResult, Verdict], bool]) -> list[str]:
    """Names of claims by audit, and by matrix if several of its cells share one."""
    within = {number: matrix for matrix in result.matrices for number in matrix.numbers}
    alone = matrices.is_alone(result)
    names: dict[str, None] = {}
    for number, audit in enumerate(result.audits):
        for verdict in [verdict for verdict in audit.verdicts if holds(audit, verdict)]:
            name, matrix = f"{audit.name}.{verdict.claim}", within.get(number)
            if matrix is not None:
                judged = [(cell_audit, matrices.verdict_of(cell_audit, verdict.claim)) for cell_audit in matrix.audits]
                cells = sum(
                    cell_verdict is not None and holds(cell_audit, cell_verdict) for cell_audit, cell_verdict in judged
                )
                prefix = "" if alone else f"{matrix.name}."
                name = f"{prefix}{verdict.claim} in {cells} of {len(matrix.audits)} cells"
                if cells == 1:
                    cell = matrices.cell_title(matrix, audit)
                    name = f"{verdict.claim} ({cell})" if alone else f"{matrix.name} ({cell}).{verdict.claim}"
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
