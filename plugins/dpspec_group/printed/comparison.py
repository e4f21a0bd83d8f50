"""Table of epsilon against the group size with black-box conversions, for comparison.

The black-box conversions use only the guarantee of one record (Vadhan 2017, Lemma 2.2). The linear reference is k times
the epsilon of one record, not a bound. The table is a series and therefore decides no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import PrivacyLoss
from dpspec_group import theory
from dpspec_group.options import DEFAULT_DELTA
from dpspec_group.printed import blackbox
from dpspec_group.schemes import scheme_of


def size_series(spec: dps.Spec, records: int, findings: Sequence[dps.Finding]) -> dps.Series:
    """Epsilon against the group size at the largest claimed delta, with the baselines.

    Args:
        spec: The spec.
        records: Number of records.
        findings: The upper bounds, at least one.
    """
    delta = kit.claimed_deltas(spec, 1, default=DEFAULT_DELTA)[-1]
    direction = "both" if any(f.scope.direction == "both" for f in findings) else findings[0].scope.direction
    at = {f.at["group_size"]: f.value for f in findings if f.at["delta"] == delta and f.scope.direction == direction}
    one = at.get(1) or _of_one(spec, records, delta, direction)
    return comparison(spec, records, sorted(at.items()), one, delta)


def _of_one(spec: dps.Spec, records: int, delta: float, direction: str) -> float:
    """The bound for one record."""
    if theory.uncovered(spec.phases, [spec.threat_model.adjacency]):
        return math.inf
    return theory.worst_epsilons(spec.phases, 1, records, [delta], direction)[0].upper


def comparison(
    spec: dps.Spec, records: int, tight: Sequence[tuple[int, float]], one: float, delta: float
) -> dps.Series:
    """Epsilon at ``delta`` against the group size: upper bounds, and the baselines of the spec.

    Args:
        spec: The spec.
        records: Number of records.
        tight: Group sizes with their upper bounds.
        one: The upper bound of a single record.
        delta: Delta.
    """
    columns: dict[str, list[dps.Json]] = {
        "group_size": [size for size, _ in tight],
        "epsilon": [epsilon for _, epsilon in tight],
    }
    for name in spec.mechanism.get("baselines", ()):
        value = _baseline(name, spec, records, one, delta)
        columns[name] = [value(size) for size, _ in tight]
    if "linear" in columns:
        columns["ratio"] = [_ratio(*pair) for pair in zip(columns["epsilon"], columns["linear"], strict=True)]
    vadhan = ["Vadhan 2017, Lemma 2.2"] if any(name.startswith("vadhan") for name in columns) else []
    return kit.series(
        "epsilon-by-group-size",
        f"Epsilon by group size at delta {delta:g}".replace("e-0", "e-"),
        columns,
        units={"group_size": "records"},
        rigor="certified" if len(columns) == 2 else "approximate",
        source="; ".join([*sorted({scheme_of(phase).source for phase in spec.phases}), *vadhan]),
        x="group_size",
        y=[name for name in columns if name not in ("group_size", "ratio")],
        upper=[name for name in columns if name not in ("group_size", "linear", "ratio")],
    )


def _baseline(name: str, spec: dps.Spec, records: int, one: float, delta: float) -> Callable[[int], float]:
    if name == "linear":
        return lambda size: blackbox.linear_reference(one, size) if math.isfinite(one) else math.inf
    if not math.isfinite(one):
        return lambda size: math.inf
    if name == "full-batch":
        return lambda size: _without_sampling(spec, records, size, delta)
    pairs = [pair for phase in spec.phases for pair in theory.composed(phase, 1, records)]
    profile = blackbox.example_profile(pairs)
    factor: blackbox.Factor = "literal" if name == "vadhan-literal" else "sharp"
    return lambda size: blackbox.group_epsilon_from_profile(profile, size, delta, factor).epsilon


def _without_sampling(spec: dps.Spec, records: int, size: int, delta: float) -> float:
    """The bound without amplification by sampling: every member in every batch."""
    parts = (theory.composed(phase, size, records) for phase in spec.phases)
    pairs = ((theory.without_amplification(pair), count) for phase in parts for pair, count in phase)
    return PrivacyLoss(tuple(pairs)).epsilon(delta).upper


def _ratio(epsilon: float, linear: float) -> float | None:
    return epsilon / linear if math.isfinite(epsilon) and math.isfinite(linear) and linear else None
