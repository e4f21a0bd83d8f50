"""Whether more of a number helps or hurts the claims: their bounds are computed at a few values and compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dpspec.engine.claims import statement
from dpspec.engine.points import Bench, Point
from dpspec.engine.scope import claim_scope
from dpspec.engine.standing import proving
from dpspec.errors import UsageError
from dpspec.spec.words import listed

#: How far from the start values are compared, nearest first.
_FACTORS = (1.25, 0.8, 2.0, 0.5, 16.0, 1.0 / 16.0, 1e4, 1e-4)

#: Relative differences below this are round-off.
_SAME = 1e-9


@dataclass(frozen=True)
class _Room:
    """By how much a bound keeps an inequality: ``most`` is more where the accountant knows the bound is not tight."""

    least: float
    most: float
    scale: float


def trend(bench: Bench, start: float, low: float, high: float) -> bool | None:
    """True where larger values of the key leave the chosen claims more room, False where less.

    None where no two of the values that are tried differ. Raises ``UsageError`` where some claims gain what others
    lose.
    """
    here = bench.at(start)
    for other in _others(bench, start, low, high):
        gaining, losing = changes(bench, here, bench.at(other))
        if gaining and losing:
            raise UsageError(
                f"more of {bench.key.place} helps {listed(gaining)} and hurts {listed(losing)}: "
                "choose claims with --claim, one direction at a time"
            )
        if gaining or losing:
            return bool(gaining)
    return None


def changes(bench: Bench, one: Point, other: Point) -> tuple[list[str], list[str]]:
    """The chosen claims that surely have more room at the larger of two values, and those that surely have less."""
    less, more = sorted((one, other), key=lambda point: point.value)
    signs = {name: _sign(_room(less, name), _room(more, name)) for name in bench.claims}
    return [name for name, sign in signs.items() if sign > 0], [name for name, sign in signs.items() if sign < 0]


def crossing(low: Point, high: Point) -> float | None:
    """Where between two values the claims may begin or cease to be proved: bounds taken as powers of the value."""
    a, b = _excess(low), _excess(high)
    if a is None or b is None or a * b > 0.0 or a == b or low.value <= 0.0:
        return None
    return low.value * math.exp(math.log(high.value / low.value) * a / (a - b))


def _excess(point: Point) -> float | None:
    """How far the worst of the bounds lies above its claim, on a logarithmic scale; None where that says nothing."""
    logs = []
    for verdict in point.verdicts:
        if not verdict.provable or not verdict.claimed or min(verdict.provable, verdict.claimed) < 0.0:
            return None
        logs.append(math.log(verdict.provable / verdict.claimed))
    return max(logs, default=None)


def _others(bench: Bench, start: float, low: float, high: float) -> Iterator[float]:
    seen = {start}
    for factor in _FACTORS:
        other = start * factor
        other = min(max(float(round(other)) if bench.key.integer else other, low), high)
        if other not in seen:
            seen.add(other)
            yield other


def _room(point: Point, name: str) -> list[_Room]:
    """For each inequality of a claim, by how much its best proved bound keeps it."""
    if point.spec is None:
        return []
    claim = next(c for c in point.spec.claims if c.id == name)
    rooms: list[_Room] = []
    for part in statement(claim).parts:
        found = proving(part, claim_scope(point.spec, claim), point.findings)
        best = next((s.finding for s in found if s.strength == "proof" and math.isfinite(s.value)), None)
        if best is None:
            rooms.append(_Room(-math.inf, -math.inf, 0.0))
            continue
        sign = 1.0 if part.side == "at-most" else -1.0
        ends = [sign * (part.claimed - value) for value in (best.value, best.lower) if value is not None]
        rooms.append(_Room(min(ends), max(ends), max(abs(part.claimed), abs(best.value))))
    return rooms


def _sign(less: list[_Room], more: list[_Room]) -> int:
    """1 where an inequality has surely more room at the larger value, -1 where surely less, 0 where none is clear.

    Of a claim's inequalities the first clear one decides.
    """
    for a, b in zip(less, more, strict=False):
        unclear = _SAME * max(a.scale, b.scale)
        if b.least > a.most + unclear:
            return 1
        if a.least > b.most + unclear:
            return -1
    return 0
