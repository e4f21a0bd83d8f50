"""Findings and curves from theory: epsilon with mixing, by the repaired theorem, and without."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Interval, certified_upper
from dpspec_modelmix import theory
from dpspec_modelmix.options import PhaseOptions, Segment, declared_segments, embedding_of, unmet_conditions
from dpspec_modelmix.printed.comparison import beside, claimed_finding, gaussian_findings, laplace_findings
from dpspec_modelmix.printed.utility import utility_findings
from dpspec_modelmix.theory import LAPLACE_SOURCE, SCOPE, SOURCE

#: What every bound takes for granted of DP-SGD.
BASE = kit.dp_sgd_assumptions(
    noise_scale="noise of the declared law and scale in every step",
    public_constants="rate, divisor, learning rate, threshold and the first two models do not depend on rows",
)

#: What the amplification takes for granted besides.
MIXED = (
    dps.Assumption(
        name="mixing-weights",
        status="declared",
        text="every coordinate is mixed, by a fresh weight of its own, uniform on [0, 1]",
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

#: What a gradient embedding takes for granted besides.
SUBSPACE = dps.Assumption(
    name="public-subspace",
    status="declared",
    text="the subspace depends on public records and released models alone",
)

#: What the threshold is multiplied by along the first curve, and linf_truncation along the second, where it fits.
_FACTORS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
_SPARSITIES = (1, 2, 5, 10, 25, 50, 100, 250, 1000)

#: The columns of a curve.
_EPSILONS = ("epsilon", "without mixing", "variance-matched")


def findings(spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding]:
    """Everything at every delta that is claimed, and plain DP-SGD along a curve."""
    segments = declared_segments(spec, context.facts)
    deltas = kit.claimed_deltas(spec)
    if segments is None:
        yield from (_theorem(delta, math.inf, "without noise", "no noise, no bound", BASE) for delta in deltas)
        return
    base = BASE if embedding_of(spec.phases[0]) is None else (*BASE, SUBSPACE)
    reasons = [reason for _, reason in unmet_conditions(spec)]
    curve = kit.CURVE_DELTAS if spec.audit is not None else ()
    plain = _without_mixing(segments, tuple(sorted({*deltas, *curve})))
    why = f" ({'; '.join(reasons)})" if reasons else ""
    for delta, interval in plain.items():
        yield _plain_upper(delta, interval, why, base)
    by_mean = any(PhaseOptions.of(phase).by_mean for phase in spec.phases)
    counted = by_mean and "expected_batch_size" not in spec.training.options
    scopes = _mixed_scopes(context.facts.records if counted else 0)
    for done, delta in enumerate(deltas):
        context.progress(done, len(deltas), "accounting")
        if segments[0].noise == "laplace":
            yield from _laplace(spec, segments, delta, base, reasons, plain[delta].upper, scopes)
        else:
            yield from _gaussian(spec, segments, delta, base, reasons, scopes)
    if "utility" in spec.mechanism.options:
        yield from utility_findings(spec, context.facts, deltas[-1])


def curves(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Series]:
    """Epsilon against the threshold, against linf_truncation and over the steps, with what DP-SGD has.

    None where nothing is amplified.
    """
    segments = declared_segments(spec, facts)
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
    yield _curve("steps", "steps", steps, delta, lambda n: _first_steps(segments, int(n)))


def _without_mixing(segments: Sequence[Segment], deltas: tuple[float, ...]) -> dict[float, Interval]:
    """Plain DP-SGD of the same noise: it holds for ModelMix too, and alone where mixing amplifies nothing."""
    return dict(zip(deltas, _plain(tuple(theory.without_mixing(segments)), deltas), strict=True))


@lru_cache(maxsize=8)
def _plain(segments: tuple[Segment, ...], deltas: tuple[float, ...]) -> list[Interval]:
    """Epsilon of DP-SGD at each delta; cells of a matrix share it."""
    return theory.plain_epsilons(segments, deltas)


def _gaussian(
    spec: dps.Spec,
    segments: Sequence[Segment],
    delta: float,
    base: tuple[dps.Assumption, ...],
    reasons: list[str],
    scopes: Sequence[dps.Scope],
) -> Iterator[dps.Finding]:
    """The repaired theorem, with the order that was used and the factor that mixing gains."""
    plain = theory.gaussian_epsilon(theory.without_mixing(segments), delta).epsilon
    yield _theorem(delta, plain, "without mixing, rdp/integer-orders", "Mironov et al. 2019", base)
    if reasons:
        claimed = theory.mixed_epsilon(segments, delta).epsilon
        yield claimed_finding(delta, claimed, "Theorem 4.1 as if nothing failed", reasons)
        return
    inflated, worst = theory.inflate_one_hot(segments, theory.mixed_epsilon(segments, delta).order)
    best = theory.mixed_epsilon(inflated, delta)
    improved = theory.mixed_epsilon(inflated, delta, "improved")
    assumptions = (*base, *MIXED, _one_hot(worst))
    method, source = "rdp/integer-orders, improved conversion", f"{SOURCE}; Canonne, Kamath & Steinke 2020"
    for scope in scopes:
        yield _theorem(delta, best.epsilon, "rdp/integer-orders", SOURCE, assumptions, scope)
        yield _theorem(delta, improved.epsilon, method, source, assumptions, scope)
    edge = "at the edge of the orders searched" if best.at_edge else "within the orders searched"
    yield beside("renyi-order", best.order, f"order used, {edge}", SOURCE, delta=delta)
    method = "without mixing / with mixing, integer orders"
    yield beside("amplification", plain / best.epsilon, method, SOURCE, delta=delta)
    yield from gaussian_findings(segments, delta, set(spec.mechanism["baselines"]), (*base, *MIXED))


def _laplace(
    spec: dps.Spec,
    segments: Sequence[Segment],
    delta: float,
    base: tuple[dps.Assumption, ...],
    reasons: list[str],
    plain: float,
    scopes: Sequence[dps.Scope],
) -> Iterator[dps.Finding]:
    """Freedman's total of the corrected lemma; ``plain`` is epsilon without mixing."""
    mixed = theory.freedman_epsilon(segments, delta)
    if reasons:
        yield claimed_finding(delta, mixed, "Lemma D.2 as if nothing failed", reasons)
        return
    method, assumptions = "Freedman, corrected Lemma D.2, any cut", (*base, *MIXED)
    for scope in scopes:
        yield _theorem(delta, mixed, method, LAPLACE_SOURCE, assumptions, scope)
    yield beside("amplification", plain / mixed, "without mixing (pld) / with mixing", LAPLACE_SOURCE, delta=delta)
    clip_norms = [phase.clip_norm for phase in spec.phases]
    yield from laplace_findings(segments, clip_norms, delta, set(spec.mechanism["baselines"]))


def _one_hot(worst: float) -> dps.Assumption:
    """That no other gradient is worse than the one-hot one, which the paper asserts and proves nowhere."""
    return dps.Assumption(
        name="one-hot-worst",
        status="unchecked",
        text="the paper asserts without proof that the one-hot gradient is the worst. Looked at on 16 smaller shifts, "
        f"which is no proof: relative to it others reach {worst:.6f}",
    )


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


def _plain_upper(delta: float, interval: Interval, why: str, assumptions: tuple[dps.Assumption, ...]) -> dps.Finding:
    """The accountant's bound on epsilon of DP-SGD without mixing; ``why`` it is all that is left, or nothing.

    No pair attains it: mixing adds its own noise to what DP-SGD shows, so that its lower end is no lower bound.
    """
    return certified_upper(
        "epsilon",
        interval,
        at={"delta": delta},
        scope=SCOPE,
        source="Ganesh 2024",
        assumptions=assumptions,
        method=f"without mixing, {interval.method}{why}",
    )


def _mixed_scopes(gap_by_records: int) -> tuple[dps.Scope, ...]:
    """What a bound that mixing amplifies holds for.

    gap_by_records: the declared number of records where the gap is measured against the mean over an expected batch, a
    share of them; 0 where it is not, or the spec declares the expected batch size. The divisor is public, one for both
    neighbours. Where it is that share of a data set of at least so many records, it is as large or larger, the gap as
    wide or wider, and divergences no larger (as the noise has a log-concave density); smaller data sets may have a
    smaller one, and nothing is said of them. For the declared data and its neighbours it is the declared one.
    """
    if gap_by_records == 0:
        return (SCOPE,)
    return replace(SCOPE, min_records=gap_by_records), replace(SCOPE, data="this")


def _first_steps(segments: Sequence[Segment], steps: int) -> list[Segment]:
    """The segments up to a step."""
    first = []
    for segment in segments:
        if steps > 0:
            first.append(replace(segment, steps=min(steps, segment.steps)))
            steps -= segment.steps
    return first


def _epsilons(segments: Sequence[Segment], delta: float) -> tuple[float, float, float]:
    """Epsilon with mixing, without it, and of DP-SGD of the same variance."""
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
        # A series names no assumptions, and that the one-hot gradient is the worst is proved for Laplace noise only.
        rigor="approximate" if gaussian else "theorem",
        source=SOURCE if gaussian else LAPLACE_SOURCE,
        units={name: unit},
        x=name,
        y=_EPSILONS,
        log=("x", "y"),
        upper=("epsilon", "without mixing"),
    )
