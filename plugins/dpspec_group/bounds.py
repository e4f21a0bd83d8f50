"""Findings of the plugin: epsilon per group size, delta and direction, and claimed mu, rates and advantages.

``docs/explanation/proofs/groups.md`` has the scopes of the upper bounds and the datasets that attain the lower ones.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import dpspec.contract as dps
from dpspec import decimals, kit
from dpspec.accounting import Interval, PrivacyLoss, certified_lower, certified_upper
from dpspec.kit import CURVE_DELTAS
from dpspec.sampling import scheme_of
from dpspec.training.providers import iterates_reveal_sums
from dpspec_group import theory
from dpspec_group.options import DEFAULT_DELTA

#: Deltas of the privacy profile that is shown for every group size.
PROFILE_DELTAS = (
    *(0.99, 0.9, 0.7, 0.5, 0.2, 0.05),  # for the success rate of an attacker
    *(float(f"{digit}e-{power}") for power in range(1, 13) for digit in (3, 1)),
)


#: Name of the series of epsilon against the group size.
SIZE_SERIES = "epsilon-by-group-size"

#: Assumptions of bounds on DP-SGD with discrete Gaussian noise.
_DISCRETE = kit.dp_sgd_assumptions(
    noise_scale="discrete Gaussian noise of the declared scale in every step",
    clipping="every record's gradient is clipped to the clip norm and rounded to the grid of the noise, alone",
    exact_arithmetic="contributions and noise are integers, drawn and added exactly",
)

#: Method of lower ends for shuffled batches under add-remove adjacency.
_LAST = "sizes of the epochs' last batches"


@dataclass(frozen=True)
class Accounted:
    """A spec with its phases as theorems need them, and the number of records.

    Attributes:
        adjacencies: Adjacencies of the threat model and the claims. Bounds are equal for all covered adjacencies.
        uncovered: Reason why no theorem bounds the phases; empty if a theorem does.
        source: Source of the bounds.
    """

    spec: dps.Spec
    phases: tuple[dps.Phase, ...]
    records: int
    adjacencies: tuple[str, ...]
    uncovered: str
    source: str

    @classmethod
    def of(cls, spec: dps.Spec, records: int) -> "Accounted":
        phases = theory.accounted(spec)
        adjacencies = tuple(sorted({spec.threat_model.adjacency, *(claim.adjacency for claim in spec.claims)}))
        return cls(spec, phases, records, adjacencies, theory.uncovered(phases, adjacencies), theory.source_of(phases))


@dataclass(frozen=True)
class Curves:
    """Intervals of epsilon by group size, direction and delta; ``whole`` is the direction with all deltas."""

    accounted: Accounted
    whole: str
    intervals: Mapping[int, Mapping[str, Mapping[float, Interval]]]


def directions_of(spec: dps.Spec) -> tuple[tuple[str, ...], str]:
    """The directions of the threat model and the claims, and the one with all deltas: ``both`` if there are two."""
    asked_directions = {c.direction for c in spec.claims} | {spec.threat_model.direction}
    directions = ("remove", "add") if "both" in asked_directions else tuple(sorted(asked_directions))
    return directions, "both" if len(directions) == 2 else directions[0]


def epsilon_curves(spec: dps.Spec, context: dps.Context) -> Curves:
    """Epsilon by group size and direction; claimed values have the width ``theory.WIDTH``, others ``CURVE_WIDTH``."""
    accounted = Accounted.of(spec, context.facts.records)
    phases, records = accounted.phases, accounted.records
    directions, whole = directions_of(spec)
    intervals: dict[int, dict[str, dict[float, Interval]]] = {}
    sizes = sorted({*spec.threat_model.group_size, *(c.group_size for c in spec.claims)})
    for done, size in enumerate(sizes):
        context.progress(done, len(sizes), "accounting")
        named = kit.claimed_deltas(spec, size, default=None)
        deltas = sorted({*named, *CURVE_DELTAS, *PROFILE_DELTAS})
        if accounted.uncovered:
            question = functools.partial(PrivacyLoss.epsilons, deltas=deltas)
            curve = dict(zip(deltas, _without_theorem(accounted, size, question), strict=True))
            intervals[size] = dict.fromkeys((*directions, whole), curve)
            continue
        # The lower bound on mu uses the whole curve of a direction.
        whole_curve = any("mu" in claim.options and claim.group_size == size for claim in spec.claims)
        claimed = set(deltas if whole_curve else named)
        widths = [theory.WIDTH if delta in claimed else theory.CURVE_WIDTH for delta in deltas]
        first = theory.group_epsilons(phases, size, records, deltas, directions[0], width=widths)
        if len(directions) == 1 or theory.is_replaced(phases):  # replacing back is replacing
            curve = dict(zip(deltas, first, strict=True))
            intervals[size] = dict.fromkeys((*directions, whole), curve)
            continue
        first_unclaimed = [None if delta in claimed else epsilon for delta, epsilon in zip(deltas, first, strict=True)]
        second = theory.group_epsilons(
            phases, size, records, deltas, directions[1], width=widths, other_direction=first_unclaimed
        )
        intervals[size] = {
            direction: {delta: epsilon for delta, epsilon in zip(deltas, curve, strict=True) if delta in claimed}
            for direction, curve in zip(directions, (first, second), strict=True)
        }
        worse = (epsilon.worse(opposite) for epsilon, opposite in zip(first, second, strict=True))
        intervals[size][whole] = dict(zip(deltas, worse, strict=True))
    context.progress(len(sizes), len(sizes), "accounting")
    if theory.is_discrete(phases):
        intervals = {
            size: {
                direction: {delta: _upper_end(epsilon) for delta, epsilon in curve.items()}
                for direction, curve in by_direction.items()
            }
            for size, by_direction in intervals.items()
        }
    return Curves(accounted, whole, intervals)


def _upper_end(interval: Interval) -> Interval:
    """The interval without a lower end, which is the one of Gaussian noise."""
    return Interval(0.0, interval.upper, interval.method, "no lower bound is known")


def _without_theorem(
    accounted: Accounted, size: int, question: Callable[[PrivacyLoss], list[Interval]]
) -> list[Interval]:
    """Infinite upper ends. Lower ends are by last batches, or 0 if adjacencies are mixed."""
    mu, _ = theory.last_batches(accounted.phases, size, accounted.records)
    has_lower_end = accounted.adjacencies == ("add-remove",) and mu > 0.0
    values = question(PrivacyLoss.gaussian(1.0 / mu if has_lower_end else 1.0))
    return [Interval(value.lower if has_lower_end else 0.0, math.inf, accounted.uncovered, _LAST) for value in values]


def upper_bounds(curves: Curves) -> Iterator[dps.Finding]:
    for size, by_direction in curves.intervals.items():
        claimed = kit.claimed_deltas(curves.accounted.spec, size, default=None)
        for direction, curve in by_direction.items():
            for delta, epsilon in curve.items():
                if delta in claimed or (direction == curves.whole and delta in CURVE_DELTAS):
                    arguments: dict[str, dps.Json] = {"delta": delta, "group_size": size}
                    for adjacency in curves.accounted.adjacencies:
                        yield from _upper(curves.accounted, "epsilon", epsilon, arguments, direction, adjacency)


def lower_bounds(curves: Curves) -> Iterator[dps.Finding]:
    """Lower bounds on epsilon for claims about all iterates, if the worst case is attained."""
    accounted = curves.accounted
    approximate_claims = [c for c in accounted.spec.claims if c.kind == "approx-dp" and c.access != "final-model"]
    points = {(c.group_size, c.direction, float(c["delta"]), c.adjacency, c.access) for c in approximate_claims}
    for size, direction, delta, adjacency, access in sorted(points):
        interval, arguments = curves.intervals[size][direction][delta], {"delta": delta, "group_size": size}
        upper, *_ = _upper(accounted, "epsilon", interval, arguments, direction, adjacency)
        yield from _lower(accounted, replace(upper, scope=replace(upper.scope, access=access)), interval)


def whole_curve_bounds(curves: Curves) -> Iterator[dps.Finding]:
    """Bounds on the claimed mu, rho, divergences, rates and advantages.

    None without noise, and infinite ones if no theorem applies.
    """
    accounted = curves.accounted
    spec, phases, records, uncovered = accounted.spec, accounted.phases, accounted.records, accounted.uncovered
    if any(phase.noise_multiplier < theory.NO_NOISE for phase in phases):
        return
    queries: set[tuple[str, int, str, str, float]] = set()
    for claim in spec.claims:
        about, rates = (claim.group_size, claim.direction, claim.adjacency), kit.claimed_fprs([claim])
        queries.update(("tpr", *about, fpr) for fpr in rates)
        if "mu" in claim.options:
            queries.add(("mu", *about, 0.0))
        if "rho" in claim.options:
            queries.add(("rho", *about, 0.0))
        if claim.kind == "renyi-dp":
            queries.add(("epsilon", *about, float(claim["alpha"])))
        if "advantage" in claim.options and not rates:
            queries.add(("advantage", *about, 0.0))
    for quantity, size, direction, adjacency, argument in sorted(queries):
        method, source = "", theory.MU_SOURCE if quantity in ("mu", "rho") else ""
        condition = {"tpr": "fpr", "epsilon": "alpha"}.get(quantity)
        arguments: dict[str, dps.Json] = (
            {condition: argument, "group_size": size} if condition else {"group_size": size}
        )
        if uncovered and quantity == "mu":
            mu, _ = theory.last_batches(phases, size, records)
            interval = Interval(mu if accounted.adjacencies == ("add-remove",) else 0.0, math.inf, uncovered, _LAST)
        elif uncovered and quantity in ("rho", "epsilon"):
            interval = Interval(0.0, math.inf).by(uncovered)
        elif uncovered:
            powers = functools.partial(PrivacyLoss.reros, kappas=[argument], direction="both")
            of_tests = powers if quantity == "tpr" else lambda loss: [loss.advantage()]
            (interval,) = _without_theorem(accounted, size, of_tests)
        elif quantity == "mu":
            curve = curves.intervals[size][direction]
            interval = theory.mu_interval(phases, size, records, curve)
            # the method shows the implied and the certified epsilon at one delta
            delta = kit.claimed_deltas(spec, size)[-1]
            implied = PrivacyLoss.gaussian(1.0 / interval.upper).epsilon(delta).upper
            certified = f" (certified: {decimals.upper(curve[delta].upper)})" if delta in curve else ""
            method = f"without amplification by sampling; implies epsilon {decimals.upper(implied)} at delta "
            method += f"{decimals.exact(delta)}{certified}"
        elif quantity == "rho":
            interval = theory.rho_interval(phases, size, records, direction)
        elif quantity == "epsilon":
            interval = theory.rdp_interval(phases, size, records, argument, direction)
        elif quantity == "advantage":
            # equal in both directions
            (interval,) = theory.loss_intervals(phases, size, records, "remove", lambda loss, *_: [loss.advantage()])
        else:
            interval = theory.tpr_interval(phases, size, records, argument, direction)
        if theory.is_discrete(phases):
            interval = _upper_end(interval)
        uppers = list(_upper(accounted, quantity, interval, arguments, direction, adjacency, source, method))
        yield from uppers
        yield from _lower(accounted, uppers[0], interval)


def _upper(
    accounted: Accounted,
    quantity: str,
    interval: Interval,
    arguments: Mapping[str, dps.Json],
    direction: str,
    adjacency: str,
    source: str = "",
    method: str = "",
) -> Iterator[dps.Finding]:
    """An upper bound for each scope, or an infinite one for all datasets if no theorem applies."""
    scopes, source = _scopes(accounted, int(arguments["group_size"]), direction), source or accounted.source
    if accounted.uncovered:
        scopes = [dps.Scope(direction=direction, access="all-iterates", adversary="gradient")]
        source = "no theorem"
    for scope in scopes:
        yield certified_upper(
            quantity,
            interval,
            at=arguments,
            scope=replace(scope, adjacency=adjacency),
            source=source,
            assumptions=_assumptions(accounted),
            method=method,
        )


def _lower(accounted: Accounted, upper: dps.Finding, interval: Interval) -> Iterator[dps.Finding]:
    """The lower bound if the worst case is attained, for datasets of the claimed size or of the scope's minimum."""
    spec, phases, records, scope = accounted.spec, accounted.phases, accounted.records, upper.scope
    samplings = [phase.sampling for phase in phases]
    schemes = [scheme_of(phase) for phase in spec.phases]
    truncated = any(sampling.max_batch is not None for sampling in samplings)
    # Worst cases of phases that need different gradients of the other records do not combine.
    other_gradients = {scheme.other_gradients for scheme in schemes}
    if {"zero", "opposite"} <= other_gradients or not iterates_reveal_sums(spec.training.options, spec.steps):
        return
    if any(phase.clipping_scheme == "adaptive" for phase in spec.phases):
        # Every other record moves the count, and hides it if the number of drawn ones is random.
        fixed_count = all("exact_sizes" in scheme.checks for scheme in schemes)
        plain = any(not (phase.get("clipping") or {}).get("centered", True) for phase in spec.phases)
        if plain or (not fixed_count and (truncated or any(claim.min_records for claim in spec.claims))):
            return
        interval = replace(interval, lower=interval.lower * (1.0 - 1e-12))  # the joint noise was rounded down
    sizes_matter = "opposite" in other_gradients or truncated
    least = 0 if sizes_matter else max((claim.min_records for claim in spec.claims), default=0)
    attained_in = (theory.theory_of(phase).attained_in for phase in phases)
    where = next((source for source in attained_in if source), "section 3.3")
    if any(sampling.is_shuffled for sampling in samplings):
        _, smaller = theory.last_batches(phases, int(upper.at["group_size"]), records)
        least = smaller if scope.adjacency == "add-remove" else records
    if truncated:
        scope = replace(scope, data="all", min_records=max(records - int(upper.at["group_size"]), 0))
    if any(phase.clipping_scheme == "adaptive" for phase in spec.phases):
        where += ", proofs/adaptive-clipping.md"
    if "random-allocation" in theory.drawn(phases):
        where += ", dpspec.accounting.RandomAllocation"
    lower = certified_lower(
        replace(upper, scope=scope),
        interval,
        source=f"{accounted.source}; attained: {where}",
        min_records=least,
    )
    if lower is not None:
        yield lower


def dominating(spec: dps.Spec, records: int, claim: dps.Claim) -> dps.audit.Dominating | None:
    accounted, size = Accounted.of(spec, records), claim.group_size
    phases = accounted.phases
    if theory.uncovered(phases, [claim.adjacency]) or any(phase.noise_multiplier < theory.NO_NOISE for phase in phases):
        return None
    scopes = _scopes(accounted, size, claim.direction)
    return dps.audit.Dominating(
        phases=theory.composed(phases, size, records),
        scopes=tuple(replace(scope, adjacency=claim.adjacency) for scope in scopes),
        source=accounted.source,
        assumptions=_assumptions(accounted),
    )


def _assumptions(accounted: Accounted) -> tuple[dps.Assumption, ...]:
    return _DISCRETE if theory.is_discrete(accounted.phases) else kit.ASSUMPTIONS


def _scopes(accounted: Accounted, size: int, direction: str) -> list[dps.Scope]:
    """All datasets, or datasets of a minimum size and separately the declared one.

    If the other drawn records are independent of the group, the bound also covers transcripts. Truncated batches need a
    maximum size, which scopes lack: only the declared dataset.
    """
    least = max(theory.theory_of(phase).min_records(accounted.records, size) for phase in accounted.phases)
    access = "transcript" if accounted.spec.threat_model.access == "transcript" else "all-iterates"
    scope = dps.Scope(direction=direction, access=access, adversary="gradient", min_records=least)
    this = replace(scope, data="this", min_records=0)
    if any(phase.sampling.max_batch is not None for phase in accounted.phases):
        return [this]
    return [scope, this] if least > 0 else [scope]


def profile_series(curves: Curves) -> dps.Series:
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
        source=curves.accounted.source,
        x="epsilon",
        y=["delta"],
        by="group_size",
        log=["y"],
        upper=["epsilon"],
        lower=["lower"],
    )


def size_series(curves: Curves, findings: Sequence[dps.Finding]) -> dps.Series:
    """Epsilon against the group size at the largest claimed delta, in the direction ``whole``."""
    delta = size_delta(curves.accounted.spec)
    epsilon_by_size = {
        f.at["group_size"]: f.value for f in findings if f.at["delta"] == delta and f.scope.direction == curves.whole
    }
    sizes = sorted(epsilon_by_size)
    return kit.series(
        SIZE_SERIES,
        f"Epsilon by group size at delta {delta:g}".replace("e-0", "e-"),
        {"group_size": [*sizes], "epsilon": [epsilon_by_size[size] for size in sizes]},
        units={"group_size": "records"},
        rigor="certified",
        source=curves.accounted.source,
        x="group_size",
        y=["epsilon"],
        upper=["epsilon"],
    )


def size_delta(spec: dps.Spec) -> float:
    """The delta of the series of epsilon against the group size: the largest claimed one."""
    return kit.claimed_deltas(spec, 1, default=DEFAULT_DELTA)[-1]
