"""Theoretical findings and curves: epsilon with mixing, by the repaired theorem, and without mixing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Interval, certified_upper
from dpspec_modelmix import theory
from dpspec_modelmix.options import PhaseOptions, Segment, embedding_of, segments_of, unmet_conditions
from dpspec_modelmix.published import claimed_finding, compared, comparisons
from dpspec_modelmix.theory import LAPLACE_SOURCE, SCOPE, SOURCE
from dpspec_modelmix.utility import utility_findings

#: Assumptions of every bound.
BASE = kit.dp_sgd_assumptions(
    noise_scale="noise of the declared distribution and scale in every step",
    data_independent_hyperparameters="rate, divisor, learning rate, threshold and the first two models do not depend "
    "on rows",
)

#: Additional assumptions of the amplification.
MIXED = (
    dps.Assumption(
        name="mixing-weights",
        status="declared",
        text="every coordinate is mixed with an independent weight, uniform on [0, 1]",
    ),
    dps.Assumption(
        name="gap", status="declared", text="the gap is at least the threshold in every coordinate and step"
    ),
    dps.Assumption(
        name="hidden-weights",
        status="declared",
        text="neither weights nor noisy gradients nor their seeds are released",
    ),
)

#: Additional assumption of a gradient embedding.
SUBSPACE = dps.Assumption(
    name="public-subspace",
    status="declared",
    text="the subspace depends only on public records and released models",
)

_ONE_HOT = dps.Assumption(
    name="one-hot-worst",
    status="unchecked",
    text="the paper asserts without proof that the one-hot gradient is the worst",
)

#: Factors on the threshold in the first curve and on linf_truncation in the second.
_FACTORS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
_SPARSITIES = (1, 2, 5, 10, 25, 50, 100, 250, 1000)

#: The columns of a curve.
_EPSILONS = ("epsilon", "without mixing", "variance-matched")


def findings(spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding]:
    segments = segments_of(spec.phases, spec.training.options, context.facts)
    deltas = kit.claimed_deltas(spec)
    if segments is None:
        yield from (_theorem(delta, math.inf, "without noise", "no noise, no bound", BASE) for delta in deltas)
        return
    base = BASE if embedding_of(spec.phases[0]) is None else (*BASE, SUBSPACE)
    reasons = [reason for _, reason in unmet_conditions(spec)]
    curve = kit.CURVE_DELTAS if spec.audit is not None else ()
    wanted = tuple(sorted({*deltas, *curve}))
    # DP-SGD with the same noise also bounds ModelMix. No pair attains it: mixing adds noise to the output of DP-SGD.
    plain = dict(zip(wanted, _plain(tuple(theory.without_mixing(segments)), wanted), strict=True))
    why = f" ({'; '.join(reasons)})" if reasons else ""
    for delta, interval in plain.items():
        method = f"without mixing, {interval.method}{why}"
        yield certified_upper(
            "epsilon",
            interval,
            at={"delta": delta},
            scope=SCOPE,
            source="Ganesh 2024",
            assumptions=base,
            method=method,
        )
    by_mean = any(PhaseOptions.of(phase).by_mean for phase in spec.phases)
    scopes: tuple[dps.Scope, ...] = (SCOPE,)
    if by_mean and "expected_batch_size" not in spec.training.options:
        # The divisor of an update is public and equal for both neighbors. Datasets with at least the declared number of
        # records have an equal or larger divisor, an equal or wider gap, and equal or smaller divergences (the noise
        # has a log-concave density). The bound does not cover smaller datasets.
        scopes = replace(SCOPE, min_records=context.facts.records), replace(SCOPE, data="this")
    for done, delta in enumerate(deltas):
        context.progress(done, len(deltas), "accounting")
        if segments[0].noise == "laplace":
            yield from _laplace(spec, segments, delta, base, reasons, plain[delta].upper, scopes)
        else:
            yield from _gaussian(spec, segments, delta, base, reasons, scopes)
    if "utility" in spec.mechanism.options:
        yield from utility_findings(spec, context.facts, deltas[-1])


def curves(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Series]:
    """Epsilon by threshold, by linf_truncation and by step, compared with DP-SGD. Empty without amplification."""
    segments = segments_of(spec.phases, spec.training.options, facts)
    if segments is None or unmet_conditions(spec):
        return
    delta = kit.claimed_deltas(spec)[-1]
    yield _curve(
        "threshold", "times the threshold", _FACTORS, delta, lambda f: [replace(s, gap=s.gap * f) for s in segments]
    )
    if segments[0].noise == "gaussian":
        most = facts.parameters or max(_SPARSITIES)
        sparsities = sorted({p for p in (*_SPARSITIES, *(s.sparsity for s in segments)) if p <= most})
        yield _curve(
            "linf-truncation",
            "coordinates",
            sparsities,
            delta,
            lambda p: [replace(s, sparsity=int(p)) for s in segments],
        )
    total = sum(s.steps for s in segments)
    steps = sorted({max(1, round(n)) for n in np.geomspace(1, total, 12)})
    starts = [0, *itertools.accumulate(s.steps for s in segments)]
    yield _curve(
        "steps",
        "steps",
        steps,
        delta,
        lambda n: [
            replace(s, steps=min(s.steps, int(n) - before))
            for s, before in zip(segments, starts, strict=False)
            if before < n
        ],
    )


@lru_cache(maxsize=8)
def _plain(segments: tuple[Segment, ...], deltas: tuple[float, ...]) -> list[Interval]:
    """Epsilon of DP-SGD at each delta, cached for the cells of a matrix."""
    return theory.plain_epsilons(segments, deltas)


def _gaussian(
    spec: dps.Spec,
    segments: Sequence[Segment],
    delta: float,
    base: tuple[dps.Assumption, ...],
    reasons: list[str],
    scopes: Sequence[dps.Scope],
) -> Iterator[dps.Finding]:
    plain = theory.gaussian_epsilon(theory.without_mixing(segments), delta).epsilon
    yield _theorem(delta, plain, "without mixing, rdp/integer-orders", "Mironov et al. 2019", base)
    if reasons:
        claimed = theory.mixed_epsilon(segments, delta).epsilon
        yield claimed_finding(delta, claimed, "Theorem 4.1 as if all conditions held", reasons)
        return
    inflated, worst = theory.inflate_one_hot(segments, theory.mixed_epsilon(segments, delta).order)
    best = theory.mixed_epsilon(inflated, delta)
    improved = theory.mixed_epsilon(inflated, delta, "improved")
    text = f"A numerical check of 16 smaller shifts is not a proof: their largest ratio to it is {worst:.6f}"
    one_hot = replace(_ONE_HOT, text=f"{_ONE_HOT.text}. {text}")
    assumptions = (*base, *MIXED, one_hot)
    method, source = "rdp/integer-orders, improved conversion", f"{SOURCE}; Canonne, Kamath & Steinke 2020"
    for scope in scopes:
        yield _theorem(delta, best.epsilon, "rdp/integer-orders", SOURCE, assumptions, scope)
        yield _theorem(delta, improved.epsilon, method, source, assumptions, scope)
    edge = "at the edge of the orders searched" if best.at_edge else "within the orders searched"
    yield compared("renyi-order", best.order, f"order used, {edge}", SOURCE, delta=delta)
    method = "without mixing / with mixing, integer orders"
    yield compared("amplification", plain / best.epsilon, method, SOURCE, delta=delta)
    yield from comparisons(spec, segments, delta, (*base, *MIXED))


def _laplace(
    spec: dps.Spec,
    segments: Sequence[Segment],
    delta: float,
    base: tuple[dps.Assumption, ...],
    reasons: list[str],
    plain: float,
    scopes: Sequence[dps.Scope],
) -> Iterator[dps.Finding]:
    mixed = theory.freedman_epsilon(segments, delta)
    if reasons:
        yield claimed_finding(delta, mixed, "Lemma D.2 as if all conditions held", reasons)
        return
    method, assumptions = "Freedman, corrected Lemma D.2, any cut", (*base, *MIXED)
    for scope in scopes:
        yield _theorem(delta, mixed, method, LAPLACE_SOURCE, assumptions, scope)
    yield compared("amplification", plain / mixed, "without mixing (pld) / with mixing", LAPLACE_SOURCE, delta=delta)
    yield from comparisons(spec, segments, delta, assumptions)


def _theorem(
    delta: float,
    value: float,
    method: str,
    source: str,
    assumptions: tuple[dps.Assumption, ...],
    scope: dps.Scope = SCOPE,
) -> dps.Finding:
    at = {"delta": delta}
    return kit.theorem_upper(
        "epsilon", value, at=at, scope=scope, method=method, source=source, assumptions=assumptions
    )


def _epsilons(segments: Sequence[Segment], delta: float) -> tuple[float, float, float]:
    """Epsilon with mixing, without mixing, and of DP-SGD with the same variance."""
    matched = theory.gaussian_epsilon(theory.variance_matched(segments), delta).epsilon
    bare = theory.without_mixing(segments)
    if segments[0].noise == "laplace":
        return theory.freedman_epsilon(segments, delta), theory.plain_epsilons(bare, [delta])[0].upper, matched
    return theory.mixed_epsilon(segments, delta).epsilon, theory.gaussian_epsilon(bare, delta).epsilon, matched


def _curve(
    name: str, unit: str, values: Sequence[float], delta: float, changed: Callable[[float], Sequence[Segment]]
) -> dps.Series:
    gaussian = changed(values[0])[0].noise == "gaussian"
    return kit.series(
        f"epsilon-by-{name}",
        f"Epsilon at delta {delta:g} against {name}".replace("e-0", "e-"),
        kit.columns_of((name, *_EPSILONS), [(value, *_epsilons(changed(value), delta)) for value in values]),
        # A series carries no assumptions, and the worst case is proved only for Laplace noise.
        rigor="approximate" if gaussian else "theorem",
        source=SOURCE if gaussian else LAPLACE_SOURCE,
        units={name: unit},
        x=name,
        y=_EPSILONS,
        log=("x", "y"),
        upper=("epsilon", "without mixing"),
    )
