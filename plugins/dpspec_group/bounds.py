"""Upper bounds of the plugin as findings: epsilon per group size, delta and direction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dpspec.contract as dps
from dpspec.accounting.interval import Interval
from dpspec_group import theory

#: Deltas at which the upper curve is also computed, so that attacks can be held against all of it.
CURVE_DELTAS = (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)

#: The delta of the table by group size where no claim names one.
DEFAULT_DELTA = 1e-6

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


def upper_bounds(spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding]:
    """Epsilon upper bounds for every group size: at the claims' deltas per direction, and along the curve."""
    phases, records = spec.phases, context.facts.records
    wanted = {c.direction for c in spec.claims} | {spec.threat_model.direction}
    sizes = group_sizes(spec)
    for done, size in enumerate(sizes):
        context.progress(done, len(sizes), "accounting")
        deltas = sorted({*claimed_deltas(spec, size), *CURVE_DELTAS})
        curves = {
            direction: theory.group_epsilons(phases, size, records, deltas, direction)
            for direction in (("remove", "add") if "both" in wanted else sorted(wanted))
        }
        if len(curves) == 2:
            pairs = zip(curves["remove"], curves["add"], strict=True)
            curves["both"] = [Interval(max(a.lower, b.lower), max(a.upper, b.upper)) for a, b in pairs]
        whole = "both" if "both" in curves else next(iter(curves))
        for direction, curve in curves.items():
            for delta, epsilon in zip(deltas, curve, strict=True):
                if direction == whole or delta in claimed_deltas(spec, size):
                    yield _finding(phases, size, delta, direction, epsilon)
    context.progress(len(sizes), len(sizes), "accounting")


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
    schemes = sorted({phase["sampling"]["scheme"] for phase in phases})
    return dps.Finding(
        quantity="epsilon",
        value=epsilon.upper,
        lower=epsilon.lower,
        bound="upper",
        rigor="theorem",
        at=dps.FrozenMap({"delta": delta, "group_size": size}),
        scope=dps.Scope(direction=direction, access="all-iterates", adversary="gradient"),
        method="pld/connect-the-dots",
        source="; ".join(theory.SOURCES[scheme] for scheme in schemes),
        assumptions=_ASSUMPTIONS,
    )
