"""A matrix as a table of its cells, and the bounds of a claim along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpspec.contract import Json
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult, Matrix, Result, Verdict
from dpspec.reporters import labels
from dpspec.text import shortened

#: The maximum number of characters of an axis value.
_VALUE = 40

#: The maximum number of lines in one figure.
_LINES = 8


def cell_value(item: Json) -> str:
    if item is None:
        return "as in the spec"
    return shortened(decimals.exact(item) if isinstance(item, float) else labels.value(item), _VALUE)


def cell_title(matrix: Matrix, audit: AuditResult) -> str:
    return ", ".join(f"{name}={cell_value(item)}" for name, item in matrix.values(audit).items())


def titles(result: Result) -> tuple[str, ...]:
    names = [audit.name for audit in result.audits]
    for matrix in result.matrices:
        for number, audit in zip(matrix.numbers, matrix.audits, strict=True):
            names[number] = f"{matrix.name} ({cell_title(matrix, audit)})"
    return tuple(names)


def claims_of(matrix: Matrix) -> tuple[str, ...]:
    return tuple(dict.fromkeys(verdict.claim for audit in matrix.audits for verdict in audit.verdicts))


def statements(matrix: Matrix) -> dict[str, str]:
    """The text of each claim that is the same in all cells."""
    texts: dict[str, set[str]] = {}
    for audit in matrix.audits:
        for verdict in audit.verdicts:
            texts.setdefault(verdict.claim, set()).add(verdict.text)
    return {claim: next(iter(found)) for claim, found in texts.items() if len(found) == 1}


def verdict_of(audit: AuditResult, claim: str) -> Verdict | None:
    return next((verdict for verdict in audit.verdicts if verdict.claim == claim), None)


def table(matrix: Matrix) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A column for each axis and each claim, and for the conformance of executed runs."""
    claims, executed = claims_of(matrix), any(audit.executed for audit in matrix.audits)
    head = (*matrix.axes.values(), *claims, *(("conformance",) if executed else ()))
    rows = []
    for audit in matrix.audits:
        verdicts = [_verdict(audit, verdict_of(audit, claim)) for claim in claims]
        wrong = labels.wrong_conformance(audit)
        conformance = labels.conformance_label(audit.conformance.status) + (", NOT AS EXPECTED" if wrong else "")
        axes = map(cell_value, matrix.values(audit).values())
        rows.append((*axes, *verdicts, *((conformance,) if executed else ())))
    return head, rows


def _verdict(audit: AuditResult, verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    wrong = "" if verdict.expected else ", NOT AS EXPECTED"
    return f"{labels.verdict_label(audit, verdict)} {labels.interval(audit, verdict)}{wrong}"


@dataclass(frozen=True)
class Across:
    """The points (x, lower, upper) by ascending x, for each value of the other axes; ``claimed`` if cells agree."""

    claim: str
    quantity: str
    x: str
    curves: dict[str, tuple[tuple[float, float | None, float | None], ...]]
    claimed: float | None


def across(matrix: Matrix) -> Across | None:
    """The first claim with a bound in two cells, against the numeric axis with most values."""
    counted = {name: _numbers([matrix.values(audit)[name] for audit in matrix.audits]) for name in matrix.axes.values()}
    x = max(counted, key=lambda name: counted[name], default=None)
    for claim in claims_of(matrix):
        verdicts = [(audit, verdict) for audit in matrix.audits if (verdict := verdict_of(audit, claim)) is not None]
        if sum(_finite(one.upper) is not None for _, one in verdicts) > 1:
            break
    else:
        return None
    if x is None or counted[x] < 2:
        return None
    found: dict[str, list[tuple[float, float | None, float | None]]] = {}
    for audit, verdict in verdicts:
        values = matrix.values(audit)
        others = ", ".join(f"{name}={cell_value(item)}" for name, item in values.items() if name != x)
        found.setdefault(others, []).append((float(values[x]), _finite(verdict.lower), _finite(verdict.upper)))
    if len(found) > _LINES:
        return None
    claimed = {verdict.claimed for _, verdict in verdicts}
    curves = {label: tuple(sorted(points, key=lambda one: one[0])) for label, points in found.items()}
    return Across(claim, verdicts[0][1].quantity, x, curves, next(iter(claimed)) if len(claimed) == 1 else None)


def _numbers(values: Sequence[Json]) -> int:
    """The number of distinct values; 0 if one is not a finite number."""
    finite = all(
        isinstance(item, int | float) and not isinstance(item, bool) and _finite(item) is not None for item in values
    )
    return len(set(values)) if finite else 0


def _finite(number: float | None) -> float | None:
    return number if number is not None and abs(number) <= 1e300 and math.isfinite(number) else None
