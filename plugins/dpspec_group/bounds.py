"""Bounds of the plugin as findings: epsilon per group size, delta and direction, and where claims ask, the whole curve.

*For whom an upper bound holds.* Poisson and full batches: for all data sets (Ganesh 2024, Theorem 3.1, which asks
nothing of their size), and as well for members who stay and count for nothing (zero-out): a sum has the same law then.
Batches of a fixed size B: for pairs of which the smaller data set has at least n records
(Theorem 3.3), with n the declared number less the group, so that the declared data and all its neighbours are among
them. The bound grows as n falls: it says nothing of smaller data sets. Truncated Poisson batches: for pairs of which
the smaller data set has at most as many records as are declared, so for the declared data and its neighbours; in larger
ones more batches are full. Records that stay and count for nothing are not covered there. Shuffled batches: for
those alone, without amplification, and for data sets of at least the declared records; nothing is said from below.
Where records come or go no theorem covers shuffled batches: what bounds them is infinite, and its method says why.
Random allocation: for all data sets, as Poisson batches, and for members who stay and count for nothing; of groups of
two and more the upper end is not known to be attained.

*Where it is attained* (section 3.3, here for vectors, phases and any update that can be undone). Let u be a vector of
length one, and let a step clip to C and add noise of deviation sigma C. The adversary gives

* Poisson, full: each of the k members of the group the gradient C u, every other record 0;
* random allocation: the same, each member in one batch an epoch. With several batches an epoch the lower end is that of
  the sum over an epoch (:mod:`~dpspec_group.theory`);
* truncated Poisson, with as many other records as are declared less the group: the same, and the lower end is what it
  attains: between it and the upper end nobody knows;
* fixed, with exactly n other records: each member C u, every other record -C u.

Each gradient is within C and is left as it is. Along u the noisy sum is, over C, N(0, sigma^2) without the group and
N(j, sigma^2) with j members in the batch, j ~ Binomial(k, q), or k in full batches; in batches of a fixed size, B
added, N(2j, sigma^2) with j ~ Hypergeometric(B, n + k, k). Orthogonally to u it is the same noise with and without the
group. Nothing of it depends on the models so far, so that steps are independent: the noisy sums of all steps are
exactly the composition of the one-step pairs, and whoever sees all models knows the noisy sums where updates can be
undone (:func:`~dpspec.training.loop.learning_rates.iterates_reveal_sums`). So epsilon of this pair of datasets and this
adversary is the value in the interval, and its lower end is a lower bound. Poisson and full batches allow any number of
other records, and members who stay and whose gradients are 0 (zero-out) in the place of those who leave. Phases with
batches of a fixed size and phases with Poisson ones ask for other gradients of the others: of both together nothing is
claimed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Interval, PrivacyLoss, certified_lower, certified_upper
from dpspec.kit import CURVE_DELTAS
from dpspec.training.loop.learning_rates import iterates_reveal_sums
from dpspec_group import theory

#: Deltas of the privacy profile that is shown for every group size.
PROFILE_DELTAS = tuple(float(f"{digit}e-{power}") for power in range(1, 13) for digit in (3, 1))

#: The delta at which is said what one mu for all deltas gives away, where no claim about epsilon names one.
_USUAL_DELTA = 1e-5

#: The source of what no theorem says.
_UNKNOWN = "nothing is known"


def group_sizes(spec: dps.Spec) -> list[int]:
    """Every group size that the threat model or a claim names, in order."""
    return sorted({*spec.threat_model.group_size, *(c.group_size for c in spec.claims)})


@dataclass(frozen=True)
class Curves:
    """Epsilon by group size, direction and delta: every interval holds the worst case over data and adversaries.

    whole: the widest direction that was computed, ``both`` where claims or the threat model speak of both. It has all
    deltas; of two directions each has those that claims rest on.
    """

    whole: str
    intervals: Mapping[int, Mapping[str, Mapping[float, Interval]]]


def epsilon_curves(spec: dps.Spec, context: dps.Context) -> Curves:
    """Epsilon for every group size in every direction that is spoken of, at the deltas of claims, curve and profile;
    from 0 to infinity where no theorem says anything.

    What claims rest on is computed in each direction, to ``theory.WIDTH``; of the rest the worse of both, to
    ``theory.CURVE_WIDTH``.
    """
    phases, records = spec.phases, context.facts.records
    wanted = {c.direction for c in spec.claims} | {spec.threat_model.direction}
    directions = ("remove", "add") if "both" in wanted else tuple(sorted(wanted))
    whole = "both" if len(directions) == 2 else directions[0]
    intervals: dict[int, dict[str, dict[float, Interval]]] = {}
    sizes, nothing = group_sizes(spec), theory.uncovered(phases, adjacencies(spec))
    for done, size in enumerate(sizes):
        context.progress(done, len(sizes), "accounting")
        named = kit.claimed_deltas(spec, size, default=None)
        deltas = sorted({*named, *CURVE_DELTAS, *PROFILE_DELTAS})
        if nothing:
            anything = dict.fromkeys(deltas, _anything(nothing))
            intervals[size] = dict.fromkeys((*directions, whole), anything)
            continue
        # One mu for all deltas is bounded from below by all of a direction's curve.
        whole_curve = any("mu" in claim.options and claim.group_size == size for claim in spec.claims)
        claimed = set(deltas if whole_curve else named)
        intervals[size] = _by_direction(phases, size, records, directions, deltas, claimed)
    context.progress(len(sizes), len(sizes), "accounting")
    return Curves(whole, intervals)


def _by_direction(
    phases: Sequence[dps.Phase],
    size: int,
    records: int,
    directions: Sequence[str],
    deltas: Sequence[float],
    claimed: Collection[float],
) -> dict[str, dict[float, Interval]]:
    """The curves of one group size; of two directions each has the ``claimed`` deltas alone, and ``both`` has all."""
    widths = [theory.WIDTH if delta in claimed else theory.CURVE_WIDTH for delta in deltas]
    first = theory.group_epsilons(phases, size, records, deltas, directions[0], widths=widths)
    if len(directions) == 1:
        return {directions[0]: dict(zip(deltas, first, strict=True))}
    beside = [None if delta in claimed else known for delta, known in zip(deltas, first, strict=True)]
    second = theory.group_epsilons(phases, size, records, deltas, directions[1], widths=widths, beside=beside)
    found = {
        direction: {delta: one for delta, one in zip(deltas, curve, strict=True) if delta in claimed}
        for direction, curve in zip(directions, (first, second), strict=True)
    }
    worse = (one.worse(other) for one, other in zip(first, second, strict=True))
    return {**found, "both": dict(zip(deltas, worse, strict=True))}


def upper_bounds(spec: dps.Spec, curves: Curves, records: int) -> Iterator[dps.Finding]:
    """Epsilon upper bounds for every group size: at the claims' deltas per direction, and along the curve.

    records: how many the declared data holds.
    """
    nothing = theory.uncovered(spec.phases, adjacencies(spec))
    for size, by_direction in curves.intervals.items():
        claimed = kit.claimed_deltas(spec, size, default=None)
        for direction, curve in by_direction.items():
            for delta, epsilon in curve.items():
                if delta in claimed or (direction == curves.whole and delta in CURVE_DELTAS):
                    for adjacency in adjacencies(spec):
                        for scope in _anywhere(direction) if nothing else scopes(spec, size, records, direction):
                            finding = _upper(spec.phases, size, delta, epsilon, replace(scope, adjacency=adjacency))
                            yield replace(finding, source=_UNKNOWN) if nothing else finding


def lower_bounds(spec: dps.Spec, curves: Curves, records: int) -> Iterator[dps.Finding]:
    """Epsilon lower bounds where claims about all iterates speak, if the worst case is attained: see the module."""
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
    """What is proved of the mu, rates and advantages that claims name, in each scope that it holds in: upper bounds,
    and lower ones where the worst case is attained. Nothing where a phase has no noise, and infinite where no theorem
    says anything."""
    if any(phase.noise_multiplier < theory.NO_NOISE for phase in spec.phases):
        return
    least, nothing = attaining_records(spec), theory.uncovered(spec.phases, adjacencies(spec))
    asked: set[tuple[str, int, str, str, float]] = set()
    for claim in spec.claims:
        about = (claim.group_size, claim.direction, claim.adjacency)
        asked.update((quantity, *about, fpr) for quantity, fpr in _asked(claim))
    for quantity, size, direction, adjacency, fpr in sorted(asked):
        method = ""
        at: dict[str, dps.Json] = {"group_size": size}
        if nothing:
            interval, at = _anything(nothing), at if quantity in ("mu", "advantage") else {"fpr": fpr, **at}
        elif quantity == "mu":
            interval = theory.mu_interval(spec.phases, size, records, curves.intervals[size][direction])
            method = _given_away(spec, size, interval.upper, curves, direction)
        elif quantity == "advantage":
            interval = theory.advantage_interval(spec.phases, size, records)
        else:
            interval, at = theory.tpr_interval(spec.phases, size, records, fpr, direction), {"fpr": fpr, **at}
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
            for scope in (_anywhere(direction) if nothing else scopes(spec, size, records, direction))
        ]
        yield from uppers
        if least is not None and not nothing:
            upper = replace(uppers[0], scope=attained_scope(spec.phases, size, records, uppers[0].scope))
            lower = certified_lower(upper, interval, source=attained_source(spec.phases), min_records=least)
            if lower is not None:
                yield lower


def dominating(spec: dps.Spec, records: int, claim: dps.Claim) -> dps.audit.Dominating | None:
    """What dominates the whole run, for the claim's groups; None where a phase has no noise, or no theorem says it."""
    phases, size = spec.phases, claim.group_size
    if theory.uncovered(phases, [claim.adjacency]) or any(phase.noise_multiplier < theory.NO_NOISE for phase in phases):
        return None
    return dps.audit.Dominating(
        phases=tuple(pair for phase in phases for pair in theory.composed(phase, size, records)),
        scopes=tuple(
            replace(scope, adjacency=claim.adjacency) for scope in scopes(spec, size, records, claim.direction)
        ),
        source=theory.source_of(phases),
        assumptions=kit.ASSUMPTIONS,
    )


def profile_series(spec: dps.Spec, curves: Curves) -> dps.Series:
    """Delta against epsilon for every group size, in the widest direction: points above the privacy profile.

    ``lower`` is the lower end of epsilon's interval, how tight ``epsilon`` is: within ``theory.CURVE_WIDTH``, and at
    the deltas of claims ``theory.WIDTH``, where grids allow it.
    """
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
    """How many records the data sets that attain the worst case can have, of as many as claims speak of; 0 keeps the
    scope's own number, as batches of a fixed or largest size do. None where it is not attained: see the module."""
    schemes = {phase.sampling.scheme for phase in spec.phases}
    if not iterates_reveal_sums(spec.training.options, spec.steps) or _mixed(schemes) or "shuffled" in schemes:
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
    if theory.allocates(phases):
        where += ", dpspec.accounting.RandomAllocation"
    return f"{theory.source_of(phases)}; attained: {where}"


def _mixed(schemes: Collection[str]) -> bool:
    """Whether phases ask for different gradients of the other records: full batches ask for none."""
    return "fixed" in schemes and bool({"poisson", "truncated-poisson", "random-allocation"} & set(schemes))


def adjacencies(spec: dps.Spec) -> list[str]:
    """Every adjacency that the threat model or a claim speaks of; where several are covered, bounds are the same."""
    return sorted({spec.threat_model.adjacency, *(claim.adjacency for claim in spec.claims)})


def scopes(spec: dps.Spec, size: int, records: int, direction: str) -> Iterator[dps.Scope]:
    """What a bound holds for: all data sets, or those that are large enough and, told apart, the declared one.

    Where each record is drawn by a coin of its own, or all are, whoever sees which others a step drew sees the same
    pair, moved by what these add: given any such draw the step is dominated by it, and the draw itself has one law with
    the group and without. So the bound holds for a ``transcript``, where the spec speaks of one; of batches of a fixed
    or truncated size the others' draw tells of the group's, and the spec is refused.
    With truncated batches it holds for those that are small enough, which no scope says, so for the declared one alone.
    """
    phases = spec.phases
    least = _fewest(phases, size, records)
    access = "transcript" if spec.threat_model.access == "transcript" else "all-iterates"
    scope = dps.Scope(direction=direction, access=access, adversary="gradient", min_records=least)
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


def _anywhere(direction: str) -> list[dps.Scope]:
    """All data sets: where no theorem says anything, infinity holds."""
    return [dps.Scope(direction=direction, access="all-iterates", adversary="gradient")]


def _anything(why: str) -> Interval:
    """What is known of a quantity of which no theorem says anything."""
    return Interval(0.0, math.inf).by(why)


def _upper(phases: Sequence[dps.Phase], size: int, delta: float, epsilon: Interval, scope: dps.Scope) -> dps.Finding:
    at: dict[str, dps.Json] = {"delta": delta, "group_size": size}
    source = theory.source_of(phases)
    return certified_upper("epsilon", epsilon, at=at, scope=scope, source=source, assumptions=kit.ASSUMPTIONS)


def _asked(claim: dps.Claim) -> Iterator[tuple[str, float]]:
    """The quantities that a claim bounds, rates with the false-positive rate that they stand at; told by its keys."""
    if "mu" in claim.options:
        yield "mu", 0.0
    rates = kit.claimed_fprs([claim])
    yield from (("tpr", fpr) for fpr in rates)
    if "advantage" in claim.options and not rates:
        yield "advantage", 0.0


def _given_away(spec: dps.Spec, size: int, mu: float, curves: Curves, direction: str) -> str:
    """What the bound is called: with the epsilon that it implies at one delta, and the one that is certified there."""
    delta = kit.claimed_deltas(spec, size, default=_USUAL_DELTA)[-1]
    known = curves.intervals[size][direction].get(delta)
    implied = PrivacyLoss.gaussian(1.0 / mu).epsilon(delta).upper
    certified = "" if known is None else f", where {known.upper:.4g} is certified"
    at = f"{delta:g}".replace("e-0", "e-")
    return f"without amplification by sampling; at delta {at} it says epsilon {implied:.4g}{certified}"
