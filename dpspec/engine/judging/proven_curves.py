"""The (epsilon, delta) pairs that an audit proves, and their trade-off curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dpspec.contract import Scope, Series
from dpspec.engine.judging.claim_tests import group_size
from dpspec.engine.judging.evidence_weight import proven_bound
from dpspec.engine.results.result import AuditResult

if TYPE_CHECKING:
    from dpspec.accounting import Polygon

Pair = tuple[float, float]


@dataclass(frozen=True)
class ProvenCurve:
    """The proven pairs for one group size and scope; ``varying`` are the keys of the scope in which curves differ."""

    group_size: int
    scope: Scope
    varying: tuple[str, ...]
    pairs: tuple[Pair, ...]

    @property
    def polygon(self) -> Polygon:
        return polygon(self.pairs)


def proven_curves(audit: AuditResult) -> list[ProvenCurve]:
    """All curves of proven upper bounds in both directions for all records, by ascending group size.

    A bound counts if a verdict may depend on it (``proven_bound``). A certified or theorem series of delta over epsilon
    adds its points if the bounds for its group size have one scope only.
    """
    pairs: dict[tuple[int, Scope], list[Pair]] = {}
    for finding in audit.findings:
        if (
            (finding.quantity, finding.bound) == ("epsilon", "upper")
            and (finding.scope.direction, finding.scope.record) == ("both", "all")
            and set(finding.at) <= {"delta", "group_size"}
            and math.isfinite(finding.value)
            and proven_bound(finding)
        ):
            pair = (finding.value, float(finding.at.get("delta", 0.0)))
            pairs.setdefault((group_size(finding), finding.scope), []).append(pair)
    for series in audit.series:
        if is_profile(series) and series.rigor in ("certified", "theorem"):
            for size, pair in _points(series):
                keys = [key for key in pairs if key[0] == size]
                if len(keys) == 1:
                    pairs[keys[0]].append(pair)
    scopes = [asdict(scope) for _, scope in pairs]
    varying = tuple(key for key in (scopes[0] if scopes else {}) if len({scope[key] for scope in scopes}) > 1)
    curves = []
    for (size, scope), of_scope in sorted(pairs.items(), key=lambda item: item[0][0]):
        frontier: list[Pair] = []  # without pairs that another one implies, from the largest delta to the smallest
        for epsilon, delta in sorted(set(of_scope)):
            if not frontier or delta < frontier[-1][1]:
                frontier.append((epsilon, delta))
        curves.append(ProvenCurve(size, scope, varying, tuple(frontier)))
    return curves


def polygon(pairs: Iterable[Pair]) -> Polygon:
    from dpspec.accounting import Polygon

    return Polygon.from_epsilon_delta((max(0.0, epsilon), min(1.0, max(0.0, delta))) for epsilon, delta in pairs)


def is_profile(series: Series) -> bool:
    y = series.plot.get("y")
    return series.plot.get("x") == "epsilon" and isinstance(y, list | tuple) and tuple(y) == ("delta",)


def _points(series: Series) -> Iterator[tuple[int, Pair]]:
    sizes = series.columns.get("group_size", [1] * len(series.columns["epsilon"]))
    for size, epsilon, delta in zip(sizes, series.columns["epsilon"], series.columns["delta"], strict=True):
        if isinstance(epsilon, int | float) and isinstance(delta, int | float) and math.isfinite(epsilon):
            yield int(size), (float(epsilon), float(delta))
