"""A privacy statement to publish, as Markdown and as JSON for registries.

Its lines follow NIST SP 800-226, the reporting list of "How to DP-fy ML" (Ponomareva et al. 2023, section 5.3) and the
OpenDP Differential Privacy Deployments Registry: docs/reference/statement.md maps each line to the clauses. Controls,
which are false by design, and data-dependent values are omitted. The cells of a matrix share one statement.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TypeAlias

from dpspec import decimals
from dpspec.contract import Finding, Json
from dpspec.contract.results import AuditResult, Matrix, Result, Verdict, accepted_cautions, claim_block, open_cautions
from dpspec.reporters import disclosures, matrices, words
from dpspec.reporters.blocks import Block, Document, Section, Sentence, Span, Table, Text, items
from dpspec.reporters.markdown import write
from dpspec.reporters.provenance import DATA_DIGEST, Row, command, of_audit, of_judgement
from dpspec.reporters.summary import answer
from dpspec.results.evidence_weight import proven_curves
from dpspec.results.void_bounds import for_readers
from dpspec.text import json_text, spaced
from dpspec.version import VERSION

#: The version of the JSON.
SCHEMA = "dpspec/statement/v1"

#: Name, status and text of an assumption.
_Assumed: TypeAlias = tuple[str, str, str]

#: The number of shown hexadecimal digits of a spec's digest.
_DIGITS = 16

_COVERAGES = (
    "checked: a bound or a test of this audit carries the line. observed: the recording saw it. declared: the "
    "publisher or the spec states it. not met: a test rejects it. not covered: it is not stated."
)

#: The maximum probability with which a curve may be below its Gaussian fit.
_MOST_FLOOR = 1e-3


def render(result: Result, *, internal: bool = False) -> str:
    """A published statement has no data-dependent value, so ``internal`` has no effect."""
    return write(statement(for_readers(result)))


def statement(result: Result) -> Document:
    """A statement for each subject."""
    return Document(tuple(_section(subject, matrix) for subject, matrix in _subjects(result)))


def _subjects(result: Result) -> Iterator[tuple[Result, Matrix | None]]:
    """Each audit alone, but the cells of a matrix together."""
    matrix_of = {number: matrix for matrix in result.matrices for number in matrix.numbers}
    for number, audit in enumerate(result.audits):
        matrix = matrix_of.get(number)
        if matrix is None:
            yield replace(result, audits=(audit,)), None
        elif number == matrix.numbers[0]:
            yield replace(result, audits=matrix.audits), matrix


def _lines(result: Result, matrix: Matrix | None) -> tuple[disclosures.Line, ...]:
    if matrix is None:
        return disclosures.lines(result, result.audits[0])
    return disclosures.lines_of_cells(result, matrix.audits, _titles(matrix))


def _titles(matrix: Matrix) -> list[str]:
    return [matrices.cell_title(matrix, audit) for audit in matrix.audits]


def _section(result: Result, matrix: Matrix | None) -> Section:
    first = result.audits[0]
    name = first.name if matrix is None else f"{matrix.name}, {words.count(len(matrix.audits), 'cell')}"
    return Section(f"Privacy statement: {name}", tuple(_blocks(result, matrix)), level=1)


def _blocks(result: Result, matrix: Matrix | None) -> Iterator[Block]:
    first, outcome = result.audits[0], answer(result)
    yield Sentence((Span(f"{outcome.headline}.", "strong"), f" {outcome.detail}" if outcome.detail else ""))
    if description := first.document.get("description"):
        yield Sentence(str(description))
    yield from _claims(first) if matrix is None else _grid(matrix)
    yield items(*dict.fromkeys(_cautions(result.audits)))
    if matrix is None:
        yield items(*(f"{text}." for text in curves_of(first)))
    rows = tuple((line.name, (Span(line.coverage, "strong"),), line.text) for line in _lines(result, matrix))
    yield Table(("Subject", "Coverage", ""), rows, prose=2)
    if assumed := _assumptions(result, matrix):
        yield Sentence("The bounds hold under these assumptions:")
        yield items(*(f"{name} ({status}): {text}" for name, status, text in assumed))
    yield Sentence(_COVERAGES)
    digests = "of each cell in the table" if matrix else first.digest[:_DIGITS]
    yield Sentence(f"Made by dpspec {VERSION} from the result of {result.created}; spec digest {digests}.")


def _cautions(audits: Sequence[AuditResult]) -> Iterator[Text]:
    for audit in audits:
        for rule in open_cautions(audit):
            yield (Span(f"Open caution {rule.name}", "strong"), ": ", f"{rule.text} {rule.why} {rule.fix}")
    for audit in audits:
        yield from (words.sentence(words.accepted(rule)) for rule in accepted_cautions(audit))


def _claims(audit: AuditResult) -> Iterator[Table]:
    """A row for each claim."""
    rows = []
    for verdict, upper in disclosures.guarantees(audit):
        origin = ("none", "none") if upper is None else (words.rigor(upper), f"{upper.method}; {upper.source}")
        cells = (verdict.claim, verdict.text, words.headline(audit, verdict), str(words.bounds(audit, verdict)))
        rows.append((*cells, *origin))
    if rows:
        head = ("Claim", "Statement", "Verdict", "Bounds", "Rigor of the upper bound", "Source")
        yield Table(head, tuple(rows))


def _grid(matrix: Matrix) -> Iterator[Block]:
    """The claims with one statement in all cells, and a row for each cell."""
    stated = {audit.name: {v.claim: v for v, _ in disclosures.guarantees(audit)} for audit in matrix.audits}
    texts: dict[str, dict[str, None]] = {}
    for verdicts in stated.values():
        for claim, verdict in verdicts.items():
            texts.setdefault(claim, {})[verdict.text] = None
    shared = {claim: next(iter(distinct)) for claim, distinct in texts.items() if len(distinct) == 1}
    yield items(*(f"{claim}: {text}" for claim, text in shared.items()))
    rows = []
    for audit in matrix.audits:
        row = list(map(matrices.cell_value, matrix.values(audit).values()))
        for claim in texts:
            of_cell = stated[audit.name].get(claim)
            text = "" if of_cell is None else matrices.claim_text(audit, of_cell)
            row.append(f"{of_cell.text}: {text}" if of_cell is not None and claim not in shared else text)
        rows.append((*row, audit.digest[:_DIGITS]))
    yield Table((*map(spaced, matrix.axes.values()), *texts, "spec digest"), tuple(rows))


def _assumptions(result: Result, matrix: Matrix | None) -> list[_Assumed]:
    """All assumptions; the text of one that not all cells of a matrix have begins with its cells."""
    if matrix is None:
        return list(disclosures.assumptions(result.audits[0]))
    titles = _titles(matrix)
    cells_of = disclosures.cells_by_value(disclosures.assumptions(audit) for audit in matrix.audits)
    return [
        assumption
        if len(numbers) == len(titles)
        else (*assumption[:2], f"of {disclosures.cells_in_words(numbers, titles)}: {assumption[2]}")
        for assumption, numbers in cells_of.items()
    ]


def render_json(result: Result, *, internal: bool = False) -> str:
    """The same as JSON, for registries and catalogs. No data-dependent value: ``internal`` has no effect."""
    result = for_readers(result)
    document = {
        "schema": SCHEMA,
        "dpspec": VERSION,
        "created": result.created,
        "statements": [_statement(subject, matrix) for subject, matrix in _subjects(result)],
    }
    return json_text(json.dumps(document, indent=2, allow_nan=False)) + "\n"


def _statement(result: Result, matrix: Matrix | None) -> dict[str, Json]:
    first, stated = result.audits[0], _lines(result, matrix)
    outcome = answer(result)
    cautions = [rule for audit in result.audits for rule in (*open_cautions(audit), *accepted_cautions(audit))]
    assumed = _assumptions(result, matrix)
    shared = [row for row in _provenance(first) if all(row in _provenance(audit) for audit in result.audits)]
    cells = [_of_cell(result, matrix, audit, stated, assumed, shared) for audit in matrix.audits] if matrix else []
    return {
        "name": matrix.name if matrix else first.name,
        "passed": outcome.passed,
        "exit_code": int(outcome.exit_code),
        "headline": outcome.headline,
        "detail": outcome.detail,
        "description": str(first.document.get("description") or ""),
        **({"cells": cells} if matrix else _guarantees(first)),
        "cautions": [asdict(rule) for rule in dict.fromkeys(cautions)],
        "lines": [{**asdict(line), "clauses": disclosures.CLAUSES[line.key]} for line in stated],
        "assumptions": _assumptions_json(assumed),
        "provenance": dict([*shared, *of_judgement(result)]),
        "command": list(command(result)),
    }


def _assumptions_json(assumed: Iterable[_Assumed]) -> Json:
    return [{"name": name, "status": status, "text": text} for name, status, text in assumed]


def _provenance(audit: AuditResult) -> list[Row]:
    """The rows of an audit; a published statement omits the digest of private data."""
    private = not disclosures.has_public_data(audit)
    return [row for row in of_audit(audit) if not (private and row[0] == DATA_DIGEST)]


def _guarantees(audit: AuditResult) -> dict[str, Json]:
    return {
        "claims": [_claim(audit, verdict, upper) for verdict, upper in disclosures.guarantees(audit)],
        "curves": curves_of(audit),
        "spec_digest": audit.digest,
    }


def _of_cell(
    result: Result,
    matrix: Matrix,
    audit: AuditResult,
    stated: Sequence[disclosures.Line],
    assumed: Sequence[_Assumed],
    shared: Sequence[Row],
) -> dict[str, Json]:
    """The values and claims of a cell, and the lines, assumptions and provenance that not all cells share."""
    alone = replace(result, audits=(audit,))
    outcome = answer(alone)
    return {
        "values": dict(matrix.values(audit)),
        "passed": outcome.passed,
        "headline": outcome.headline,
        **_guarantees(audit),
        "lines": [asdict(line) for line in disclosures.lines(alone, audit) if line not in stated],
        "assumptions": _assumptions_json(own for own in disclosures.assumptions(audit) if own not in assumed),
        "provenance": dict(row for row in _provenance(audit) if row not in shared),
    }


def _claim(audit: AuditResult, verdict: Verdict, upper: Finding | None) -> dict[str, Json]:
    block = claim_block(audit, verdict)
    numbers = {key: value for key, value in block.items() if isinstance(value, int | float) and type(value) is not bool}
    return {
        "id": verdict.claim,
        "kind": verdict.kind,
        "text": verdict.text,
        "parameters": numbers,
        "verdict": words.headline(audit, verdict),
        "expected": verdict.expected,
        "quantity": verdict.quantity,
        "upper": _number(verdict.upper),
        "lower": _number(verdict.lower),
        "bounds": str(words.bounds(audit, verdict)),
        "rigor": None if upper is None else upper.rigor,
        "method": None if upper is None else upper.method,
        "source": None if upper is None else upper.source,
    }


def _number(value: float | None) -> Json:
    return value if value is None or math.isfinite(value) else str(value)


def curves_of(audit: AuditResult) -> list[str]:
    """Each proved curve as mu of Gaussian differential privacy, with the regret of this approximation."""
    from dpspec.accounting import fit_gdp

    sentences = []
    for curve in () if audit.conformance.status == "deviates" else proven_curves(audit):
        mu, regret, floor = fit_gdp(curve.polygon)
        if math.isfinite(mu) and floor < _MOST_FLOOR:
            but = f", except with probability {decimals.upper(floor)}" if floor else ""
            sentences.append(
                f"The proved curve{words.curve(curve) or f', single {disclosures.unit(audit)}s'}: "
                f"mu-GDP with mu at most {decimals.upper(mu)}{but}. "
                f"This approximation loses at most {decimals.upper(regret)} (regret)"
            )
    return sentences
