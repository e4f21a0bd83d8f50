"""The page of a result: its first screen, claims, the evidence of each audit, terms and provenance."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dpspec import decimals
from dpspec.contract import Check, Finding
from dpspec.contract.results import AuditResult, Matrix, Result, Verdict
from dpspec.reporters import figures, matrices, words
from dpspec.reporters.blocks import (
    Badge,
    Block,
    Break,
    Command,
    Document,
    Drawing,
    Figure,
    Fold,
    Item,
    Items,
    Mark,
    Meaning,
    Notice,
    Piece,
    Section,
    Sentence,
    Span,
    State,
    Table,
    Terms,
    Text,
    items,
)
from dpspec.reporters.charts import interval_chart
from dpspec.reporters.documents.first_screen import opening
from dpspec.reporters.documents.parts import (
    CONTRADICTION,
    NO_ASSUMPTIONS,
    at_conditions,
    executed_training,
    notes,
)
from dpspec.reporters.limits import limits
from dpspec.reporters.names import TERMS
from dpspec.reporters.provenance import command, provenance
from dpspec.reporters.risk import risk
from dpspec.reporters.summary import answer, details, tally
from dpspec.results.status import is_control

#: The maximum number of audits with figures and findings; the embedded result has all.
MOST_DRAWN = 24

#: Of more claims than this the expected ones are folded.
_MOST_CLAIMS = 8

#: The maximum number of named controls.
_MOST_CONTROLS = 3

#: The words for conformances and rigors.
_CONFORMANCES = (
    (
        "no-deviation-found",
        "No test found a deviation of the executed run from its declaration. Each test states the smallest deviation "
        "that it detects.",
    ),
    ("deviates", "A test found that the executed run deviates from its declaration."),
    ("checks-missing", "Planned tests of the executed run were not made."),
    ("not-run", "No executed run was tested."),
)
_RIGORS = (
    ("certified", "A proved formula, with an interval that includes all numerical error."),
    ("theorem", "A proved formula, evaluated in float64."),
    ("statistical", "True with the stated confidence."),
    ("approximate", "An estimate without a guarantee."),
)


def page(result: Result, *, internal: bool) -> Document:
    """``internal``: whether the page has values that depend on the data."""
    return Document(tuple(_Page(result, internal).blocks()))


@dataclass(frozen=True)
class _Audit:
    """An audit with its place in the page.

    Attributes:
        key: The name that links lead to.
        cell: The values of its matrix cell; empty for others.
        family: The number of checks that its own were judged among.
        has_figures: Whether the page has its figures and findings.
        first_cell: The cell whose mechanism and assumptions it shares, so that the page states only what differs.
    """

    audit: AuditResult
    key: str
    cell: str
    family: int
    has_figures: bool
    first_cell: AuditResult | None

    @property
    def title(self) -> str:
        return self.cell or self.audit.name

    @property
    def is_control(self) -> bool:
        """Whether the run deviates on purpose."""
        return self.audit.conformance.status == "deviates" and self.audit.conformance.expected

    @property
    def claims(self) -> list[Verdict]:
        """Unexpected claims first, then privacy, controls and utility."""
        return sorted(
            self.audit.verdicts,
            key=lambda verdict: (verdict.expected, verdict.kind == "metric", is_control(self.audit, verdict)),
        )

    def badge(self, verdict: Verdict, *, remark: bool = False) -> Badge:
        control = is_control(self.audit, verdict) and verdict.expected
        label = words.verdict_label(self.audit, verdict)
        text = f"{label}, as it should be" if remark and control else label
        return Badge(text, words.verdict_status(self.audit, verdict), control)

    def conformance_badge(self, text: str = "") -> Badge:
        conformance = self.audit.conformance.status
        return Badge(text or words.conformance_label(conformance), conformance, self.is_control)


class _Page:
    def __init__(self, result: Result, internal: bool) -> None:
        self.result, self.internal = result, internal
        self.gridded = matrices.large(result)

    @cached_property
    def audits(self) -> tuple[_Audit, ...]:
        result, alone = self.result, matrices.is_alone(self.result)
        cells, first_cell = {}, {}
        for matrix in result.matrices:
            for index, audit in zip(matrix.numbers, matrix.audits, strict=True):
                title = matrices.cell_title(matrix, audit)
                cells[index] = title if alone else f"{matrix.name}, {title}"
                if len(matrix.audits) > matrices.MOST_CELLS and index != matrix.numbers[0]:
                    first_cell[index] = matrix.audits[0]
        drawn = _drawn(result)
        return tuple(
            _Audit(
                audit,
                f"a{index}",
                cells.get(index, ""),
                family,
                index in drawn,
                None if index in drawn else first_cell.get(index),
            )
            for index, (audit, family) in enumerate(zip(result.audits, words.families(result), strict=True))
        )

    def blocks(self) -> Iterator[Block]:
        yield opening(self.result, internal=self.internal)
        cases: list[Text] = [
            (Span(view.audit.name, "name"), ", claim ", Span(verdict.claim, "name"))
            for view in self.audits
            for verdict in view.claims
            if verdict.verdict == "contradicted" and not (view.badge(verdict).control and view.is_control)
        ]
        if cases:
            yield Notice("contradicted", tuple(cases), (CONTRADICTION,))
        yield from self._controls()
        yield self._claims()
        for number, matrix in enumerate(self.result.matrices):
            yield self._matrix(matrix, number)
        yield from (self._evidence(view) for view in self.audits if view.first_cell is None)
        yield from self._further_cells()
        stated = limits(self.result)
        yield Section(
            "Limits", (Fold(f"{words.count(len(stated), 'limit')} of these results", (items(*stated),)),), key="limits"
        )
        yield _terms()
        yield self._provenance()

    def _controls(self) -> Iterator[Sentence]:
        controls = [view for view in self.audits if view.is_control]
        if not controls:
            return
        is_single = len(controls) == 1
        named: list[str | Piece] = []
        for view in controls[:_MOST_CONTROLS]:
            named += [", " if named else "", Span(view.title, link=view.key)]
        further = len(controls) - _MOST_CONTROLS
        remainder = f" and {further} more, marked below," if further > 0 else ""
        verb = "deviates" if is_single else "deviate"
        text = (
            f"{remainder} {verb} from the declaration on purpose, and the audit detects it. No bound applies to the "
            f"executed run of {'a control' if is_single else 'controls'}."
        )
        yield Sentence((Span("A control:" if is_single else "Controls:", "strong"), " ", *named, text), "control")

    def _claims(self) -> Section:
        number, exit_code = len(self.audits), int(self.result.exit_code)
        title = ("Claims ", Span(f"{tally(self.result)} (exit code {exit_code})", "quiet"))
        blocks: list[Block] = []
        if self.gridded:
            rows = "The cells of a large matrix are rows of its grid"
            if len(self.gridded) == number:
                rows = "Each row of a grid is a cell"
            links: list[str | Piece] = []
            for index, matrix in enumerate(self.result.matrices):
                links += [", " if links else "", Span(matrix.name, link=f"m{index}-h")]
            blocks.append(Sentence((f"{rows} with the verdict and the upper bound of each claim: ", *links, ".")))
        claims = [
            (view, index, verdict)
            for number_of_audit, view in enumerate(self.audits)
            if number_of_audit not in self.gridded  # the grid of the matrix has them
            for index, verdict in enumerate(view.claims)
        ]
        failing = [claim for claim in claims if not claim[2].expected]
        passing = [claim for claim in claims if claim[2].expected]
        if failing:
            blocks.append(self._claim_table(failing))
        if passing and (failing or len(passing) > _MOST_CLAIMS or self.result.matrices):
            title_of_fold = f"{words.count(len(passing), 'claim')} as expected"
            blocks.append(Fold(title_of_fold, (self._claim_table(passing),)))
        elif passing:
            blocks.append(self._claim_table(passing))
        return Section(title, tuple(blocks), key="claims")

    def _claim_table(self, claims: Sequence[tuple[_Audit, int, Verdict]]) -> Table:
        several = len(self.audits) > 1
        rows = tuple(
            (
                _verdict_cell(view, verdict),
                *([(Span(view.title, link=view.key),)] if several else []),
                (
                    Span(verdict.claim, "name", f"{view.key}-c{index}"),
                    f" {verdict.text}{' (a control)' if view.badge(verdict).control else ''}",
                ),
                _bounds_cell(view, verdict),
            )
            for view, index, verdict in claims
        )
        bounds: Text = (Span("Bounds", link="term-bounds"),)
        meanings: list[Meaning] = ["", "cell", "says", "number"] if several else ["", "says", "number"]
        return Table(
            ("Verdict", *(["Audit"] if several else []), "Claim", bounds),
            rows,
            title="Claims with their verdicts",
            kind="overview",
            meanings=tuple(meanings),
        )

    def _matrix(self, matrix: Matrix, number: int) -> Section:
        description, figures_of_cells = matrix.audits[0].document.get("description"), tuple(matrices.figures_of(matrix))
        head, _ = matrices.table(matrix)
        rows = tuple(
            (*map(_grid_cell, matrices.grid_row(matrix, audit)), (Span("cell", link=f"a{index}"),))
            for index, audit in zip(matrix.numbers, matrix.audits, strict=True)
        )
        blocks: list[Block] = [Sentence(str(description), "lead")] if description else []
        blocks.append(items(*matrices.statements(matrix)))
        blocks.append(Table((*head, "More"), rows, title=f"Cells of {matrix.name}", kind="sortable"))
        charts = [figure for figure in figures_of_cells if figure.chart]
        blocks += (_figure(figure, f"m{number}-f{index}") for index, figure in enumerate(charts))
        for figure in figures_of_cells:
            if not figure.chart:
                caption = [Sentence(figure.caption, "quiet")] if figure.caption else []
                table = Table(figure.head, figure.rows, title=figure.title, kind="numbers")
                remark = [Sentence(_cut(figure), "quiet")] if figure.cut else []
                blocks.append(Fold(f"{figure.title}, all cells", (*caption, table, *remark)))
        title = f"{matrix.name}: {len(matrix.audits)} cells"
        return Section(title, tuple(blocks), key=f"m{number}", kind="matrix")

    def _evidence(self, view: _Audit) -> Section:
        audit = view.audit
        outcome = answer(replace(self.result, audits=(audit,)))
        if len(self.audits) == 1:
            return Section("Evidence", tuple(_evidence(view)), key=view.key, kind="audit")
        description = str(audit.document.get("description") or "")
        head: list[Block] = [Sentence(description, "lead")] if description and not view.cell else []
        if outcome.detail:
            head.append(Sentence(outcome.detail))
        is_open = not audit.as_expected and sum(not view.audit.as_expected for view in self.audits) == 1
        return Section(
            view.title,
            (*head, *_evidence(view)),
            key=view.key,
            kind="audit",
            summary=outcome.headline,
            is_open=is_open,
        )

    def _further_cells(self) -> Iterator[Section]:
        cells = [(view, first) for view in self.audits if (first := view.first_cell) is not None]
        if not cells:
            return
        entries = tuple(
            Item((Span(view.title, "strong"), ": ", " ".join(_cell_sentences(self.result, view, first))), key=view.key)
            for view, first in cells
        )
        about = (
            "Mechanism, data and assumptions are those of the first cell of the matrix, except for the stated values. "
            "The result inside this page has all tests, figures and numbers: "
        )
        where: Text = (about, Span("dpspec report PAGE --format json", "code"), ".")
        blocks = (Sentence(where, "quiet"), Fold(words.count(len(entries), "cell"), (Items(entries),)))
        yield Section("Further cells", blocks, key="brief")

    def _provenance(self) -> Section:
        origin = provenance(self.result)
        blocks: list[Block] = [Terms(origin.common)]
        if origin.differing:
            of_audits = tuple(Section(name, (Terms(rows),), level=3) for name, rows in origin.differing)
            title = f"{words.count(len(origin.differing), 'audit')} with their own values"
            blocks.append(Fold(title, of_audits))
        blocks += (Sentence("The command that made this result:"), Command(command(self.result)))
        code = [Span(f"dpspec {name}", "code") for name in ("verify", "report", "diff")]
        blocks.append(
            Sentence(
                (
                    *("The whole result is inside this page: ", code[0], ", ", code[1], " and ", code[2]),
                    " read it from here. Numbers from arrays in the trial store can be recomputed only with the store.",
                )
            )
        )
        title = "Provenance: who ran what, when, with which data"
        return Section(title, tuple(blocks), key="provenance")


def _verdict_cell(view: _Audit, verdict: Verdict) -> Text:
    badge = view.badge(verdict, remark=True)
    qualifiers = words.qualifiers(view.audit, verdict)
    pieces: list[Piece] = [badge]
    if qualifiers:
        pieces += [Break(), Span(", ".join(qualifiers), "quiet")]
    conformance = view.audit.conformance.status
    if conformance in ("deviates", "checks-missing"):
        pieces += [Break(), view.conformance_badge("run deviates" if conformance == "deviates" else "")]
    return tuple(pieces)


def _bounds_cell(view: _Audit, verdict: Verdict) -> Text:
    outcome, control = words.outcome(view.audit, verdict), view.badge(verdict).control
    bounds = str(words.bounds(view.audit, verdict))
    if not verdict.expected:
        return (bounds, Break(), Span(outcome, "unexpected"))
    if verdict.verdict not in ("proved", "supported") and not control:
        return (bounds, Break(), Span(outcome, "quiet"))
    return bounds


def _grid_cell(cell: matrices.Cell) -> Text:
    badge = (Badge(cell.label, cell.status), " ") if cell.label else ()
    wrong = () if cell.is_expected else (" ", Span("not as expected", "unexpected"))
    return (*badge, cell.text, *wrong)


def _figure(figure: figures.Figure, key: str) -> Figure:
    remark = _cut(figure) if figure.cut else ""
    return Figure(figure.title, figure.head, figure.rows, figure.caption, figure.caption, figure.chart, remark, key)


def _cut(figure: figures.Figure) -> str:
    return f"{figure.cut} more rows are in the result inside this page."


def _evidence(view: _Audit) -> Iterator[Block]:
    audit = view.audit
    yield Section("Audited mechanism", (Terms(tuple(details(audit))),), level=3)
    yield Section("Rates of an attacker", tuple(map(Sentence, risk(audit))), level=3)
    if not audit.verdicts:
        yield Sentence("The spec has no claims; the findings are below.")
    claims = [(_claim(view, number, verdict), verdict.expected) for number, verdict in enumerate(view.claims)]
    yield from (claim for claim, is_expected in claims if not is_expected)
    if passing := tuple(claim for claim, is_expected in claims if is_expected):
        title = f"{words.count(len(passing), 'claim')} as expected: reasons and bounds on an axis"
        yield Fold(title, passing)
    yield from executed_training(audit, level=3)
    yield Section("Conformance of the executed run", tuple(_conformance(view)), level=3)
    findings = words.findings(audit)
    if view.has_figures:
        drawn = tuple(_figure(figure, f"{view.key}-f{index}") for index, figure in enumerate(figures.figures(audit)))
        if drawn:
            yield Section("Figures", drawn, level=3)
        yield Section("Findings", (_findings(findings),), level=3)
    else:
        omitted = f"This page of many audits omits {words.count(len(findings), 'number')} and the figures of this one. "
        report = Span("dpspec report PAGE --format json", "code")
        yield Sentence((omitted, report, " writes the embedded result with all of them."), "quiet")
    assumptions = words.assumptions_of(audit)
    stated: list[Text] = [
        (State(assumption.status), " ", Span(assumption.name, "strong"), f": {words.assumption(assumption)}")
        for assumption in assumptions
    ]
    title = f"{words.count(len(assumptions), 'assumption')} of the findings and of the attack"
    content = items(*stated) if stated else Sentence(NO_ASSUMPTIONS)
    yield Section("Assumptions", (Fold(title, (content,)),), level=3)
    yield from (Sentence(note, "note") for note in notes(audit))


def _claim(view: _Audit, number: int, verdict: Verdict) -> Section:
    audit, bounds, claimed = view.audit, words.bounds(view.audit, verdict), words.claimed(verdict)
    chart = interval_chart(verdict, bounds)
    outcome = Span(words.sentence(words.outcome(audit, verdict)), "" if verdict.expected else "unexpected")
    title: Text = (view.badge(verdict), " ", Span(verdict.claim, "name"), f": {verdict.text}")
    stated = Sentence((f"Claimed {claimed}. " if claimed else "", outcome, f". {verdict.reason}"))
    shown = Drawing(chart, f"Bounds: {bounds}.") if chart else Sentence(f"Bounds: {bounds}.")
    return Section(title, (stated, shown), level=3, key=f"{view.key}-c{number}", kind="claim")


def _conformance(view: _Audit) -> Iterator[Block]:
    audit, outcome = view.audit, words.conformance_outcome(view.audit)
    yield Sentence(
        (
            view.conformance_badge(),
            " ",
            Span(outcome, "" if audit.conformance.expected else "unexpected"),
            ", a control" if view.is_control else "",
            f". {audit.conformance.reason}" if outcome else audit.conformance.reason,
        )
    )
    ranked = words.ranked(audit.checks, view.family)
    bad, good = ([check for check, rejected in ranked if rejected is side] for side in (True, False))
    tests = words.count(len(good), "other test") if bad else words.count(len(audit.checks), "test")
    for checks, title, table in (
        (bad, words.count(len(bad), "rejected test"), "Rejected tests"),
        (good, tests, "Tests of conformance"),
    ):
        if checks:
            rejected = checks is bad
            rows = _tests(checks, rejected=rejected, title=table)
            yield Fold(f"{title} of the executed run against its declaration", (rows,), is_open=rejected)
    estimates, power = words.as_run(audit), audit.power
    if estimates or power:
        largest = " largest lower bound that the attack can show"
        named = ["Estimated epsilon of the executed run"] if estimates else []
        named += [f"{'the' if estimates else 'The'}{largest}"] if power else []
        blocks: list[Block] = [*map(Sentence, estimates)]
        if power:
            blocks += [Sentence("Largest lower bound that the attack can show:"), items(*_power(audit))]
        yield Fold(", and ".join(named), tuple(blocks))


def _power(audit: AuditResult) -> Iterator[str]:
    for power in audit.power:
        bound = f"epsilon {decimals.lower(power.epsilon)} at {words.conditions(power.at)}"
        yield f"{power.method}: {bound}{f'; {power.note}' if power.note else ''}"


def _tests(checks: Sequence[Check], *, rejected: bool, title: str) -> Table:
    head = ("Assumption", "Test", "p", "Declared", "Found", "Observation", "Smallest detectable deviation")
    rows: list[tuple[Text, ...]] = []
    for check in checks:
        name, *cells = _check(check)
        badge: tuple[str | Piece, ...] = (Badge("rejected", "deviates"), " ") if rejected else ()
        rows.append(((*badge, name), *cells))
    marks: list[Mark] = ["rejected" if rejected else ""] * len(rows)
    return Table(head, tuple(rows), title=title, kind="tests", marks=tuple(marks))


def _check(check: Check) -> tuple[str, ...]:
    declared = "" if check.declared is None else decimals.given(check.declared)
    measured = "" if check.measured is None else decimals.nearest(check.measured)
    name = f"{check.assumption}, {check.subject}" if check.subject else check.assumption
    limit = "" if check.detectable is None else words.detection_limit(check.detectable)
    return name, check.test, decimals.upper(check.p_value, digits=2), declared, measured, check.observed, limit


def _findings(findings: Sequence[Finding]) -> Block:
    groups = words.alike(findings)
    if not groups:
        return Sentence("None.")
    rows = tuple(
        (_values(group), words.rigor(group[0]), words.scope(group[0]), f"{group[0].method}; {group[0].source}")
        for group in groups
    )
    marks: list[Mark] = ["printed" if group[0].printed and group[0].printed.refuted else "" for group in groups]
    head = ("Numbers", "Rigor", "Of", "Method and source")
    table = Table(head, rows, title="Findings", kind="broad", marks=tuple(marks))
    return Fold(f"{words.count(len(findings), 'number')} with their rigor, scope and source", (table,))


def _values(group: Sequence[Finding]) -> Text:
    pieces: list[str | Piece] = []
    for finding in group:
        pieces += [Break()] if pieces else []
        pieces += [Span(words.statement(finding), "value"), at_conditions(finding)]
        if finding.lower is not None:
            pieces += [" ", Span(f"(true value at least {decimals.lower(finding.lower)})", "quiet")]
    if (printed := group[0].printed) is not None:
        pieces += [Break(), Span(words.printed(printed), "warning")]
    return tuple(pieces)


def _cell_sentences(result: Result, view: _Audit, first: AuditResult) -> Iterator[str]:
    """The outcome of a cell of a large matrix, and its differences from the first cell."""
    audit = view.audit
    yield f"{answer(replace(result, audits=(audit,))).headline}."
    yield from (f"{verdict.claim}: {verdict.reason}" for verdict in view.claims)
    yield from risk(audit)
    yield f"{words.count(len(audit.checks), 'test')}: {audit.conformance.reason}"
    for power in audit.power:
        bound = f"epsilon {decimals.lower(power.epsilon)} at {words.conditions(power.at)}"
        yield f"Largest lower bound of {power.method}: {bound}."
    of_first = words.assumptions_of(first)
    differing = [assumption for assumption in words.assumptions_of(audit) if assumption not in of_first]
    if differing:
        texts = (f"{stated.name}, {stated.status}: {words.assumption(stated)}" for stated in differing)
        yield f"Assumptions: {'; '.join(texts)}."
    yield from filter(None, audit.notes)


def _terms() -> Section:
    glossary = tuple((name, term.text) for name, term in TERMS.items() if term.on_page)
    lists = (
        Terms(tuple(((Badge(name, name),), text) for name, text in words.VERDICTS.items()), is_glossary=True),
        Terms(
            tuple(((Badge(words.conformance_label(name), name),), text) for name, text in _CONFORMANCES),
            is_glossary=True,
        ),
        Terms(tuple(((Badge(name, name),), text) for name, text in _RIGORS), is_glossary=True),
        Terms(glossary, is_glossary=True),
    )
    where = "The glossary of the documentation (docs/explanation/glossary.md) has all terms with their synonyms."
    return Section("Terms", (Fold("The words of this page", (*lists, Sentence(where, "quiet"))),), key="terms")


def _drawn(result: Result) -> set[int]:
    """Audits with figures and findings on the page; of a large matrix only its unexpected cells."""
    large = matrices.large(result)
    first = sorted(range(len(result.audits)), key=lambda i: result.audits[i].as_expected)
    return {i for i in first if i not in large or not result.audits[i].as_expected} & set(first[:MOST_DRAWN])
