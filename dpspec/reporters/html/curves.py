"""The curves of an audit: power against false-positive rate, and delta against epsilon.

Claims and attack results are points in these figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dpspec.contract import Evidence, Json
from dpspec.engine.judging.evidence_weight import group_size, polygon, proven_curves
from dpspec.engine.judging.inequalities import implied_points
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult
from dpspec.language.load import claim_options
from dpspec.reporters import labels
from dpspec.reporters.html.drawing import Drawing, Line

CAPTION = "Diamonds are claims, dots are attack results."

ATTACKS, CLAIMS = "o", "D"


def marks(audit: AuditResult, x: str, y: str, sizes: Sequence[int], lines: int) -> list[Line]:
    """Points for claims and for lower bounds by attacks whose numbers are exactly ``x`` and ``y``."""

    def colour(size: int) -> int:
        return sizes.index(size) if size in sizes else lines

    lines_of_marks = []
    for verdict in audit.verdicts:
        block = labels.claim_block(audit, verdict)
        numbers = _numbers({**claim_options(block), verdict.quantity: verdict.claimed}, x, y)
        if numbers is not None and block.get("record") is None:
            size = _size(block)
            lines_of_marks.append(Line(f"claim {verdict.claim}", *numbers, colour(size), marker=CLAIMS))
    for finding in audit.findings:
        if finding.bound == "lower" and finding.rigor == "statistical":
            at = {key: value for key, value in finding.at.items() if key != "group_size"}
            numbers = _numbers({**at, finding.quantity: finding.value}, x, y)
            if numbers is not None:
                size = group_size(finding)
                label = f"attack{labels.groups(size, finding.scope.unit)}"
                lines_of_marks.append(Line(label, *numbers, colour(size), marker=ATTACKS))
    return lines_of_marks


def _size(block: Mapping[str, Json]) -> int:
    return int(block.get("group_size") or 1)


def _numbers(known: Mapping[str, Any], x: str, y: str) -> tuple[tuple[float], tuple[float]] | None:
    """None if ``x`` and ``y`` are not the only known quantities, or not numbers."""
    if set(known) != {x, y}:
        return None
    values = [known[x], known[y]]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return None
    return (float(values[0]),), (float(values[1]),)


#: The false-positive rates of drawn curves, 16 per decade.
_RATES = tuple(10.0 ** (-6 + i / 16) for i in range(97))

#: The false-positive rates of the table.
_SHOWN = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 0.5)

#: Epsilons with a larger ratio are on a logarithmic axis.
_FAR = 200.0

#: A curve above this at all rates is vacuous.
_VACUOUS = 0.99

Table = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]


def power(audit: AuditResult) -> tuple[Drawing, Table] | None:
    """The maximum power of membership tests by proved bounds and claims, and the rates of attacks."""
    bounds = proven_curves(audit)
    sizes = [bound.group_size for bound in bounds]
    curves = [(f"bound{labels.curve(bound)}", i, 0, bound.polygon) for i, bound in enumerate(bounds)]
    dashes: dict[int, int] = {}
    for verdict in audit.verdicts:
        block = labels.claim_block(audit, verdict)
        try:
            points = implied_points(verdict.kind, claim_options(block))
        except (KeyError, TypeError, ValueError):  # an edited document
            continue
        if not points or block.get("record") is not None:
            continue
        size = _size(block)
        dashes[size] = dashes.get(size, 0) + 1
        sizes += [] if size in sizes else [size]
        curves.append((f"claim {verdict.claim}", sizes.index(size), dashes[size], polygon(points)))
    lines = [
        Line(name, _RATES, [float(p) for p in curve.tpr(np.array(_RATES))], colour=colour, dash=dash)
        for name, colour, dash, curve in curves
    ]
    for evidence in audit.evidence:
        size = group_size(evidence)
        sizes += [] if size in sizes else [size]
        lines.extend(_attacked(evidence, sizes.index(size)))
    if not bounds or all(min(line.y) > _VACUOUS for line in lines):
        return None
    drawing = Drawing(
        title="Maximum power of membership inference against its false-positive rate",
        lines=lines,
        x="false-positive rate",
        y="true-positive rate",
        log_x=True,
        log_y=True,
        identity=True,
        limits=((1e-6, 1.0), (1e-6, 1.3)),
    )
    rows = [
        (decimals.exact(rate), *(decimals.upper(float(curve.tpr(rate))) for *_, curve in curves)) for rate in _SHOWN
    ]
    return drawing, (("false-positive rate", *(name for name, *_ in curves)), tuple(rows))


def profile(audit: AuditResult) -> tuple[Drawing, Table] | None:
    """Delta against epsilon by upper bounds at two or more deltas."""
    bounds = [bound for bound in proven_curves(audit) if len(bound.pairs) > 1]
    if not bounds:
        return None
    lines, rows = [], []
    for i, bound in enumerate(bounds):
        label = f"bound{labels.curve(bound)}"
        lines.append(Line(label, [e for e, _ in bound.pairs], [d for _, d in bound.pairs], colour=i))
        rows += [(label, decimals.upper(e), decimals.exact(d)) for e, d in bound.pairs]
    lines += marks(audit, "epsilon", "delta", [bound.group_size for bound in bounds], len(bounds))
    shown = [x for line in lines for x in line.x if x > 0.0]
    far = max(shown, default=1.0) > _FAR * min(shown, default=1.0)
    drawing = Drawing(title="Delta against epsilon", lines=lines, x="epsilon", y="delta", log_x=far, log_y=True)
    return drawing, (("curve", "epsilon", "delta"), tuple(rows))


def _attacked(evidence: Evidence, colour: int) -> Iterator[Line]:
    """Guesses within one run count as if half of the guesses and canaries were present."""
    counts = evidence.statistics
    pairs: list[tuple[float, float]] = []
    if evidence.kind == "many-run":
        absent, present = max(1, counts["absent"]), max(1, counts["present"])
        pairs = [(counts["false_positives"] / absent, counts["true_positives"] / present)]
    elif evidence.kind == "many-run-ranked":
        pairs = list(_ranked(str(counts["outcomes"])))
    elif evidence.kind == "many-run-sequential":
        runs = sorted(zip(counts["scores"], (-int(bit) for bit in counts["coins"]), strict=True))
        pairs = list(_ranked("".join(str(-bit) for _, bit in runs)))
    elif evidence.kind in ("one-run", "one-run-ladder"):
        canaries = max(1, int(counts["canaries"]))
        guessed, right = (_list(counts[key]) for key in ("guesses", "correct"))
        pairs = [((g - c) / canaries, c / canaries) for g, c in zip(guessed, right, strict=True)]
    if pairs:
        rates = [max(fpr, _RATES[0]) for fpr, _ in pairs]
        label = f"attack{labels.groups(group_size(evidence), evidence.scope.unit)}"
        yield Line(label, rates, [tpr for _, tpr in pairs], colour, marker=ATTACKS)


def _ranked(outcomes: str) -> Iterator[tuple[float, float]]:
    """(fpr, tpr) at thresholds that 1, 2, 4, ... of the highest scores pass."""
    present, absent = max(1, outcomes.count("1")), max(1, outcomes.count("0"))
    passed = 1
    while passed < len(outcomes):
        top = outcomes[-passed:]
        yield top.count("0") / absent, top.count("1") / present
        passed *= 2


def _list(value: Json) -> list[int]:
    return [int(item) for item in value] if isinstance(value, list | tuple) else [int(value)]
