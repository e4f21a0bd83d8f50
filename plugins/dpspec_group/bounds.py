"""Upper bounds of the plugin as findings: epsilon per group size, delta and direction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import dpspec.contract as dps
from dpspec.accounting.interval import Interval
from dpspec.accounting.rigor import library_accuracy
from dpspec_group import theory

#: Deltas at which the upper curve is also computed, so that attacks can be held against all of it.
CURVE_DELTAS = (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)

#: Deltas of the privacy profile that is shown for every group size.
PROFILE_DELTAS = tuple(float(f"{digit}e-{power}") for power in range(1, 13) for digit in (3, 1))

#: The delta of the table by group size where no claim names one.
DEFAULT_DELTA = 1e-6

#: What the numbers are: true inequalities, with discretisation, cut tails and rounding charged.
RIGOR: Final = "certified"

_ASSUMPTIONS = (
    dps.Assumption(name="noise-scale", status="declared", text="Gaussian noise of the declared scale in every step"),
    dps.Assumption(name="fresh-noise", status="declared", text="noise is independent across steps"),
    dps.Assumption(name="clipping", status="declared", text="every record's gradient is clipped to the clip norm"),
    dps.Assumption(
        name="sampling", status="declared", text="batches are drawn by the declared scheme, afresh each step"
    ),
    dps.Assumption(name="steps", status="declared", text="exactly the declared number of updates is made"),
    dps.Assumption(name="public-constants", status="declared", text="rate, divisor and schedule do not depend on rows"),
)


def claimed_deltas(spec: dps.Spec, group_size: int) -> list[float]:
    """The deltas that claims about groups of this size name, or else those that any claim names; smallest first."""
    claims = [c for c in spec.claims if c.kind == "approx-dp"]
    own = {float(c["delta"]) for c in claims if c.group_size == group_size}
    return sorted(own or {float(c["delta"]) for c in claims})


def group_sizes(spec: dps.Spec) -> list[int]:
    """Every group size that the threat model or a claim names, in order."""
    return sorted({*spec.threat_model.group_size, *(c.group_size for c in spec.claims)})


@dataclass(frozen=True)
class Curves:
    """Epsilon by group size, direction and delta: every interval holds the worst case over data and adversaries.

    whole: the widest direction that was computed, ``both`` where claims or the threat model speak of both.
    """

    whole: str
    intervals: Mapping[int, Mapping[str, Mapping[float, Interval]]]


def curves(spec: dps.Spec, context: dps.Context) -> Curves:
    """Epsilon for every group size in every direction that is spoken of, at the deltas of claims, curve and profile."""
    phases, records = spec.phases, context.facts.records
    wanted = {c.direction for c in spec.claims} | {spec.threat_model.direction}
    directions = ("remove", "add") if "both" in wanted else tuple(sorted(wanted))
    intervals: dict[int, dict[str, dict[float, Interval]]] = {}
    sizes = group_sizes(spec)
    for done, size in enumerate(sizes):
        context.progress(done, len(sizes), "accounting")
        deltas = sorted({*claimed_deltas(spec, size), *CURVE_DELTAS, *PROFILE_DELTAS})
        found: dict[str, dict[float, Interval]] = {
            direction: dict(zip(deltas, theory.group_epsilons(phases, size, records, deltas, direction), strict=True))
            for direction in directions
        }
        if len(found) == 2:
            found["both"] = {delta: found["remove"][delta].worse(found["add"][delta]) for delta in deltas}
        intervals[size] = found
    context.progress(len(sizes), len(sizes), "accounting")
    return Curves("both" if len(directions) == 2 else directions[0], intervals)


def upper_bounds(spec: dps.Spec, found: Curves) -> Iterator[dps.Finding]:
    """Epsilon upper bounds for every group size: at the claims' deltas per direction, and along the curve."""
    for size, by_direction in found.intervals.items():
        claimed = claimed_deltas(spec, size)
        for direction, curve in by_direction.items():
            for delta, epsilon in curve.items():
                if delta in claimed or (direction == found.whole and delta in CURVE_DELTAS):
                    yield _finding(spec.phases, size, delta, direction, epsilon)


def profile_series(spec: dps.Spec, found: Curves) -> dps.Series:
    """Delta against epsilon for every group size, in the widest direction: points above the privacy profile.

    ``lower`` is the lower end of epsilon's interval, how tight ``epsilon`` is.
    """
    columns: dict[str, list[dps.Json]] = {name: [] for name in ("group_size", "epsilon", "lower", "delta")}
    for size, by_direction in found.intervals.items():
        for delta, epsilon in sorted(by_direction[found.whole].items(), reverse=True):
            if math.isfinite(epsilon.upper):
                for name, value in zip(columns, (size, epsilon.upper, epsilon.lower, delta), strict=True):
                    columns[name].append(value)
    return dps.Series(
        name="delta-against-epsilon",
        title="Delta against epsilon for each group size",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap({"group_size": "records", "epsilon": "", "lower": "", "delta": ""}),
        rigor=RIGOR,
        source=_source(spec.phases),
        plot=dps.FrozenMap({"x": "epsilon", "y": ["delta"], "by": "group_size", "log": ["y"]}),
    )


def size_series(spec: dps.Spec, records: int, findings: Sequence[dps.Finding]) -> dps.Series:
    """Epsilon against the group size at the largest delta that is claimed, with the baselines."""
    from dpspec_group.baselines import comparison

    delta = (claimed_deltas(spec, 1) or [DEFAULT_DELTA])[-1]
    direction = "both" if any(f.scope.direction == "both" for f in findings) else findings[0].scope.direction
    at = {f.at["group_size"]: f.value for f in findings if f.at["delta"] == delta and f.scope.direction == direction}
    sides = ("remove", "add") if direction == "both" else (direction,)
    one = at.get(1) or max(theory.group_epsilons(spec.phases, 1, records, [delta], side)[0].upper for side in sides)
    return comparison(spec, records, sorted(at.items()), one, delta)


def _finding(
    phases: Sequence[dps.FrozenMap], size: int, delta: float, direction: str, epsilon: Interval
) -> dps.Finding:
    return dps.Finding(
        quantity="epsilon",
        value=epsilon.upper,
        lower=epsilon.lower,
        bound="upper",
        rigor=RIGOR,
        at=dps.FrozenMap({"delta": delta, "group_size": size}),
        scope=dps.Scope(direction=direction, access="all-iterates", adversary="gradient"),
        method="pld/connect-the-dots",
        source=_source(phases),
        assumptions=(*_ASSUMPTIONS, library_accuracy()),
    )


def _source(phases: Sequence[dps.FrozenMap]) -> str:
    return "; ".join(theory.SOURCES[scheme] for scheme in sorted({phase["sampling"]["scheme"] for phase in phases}))
