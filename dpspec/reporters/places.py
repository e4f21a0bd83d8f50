"""Where in a result a value stands, for people: ``findings[3].value`` is which number?"""

from __future__ import annotations

import re

from dpspec.engine.result import AuditResult, Result
from dpspec.reporters import words

_PLACE = re.compile(r"(findings|verdicts|checks|series|evidence|power)\[(\d+)\]")


def place(result: Result, audit: str, what: str) -> str:
    """``quickstart: findings[3].value (epsilon <= 2.349, delta 1e-5)``: the audit, the path, and what stands there."""
    path = f"{audit}: {what}" if audit else what
    found = _PLACE.match(what)
    holder = next((one for one in result.audits if one.name == audit), None)
    if found is None or holder is None:
        return path
    said = _said(holder, found[1], int(found[2]))
    return f"{path} ({said})" if said else path


def _said(audit: AuditResult, part: str, index: int) -> str:
    """What a part of an audit is about; empty where there is none of that index."""
    parts = getattr(audit, part)
    if index >= len(parts):
        return ""
    one = parts[index]
    match part:
        case "findings":
            return ", ".join(text for text in (words.statement(one), words.conditions(one.at), one.method) if text)
        case "verdicts":
            return f"claim {one.claim}"
        case "checks":
            return ", ".join(text for text in (one.assumption, one.test, one.note) if text)
        case "series":
            return str(one.title)
        case "evidence":
            return str(one.id)
        case _:
            return f"{one.method}, {words.conditions(one.at)}"
