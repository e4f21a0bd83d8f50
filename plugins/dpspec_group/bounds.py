"""Bounds of the plugin as findings: epsilon per group size, delta and direction, and where it is attained.

*For whom an upper bound holds.* Poisson and full batches: for all data sets (Ganesh 2024, Theorem 3.1, which asks
nothing of their size), and as well for members who stay and count for nothing (zero-out): a sum has the same law then.
Batches of a fixed size B: for pairs of which the smaller data set has at least n records
(Theorem 3.3), with n the declared number less the group, so that the declared data and all its neighbours are among
them. The bound grows as n falls: it says nothing of smaller data sets. Truncated Poisson batches: for pairs of which
the smaller data set has at most as many records as are declared, so for the declared data and its neighbours; in larger
ones more batches are full. Records that stay and count for nothing are not covered there. Shuffled batches: for
those alone, without amplification, and for data sets of at least the declared records; nothing is said from below.

*Where it is attained* (section 3.3, here for vectors, phases and any update that can be undone). Let u be a vector of
length one, and let a step clip to C and add noise of deviation sigma C. The adversary gives

* Poisson, full: each of the k members of the group the gradient C u, every other record 0;
* truncated Poisson, with as many other records as are declared less the group: the same, and the lower end is what it
  attains: between it and the upper end nobody knows;
* fixed, with exactly n other records: each member C u, every other record -C u.

Each gradient is within C and is left as it is. Along u the noisy sum is, over C, N(0, sigma^2) without the group and
N(j, sigma^2) with j members in the batch, j ~ Binomial(k, q), or k in full batches; in batches of a fixed size, B
added, N(2j, sigma^2) with j ~ Hypergeometric(B, n + k, k). Orthogonally to u it is the same noise with and without the
group. Nothing of it depends on the models so far, so that steps are independent: the noisy sums of all steps are
exactly the composition of the one-step pairs, and whoever sees all models knows the noisy sums where updates can be
undone (:func:`~dpspec.training.loop.learning_rates.shows_every_sum`). So epsilon of this pair of data sets and this
adversary is the value in the interval, and its lower end is a lower bound. Poisson and full batches allow any number of
other records, and members who stay and whose gradients are 0 (zero-out) in the place of those who leave. Phases with
batches of a fixed size and phases with Poisson ones ask for other gradients of the others: of both together nothing is
claimed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Interval, certified_lower, certified_upper
from dpspec.kit import CURVE_DELTAS
from dpspec.training.loop.learning_rates import shows_every_sum
from dpspec_group import theory

#: Deltas of the privacy profile that is shown for every group size.
PROFILE_DELTAS = tuple(float(f"{digit}e-{power}") for power in range(1, 13) for digit in (3, 1))


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


def epsilon_curves(spec: dps.Spec, context: dps.Context) -> Curves:
    """Epsilon for every group size in every direction that is spoken of, at the deltas of claims, curve and profile."""
    phases, records = spec.phases, context.facts.records
    wanted = {c.direction for c in spec.claims} | {spec.threat_model.direction}
    directions = ("remove", "add") if "both" in wanted else tuple(sorted(wanted))
    intervals: dict[int, dict[str, dict[float, Interval]]] = {}
    sizes = group_sizes(spec)
    for done, size in enumerate(sizes):
        context.progress(done, len(sizes), "accounting")
        deltas = sorted({*kit.claimed_deltas(spec, size, default=None), *CURVE_DELTAS, *PROFILE_DELTAS})
        by_direction: dict[str, dict[float, Interval]] = {
            direction: dict(zip(deltas, theory.group_epsilons(phases, size, records, deltas, direction), strict=True))
            for direction in directions
        }
        if len(by_direction) == 2:
            remove, add = by_direction["remove"], by_direction["add"]
            by_direction["both"] = {delta: remove[delta].worse(add[delta]) for delta in deltas}
        intervals[size] = by_direction
    context.progress(len(sizes), len(sizes), "accounting")
    return Curves("both" if len(directions) == 2 else directions[0], intervals)


def upper_bounds(spec: dps.Spec, curves: Curves, records: int) -> Iterator[dps.Finding]:
    """Epsilon upper bounds for every group size: at the claims' deltas per direction, and along the curve.

    records: how many the declared data holds.
    """
    for size, by_direction in curves.intervals.items():
        claimed = kit.claimed_deltas(spec, size, default=None)
        for direction, curve in by_direction.items():
            for delta, epsilon in curve.items():
                if delta in claimed or (direction == curves.whole and delta in CURVE_DELTAS):
                    for adjacency in adjacencies(spec):
                        for scope in scopes(spec.phases, size, records, direction):
                            yield _upper(spec.phases, size, delta, epsilon, replace(scope, adjacency=adjacency))


def lower_bounds(spec: dps.Spec, curves: Curves, records: int) -> Iterator[dps.Finding]:
    """Epsilon lower bounds where claims about all iterates speak, if the worst case is attained: see the module."""
    least = attaining_records(spec)
    if least is None:
        return
    asked = [c for c in spec.claims if c.kind == "approx-dp" and c.access == "all-iterates"]
    points = {(c.group_size, c.direction, float(c["delta"]), c.adjacency) for c in asked}
    for size, direction, delta, adjacency in sorted(points):
        interval = curves.intervals[size][direction][delta]
        scope = replace(next(scopes(spec.phases, size, records, direction)), adjacency=adjacency)
        scope = attained_scope(spec.phases, size, records, scope)
        upper = _upper(spec.phases, size, delta, interval, scope)
        lower = certified_lower(upper, interval, source=attained_source(spec.phases), min_records=least)
        if lower is not None:
            yield lower


def attaining_records(spec: dps.Spec) -> int | None:
    """How many records the data sets that attain the worst case can have, of as many as claims speak of; 0 keeps the
    scope's own number, as batches of a fixed or largest size do. None where it is not attained: see the module."""
    schemes = {phase.sampling.scheme for phase in spec.phases}
    if not shows_every_sum(spec.training.options, spec.steps) or _mixed(schemes) or "shuffled" in schemes:
        return None
    if schemes & {"fixed", "truncated-poisson"}:
        return 0
    return max((claim.min_records for claim in spec.claims), default=0)


def attained_scope(phases: Sequence[dps.Phase], size: int, records: int, scope: dps.Scope) -> dps.Scope:
    """Of what a lower bound speaks whose upper one has this scope: of truncated batches, data of as many records."""
    return replace(scope, data="all", min_records=max(records - size, 0)) if theory.truncates(phases) else scope


def attained_source(phases: Sequence[dps.Phase]) -> str:
    """Where it is shown that the lower end is attained."""
    where = "dpspec.accounting.TruncatedPoisson" if theory.truncates(phases) else "section 3.3"
    return f"{theory.source_of(phases)}; attained: {where}"


def _mixed(schemes: Collection[str]) -> bool:
    """Whether phases ask for different gradients of the other records: full batches ask for none."""
    return "fixed" in schemes and bool({"poisson", "truncated-poisson"} & set(schemes))


def adjacencies(spec: dps.Spec) -> list[str]:
    """Every adjacency that the threat model or a claim speaks of; where several are covered, bounds are the same."""
    return sorted({spec.threat_model.adjacency, *(claim.adjacency for claim in spec.claims)})


def scopes(phases: Sequence[dps.Phase], size: int, records: int, direction: str) -> Iterator[dps.Scope]:
    """What a bound holds for: all data sets, or those that are large enough and, told apart, the declared one.

    With truncated batches it holds for those that are small enough, which no scope says, so for the declared one alone.
    """
    least = _fewest(phases, size, records)
    scope = dps.Scope(direction=direction, access="all-iterates", adversary="gradient", min_records=least)
    if theory.truncates(phases):
        yield replace(scope, data="this", min_records=0)
        return
    yield scope
    if least > 0:
        yield replace(scope, data="this", min_records=0)


def _fewest(phases: Sequence[dps.Phase], size: int, records: int) -> int:
    """How many records the smaller data set of a pair must have: those left without the group, for fixed batches; for
    shuffled ones all, as nobody leaves, and with fewer records there are more epochs."""
    if theory.shuffles(phases):
        return records
    return max(records - size, 0) if any(phase.sampling.scheme == "fixed" for phase in phases) else 0


def _upper(phases: Sequence[dps.Phase], size: int, delta: float, epsilon: Interval, scope: dps.Scope) -> dps.Finding:
    at: dict[str, dps.Json] = {"delta": delta, "group_size": size}
    source = theory.source_of(phases)
    return certified_upper("epsilon", epsilon, at=at, scope=scope, source=source, assumptions=kit.ASSUMPTIONS)
