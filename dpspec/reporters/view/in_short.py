"""Summarize a result for readers outside the field: the result, what was audited, the risk, and what was not tested.

Text from specs and plugins is returned unescaped: each format escapes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from dpspec.contract import Assumption
from dpspec.engine.judging.proven_curves import proven_curves
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult, Result
from dpspec.reporters.view import cells, glossary, words
from dpspec.reporters.view.audited import conclusion
from dpspec.reporters.view.limits import recorded
from dpspec.reporters.view.risk import members, power, risk, scope
from dpspec.reporters.view.sentences import assumptions_of
from dpspec.text import joined, shortened

#: The maximum number of names, or of values of an axis.
_NAMED = 6

#: The false-positive rate at which several audits are compared.
_FALSE_POSITIVE = 0.01

#: The maximum number of assumptions of one kind; half as many for several audits.
_ASSUMED = 4

#: For each status of an assumption its label, and whether assumptions with a test are listed too.
_HELD = {
    "false": ("False assumption of some numbers", True),
    "unchecked": ("Unchecked assumption", True),
    "declared": ("Declared by the spec, not tested", False),
}

_ALWAYS = "Floating-point noise, timing and other side channels, and other releases from the same data."

#: The labels of two parts, which the page marks.
RESULT, NOT_TESTED = "Result", "Not tested"

Answer = tuple[str, tuple[str, ...]]


def in_short(result: Result) -> tuple[Answer, ...]:
    """Return pairs of a label and sentences; empty for a result without audits."""
    audits = result.audits
    if not audits:
        return ()
    alone = len(audits) == 1
    return (
        (RESULT, tuple(conclusion(audits[0])) if alone else tuple(_outcomes(audits))),
        ("Audited", (_what(audits[0]),) if alone else tuple(_whats(result))),
        ("Risk for one person", risk(audits[0]) if alone else tuple(_risks(audits, cells.titles(result)))),
        (NOT_TESTED, tuple(_unchecked(audits))),
    )


def _what(audit: AuditResult) -> str:
    """``The training of a model (mlp, 4810 parameters) on 1438 records (digits), by ... (the mechanism group).``"""
    document, facts = audit.document, audit.facts
    mechanism = _mechanism(_kind(document.get("mechanism")))
    data = f"{words.count(facts.records, 'record')} ({_kind(document.get('data'))})"
    if not audit.planned_trials and not recorded(audit):
        return f"{words.sentence(mechanism)}, as declared for {data}; no code that does it."
    size = "" if facts.parameters is None else f", {words.count(facts.parameters, 'parameter')}"
    model = f" of a model ({_kind(document.get('model'))}{size})" if document.get("model") else ""
    how = "The recording of a training" if recorded(audit) else "The training"
    return f"{how}{model} on {data}, by {mechanism}."


def _mechanism(kind: str) -> str:
    """In plain words, the name behind them; of a mechanism that nobody here knows, its name."""
    known = glossary.MECHANISMS.get(kind)
    return f"the mechanism {kind}" if known is None else f"{known} (the mechanism {kind})"


def _kind(block: object) -> str:
    return shortened(words.value(block.get("kind")), 60) if isinstance(block, Mapping) and block.get("kind") else "?"


def _whats(result: Result) -> Iterator[str]:
    """Every matrix by what varies in it, then the audits that are in none, by name."""
    within: set[int] = set()
    for matrix in result.matrices:
        within.update(matrix.numbers)
        axes = []
        for name in matrix.axes.values():
            held = list(dict.fromkeys(cells.cell_value(matrix.values(audit)[name]) for audit in matrix.audits))
            axes.append(f"{name} {_some(held)}")
        yield f"{matrix.name}, {len(matrix.audits)} times, each with another {joined(axes)}. {_what(matrix.audits[0])}"
    others = [audit for number, audit in enumerate(result.audits) if number not in within]
    if others:
        yield f"{'Besides ' if within else ''}{_some([audit.name for audit in others])}."
        kinds = dict.fromkeys(_kind(audit.document.get("mechanism")) for audit in others)
        yield f"Each is {' or '.join(map(_mechanism, kinds))}."


def _outcomes(audits: Sequence[AuditResult]) -> Iterator[str]:
    """Yield the verdicts and the conformance of all audits, the worst first."""
    deviating = [audit.name for audit in audits if audit.conformance.status == "deviates"]
    if deviating:
        yield (
            f"The executed run deviates from its declaration in {_some(deviating)}: proofs there apply to the declared "
            "mechanism, not to that run."
        )
    claims = [
        words.verdict_label(audit, one) for audit in audits for one in audit.verdicts if not words.is_control(one)
    ]
    if claims:
        yield f"Of {words.count(len(claims), 'claim')} {_counts(claims)}."
    controls = [(audit, one) for audit in audits for one in audit.verdicts if words.is_control(one)]
    if controls:
        refuted = [each for each in controls if each[1].expected]
        by_theory = sum(not words.refuted_by_attack(*each) for each in refuted)
        without = f", {by_theory} of them by a certified bound without the attack" if by_theory else ""
        were = "was" if len(refuted) == 1 else "were"
        yield f"{len(refuted)} of {words.count(len(controls), 'negative control')} {were} refuted{without}."
    bare = [audit for audit in audits if not audit.planned_trials and not recorded(audit)]
    if bare:
        which = "any audit" if len(bare) == len(audits) else f"{len(bare)} of {len(audits)} audits"
        yield f"Nothing was trained for {which}: their results apply to the specification; no code was run."
    fine = [audit for audit in audits if audit.conformance.status == "no-deviation-found"]
    if fine:
        yield f"Conformance tests of the executed run found no deviation in {words.count(len(fine), 'audit')}."


def _counts(labels: Sequence[str]) -> str:
    """``3 are contradicted and 1 is proved``, the worst first."""
    order = ("contradicted", "refuted", "open", "supported", words.AS_DECLARED, "proved")
    found = [(name, labels.count(name)) for name in order]
    told = {"supported": "supported by evidence and not proved"}
    return joined([f"{n} {'is' if n == 1 else 'are'} {told.get(name, name)}" for name, n in found if n])


def _risks(audits: Sequence[AuditResult], titles: Sequence[str]) -> Iterator[str]:
    """Yield the lowest and the highest rate for the smallest group of each audit.

    Audits that deviate, or whose bound an attack contradicts, have no rate.
    """
    if any(audit.conformance.status == "deviates" for audit in audits):
        yield "No bound applies to a run that deviates from its declaration."
    found = []
    for audit, title in zip(audits, titles, strict=True):
        broken = any(verdict.verdict == "contradicted" for verdict in audit.verdicts)
        curves = [] if broken or audit.conformance.status == "deviates" else proven_curves(audit)
        if curves:
            smallest = [one for one in curves if one.group_size == curves[0].group_size]
            weakest = max(smallest, key=lambda one: power(one, _FALSE_POSITIVE))
            of = scope(weakest)
            found.append((power(weakest, _FALSE_POSITIVE), title, members(weakest) + (f" ({of})" if of else "")))
    if not found:
        yield "No proved bound covers every record in both directions, so no attacker's rate follows."
        return
    least, most = min(found, key=lambda one: one[0]), max(found, key=lambda one: one[0])
    low, high = (f"{decimals.upper(100.0 * one[0], digits=3)} % of {one[2]}" for one in (least, most))
    worst = "" if least[1] == most[1] else f", and {high} in {most[1]}"
    yield (
        f"At a 1 % false-positive rate an attacker identifies at most {low} in {least[1]}{worst}; guessing gives 1 %. "
        "The rates of each audit are below."
    )
    if len(found) < len(audits):
        yield f"No rate follows for {words.count(len(audits) - len(found), 'audit')}."


def _unchecked(audits: Sequence[AuditResult]) -> Iterator[str]:
    """Yield what no test covers."""
    bare = [audit.name for audit in audits if not audit.planned_trials and not recorded(audit)]
    if bare:
        yield f"No training code was checked{'' if len(bare) == len(audits) else f' for {_some(bare)}'}."
    untested = [
        one.name for one in audits if one.name not in bare and one.conformance.status in ("not-run", "checks-missing")
    ]
    if untested:
        yield f"Conformance of the executed run{'' if len(audits) == 1 else f' of {_some(untested)}'}."
    if any(audit.conformance.status == "no-deviation-found" for audit in audits):
        yield "Deviations below the detection limits, or of kinds that no test covers."
    held = [one for audit in audits for one in assumptions_of(audit)]
    most = _ASSUMED if len(audits) == 1 else _ASSUMED // 2
    for status, told in _HELD.items():
        # A declared assumption may have a test of its own.
        texts = {one.name: _plainly(one) for one in held if one.status == status and (one.test is None or told[1])}
        if texts:
            named = list(texts.values())
            more = f"; and {len(named) - most} more" if len(named) > most else ""
            yield f"{told[0]}: {'; '.join(named[:most])}{more}."
    yield _ALWAYS


def _plainly(of: Assumption) -> str:
    """``scores are normal (gaussian-scores)``: what is assumed, as far as its first semicolon or stop, and its name."""
    text = re.split(r";|\. ", of.text, maxsplit=1)[0].strip()
    return f"{shortened(text, 160)} ({of.name})" if text else of.name


def _some(names: Sequence[str]) -> str:
    """The first of them."""
    shown = [shortened(name, 80) for name in names[:_NAMED]]
    return f"{', '.join(shown)} and {len(names) - _NAMED} more" if len(names) > _NAMED else joined(shown)
