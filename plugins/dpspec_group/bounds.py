"""Findings of the plugin: epsilon per group size, delta and direction, and claimed mu, rates and advantages.

``docs/explanation/proofs/groups.md`` has the scopes of the upper bounds and the datasets that attain the lower ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Interval, PrivacyLoss, certified_lower, certified_upper
from dpspec.kit import CURVE_DELTAS
from dpspec.training.loop.learning_rates import iterates_reveal_sums
from dpspec_group import theory
from dpspec_group.schemes import allocates, has_lower, scheme_of, truncates

#: Deltas of the privacy profile that is shown for every group size.
PROFILE_DELTAS = tuple(float(f"{digit}e-{power}") for power in range(1, 13) for digit in (3, 1))

#: Delta at which the epsilon implied by mu is reported if no claim names one.
_DEFAULT_DELTA = 1e-5

#: Source of a trivial bound without a theorem.
_UNKNOWN = "no theorem"


@dataclass(frozen=True)
class Curves:
    """Intervals of epsilon by group size, direction and delta; ``whole`` is the direction with all deltas."""

    whole: str
    intervals: Mapping[int, Mapping[str, Mapping[float, Interval]]]


def epsilon_curves(spec: dps.Spec, context: dps.Context) -> Curves:
    """Epsilon for every group size and direction at the deltas of claims, curve and profile.

    Claimed values have the width ``theory.WIDTH`` in each direction, other values ``theory.CURVE_WIDTH`` for the
    larger of both.
    """
    phases, records = spec.phases, context.facts.records
    wanted = {c.direction for c in spec.claims} | {spec.threat_model.direction}
    directions = ("remove", "add") if "both" in wanted else tuple(sorted(wanted))
    whole = "both" if len(directions) == 2 else directions[0]
    intervals: dict[int, dict[str, dict[float, Interval]]] = {}
    sizes = sorted({*spec.threat_model.group_size, *(c.group_size for c in spec.claims)})
    nothing = theory.uncovered(phases, adjacencies(spec))
    for done, size in enumerate(sizes):
        context.progress(done, len(sizes), "accounting")
        named = kit.claimed_deltas(spec, size, default=None)
        deltas = sorted({*named, *CURVE_DELTAS, *PROFILE_DELTAS})
        if nothing:
            anything = dict.fromkeys(deltas, Interval(0.0, math.inf).by(nothing))
            intervals[size] = dict.fromkeys((*directions, whole), anything)
            continue
        # The lower bound on mu uses the whole curve of a direction.
        whole_curve = any("mu" in claim.options and claim.group_size == size for claim in spec.claims)
        claimed = set(deltas if whole_curve else named)
        widths = [theory.WIDTH if delta in claimed else theory.CURVE_WIDTH for delta in deltas]
        first = theory.group_epsilons(phases, size, records, deltas, directions[0], widths=widths)
        if len(directions) == 1:
            intervals[size] = {whole: dict(zip(deltas, first, strict=True))}
            continue
        others = [None if delta in claimed else known for delta, known in zip(deltas, first, strict=True)]
        second = theory.group_epsilons(
            phases, size, records, deltas, directions[1], widths=widths, other_direction=others
        )
        intervals[size] = {
            direction: {delta: one for delta, one in zip(deltas, curve, strict=True) if delta in claimed}
            for direction, curve in zip(directions, (first, second), strict=True)
        }
        worse = (one.worse(other) for one, other in zip(first, second, strict=True))
        intervals[size][whole] = dict(zip(deltas, worse, strict=True))
    context.progress(len(sizes), len(sizes), "accounting")
    return Curves(whole, intervals)


def upper_bounds(spec: dps.Spec, curves: Curves, records: int) -> Iterator[dps.Finding]:
    nothing = theory.uncovered(spec.phases, adjacencies(spec))
    for size, by_direction in curves.intervals.items():
        claimed = kit.claimed_deltas(spec, size, default=None)
        for direction, curve in by_direction.items():
            for delta, epsilon in curve.items():
                if delta in claimed or (direction == curves.whole and delta in CURVE_DELTAS):
                    for adjacency in adjacencies(spec):
                        for scope in _all_datasets(direction) if nothing else scopes(spec, size, records, direction):
                            finding = _upper(spec.phases, size, delta, epsilon, replace(scope, adjacency=adjacency))
                            yield replace(finding, source=_UNKNOWN) if nothing else finding


def lower_bounds(spec: dps.Spec, curves: Curves, records: int) -> Iterator[dps.Finding]:
    """Lower bounds on epsilon for claims about all iterates, if the worst case is attained."""
    least = attaining_records(spec)
    if least is None:
        return
    asked = [c for c in spec.claims if c.kind == "approx-dp" and c.access != "final-model"]
    points = {(c.group_size, c.direction, float(c["delta"]), c.adjacency, c.access) for c in asked}
    for size, direction, delta, adjacency, access in sorted(points):
        interval = curves.intervals[size][direction][delta]
        scope = replace(next(scopes(spec, size, records, direction)), adjacency=adjacency, access=access)
        scope = attained_scope(spec.phases, size, records, scope)
        upper = _upper(spec.phases, size, delta, interval, scope)
        lower = certified_lower(upper, interval, source=attained_source(spec.phases), min_records=least)
        if lower is not None:
            yield lower


def whole_curve_bounds(spec: dps.Spec, curves: Curves, records: int) -> Iterator[dps.Finding]:
    """Upper bounds on the claimed mu, rates and advantages, and lower bounds if the worst case is attained.

    No bounds for phases without noise; infinite upper bounds if no theorem applies.
    """
    if any(phase.noise_multiplier < theory.NO_NOISE for phase in spec.phases):
        return
    least, nothing = attaining_records(spec), theory.uncovered(spec.phases, adjacencies(spec))
    asked: set[tuple[str, int, str, str, float]] = set()
    for claim in spec.claims:
        about, rates = (claim.group_size, claim.direction, claim.adjacency), kit.claimed_fprs([claim])
        asked.update(("tpr", *about, fpr) for fpr in rates)
        if "mu" in claim.options:
            asked.add(("mu", *about, 0.0))
        if "advantage" in claim.options and not rates:
            asked.add(("advantage", *about, 0.0))
    for quantity, size, direction, adjacency, fpr in sorted(asked):
        method = ""
        at: dict[str, dps.Json] = {"group_size": size}
        if quantity == "tpr":
            at = {"fpr": fpr, **at}
        if nothing:
            interval = Interval(0.0, math.inf).by(nothing)
        elif quantity == "mu":
            curve = curves.intervals[size][direction]
            interval = theory.mu_interval(spec.phases, size, records, curve)
            # the method shows the implied and the certified epsilon at one delta
            delta = kit.claimed_deltas(spec, size, default=_DEFAULT_DELTA)[-1]
            implied = PrivacyLoss.gaussian(1.0 / interval.upper).epsilon(delta).upper
            certified = f" (certified: {curve[delta].upper:.4g})" if delta in curve else ""
            where = f"{delta:g}".replace("e-0", "e-")
            method = f"without amplification by sampling; implies epsilon {implied:.4g} at delta {where}{certified}"
        elif quantity == "advantage":
            # equal in both directions
            advantage = theory.loss_intervals(spec.phases, size, records, "remove", lambda loss: [loss.advantage()])
            interval = advantage[0]
        else:
            interval = theory.tpr_interval(spec.phases, size, records, fpr, direction)
        uppers = [
            certified_upper(
                quantity,
                interval,
                at=at,
                scope=replace(scope, adjacency=adjacency),
                source=_UNKNOWN if nothing else theory.MU_SOURCE if quantity == "mu" else theory.source_of(spec.phases),
                assumptions=kit.ASSUMPTIONS,
                method=method,
            )
            for scope in (_all_datasets(direction) if nothing else scopes(spec, size, records, direction))
        ]
        yield from uppers
        if least is not None and not nothing:
            upper = replace(uppers[0], scope=attained_scope(spec.phases, size, records, uppers[0].scope))
            lower = certified_lower(upper, interval, source=attained_source(spec.phases), min_records=least)
            if lower is not None:
                yield lower


def dominating(spec: dps.Spec, records: int, claim: dps.Claim) -> dps.audit.Dominating | None:
    phases, size = spec.phases, claim.group_size
    if theory.uncovered(phases, [claim.adjacency]) or any(phase.noise_multiplier < theory.NO_NOISE for phase in phases):
        return None
    return dps.audit.Dominating(
        phases=theory.composed(phases, size, records),
        scopes=tuple(
            replace(scope, adjacency=claim.adjacency) for scope in scopes(spec, size, records, claim.direction)
        ),
        source=theory.source_of(phases),
        assumptions=kit.ASSUMPTIONS,
    )


def profile_series(spec: dps.Spec, curves: Curves) -> dps.Series:
    """Delta against epsilon for every group size: upper bounds on the privacy profile."""
    rows = [
        (size, epsilon.upper, epsilon.lower, delta)
        for size, by_direction in curves.intervals.items()
        for delta, epsilon in sorted(by_direction[curves.whole].items(), reverse=True)
        if math.isfinite(epsilon.upper)
    ]
    return kit.series(
        "delta-against-epsilon",
        "Delta against epsilon for each group size",
        kit.columns_of(("group_size", "epsilon", "lower", "delta"), rows),
        units={"group_size": "records"},
        rigor="certified",
        source=theory.source_of(spec.phases),
        x="epsilon",
        y=["delta"],
        by="group_size",
        log=["y"],
        upper=["epsilon"],
        lower=["lower"],
    )


def attaining_records(spec: dps.Spec) -> int | None:
    """Minimum number of records of datasets that attain the worst case, as named by claims.

    0 keeps the scope's number (fixed-size and truncated batches). None if the worst case is not attained.
    """
    schemes = [scheme_of(phase) for phase in spec.phases]
    # Worst cases of phases that need different gradients of the other records do not combine.
    mixed = any(a.displaces for a in schemes) and any(not a.displaces and a.sampled for a in schemes)
    if not iterates_reveal_sums(spec.training.options, spec.steps) or mixed or not has_lower(spec.phases):
        return None
    if any(scheme.displaces or scheme.interval for scheme in schemes):
        return 0
    return max((claim.min_records for claim in spec.claims), default=0)


def attained_scope(phases: Sequence[dps.Phase], size: int, records: int, scope: dps.Scope) -> dps.Scope:
    """Scope of the lower bound for an upper bound's scope; truncated batches need datasets of a minimum size."""
    return replace(scope, data="all", min_records=max(records - size, 0)) if truncates(phases) else scope


def attained_source(phases: Sequence[dps.Phase]) -> str:
    where = "dpspec.accounting.TruncatedPoisson" if truncates(phases) else "section 3.3"
    if allocates(phases):
        where += ", dpspec.accounting.RandomAllocation"
    return f"{theory.source_of(phases)}; attained: {where}"


def adjacencies(spec: dps.Spec) -> list[str]:
    """Adjacencies of the threat model and the claims. Bounds are equal for all covered adjacencies."""
    return sorted({spec.threat_model.adjacency, *(claim.adjacency for claim in spec.claims)})


def scopes(spec: dps.Spec, size: int, records: int, direction: str) -> Iterator[dps.Scope]:
    """Scopes of a bound: all datasets, or datasets of a minimum size and separately the declared dataset.

    If the other drawn records are independent of the group, the bound also holds for access ``transcript``. The
    bound for truncated batches needs a maximum size, which scopes cannot express, so it covers only the declared
    dataset.
    """
    phases = spec.phases
    least = max(scheme_of(phase).min_records(size, records) for phase in phases)
    access = "transcript" if spec.threat_model.access == "transcript" else "all-iterates"
    scope = dps.Scope(direction=direction, access=access, adversary="gradient", min_records=least)
    if truncates(phases):
        yield replace(scope, data="this", min_records=0)
        return
    yield scope
    if least > 0:
        yield replace(scope, data="this", min_records=0)


def _all_datasets(direction: str) -> list[dps.Scope]:
    return [dps.Scope(direction=direction, access="all-iterates", adversary="gradient")]


def _upper(phases: Sequence[dps.Phase], size: int, delta: float, epsilon: Interval, scope: dps.Scope) -> dps.Finding:
    at: dict[str, dps.Json] = {"delta": delta, "group_size": size}
    source = theory.source_of(phases)
    return certified_upper("epsilon", epsilon, at=at, scope=scope, source=source, assumptions=kit.ASSUMPTIONS)
