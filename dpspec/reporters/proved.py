"""The (epsilon, delta) pairs that an audit proves of its mechanism, and the trade-off curve that they make together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dpspec.contract import Json, Scope, Series
from dpspec.engine.result import AuditResult
from dpspec.reporters import words

if TYPE_CHECKING:
    from dpspec.accounting.polygon import Polygon

Pair = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """What is proved of groups of one size within one scope: (epsilon, delta) pairs, none of which implies another.

    label: the group size, and the scope as far as the audit's curves differ in it; empty for single records.
    """

    group_size: int
    scope: Scope
    label: str
    pairs: tuple[Pair, ...]

    @property
    def polygon(self) -> Polygon:
        """The trade-off curve."""
        return polygon(self.pairs)


def proved(audit: AuditResult) -> list[Curve]:
    """Every curve of proved upper bounds that hold in both directions for all records; by group size, ascending.

    A series that plots delta against epsilon and is certified, or a theorem, adds its points where findings of that
    group size are of one scope only.
    """
    found: dict[tuple[int, Scope], list[Pair]] = {}
    for finding in audit.findings:
        proof = finding.rigor in ("certified", "theorem") and (finding.printed is None or not finding.printed.refuted)
        scope = finding.scope
        here = finding.quantity == "epsilon" and finding.bound == "upper"
        whole = scope.direction == "both" and scope.record == "all"
        if proof and here and whole and set(finding.at) <= {"delta", "group_size"} and math.isfinite(finding.value):
            pair = (finding.value, float(finding.at.get("delta", 0.0)))
            found.setdefault((group_size(finding.at), scope), []).append(pair)
    for series in audit.series:
        if is_profile(series) and series.rigor in ("certified", "theorem"):
            for size, pair in _points(series):
                keys = [key for key in found if key[0] == size]
                if len(keys) == 1:
                    found[keys[0]].append(pair)
    ordered = sorted(found.items(), key=lambda item: item[0][0])
    varying = _varying([scope for _, scope in found])
    return [Curve(size, scope, _label(size, scope, varying), _frontier(pairs)) for (size, scope), pairs in ordered]


def polygon(pairs: Iterable[Pair]) -> Polygon:
    """The largest trade-off curve that all pairs allow."""
    from dpspec.accounting.polygon import Polygon

    return Polygon.from_epsilon_delta((max(0.0, epsilon), min(1.0, max(0.0, delta))) for epsilon, delta in pairs)


def group_size(at: Mapping[str, Json]) -> int:
    """The group size that conditions speak of."""
    return int(at.get("group_size", 1))


def is_profile(series: Series) -> bool:
    """Whether a series plots delta against epsilon."""
    return series.plot.get("x") == "epsilon" and tuple(series.plot.get("y", ())) == ("delta",)


def groups(size: int) -> str:
    """A group size as the end of a label."""
    return "" if size == 1 else f", groups of {size}"


def _frontier(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """The pairs that no other one implies, from the largest delta to the smallest."""
    kept: list[Pair] = []
    for epsilon, delta in sorted(set(pairs)):
        if not kept or delta < kept[-1][1]:
            kept.append((epsilon, delta))
    return tuple(kept)


def _varying(scopes: Iterable[Scope]) -> list[str]:
    known = [asdict(scope) for scope in scopes]
    return [key for key in (known[0] if known else {}) if len({one[key] for one in known}) > 1]


def _label(size: int, scope: Scope, varying: Iterable[str]) -> str:
    said = [words.of_scope(key, str(getattr(scope, key))) for key in varying]
    return groups(size) + "".join(f", {text}" for text in said)


def _points(series: Series) -> Iterator[tuple[int, Pair]]:
    sizes = series.columns.get("group_size", [1] * len(series.columns["epsilon"]))
    for size, epsilon, delta in zip(sizes, series.columns["epsilon"], series.columns["delta"], strict=True):
        if isinstance(epsilon, int | float) and isinstance(delta, int | float) and math.isfinite(epsilon):
            yield int(size), (float(epsilon), float(delta))
