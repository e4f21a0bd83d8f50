"""A matrix as people read it: its cells by what varies, one row each, and the bounds of a claim against an axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpspec.contract import Json
from dpspec.engine.results import decimals
from dpspec.engine.results.matrices import Matrix
from dpspec.engine.results.result import AuditResult, Result, Verdict
from dpspec.reporters import labels
from dpspec.text import shortened

#: So many characters of a value stand for it: a list of steps is no name.
_VALUE = 40

#: Lines in one figure; of more a table with shades is read faster.
_LINES = 8


def cell_value(item: Json) -> str:
    """A value of an axis; what a cell leaves as the spec says it is told so."""
    if item is None:
        return "as in the spec"
    return shortened(decimals.exact(item) if isinstance(item, float) else labels.value(item), _VALUE)


def cell_title(matrix: Matrix[AuditResult], audit: AuditResult) -> str:
    """What a cell is called: ``noise_multiplier=1, k=8``."""
    return ", ".join(f"{name}={cell_value(item)}" for name, item in matrix.values(audit).items())


def titles(result: Result) -> tuple[str, ...]:
    """What every audit is called where people read of it: a cell by its matrix and what varies, others by name."""
    names = [audit.name for audit in result.audits]
    for matrix in result.matrices:
        for number, audit in zip(matrix.numbers, matrix.audits, strict=True):
            names[number] = f"{matrix.name} ({cell_title(matrix, audit)})"
    return tuple(names)


def claims_of(matrix: Matrix[AuditResult]) -> tuple[str, ...]:
    """The ids of the claims of all cells, in their order."""
    return tuple(dict.fromkeys(verdict.claim for audit in matrix.audits for verdict in audit.verdicts))


def verdict_of(audit: AuditResult, claim: str) -> Verdict | None:
    """A cell's verdict on a claim; None where it makes no such claim."""
    return next((verdict for verdict in audit.verdicts if verdict.claim == claim), None)


def table(matrix: Matrix[AuditResult]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows: a column for each axis, one for each claim, and where something ran, one for the conformance."""
    claims, ran = claims_of(matrix), any(audit.executed for audit in matrix.audits)
    head = (*matrix.axes.values(), *claims, *(("conformance",) if ran else ()))
    rows = []
    for audit in matrix.audits:
        told = [_told(audit, verdict_of(audit, claim)) for claim in claims]
        wrong = not (audit.conformance.expected or labels.untested(audit))
        conformance = labels.conformance_label(audit.conformance.status) + (", NOT AS EXPECTED" if wrong else "")
        axes = map(cell_value, matrix.values(audit).values())
        rows.append((*axes, *told, *((conformance,) if ran else ())))
    return head, rows


def _told(audit: AuditResult, verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    wrong = "" if verdict.expected else ", NOT AS EXPECTED"
    return f"{labels.verdict_label(audit, verdict)} {labels.interval(audit, verdict)}{wrong}"


@dataclass(frozen=True)
class Curve:
    """The bounds of one claim along an axis, all other axes fixed as ``label`` says: (x, lower, upper) by rising x."""

    label: str
    points: tuple[tuple[float, float | None, float | None], ...]


@dataclass(frozen=True)
class Across:
    """The bounds of a claim in all cells. x: the axis that they are drawn against; claimed: None where they differ."""

    claim: str
    quantity: str
    x: str
    curves: tuple[Curve, ...]
    claimed: float | None


def across(matrix: Matrix[AuditResult]) -> Across | None:
    """The first claim with a bound in at least two cells, against the number with most values; None without either."""
    x = _drawn_against(matrix)
    claim = next(iter(_bounded(matrix)), None)
    if x is None or claim is None:
        return None
    found: dict[str, list[tuple[float, float | None, float | None]]] = {}
    verdicts = [(audit, verdict) for audit in matrix.audits if (verdict := verdict_of(audit, claim)) is not None]
    for audit, verdict in verdicts:
        values = matrix.values(audit)
        others = ", ".join(f"{name}={cell_value(item)}" for name, item in values.items() if name != x)
        found.setdefault(others, []).append((float(values[x]), _finite(verdict.lower), _finite(verdict.upper)))
    if len(found) > _LINES:
        return None
    claimed = {verdict.claimed for _, verdict in verdicts}
    curves = tuple(Curve(label, tuple(sorted(points, key=lambda one: one[0]))) for label, points in found.items())
    return Across(claim, verdicts[0][1].quantity, x, curves, next(iter(claimed)) if len(claimed) == 1 else None)


@dataclass(frozen=True)
class Shaded:
    """The upper bounds of a claim by two axes: a head, and rows of a name and of cells, each a text and a shade.

    A shade is the share of the largest bound, from 0 to 1; None where there is no bound.
    """

    claim: str
    quantity: str
    rows_of: str
    columns_of: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, float | None], ...]], ...]


def shaded(matrix: Matrix[AuditResult]) -> Shaded | None:
    """The first claim with bounds, where exactly two axes vary; None where more do, fewer, or nothing is bounded."""
    names, claim = list(matrix.axes.values()), next(iter(_bounded(matrix)), None)
    if len(names) != 2 or claim is None:
        return None
    rows_of, columns_of = names
    verdicts: dict[tuple[str, str], Verdict] = {}
    for audit in matrix.audits:
        verdict = verdict_of(audit, claim)
        if verdict is not None:
            row, column = map(cell_value, matrix.values(audit).values())
            verdicts[row, column] = verdict
    largest = max(abs(number) for one in verdicts.values() if (number := _finite(one.upper)) is not None)
    rows, columns = (tuple(dict.fromkeys(keys)) for keys in zip(*verdicts, strict=True))
    return Shaded(
        claim=claim,
        quantity=next(iter(verdicts.values())).quantity,
        rows_of=rows_of,
        columns_of=columns_of,
        head=columns,
        rows=tuple((row, tuple(_shade(verdicts.get((row, column)), largest) for column in columns)) for row in rows),
    )


def _shade(verdict: Verdict | None, largest: float) -> tuple[str, float | None]:
    if verdict is None:
        return "", None
    upper = _finite(verdict.upper)
    if upper is None:
        return "no bound", None
    return decimals.upper(upper), abs(upper) / largest if largest > 0.0 else 0.0


def _bounded(matrix: Matrix[AuditResult]) -> Iterator[str]:
    """Claims with a finite upper bound in at least two cells."""
    for claim in claims_of(matrix):
        verdicts = [verdict_of(audit, claim) for audit in matrix.audits]
        if sum(one is not None and _finite(one.upper) is not None for one in verdicts) > 1:
            yield claim


def _drawn_against(matrix: Matrix[AuditResult]) -> str | None:
    """The axis of numbers with most values, at least two; the first of equals."""
    counted = {name: _numbers([matrix.values(audit)[name] for audit in matrix.audits]) for name in matrix.axes.values()}
    best = max(counted, key=lambda name: counted[name], default=None)
    return best if best is not None and counted[best] > 1 else None


def _numbers(values: Sequence[Json]) -> int:
    """How many numbers there are; 0 where some value is none."""
    fine = all(
        isinstance(item, int | float) and not isinstance(item, bool) and _finite(item) is not None for item in values
    )
    return len(set(values)) if fine else 0


def _finite(number: float | None) -> float | None:
    return number if number is not None and abs(number) <= 1e300 and math.isfinite(number) else None
