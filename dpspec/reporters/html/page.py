"""From a result to the page: what the template shows, put together beforehand so that it holds no logic."""

from __future__ import annotations

import hashlib
import re
import shlex
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from dpspec.contract import Check, Finding
from dpspec.engine.redact import redact
from dpspec.engine.results import decimals
from dpspec.engine.results.codec import dump, reread
from dpspec.engine.results.joined import sources
from dpspec.engine.results.matrices import base_name
from dpspec.engine.results.recording import Recording
from dpspec.engine.results.result import AuditResult, Result, Verdict
from dpspec.reporters import glossary, labels, phrases, recording
from dpspec.reporters.audited import audited, conclusion
from dpspec.reporters.html import detectable, matrix_views
from dpspec.reporters.html.figures import Bar, Figure, bar, figures
from dpspec.reporters.limits import limits, recipes
from dpspec.reporters.read_results import ELEMENT, embedded
from dpspec.reporters.risk import risk
from dpspec.reporters.summary import in_short
from dpspec.reporters.tally import failed, tally
from dpspec.text import plain

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

#: What a page says that leaves nothing out.
INTERNAL_MARK = "Internal: this page holds values that speak of the data itself. It must not leave the house."

#: Figures are drawn of so many audits, and of all cells of matrices of at most so many: of more, the result has them.
MOST_DRAWN, MOST_CELLS = 24, 8

#: So many audits that were made to deviate are named on top; all are marked in the table.
_MOST_CONTROLS = 3

#: What no line ends in. Looked for once in each run of digits: from every digit of a long one it would take quadratic
#: time.
_WHOLE = re.compile(r"((?<![0-9.])[0-9.]+e-[0-9]+|DP-SGD)")


@dataclass(frozen=True)
class ClaimView:
    """One claim as the page shows it; ``style`` is the CSS class of its label."""

    verdict: Verdict
    label: str
    style: str
    interval: str
    claimed: str
    value: str
    outcome: str
    control: bool
    bar: Bar | None


@dataclass(frozen=True)
class FindingView:
    """One row of the table of findings."""

    number: str
    tight: str
    at: str
    of: str
    rigor: str
    method: str
    source: str
    printed: str
    refuted: bool


@dataclass(frozen=True)
class RecordingView:
    """A recorded training as the page shows it."""

    executed: tuple[str, ...]
    columns: tuple[str, ...]
    channels: tuple[tuple[str, str, str], ...]
    accountant: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class AuditView:
    """One audit as the page shows it; ``name`` is unique on the page, ``origin`` the file of a joined result.

    drawn: whether its figures and findings are on the page. cell: what it is called in its matrix, empty where it is
    in none; title: with the name before it.
    """

    audit: AuditResult
    name: str
    origin: str
    description: str
    audited: tuple[tuple[str, str], ...]
    conclusion: tuple[str, ...]
    risk: tuple[str, ...]
    claims: tuple[ClaimView, ...]
    status: str
    conformance: str
    reason: str
    tests: str
    checks: tuple[tuple[bool, tuple[str, ...]], ...]
    seen: Figure | None
    made_to_deviate: bool
    as_run: tuple[str, ...]
    power: tuple[str, ...]
    figures: tuple[Figure, ...]
    drawn: bool
    cell: str
    title: str
    numbers: str
    findings: tuple[FindingView, ...]
    assumptions: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]
    recording: RecordingView | None


@dataclass(frozen=True)
class RecipeView:
    """How to reproduce one of the results, as the page shows it."""

    of: str
    command: str
    facts: tuple[tuple[str, str], ...]


def render(result: Result, *, internal: bool = False) -> str:
    """The page as text; data-dependent and per-record values only where ``internal`` asks for them.

    It asks nothing of any server, runs without scripts (they only sort and filter), prints, and holds the result's
    JSON, from which ``dpspec verify`` and ``dpspec report`` work. The text follows from that JSON to the last
    character, for what :func:`generator` names.
    """
    result = reread(result if internal else redact(result))
    origins = sources(result)
    several = result.matrices
    cells = matrix_views.titles(several)
    names = [f"a{i}" for i in range(len(result.audits))]
    families, drawn = phrases.families(result), _drawn(result)
    audits = tuple(
        _audit(audit, names[i], origins[i], families[i], cells.get(i, ""), i in drawn)
        for i, audit in enumerate(result.audits)
    )
    text: str = (
        _environment()
        .get_template("page.html")
        .render(
            result=result,
            audits=audits,
            matrices=tuple(matrix_views.view(matrix, i, names) for i, matrix in enumerate(several)),
            tally=tally(result),
            controls=[view for view in audits if view.made_to_deviate],
            most_controls=_MOST_CONTROLS,
            failed=failed(result),
            all_in_matrices=len(cells) == len(audits) and all(len(one.audits) > MOST_CELLS for one in several),
            in_short=in_short(result),
            limits=(*result.notes, *limits(result)),
            recipes=tuple(
                RecipeView(one.of, shlex.join(map(plain, one.command)), one.facts) for one in recipes(result)
            ),
            legend=(glossary.VERDICTS, glossary.CONFORMANCE, glossary.RIGOR),
            terms=glossary.TERMS,
            internal=internal,
            internal_mark=INTERNAL_MARK,
            generator=generator(),
            element=ELEMENT,
            json=embedded(dump(result, indent=None)),
            style=_asset("page.css"),
            script=_asset("page.js"),
            script_digest=_digest(_asset("page.js")),
        )
    )
    return text


def _drawn(result: Result) -> set[int]:
    """The audits whose figures and findings are on the page: at most so many, those that are not as expected first.

    Of a large matrix only cells that are not as expected: it has a figure and tables of its own.
    """
    large = {i for matrix in result.matrices if len(matrix.audits) > MOST_CELLS for i in matrix.numbers}
    first = sorted(range(len(result.audits)), key=lambda i: result.audits[i].as_expected)
    return {i for i in first if i not in large or not result.audits[i].as_expected} & set(first[:MOST_DRAWN])


def _digest(script: str) -> str:
    """How a content security policy names the one script that may run."""
    return b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def generator() -> str:
    """What a page names as its writer: its text follows from its result for this version of dpspec."""
    from dpspec.version import VERSION

    return f"dpspec {VERSION}"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("dpspec.reporters.html", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_tame,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["whole"] = _whole
    environment.filters["parted"] = _parted
    return environment


def _whole(text: str) -> Markup:
    """Text in which no line ends inside a number, or a name: browsers break ``1e-5`` at its hyphen."""
    from markupsafe import Markup, escape

    parts = _WHOLE.split(plain(text))
    marked = (f'<span class="whole">{escape(part)}</span>' if i % 2 else escape(part) for i, part in enumerate(parts))
    return Markup("").join(map(Markup, marked))


def _parted(name: str) -> Markup:
    """A name that may be broken behind its underscores, and nowhere else."""
    from markupsafe import Markup, escape

    return Markup("_<wbr>").join(escape(part) for part in plain(name).split("_"))


def _tame(value: Any) -> Any:
    """Text that others wrote without what draws nothing or draws elsewhere; our own markup as it is."""
    return plain(value) if type(value) is str else value


def _asset(name: str) -> str:
    from importlib.resources import files

    return (files("dpspec.reporters.html") / "assets" / name).read_text(encoding="utf-8")


def _audit(audit: AuditResult, name: str, origin: str, family: int, cell: str, drawn: bool) -> AuditView:
    conformance = audit.conformance
    return AuditView(
        audit=audit,
        name=name,
        origin=origin,
        description=str(audit.document.get("description") or ""),
        audited=tuple(audited(audit)),
        conclusion=tuple(conclusion(audit)),
        risk=risk(audit),
        claims=tuple(_claim(audit, verdict) for verdict in audit.verdicts),
        status=labels.conformance_label(conformance.status),
        conformance=labels.conformance_outcome(audit),
        tests=labels.count(len(audit.checks), "test"),
        reason=detectable.reason(audit),
        checks=tuple((bad, _check(check)) for check, bad in phrases.ranked(audit.checks, family)),
        seen=detectable.figure(audit, family, f"{name}-seen"),
        made_to_deviate=conformance.status == "deviates" and conformance.expected,
        power=tuple(
            f"{power.method}: epsilon {decimals.lower(power.epsilon)} at {labels.conditions(power.at)}"
            + (f"; {power.note}" if power.note else "")
            for power in audit.power
        ),
        figures=tuple(figures(audit, name)) if drawn else (),
        drawn=drawn,
        cell=cell,
        title=f"{base_name(audit)}, {cell}" if cell else audit.name,
        as_run=phrases.as_run(audit),
        numbers=labels.count(len(phrases.findings(audit)), "number"),
        findings=tuple(_finding(finding) for finding in phrases.findings(audit)) if drawn else (),
        assumptions=tuple((one.status, one.name, phrases.assumption(one)) for one in phrases.assumptions_of(audit)),
        notes=tuple(note for note in (*audit.notes, labels.left_out(audit)) if note),
        recording=None if audit.recording is None else _recording(audit.recording),
    )


def _recording(found: Recording) -> RecordingView:
    notes = (recording.declared(found), *found.cautions, *found.advice)
    return RecordingView(
        executed=tuple(recording.executed(found)),
        columns=recording.COLUMNS,
        channels=tuple(recording.channel_rows(found)),
        accountant=recording.accountant(found.accountant),
        notes=(*(note for note in notes if note), *(f"not recognized: {one}" for one in found.unrecognized)),
    )


def _claim(audit: AuditResult, verdict: Verdict) -> ClaimView:
    label = labels.verdict_label(audit, verdict)
    return ClaimView(
        verdict=verdict,
        label=labels.headline(audit, verdict),
        style="as-declared" if label == labels.AS_DECLARED else verdict.verdict,
        interval=labels.interval(audit, verdict),
        claimed=labels.claimed(verdict),
        value="" if verdict.claimed is None else decimals.exact(verdict.claimed),
        outcome=labels.outcome(audit, verdict),
        control=labels.is_control(verdict) and verdict.expected,
        bar=bar(verdict),
    )


def _check(check: Check) -> tuple[str, ...]:
    """A row of the table of tests: what, how, p, declared, found, and the deviations that it detects."""
    declared = "" if check.declared is None else decimals.given(check.declared)
    found = "" if check.measured is None else decimals.nearest(check.measured)
    what = f"{check.assumption}, {check.note}" if check.note else check.assumption
    seen = "" if check.detectable is None else phrases.detectable(check.detectable).removeprefix("detects ")
    return what, check.test, decimals.upper(check.p_value, digits=2), declared, found, check.observed, seen


def _finding(finding: Finding) -> FindingView:
    printed, refuted = "", False
    if finding.printed is not None:
        refuted = finding.printed.refuted
        state = "known to be wrong, backs no verdict" if refuted else "not known to be wrong"
        printed = f"the formula as printed, {state}. {finding.printed.reason}"
    return FindingView(
        number=labels.statement(finding),
        tight="" if finding.lower is None else f"true value at least {decimals.lower(finding.lower)}",
        at=labels.conditions(finding.at),
        of=labels.scope(finding),
        rigor=labels.rigor(finding),
        method=finding.method,
        source=finding.source,
        printed=printed,
        refuted=refuted,
    )
