"""Theoretical findings: gamma at each baseline, the prior at which gamma reaches one half, and membership bounds.

The membership bounds are attained; gamma is not known to be (``docs/explanation/proofs/reconstruction.md``). Bounds
hold for datasets of every size. A prior enters only through its kappa.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Interval, certified_lower, certified_upper, library_accuracy
from dpspec.training.loop.learning_rates import iterates_reveal_sums
from dpspec_rero.approximations import printed_pure_epsilon
from dpspec_rero.options import Steps
from dpspec_rero.theory import Leakage, gamma_source, pure_epsilon

#: False-positive rates of the membership findings if no claim names one.
FPRS = (1e-3, 1e-1)

#: Relative rounding error of a sum of a few logarithms.
_SUM_ROUNDING = 1e-12

#: The gamma whose baseline ``prior_finding`` reports.
HALF = 0.5

_MEMBERSHIP = "Kaissis et al. 2023; Dong, Roth and Su 2022"
_ATTAINED = f"{_MEMBERSHIP}; attained by a record along one coordinate"

ASSUMPTIONS = kit.dp_sgd_assumptions(
    noise_scale="noise of the declared law and scale in every step",
    clipping="no record moves a step by more than the sensitivity",
    steps="training makes exactly the declared number of steps",
)


def scope_of(direction: str = "both") -> dps.Scope:
    return dps.Scope(direction=direction, access="all-iterates", adversary="gradient")


def prior_finding(leakage: Leakage) -> dps.Finding:
    prior = leakage.prior(HALF)
    return dps.Finding(
        quantity="prior",
        value=prior.lower,
        bound="lower",
        rigor="certified",
        at=dps.FrozenMap({"gamma": HALF}),
        scope=scope_of(),
        method=prior.lower_method,
        source=gamma_source(prior),
        assumptions=(*ASSUMPTIONS, library_accuracy()),
    )


def membership_findings(spec: dps.Spec, leakage: Leakage) -> Iterator[dps.Finding]:
    directions = sorted({claim.direction for claim in spec.claims} | {spec.threat_model.direction})
    deltas, fprs = kit.claimed_deltas(spec), kit.claimed_fprs(spec.claims) or list(FPRS)
    bounds: list[tuple[dps.Finding, Interval]] = []
    for direction in directions:
        for delta, epsilon in zip(deltas, leakage.epsilons(deltas, direction), strict=True):
            bounds.append((certified("epsilon", epsilon, at={"delta": delta}, direction=direction), epsilon))
        for fpr, tpr in zip(fprs, leakage.tprs(fprs, direction), strict=True):
            bounds.append((certified("tpr", tpr, at={"fpr": fpr}, direction=direction), tpr))
    advantage = leakage.advantage()
    bounds.append((certified("advantage", advantage), advantage))
    yield from (finding for finding, _ in bounds)
    yield from _pure(leakage.phases, directions)
    if iterates_reveal_sums(spec.training.options, spec.steps):
        for direction in directions if pure_epsilon(leakage.phases) < math.inf else ():
            pure = pure_epsilon(leakage.phases, direction)
            room = Interval(pure * (1.0 - _SUM_ROUNDING), pure * (1.0 + _SUM_ROUNDING)).by("sum over steps")
            bounds.append((certified("epsilon", room, at={"delta": 0.0}, direction=direction), room))
        largest = max((claim.min_records for claim in spec.claims), default=0)
        for finding, interval in bounds:
            lower = certified_lower(finding, interval, source=_ATTAINED, min_records=largest)
            if lower is not None:
                yield lower


def _pure(phases: Sequence[Steps], directions: Sequence[str]) -> Iterator[dps.Finding]:
    if pure_epsilon(phases) == math.inf:
        return
    source = "Balle, Barthe and Gaboardi 2018, Theorem 9; Dwork and Roth 2014, Theorem 3.16"
    rows: list[tuple[float, str, str, str, dps.Printed | None]] = [
        (pure_epsilon(phases, direction), "sum over steps", source, direction, None) for direction in directions
    ]
    if len(phases) == 1:
        printed = dps.Printed(refuted=False, reason="a bound, but it treats N steps as if the record were drawn once")
        rows.append((printed_pure_epsilon(phases), "as if sampled once", "Kaissis et al. 2023", "both", printed))
    for epsilon, method, source, direction, status in rows:
        yield kit.theorem_upper(
            "epsilon",
            epsilon,
            at={"delta": 0.0},
            scope=scope_of(direction),
            method=method,
            source=source,
            assumptions=ASSUMPTIONS,
            printed=status,
        )


def certified(
    quantity: str,
    interval: Interval,
    *,
    at: dict[str, dps.Json] | None = None,
    direction: str = "both",
    source: str = _MEMBERSHIP,
) -> dps.Finding:
    scope = scope_of(direction)
    return certified_upper(quantity, interval, at=at, scope=scope, source=source, assumptions=ASSUMPTIONS)
