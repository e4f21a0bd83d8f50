"""What people use today for groups, beside the tight bound: a table of epsilon against the group size.

The black-box conversions start from the guarantee of one record alone (Vadhan 2017, Lemma 2.2); the linear reference is
k times the epsilon of one record, which is no bound on either side. All of it is for comparison: a series, no finding,
so that it can decide no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import dpspec.contract as dps
from dpspec.accounting import blackbox
from dpspec.accounting.group import group_curve
from dpspec_group import theory


def comparison(
    spec: dps.Spec, records: int, tight: Sequence[tuple[int, float]], one: float, delta: float
) -> dps.Series:
    """Epsilon at ``delta`` against the group size: ours (upper bounds), and the baselines that the spec asks for.

    tight: the group sizes with their upper bounds; one: the upper bound of a single record. A conversion that finds
    no epsilon below k * 400 is null.
    """
    columns: dict[str, list[dps.Json]] = {
        "group_size": [size for size, _ in tight],
        "epsilon": [_finite(epsilon) for _, epsilon in tight],
    }
    for name in spec.mechanism.get("baselines", ()):
        value = _baseline(name, spec, records, one, delta)
        columns[name] = [_finite(value(size)) for size, _ in tight]
    if "linear" in columns:
        columns["ratio"] = [
            None if epsilon is None or not line else epsilon / line
            for epsilon, line in zip(columns["epsilon"], columns["linear"], strict=True)
        ]
    return dps.Series(
        name="epsilon-by-group-size",
        title=f"Epsilon by group size at delta {delta:g}".replace("e-0", "e-"),
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap({name: "records" if name == "group_size" else "" for name in columns}),
        rigor="certified" if len(columns) == 2 else "approximate",
        plot=dps.FrozenMap({"x": "group_size", "y": [name for name in columns if name not in ("group_size", "ratio")]}),
        source="; ".join([*sorted({theory.SOURCES[p["sampling"]["scheme"]] for p in spec.phases}), *_sources(columns)]),
    )


def _baseline(name: str, spec: dps.Spec, records: int, one: float, delta: float) -> Callable[[int], float]:
    if name == "linear":
        return lambda size: blackbox.linear_reference(one, size) if math.isfinite(one) else math.inf
    if not math.isfinite(one):
        return lambda size: math.inf
    if name == "full-batch":
        return lambda size: _without_sampling(spec, records, size, delta)
    pairs = [(theory.mixture(phase, 1, records), int(phase["steps"])) for phase in spec.phases]
    profile = blackbox.example_profile(pairs)
    factor: blackbox.Factor = "literal" if name == "vadhan-literal" else "sharp"
    return lambda size: blackbox.group_epsilon_from_profile(profile, size, delta, factor).epsilon


def _without_sampling(spec: dps.Spec, records: int, size: int, delta: float) -> float:
    """The bound that ignores amplification by sampling: every member in every batch."""
    pairs = [
        (theory.without_amplification(theory.mixture(phase, size, records)), int(phase["steps"]))
        for phase in spec.phases
    ]
    (epsilon,) = group_curve(pairs, [delta], "both")
    return epsilon.upper


def _sources(columns: dict[str, list[dps.Json]]) -> list[str]:
    return ["Vadhan 2017, Lemma 2.2"] if any(name.startswith("vadhan") for name in columns) else []


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
