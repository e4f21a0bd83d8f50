"""Claims and what attacks showed, as points on the figures that their numbers belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpspec.contract import Claim, FrozenMap, Json
from dpspec.engine.claims import statement
from dpspec.engine.result import AuditResult, Verdict
from dpspec.reporters.html.drawing import Line
from dpspec.reporters.proved import group_size, groups

#: What is said of all marks in a caption.
CAPTION = "Diamonds are claims, dots what attacks showed."

ATTACKS, CLAIMS = "o", "D"

#: The keys of a claim that are not its kind's own.
_SCOPE = ("id", "kind", "adjacency", "access", "direction", "group_size", "record", "over", "expect")

Claimed = tuple[Verdict, int, tuple[tuple[float, float], ...]]


def marks(audit: AuditResult, x: str, y: str, sizes: Sequence[int], lines: int) -> list[Line]:
    """A point for every claim, and every lower bound by an attack, whose numbers are ``x`` and ``y`` and no others.

    sizes: the group sizes whose lines have colours already, in their order, where there is a line for each.
    lines: how many lines have colours; marks that belong to none of them share the next.
    """

    def colour(size: int) -> int:
        return sizes.index(size) if size in sizes else lines

    found = []
    for verdict, block in _stated(audit):
        numbers = _numbers({**_own(block), verdict.quantity: verdict.claimed}, x, y)
        if numbers is not None and block.get("record") is None:
            size = group_size(block)
            found.append(Line(f"claim {verdict.claim}", *numbers, colour(size), marker=CLAIMS))
    for finding in audit.findings:
        if finding.bound == "lower" and finding.rigor == "statistical":
            at = {key: value for key, value in finding.at.items() if key != "group_size"}
            numbers = _numbers({**at, finding.quantity: finding.value}, x, y)
            if numbers is not None:
                size = group_size(finding.at)
                found.append(Line(f"attack{groups(size)}", *numbers, colour(size), marker=ATTACKS))
    return found


def curves_claimed(audit: AuditResult) -> Iterator[Claimed]:
    """Every claim about a whole curve, with its group size and the (epsilon, delta) pairs that it implies."""
    for verdict, block in _stated(audit):
        size = group_size(block)
        claim = Claim(
            id=verdict.claim,
            kind=verdict.kind,
            options=_own(block),
            adjacency="add-remove",
            access="all-iterates",
            direction="both",
            group_size=size,
        )
        try:
            points = statement(claim).points
        except (KeyError, TypeError, ValueError):  # a document that was edited since
            continue
        if points and block.get("record") is None:
            yield verdict, size, points


def _stated(audit: AuditResult) -> Iterator[tuple[Verdict, Mapping[str, Json]]]:
    blocks = {str(block.get("id")): block for block in audit.document.get("claims", ()) if isinstance(block, Mapping)}
    for verdict in audit.verdicts:
        if verdict.claim in blocks:
            yield verdict, blocks[verdict.claim]


def _own(block: Mapping[str, Json]) -> FrozenMap:
    return FrozenMap({key: value for key, value in block.items() if key not in _SCOPE})


def _numbers(known: Mapping[str, Any], x: str, y: str) -> tuple[tuple[float], tuple[float]] | None:
    """The place of what is known; None where it is not of these two numbers, or of more."""
    if set(known) != {x, y}:
        return None
    values = [known[x], known[y]]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return None
    return (float(values[0]),), (float(values[1]),)
