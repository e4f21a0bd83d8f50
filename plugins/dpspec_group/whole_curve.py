"""Bounds on the whole privacy curve of a group, where claims ask for them: rates and advantage of tests, and one mu.

*Tests.* By Theorems 3.1 and 3.3 the composed mixtures dominate DP-SGD, so that no test of membership has a larger
true-positive rate at a false-positive rate, or a larger advantage tpr - fpr, than their best one; both certified. The
direction is the one in which the test looks: remove, for the group's presence; add, for its absence.

*One mu for all deltas.* A step's mixture is sum_j P[c = j] N(j, sigma^2) against N(0, sigma^2). Whoever is also told c
sees N(c, sigma^2) against N(0, sigma^2), c of one law in both, and that is G_(j/sigma) given c = j, at most
G_(s/sigma) with s the largest shift. Telling c can only help a test, so each step is s/sigma-GDP, and the whole

    mu = sqrt(sum over steps of (s / sigma)^2)                     (Dong, Roth & Su 2022, Corollary 3.3).

With Poisson batches no smaller mu holds for all deltas: all members are in all batches with a probability p > 0, so
that the best test for that, of level Phi(-z), has the power p Phi(mu - z) at least, and ln p + ln Phi(mu - z) exceeds
ln Phi(m - z) for every m < mu once z is large. So one mu knows nothing of the amplification by sampling, and what it
gives away at a usual delta is said beside it. The lower end of its interval is the largest mu whose curve lies below
what is attained at one of the deltas that are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Interval, PrivacyLoss, certified_lower, certified_upper, round_up
from dpspec_group import theory
from dpspec_group.bounds import Curves, attained_scope, attained_source, attaining_records, scopes

#: The delta at which is said what one mu for all deltas gives away, where no claim about epsilon names one.
_USUAL_DELTA = 1e-5

_MU = "Ganesh 2024, Lemma 2.9; Dong, Roth & Su 2022, Corollary 3.3"

#: Noise that is ruled out is told of up to so many times the declared one: beyond, sampling decides what leaks.
_TOLD = 10.0

#: Room for the rounding of a square root of a sum of at most 10^6 products.
_ROUNDING = 1e-9


def whole_curve_bounds(spec: dps.Spec, curves: Curves, records: int) -> Iterator[dps.Finding]:
    """What is proved of the mu, rates and advantages that claims name, in each scope that it holds in: upper bounds,
    and lower ones where the worst case is attained. Nothing where a phase has no noise."""
    if any(phase.noise_multiplier < theory.NO_NOISE for phase in spec.phases):
        return
    least = attaining_records(spec)
    asked: set[tuple[str, int, str, str, float]] = set()
    for claim in spec.claims:
        about = (claim.group_size, claim.direction, claim.adjacency)
        asked.update((quantity, *about, fpr) for quantity, fpr in _asked(claim))
    for quantity, size, direction, adjacency, fpr in sorted(asked):
        method = ""
        at: dict[str, dps.Json] = {"group_size": size}
        if quantity == "mu":
            interval = mu_interval(spec.phases, size, records, curves, direction)
            method = _given_away(spec, size, interval.upper, curves, direction)
        elif quantity == "advantage":
            (interval,) = theory.ask(spec.phases, size, records, "remove", lambda loss: [loss.advantage()])
        else:
            interval, at = tpr_interval(spec.phases, size, records, fpr, direction), {"fpr": fpr, **at}
        uppers = [
            certified_upper(
                quantity,
                interval,
                at=at,
                scope=replace(scope, adjacency=adjacency),
                source=_MU if quantity == "mu" else theory.source_of(spec.phases),
                assumptions=kit.ASSUMPTIONS,
                method=method,
            )
            for scope in scopes(spec.phases, size, records, direction)
        ]
        yield from uppers
        if least is not None:
            upper = replace(uppers[0], scope=attained_scope(spec.phases, size, records, uppers[0].scope))
            lower = certified_lower(upper, interval, source=attained_source(spec.phases), min_records=least)
            if lower is not None:
                yield lower


def mu_interval(phases: Sequence[dps.Phase], size: int, records: int, curves: Curves, direction: str) -> Interval:
    """The least mu for which all steps together are mu-GDP for groups of ``size``: between what is attained at the
    deltas of ``curves`` and the mu of the module."""
    upper = mu_of_all_steps(phases, size, records)
    lower = 0.0
    for delta, epsilon in curves.intervals[size][direction].items():
        lower = max(lower, _attained_mu(epsilon.lower, delta, upper))
    return Interval(min(lower, upper), upper).by("one mu for all deltas")


def mu_of_all_steps(phases: Sequence[dps.Phase], size: int, records: int) -> float:
    """The mu of the module, rounded up; noise a times as large has one a times as small."""
    parts = (theory.composed(phase, size, records) for phase in phases)
    squares = (count * pair.dominating_effect**2 for pair, count in parts)
    return math.sqrt(math.fsum(squares)) * (1.0 + _ROUNDING)


def noise_ruled_out(phases: Sequence[dps.Phase], size: int, records: int, mu: float) -> str:
    """The noise with which no training of the declared rates and steps has as large a mu as is shown, in words.

    Such noise is a / mu times the declared one, a the mu of all its steps, and all that is larger. It leaves out the
    amplification by sampling, so that with small rates less noise is ruled out too, and not told of. Nothing is said
    where no mu is shown, where a phase has no noise, or where it is more than ten times the declared noise.
    """
    if not mu > 0.0 or any(phase.noise_multiplier < theory.NO_NOISE for phase in phases):
        return ""
    times = mu_of_all_steps(phases, size, records) / mu
    if times > _TOLD:
        return ""
    declared = {phase.noise_multiplier for phase in phases}
    if len(declared) > 1:
        return f"; rules out noise {round_up(times, 4)} times as large as declared, and more"
    return f"; rules out noise multipliers of {round_up(times * declared.pop(), 4)} and more at these rates and steps"


def tpr_interval(phases: Sequence[dps.Phase], size: int, records: int, fpr: float, direction: str) -> Interval:
    """The largest true-positive rate at a false-positive rate in (0, 1], in a direction of the spec."""
    sides = theory.DIRECTIONS if direction == "both" else (direction,)
    rates = [_rate(phases, size, records, fpr, side) for side in sides]
    return rates[0] if len(rates) == 1 else rates[0].worse(rates[1])


def _asked(claim: dps.Claim) -> Iterator[tuple[str, float]]:
    """The quantities that a claim bounds, rates with the false-positive rate that they stand at; told by its keys."""
    if "mu" in claim.options:
        yield "mu", 0.0
    rates = kit.claimed_fprs([claim])
    yield from (("tpr", fpr) for fpr in rates)
    if "advantage" in claim.options and not rates:
        yield "advantage", 0.0


def _rate(phases: Sequence[dps.Phase], size: int, records: int, fpr: float, side: str) -> Interval:
    way = theory.DIRECTIONS[side]
    (interval,) = theory.ask(phases, size, records, side, lambda loss: [loss.rero(fpr, direction=way)])
    return interval


def _attained_mu(epsilon: float, delta: float, largest: float) -> float:
    """A mu at most ``largest`` whose curve certainly lies below ``delta`` at ``epsilon``, which is attained there."""
    if not 0.0 < epsilon < math.inf:
        return 0.0
    low, high = 0.0, largest
    while high - low > 1e-6 * largest:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if PrivacyLoss.gaussian(1.0 / middle).delta(epsilon).upper < delta else (low, middle)
    return low


def _given_away(spec: dps.Spec, size: int, mu: float, curves: Curves, direction: str) -> str:
    """What the bound is called: with the epsilon that it implies at one delta, and the one that is certified there."""
    delta = kit.claimed_deltas(spec, size, default=_USUAL_DELTA)[-1]
    known = curves.intervals[size][direction].get(delta)
    implied = PrivacyLoss.gaussian(1.0 / mu).epsilon(delta).upper
    certified = "" if known is None else f", where {known.upper:.4g} is certified"
    at = f"{delta:g}".replace("e-0", "e-")
    return f"without amplification by sampling; at delta {at} it says epsilon {implied:.4g}{certified}"
