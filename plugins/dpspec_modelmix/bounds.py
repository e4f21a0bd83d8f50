"""Bounds from theory: epsilon with mixing, by the repaired theorem, and without."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import dpspec.contract as dps
from dpspec.accounting.interval import Interval
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.pld import PrivacyLoss
from dpspec_modelmix import compared, declared, laplace, theory, worth
from dpspec_modelmix.findings import BASE, MIXED, SUBSPACE, beside, epsilon_upper, one_hot
from dpspec_modelmix.options import embedding_of, lost
from dpspec_modelmix.theory import Segment

#: Deltas at which plain DP-SGD is also bounded, so that attacks can be held against all of its curve.
CURVE_DELTAS = (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)

#: The delta where no claim names one.
DEFAULT_DELTA = 1e-5


def claimed_deltas(spec: dps.Spec) -> list[float]:
    """The deltas that claims name, smallest first; the default where none does."""
    return sorted({float(c["delta"]) for c in spec.claims if c.kind == "approx-dp"}) or [DEFAULT_DELTA]


def findings(spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding]:
    """Everything at every delta that is claimed, and plain DP-SGD along a curve."""
    found = declared.segments_of(spec, context.facts)
    deltas = claimed_deltas(spec)
    if found is None:
        yield from (epsilon_upper(delta, math.inf, "without noise", "no noise, no bound") for delta in deltas)
        return
    base = BASE if embedding_of(spec.phases[0]) is None else (*BASE, SUBSPACE)
    reasons = [reason for _, reason in lost(spec)]
    curve = CURVE_DELTAS if spec.audit is not None else ()
    plain = _without_mixing(found, tuple(sorted({*deltas, *curve})))
    why = f" ({'; '.join(reasons)})" if reasons else ""
    for delta, interval in plain.items():
        method = f"without mixing, pld/connect-the-dots{why}"
        yield epsilon_upper(delta, interval.upper, method, "Ganesh 2024", base, interval.lower)
    for done, delta in enumerate(deltas):
        context.progress(done, len(deltas), "accounting")
        if found[0].noise == "laplace":
            yield from _laplace(spec, found, delta, base, reasons, plain[delta].upper)
        else:
            yield from _gaussian(spec, found, delta, base, reasons)
    if "utility" in spec.mechanism.options:
        yield from worth.findings(spec, context.facts, deltas[-1])


def _without_mixing(found: Sequence[Segment], deltas: tuple[float, ...]) -> dict[float, Interval]:
    """Plain DP-SGD of the same noise: it holds for ModelMix too, and alone where mixing amplifies nothing."""
    return dict(zip(deltas, _plain(tuple(theory.without_mixing(found)), deltas), strict=True))


@lru_cache(maxsize=8)
def _plain(found: tuple[Segment, ...], deltas: tuple[float, ...]) -> list[Interval]:
    """Epsilon of DP-SGD at each delta; cells of a matrix share it."""
    if found[0].noise == "laplace":
        return laplace.plain(found, deltas)
    phases = tuple((Mixture.poisson(1, s.rate, 1.0 / s.effect), s.steps) for s in found)
    return PrivacyLoss(phases).epsilons(deltas)


def _gaussian(
    spec: dps.Spec, found: Sequence[Segment], delta: float, base: tuple[dps.Assumption, ...], reasons: list[str]
) -> Iterator[dps.Finding]:
    """The repaired theorem, with the order that was used and the factor that mixing gains."""
    plain = theory.gaussian_epsilon(theory.without_mixing(found), delta).epsilon
    yield epsilon_upper(delta, plain, "without mixing, rdp/integer-orders", "Mironov et al. 2019", base)
    if reasons:
        claimed = theory.epsilon(found, delta).epsilon
        yield compared.as_claimed(delta, claimed, "Theorem 4.1 as if nothing failed", reasons)
        return
    looked, worst = declared.certified_shape(found, theory.epsilon(found, delta).order)
    best = theory.epsilon(looked, delta)
    improved = theory.epsilon(looked, delta, "improved")
    assumptions = (*base, *MIXED, one_hot(worst))
    yield epsilon_upper(delta, best.epsilon, "rdp/integer-orders", theory.SOURCE, assumptions)
    method, source = "rdp/integer-orders, improved conversion", f"{theory.SOURCE}; Canonne, Kamath & Steinke 2020"
    yield epsilon_upper(delta, improved.epsilon, method, source, assumptions)
    edge = "at the edge of the orders searched" if best.at_edge else "within the orders searched"
    yield beside("renyi-order", best.order, f"order used, {edge}", theory.SOURCE, delta=delta)
    method = "without mixing / with mixing, integer orders"
    yield beside("amplification", plain / best.epsilon, method, theory.SOURCE, delta=delta)
    yield from compared.gaussian(found, delta, set(spec.mechanism["baselines"]), (*base, *MIXED))


def _laplace(
    spec: dps.Spec,
    found: Sequence[Segment],
    delta: float,
    base: tuple[dps.Assumption, ...],
    reasons: list[str],
    plain: float,
) -> Iterator[dps.Finding]:
    """Freedman's total of the corrected lemma; ``plain`` is epsilon without mixing."""
    mixed = laplace.epsilon(found, delta)
    if reasons:
        yield compared.as_claimed(delta, mixed, "Lemma D.2 as if nothing failed", reasons)
        return
    yield epsilon_upper(delta, mixed, "Freedman, corrected Lemma D.2, any cut", laplace.SOURCE, (*base, *MIXED))
    yield beside("amplification", plain / mixed, "without mixing (pld) / with mixing", laplace.SOURCE, delta=delta)
    clips = [float(phase["clip_norm"]) for phase in spec.phases]
    yield from compared.laplace(found, clips, delta, set(spec.mechanism["baselines"]))
