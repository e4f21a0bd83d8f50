"""A result as data: JSON of the published schema, and CSV for spreadsheets with one row per claim.

``verify``, ``diff`` and ``report`` read the JSON (``dpspec/result/v2``) again.
"""

from __future__ import annotations

import csv
import io
import re

from dpspec.engine.redact import redact
from dpspec.engine.results.codec import dump
from dpspec.engine.results.joined import sources
from dpspec.engine.results.result import AuditResult, Result, Verdict
from dpspec.reporters.view import words
from dpspec.text import plain


def render_json(result: Result, *, internal: bool = False) -> str:
    """The result as JSON text; data-dependent and per-record values only where ``internal`` asks for them."""
    return dump(result if internal else redact(result))


COLUMNS = (
    "audit", "claim", "kind", "says", "verdict", "expected", "as_expected", "quantity", "claimed", "lower", "upper",
    "p_value", "conformance", "reason", "file", "line", "result",
)  # fmt: skip

#: The place before a character that begins a formula, in ASCII or full width: at the start of a cell, and after each
#: separator that a spreadsheet may split the line at instead of the comma.
_FORMULA = re.compile(r"(?:^|[;|])\s*(?=[=+\-@\uff1d\uff0b\uff0d\uff20\u2212])")


def render_csv(result: Result, *, internal: bool = False) -> str:
    """CSV text with a header; numbers as they are, ``inf`` where there is no bound, empty where there is no value.

    ``result`` is the file of the result that an audit is from, where several were joined.
    """
    if not internal:
        result = redact(result)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for audit, source in zip(result.audits, sources(result), strict=True):
        for verdict in audit.verdicts:
            writer.writerow([*_row(audit, verdict), _text(source)])
    return out.getvalue()


def _row(audit: AuditResult, verdict: Verdict) -> list[str]:
    place = audit.places.get(verdict.claim) or {"file": audit.source, "line": ""}
    label = words.headline(audit, verdict)
    texts = (audit.name, verdict.claim, verdict.kind, verdict.text, label, " or ".join(verdict.expect))
    numbers = (verdict.claimed, verdict.lower, verdict.upper, verdict.p_value)
    return [
        *map(_text, texts),
        "yes" if verdict.expected else "no",
        _text(verdict.quantity),
        *("" if number is None else repr(float(number)) for number in numbers),
        audit.conformance.status,
        _text(verdict.reason),
        _text(place["file"]),
        str(place["line"]),
    ]


def _text(text: str) -> str:
    """Text on one line that no spreadsheet takes for a formula: an apostrophe precedes what would begin one."""
    return _FORMULA.sub(r"\g<0>'", plain(text))
