"""Render a result as one self-contained HTML page, and detect manual edits of a page.

The page needs no server and no scripts (they only open folded parts), prints, and contains the result as JSON, which
``dpspec verify`` and ``dpspec report`` read. ``verify`` renders that result again and compares the pages.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from types import SimpleNamespace
from typing import TYPE_CHECKING

from dpspec import decimals
from dpspec.contract import Check
from dpspec.contract.results import AuditResult, Result, Verdict, accepted_cautions, open_cautions
from dpspec.reporters import matrices, words
from dpspec.reporters.charts import interval_chart, people
from dpspec.reporters.deviations import next_steps
from dpspec.reporters.figures import figures
from dpspec.reporters.limits import limits
from dpspec.reporters.names import TERMS
from dpspec.reporters.provenance import command, in_short, provenance
from dpspec.reporters.read_results import embedded, without_result
from dpspec.reporters.risk import SCALE_NOTE, HighestRate, highest_rate, rate_of, risk
from dpspec.reporters.summary import (
    Answer,
    answer,
    details,
    missing_trials,
    principal,
    remedies_by_audit,
    tally,
    untested,
)
from dpspec.results.codec import dump, reread
from dpspec.results.redact import redact
from dpspec.results.status import is_control
from dpspec.results.void_bounds import without_void_bounds
from dpspec.text import plain

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


#: The warning of a page with all values.
INTERNAL_MARK = "Internal: this page contains values that depend on the data. Do not publish it."

#: The maximum number of audits with figures and findings; the embedded result has all.
MOST_DRAWN = 24

#: Of more claims than this the expected ones are folded.
_MOST_CLAIMS = 8

#: Of more failing audits than this the remedies are folded.
_MOST_REMEDIES = 5

#: The maximum number of named controls.
_MOST_CONTROLS = 3

#: Text without a line break. The lookbehind starts one match per run of digits, to avoid quadratic time.
_WHOLE = re.compile(r"((?<![0-9.])[0-9.]+(?:e-[0-9]+| %)|DP-SGD)")


def render(result: Result, *, internal: bool = False) -> str:
    """The text follows from the embedded JSON for one :func:`generator`."""
    embedded_result = reread(result if internal else redact(result))
    result = without_void_bounds(embedded_result)
    alone = matrices.is_alone(result)
    cells = {
        index: matrices.cell_title(matrix, audit) if alone else f"{matrix.name}, {matrices.cell_title(matrix, audit)}"
        for matrix in result.matrices
        for index, audit in zip(matrix.numbers, matrix.audits, strict=True)
    }
    names = [f"a{i}" for i in range(len(result.audits))]
    first_cell = {
        index: matrix.numbers[0]
        for matrix in result.matrices
        if len(matrix.audits) > matrices.MOST_CELLS
        for index in matrix.numbers[1:]
    }
    families, drawn, gridded = words.families(result), _drawn(result), matrices.large(result)
    answers = [answer(replace(result, audits=(audit,))) for audit in result.audits]
    audits = tuple(
        _audit(audit, answers[i], names[i], families[i], cells.get(i, ""), i in drawn)
        for i, audit in enumerate(result.audits)
    )
    for index, first in first_cell.items():
        if index not in drawn:
            audits[index].brief = True
            of_first = words.assumptions_of(result.audits[first])
            differing = [
                assumption for assumption in words.assumptions_of(result.audits[index]) if assumption not in of_first
            ]
            audits[index].differing = "; ".join(
                f"{assumption.name}, {assumption.status}: {words.assumption(assumption)}" for assumption in differing
            )
    text: str = (
        _environment()
        .get_template("page.html")
        .render(
            result=result,
            audits=audits,
            matrices=tuple(matrices.view(matrix, names) for matrix in result.matrices),
            screen=_screen(result),
            tally=tally(result),
            exit_code=int(result.exit_code),
            unexpected=sum(not audit.as_expected for audit in result.audits),
            controls=[view for view in audits if view.made_to_deviate],
            most_controls=_MOST_CONTROLS,
            claims=sorted(
                (
                    (view, claim)
                    for number, view in enumerate(audits)
                    for claim in view.claims
                    if number not in gridded  # the grid of the matrix has them
                ),
                key=lambda pair: pair[1].verdict.expected,
            ),
            most_claims=_MOST_CLAIMS,
            gridded=gridded,
            limits=limits(result),
            command=shlex.join(map(plain, command(result))),
            provenance=provenance(result),
            details=details,
            words=words,
            terms=TERMS,
            decimals=decimals,
            internal=internal,
            internal_mark=INTERNAL_MARK,
            generator=generator(),
            embedded=embedded(dump(embedded_result)),
            style=_asset("page.css"),
            script=_asset("page.js"),
            script_digest=b64encode(hashlib.sha256(_asset("page.js").encode("utf-8")).digest()).decode("ascii"),
        )
    )
    return text


def first_screen(result: Result) -> str:
    """The top of the page without scripts and without the embedded result, for notebooks."""
    result = without_void_bounds(reread(redact(result)))
    screen = _environment().get_template("screen.html").render(screen=_screen(result), internal=False)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><style>{_asset("page.css")}</style><main>{screen}</main>'
    )


def _screen(result: Result) -> SimpleNamespace:
    """The answer, the risk, the deciding claim and untested properties."""
    audits, titles = result.audits, matrices.titles(result)
    decisive, highest = _claim_and_risk(audits, titles)
    names = dict.fromkeys([matrix.name for matrix in result.matrices] or [audit.name for audit in audits])
    claim, chart, bounds = None, "", None
    if decisive is not None:
        audit, verdict = decisive
        title = titles[next(i for i, candidate in enumerate(audits) if candidate is audit)]
        claim = verdict.text if len(audits) == 1 else f"{title}: {verdict.text}"
        bounds = words.bounds(audit, verdict)
        chart = interval_chart(verdict, bounds)
    return SimpleNamespace(
        name=", ".join(names) if len(names) <= 2 else f"{len(audits)} audits",
        date=result.created[:10],
        description=str(audits[0].document.get("description") or "") if len(names) == 1 else "",
        provenance=in_short(result),
        answer=answer(result),
        scope=result.notes,
        highest=highest,
        scale=SCALE_NOTE,
        people="" if highest.rate is None else people(highest.rate.identified, 1),
        claim=claim,
        chart=chart,
        epsilon=decisive is not None and decisive[1].quantity == "epsilon",
        bounds=bounds,
        confidence=decimals.exact(result.confidence),
        remedies=remedies_by_audit(audits, titles),
        cautions=[rule for audit in audits for rule in open_cautions(audit)],
        accepted=[rule for audit in audits for rule in accepted_cautions(audit)],
        causes=list(dict.fromkeys(_causes(audits, titles))),
        notes=list(dict.fromkeys(note for audit in audits if audit.recording for note in audit.recording.cautions)),
        confirm=list(dict.fromkeys(text for audit in audits if audit.recording for text in audit.recording.confirm)),
        untested=tuple(untested(audits)) if audits else (),
        missing=missing_trials(audits),
        most_remedies=_MOST_REMEDIES,
    )


#: The caveat of a risk that does not follow from the bound of the shown claim.
_OTHER_RISK = "This risk follows from other proved bounds: the bound of the shown claim gives no rate."


def _claim_and_risk(
    audits: Sequence[AuditResult], titles: Sequence[str]
) -> tuple[tuple[AuditResult, Verdict] | None, HighestRate]:
    """The claim and the risk that a page shows side by side.

    The risk follows from the claim's bound, or a caveat says that it does not. A higher risk under another scope is
    shown after it. If no claim fails, the claim is about the audit with the highest risk and its smallest groups; of
    several failures it is the one with the highest risk.
    """
    decisive, highest = principal(audits), highest_rate(audits, titles)
    if decisive is None or highest.rate is None:
        return decisive, highest
    if decisive[1].expected:
        riskiest = [a for a, title in zip(audits, titles, strict=True) if title == highest.title or len(audits) == 1]
        decisive = principal(riskiest) or decisive
        rate = rate_of(*decisive)
        if rate is None or rate.group_size > highest.rate.group_size:
            decisive = next((pair for pair in _private(riskiest) if rate_of(*pair) == highest.rate), decisive)
    elif len(audits) > 1:
        decisive = max(_alike(audits, decisive[1]), key=_power, default=decisive)  # a control is not private
    rate = rate_of(*decisive)
    if rate == highest.rate:
        return decisive, highest
    if rate is None:
        return decisive, replace(highest, caveats=(*highest.caveats, _OTHER_RISK))
    title = next(title for candidate, title in zip(audits, titles, strict=True) if candidate is decisive[0])
    elsewhere = highest.rate
    if highest.title not in ("", title):
        elsewhere = replace(elsewhere, scope=", ".join(filter(None, (highest.title, elsewhere.scope))))
    shown_title = title if highest.title else ""
    return decisive, replace(highest, rate=rate, title=shown_title, larger=(elsewhere,), is_highest=False)


def _alike(audits: Sequence[AuditResult], failed: Verdict) -> list[tuple[AuditResult, Verdict]]:
    """The private claims of all audits that failed by the same verdict."""
    alike = (failed.verdict, failed.expected)
    return [pair for pair in _private(audits) if (pair[1].verdict, pair[1].expected) == alike]


def _power(pair: tuple[AuditResult, Verdict]) -> float:
    rate = rate_of(*pair)
    return -1.0 if rate is None else rate.powers[0]


def _private(audits: Sequence[AuditResult]) -> Iterator[tuple[AuditResult, Verdict]]:
    """The claims about privacy without controls."""
    for audit in audits:
        for verdict in audit.verdicts:
            if verdict.kind != "metric" and not is_control(audit, verdict):
                yield audit, verdict


def _causes(audits: Sequence[AuditResult], titles: Sequence[str]) -> Iterator[str]:
    """Facts of recordings, and the next steps for runs that deviate."""
    for audit, title in zip(audits, titles, strict=True):
        if audit.recording is not None:
            yield from audit.recording.faults
        for step in next_steps(audit):
            yield step if len(audits) == 1 else f"{title}: {step}"


def _drawn(result: Result) -> set[int]:
    """Audits with figures and findings on the page; of a large matrix only its unexpected cells."""
    large = matrices.large(result)
    first = sorted(range(len(result.audits)), key=lambda i: result.audits[i].as_expected)
    return {i for i in first if i not in large or not result.audits[i].as_expected} & set(first[:MOST_DRAWN])


def generator() -> str:
    from dpspec.version import VERSION

    return f"dpspec {VERSION}"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(
        loader=PackageLoader("dpspec.reporters", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: plain(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["whole"] = _whole
    # A name may be broken after its underscores only.
    environment.filters["parted"] = lambda name: Markup("_<wbr>").join(map(escape, plain(name).split("_")))
    return environment


def _whole(text: str) -> Markup:
    """With signs of comparison, and no line breaks inside numbers and names: browsers break ``1e-5`` at its hyphen."""
    from markupsafe import Markup, escape

    pieces = _WHOLE.split(plain(text).replace("<=", "\u2264").replace(">=", "\u2265"))
    marked = (f'<span class="whole">{escape(part)}</span>' if i % 2 else escape(part) for i, part in enumerate(pieces))
    return Markup("").join(map(Markup, marked))


def _asset(name: str) -> str:
    from importlib.resources import files

    return (files("dpspec.reporters") / "assets" / name).read_text(encoding="utf-8")


def _audit(audit: AuditResult, of_audit: Answer, name: str, family: int, cell: str, drawn: bool) -> SimpleNamespace:
    """The values of one audit for the template; ``family`` is the number of checks that its own were judged among."""
    # Unexpected claims first, then privacy, controls and utility.
    ordered = sorted(
        audit.verdicts, key=lambda verdict: (verdict.expected, verdict.kind == "metric", is_control(audit, verdict))
    )
    return SimpleNamespace(
        audit=audit,
        name=name,
        description=str(audit.document.get("description") or ""),
        answer=of_audit,
        risk=risk(audit),
        claims=tuple(_claim(audit, verdict, number) for number, verdict in enumerate(ordered)),
        tests=words.count(len(audit.checks), "test"),
        checks=tuple((bad, _check(check)) for check, bad in words.ranked(audit.checks, family)),
        made_to_deviate=audit.conformance.status == "deviates" and audit.conformance.expected,
        figures=tuple(figures(audit)) if drawn else (),
        drawn=drawn,
        brief=False,
        differing="",
        cell=cell,
        title=cell or audit.name,
        findings=words.findings(audit),
    )


def _claim(audit: AuditResult, verdict: Verdict, number: int) -> SimpleNamespace:
    label, bounds = words.verdict_label(audit, verdict), words.bounds(audit, verdict)
    return SimpleNamespace(
        verdict=verdict,
        number=number,
        label=label,
        given=words.headline(audit, verdict).removeprefix(label).removeprefix(", "),
        style="as-declared" if label in (words.AS_DECLARED, words.BUT_CAUTIONS) else verdict.verdict,
        bounds=str(bounds),
        claimed=words.claimed(verdict),
        outcome=words.outcome(audit, verdict),
        control=is_control(audit, verdict) and verdict.expected,
        chart=interval_chart(verdict, bounds),
    )


def _check(check: Check) -> tuple[str, ...]:
    declared = "" if check.declared is None else decimals.given(check.declared)
    measured = "" if check.measured is None else decimals.nearest(check.measured)
    name = f"{check.assumption}, {check.note}" if check.note else check.assumption
    limit = "" if check.detectable is None else words.detectable(check.detectable).rpartition(" ")[2]
    return name, check.test, decimals.upper(check.p_value, digits=2), declared, measured, check.observed, limit


#: The maximum length of a shown difference, and the number of characters before it.
_SHOWN, _BEFORE = 300, 60

_GENERATOR = re.compile(r'<meta name="generator" content="([^"]*)">')


def compared(page: str, result: Result) -> tuple[str, str]:
    """The first difference from the rendered result, and the reason why a page of another version is not compared."""
    named, this_program = _GENERATOR.findall(page), generator()
    writer = named[0] if len(named) == 1 else ""
    if writer != this_program:
        return "", f"rendered by {writer or 'an unknown program'}, and this is {this_program}"
    again = render(result, internal=INTERNAL_MARK in page)
    again = again if again.endswith("\n") or not page.endswith("\n") else f"{again}\n"
    pairs = zip_longest(without_result(page).split("\n"), without_result(again).split("\n"), fillvalue="")
    for number, (line, due) in enumerate(pairs, 1):
        if line != due:
            start = max(0, next(i for i, (a, b) in enumerate(zip_longest(line, due)) if a != b) - _BEFORE)
            shown, expected = (text[start : start + _SHOWN].strip() or "nothing" for text in (line, due))
            return f"line {number}\n    shown:       {shown}\n    its result:  {expected}", ""
    return "", ""
