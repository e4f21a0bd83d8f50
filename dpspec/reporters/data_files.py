"""Data formats: a result as JSON or CSV, and changes between two results as text, Markdown or JSON."""

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence

from dpspec.contract import Series
from dpspec.contract.results import AuditResult, Result, accepted_cautions
from dpspec.reporters import words
from dpspec.reporters.limits import large_deltas
from dpspec.reporters.markdown import table
from dpspec.results.codec import dump
from dpspec.results.diff import Change
from dpspec.results.redact import redact
from dpspec.results.regressions import in_words
from dpspec.results.status import problems
from dpspec.text import json_text, plain, spaced


def render_json(result: Result, *, internal: bool = False) -> str:
    """JSON of the schema ``dpspec/result/v2``, which ``verify``, ``diff`` and ``report`` read."""
    return dump(result if internal else redact(result))


COLUMNS = (
    "audit", "claim", "kind", "says", "verdict", "expected", "as_expected", "quantity", "claimed", "lower", "upper",
    "p_value", "conformance", "reason", "file", "line", "caution", "exit_code",
)  # fmt: skip

#: The place before a character that begins a formula, in ASCII or full width: at the start of a cell, and after a
#: separator at which a spreadsheet may split the line.
_FORMULA = re.compile(r"(?:^|[;|])\s*(?=[=+\-@\uff1d\uff0b\uff0d\uff20\u2212])")


def render_csv(result: Result, *, internal: bool = False) -> str:
    """A row per claim, and one for each caution, unexpected conformance, audit without all trials, and regression.

    Full precision, ``inf`` for no bound, an empty cell for no value. The column ``kind`` is ``caution``,
    ``conformance`` or ``trials`` in rows that are about no claim, and ``regression`` for what got worse. Each row has
    the exit code of the command.
    """
    result = result if internal else redact(result)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    exit_code = str(int(result.exit_code))
    for audit in result.audits:
        cautions = large_deltas(audit)
        for verdict in audit.verdicts:
            position = audit.places.get(verdict.claim) or {"file": audit.source, "line": ""}
            label = words.headline(audit, verdict)
            texts = (audit.name, verdict.claim, verdict.kind, verdict.text, label, " or ".join(verdict.expect))
            numbers = (verdict.claimed, verdict.lower, verdict.upper, verdict.p_value)
            row = [*map(_text, texts), "yes" if verdict.expected else "no", _text(verdict.quantity)]
            row += ["" if number is None else repr(float(number)) for number in numbers]
            row += [audit.conformance.status, _text(verdict.reason), _text(position["file"]), str(position["line"])]
            row += [_text(cautions.get(verdict.claim, "")), exit_code]
            writer.writerow(row)
        of_audit = {"conformance": audit.conformance.status, "file": _text(audit.source), "exit_code": exit_code}
        for cells in _other_rows(audit):
            writer.writerow([(of_audit | cells).get(column, "") for column in COLUMNS])
    for regression in result.regressions or ():
        cells = {"audit": regression.audit, "claim": regression.claim, "verdict": regression.name}
        cells |= {"kind": "regression", "reason": in_words(regression), "as_expected": "no", "exit_code": exit_code}
        escaped = _escaped(cells)
        writer.writerow([escaped.get(column, "") for column in COLUMNS])
    for spec in result.unjudged:
        cells = _escaped({"kind": "spec", "verdict": "invalid", "reason": spec.message, "file": spec.file})
        cells |= {"as_expected": "no", "line": str(spec.line), "exit_code": exit_code}
        writer.writerow([cells.get(column, "") for column in COLUMNS])
    return out.getvalue()


def _other_rows(audit: AuditResult) -> Iterator[dict[str, str]]:
    """The rows of problems that are about no claim, and of accepted cautions, by column."""
    for problem in problems(audit):
        if problem.kind != "claim":
            text = problem.name or words.problem_label(audit, problem)
            reason = words.problem(audit, problem)
            cells = {"audit": audit.name, "kind": problem.kind, "verdict": text, "reason": reason}
            yield _escaped({**cells, "as_expected": "no", "caution": problem.name})
    for rule in accepted_cautions(audit):
        cells = {"audit": audit.name, "kind": "caution", "verdict": rule.name, "reason": words.accepted(rule)}
        yield _escaped({**cells, "as_expected": "yes", "caution": f"accepted: {rule.name}"})


def _escaped(cells: dict[str, str]) -> dict[str, str]:
    return {column: _text(cell) for column, cell in cells.items()}


def render_series(series: Series) -> str:
    """The columns of a series in full precision: ``inf`` for no bound, an empty cell for no value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_text, series.columns))
    for row in zip(*series.columns.values(), strict=True):
        cells = ("" if cell is None else cell for cell in row)
        writer.writerow(repr(cell) if isinstance(cell, float) else _text(str(cell)) for cell in cells)
    return out.getvalue()


def _text(text: str) -> str:
    """One line, with an apostrophe before the beginning of a formula."""
    return _FORMULA.sub(r"\g<0>'", plain(text))


#: The keys of a change in JSON.
_CHANGE_KEYS = ("audit", "claim", "what", "before", "after", "trend", "of_claim")

CHANGE_FORMATS = ("text", "markdown", "json")


def render_changes(changes: Sequence[Change], form: str) -> str:
    """In one of :data:`CHANGE_FORMATS`."""
    if form == "json":
        return json_text(
            json.dumps([{key: getattr(change, key) for key in _CHANGE_KEYS} for change in changes], indent=2)
        )
    if form == "text":
        return "\n".join(map(change_line, changes)) if changes else "no change"
    rows = [(change.trend, _place(change), _value(change), change.before, change.after) for change in changes]
    return "\n".join(table(("Trend", "Place", "Value", "Before", "After"), rows)) if rows else "No change."


def change_line(change: Change) -> str:
    mark = {"better": "+", "worse": "-", "other": "~"}[change.trend]
    return f"{mark} {plain(_place(change))}: {plain(_value(change))} {plain(change.before)} -> {plain(change.after)}"


def _value(change: Change) -> str:
    """``verdict``, ``upper end of epsilon``, or a key of the spec."""
    return f"{change.what} end of {spaced(change.quantity)}" if change.quantity else change.what


def _place(change: Change) -> str:
    return f"{change.audit} / {change.claim}" if change.claim else change.audit
