"""Findings from theory: epsilon with mixing, repaired and as printed, and what stands beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import dpspec.contract as dps
from dpspec.accounting.interval import Interval
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.pld import PrivacyLoss
from dpspec_modelmix import declared, printed, theory
from dpspec_modelmix.options import lost
from dpspec_modelmix.theory import Segment

#: Deltas at which plain DP-SGD is also bounded, so that attacks can be held against all of its curve.
CURVE_DELTAS = (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)

#: The delta where no claim names one.
DEFAULT_DELTA = 1e-5

#: Wrong in the theorem's own words: orders below 2.
_FRACTIONAL = "the proof expands a binomial and covers integer orders only; supported by numbers"

_SCOPE: Final = dps.Scope(direction="both", access="all-iterates", adversary="gradient")

_BASE = (
    dps.Assumption(name="noise-scale", status="declared", text="Gaussian noise of the declared scale in every step"),
    dps.Assumption(name="fresh-noise", status="declared", text="noise is independent across steps"),
    dps.Assumption(name="clipping", status="declared", text="every record's gradient is clipped to the clip norm"),
    dps.Assumption(
        name="sampling", status="declared", text="batches are drawn by the declared scheme, afresh each step"
    ),
    dps.Assumption(name="steps", status="declared", text="exactly the declared number of updates is made"),
    dps.Assumption(
        name="public-constants",
        status="declared",
        text="rate, divisor, learning rate, threshold and the first two models do not depend on rows",
    ),
)

_MIXED = (
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


def one_hot(worst: float) -> dps.Assumption:
    """That no other gradient is worse than the one-hot one, which the paper asserts and proves nowhere."""
    return dps.Assumption(
        name="one-hot-worst",
        status="unchecked",
        text="the paper asserts without proof that the one-hot gradient is the worst. Looked at on 16 smaller shifts, "
        f"which is no proof: relative to it others reach {worst:.6f}",
    )


def claimed_deltas(spec: dps.Spec) -> list[float]:
    """The deltas that claims name, smallest first; the default where none does."""
    return sorted({float(c["delta"]) for c in spec.claims if c.kind == "approx-dp"}) or [DEFAULT_DELTA]


def findings(spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding]:
    """Everything at every delta that is claimed, and plain DP-SGD along a curve."""
    found = declared.segments_of(spec, context.facts)
    deltas = claimed_deltas(spec)
    if found is None:
        yield from (_epsilon(delta, math.inf, "without noise", "no noise, no bound", _BASE) for delta in deltas)
        return
    reasons = [reason for _, reason in lost(spec)]
    curve = CURVE_DELTAS if spec.audit is not None else ()
    yield from _without_mixing(found, tuple(sorted({*deltas, *curve})), reasons)
    for done, delta in enumerate(deltas):
        context.progress(done, len(deltas), "accounting")
        plain = theory.gaussian_epsilon(theory.without_mixing(found), delta)
        yield _epsilon(delta, plain.epsilon, "without mixing, rdp/integer-orders", "Mironov et al. 2019", _BASE)
        if reasons:
            yield _as_claimed(found, delta, reasons)
        else:
            yield from _mixed(found, delta, plain.epsilon)
            yield from _beside(found, delta, set(spec.mechanism["baselines"]))


def _without_mixing(found: Sequence[Segment], deltas: tuple[float, ...], reasons: list[str]) -> Iterator[dps.Finding]:
    """Plain DP-SGD of the same noise: it holds for ModelMix too, and alone where mixing amplifies nothing."""
    why = f" ({'; '.join(reasons)})" if reasons else ""
    for delta, interval in zip(deltas, _plain(tuple(theory.without_mixing(found)), deltas), strict=True):
        finding = _epsilon(delta, interval.upper, f"without mixing, pld/connect-the-dots{why}", "Ganesh 2024", _BASE)
        yield replace(finding, lower=interval.lower)


@lru_cache(maxsize=8)
def _plain(found: tuple[Segment, ...], deltas: tuple[float, ...]) -> list[Interval]:
    """Epsilon of DP-SGD at each delta; cells of a matrix share it."""
    phases = tuple((Mixture.poisson(1, s.rate, 1.0 / s.effect), s.steps) for s in found)
    return PrivacyLoss(phases).epsilons(deltas)


def _mixed(found: Sequence[Segment], delta: float, plain: float) -> Iterator[dps.Finding]:
    """The repaired theorem, with the order that was used and the factor that mixing gains."""
    first = theory.epsilon(found, delta)
    looked, worst = declared.certified_shape(found, first.order)
    best = theory.epsilon(looked, delta)
    improved = theory.epsilon(looked, delta, "improved")
    assumptions = (*_BASE, *_MIXED, one_hot(worst))
    yield _epsilon(delta, best.epsilon, "rdp/integer-orders", theory.SOURCE, assumptions)
    yield _epsilon(
        delta,
        improved.epsilon,
        "rdp/integer-orders, improved conversion",
        f"{theory.SOURCE}; Canonne, Kamath & Steinke 2020",
        assumptions,
    )
    edge = "at the edge of the orders searched" if best.at_edge else "within the orders searched"
    yield _beside_finding("renyi-order", delta, best.order, f"order used, {edge}", theory.SOURCE)
    yield _beside_finding(
        "amplification", delta, plain / best.epsilon, "without mixing / with mixing, integer orders", theory.SOURCE
    )


def _beside(found: Sequence[Segment], delta: float, wanted: set[str]) -> Iterator[dps.Finding]:
    if "fractional" in wanted and all(s.sparsity == 1 for s in found):
        real = theory.real_epsilon(found, delta)
        yield dps.Finding(
            quantity="epsilon",
            value=real.epsilon,
            bound="estimate",
            rigor="approximate",
            at=dps.FrozenMap({"delta": delta}),
            scope=_SCOPE,
            method=f"rdp/fractional-orders, best at {real.order:g}",
            source=f"{theory.SOURCE}; {_FRACTIONAL}",
            assumptions=(*_BASE, *_MIXED, dps.Assumption(name="one-hot-worst", status="unchecked", text=_FRACTIONAL)),
        )
        plain = theory.gaussian_epsilon(found, delta, real=True).epsilon
        yield _beside_finding("amplification", delta, plain / real.epsilon, "the same, fractional orders", _FRACTIONAL)
        yield _beside_finding(
            "epsilon-without-mixing",
            delta,
            plain,
            "rdp/fractional-orders, at the paper's orders",
            "Mironov et al. 2019",
        )
    if "printed" in wanted:
        yield from _printed(found, delta)
    if "variance-matched" in wanted:
        matched = theory.variance_matched(found)
        value = theory.gaussian_epsilon(matched, delta).epsilon
        noise = ", ".join(f"{1.0 / s.effect:.4g}" for s in matched)
        yield _beside_finding(
            "epsilon-variance-matched",
            delta,
            value,
            f"DP-SGD with noise_multiplier {noise}: the same variance per step, a smaller epsilon",
            "Cramer-Rao",
        )
    if "limit" in wanted:
        value = theory.gaussian_epsilon(theory.limit(found), delta).epsilon
        yield _beside_finding("epsilon-limit", delta, value, "linf_truncation without end", "Fisher information")
    if "pair" in wanted:
        from dpspec_modelmix import truth

        yield _beside_finding(
            "epsilon-of-the-pair",
            delta,
            truth.epsilon(found, delta),
            "fft: how tight the bound is; no bound itself, on either side",
            "one-hot pair, all steps at the enforced gap",
        )


def _printed(found: Sequence[Segment], delta: float) -> Iterator[dps.Finding]:
    segment = replace(found[0], inflation=1.0)
    yield _printed_finding(
        delta, printed.corollary_without_steps(segment, delta), "Corollary 4.1, T left out", printed.MISSING_T
    )
    far = printed.asymptotic(segment)
    why = f"{printed.ASYMPTOTIC}; here T delta_0 is {far.total:.3g}"
    if not far.applies:
        why += ", and the condition on the gap fails"
    yield dps.Finding(
        quantity="delta-asymptotic",
        value=far.total,
        bound="estimate",
        rigor="approximate",
        scope=_SCOPE,
        method="Theorem 4.2, delta of its tail events" + (", vacuous" if far.vacuous else ""),
        source="Xiao, Wan & Devadas, Theorem 4.2 and Lemma D.1",
        printed=dps.Printed(refuted=True, reason=why),
    )


def _as_claimed(found: Sequence[Segment], delta: float, reasons: list[str]) -> dps.Finding:
    """What the theorem would claim if its conditions were met."""
    return _printed_finding(
        delta, theory.epsilon(found, delta).epsilon, "Theorem 4.1 as if nothing failed", "; ".join(reasons)
    )


def _printed_finding(delta: float, value: float, method: str, reason: str) -> dps.Finding:
    return dps.Finding(
        quantity="epsilon",
        value=value,
        bound="estimate",
        rigor="approximate",
        at=dps.FrozenMap({"delta": delta}),
        scope=_SCOPE,
        method=method,
        source="Xiao, Wan & Devadas, as printed",
        printed=dps.Printed(refuted=True, reason=reason),
    )


def _epsilon(
    delta: float, value: float, method: str, source: str, assumptions: tuple[dps.Assumption, ...]
) -> dps.Finding:
    return dps.Finding(
        quantity="epsilon",
        value=value,
        bound="upper",
        rigor="theorem",
        at=dps.FrozenMap({"delta": delta}),
        scope=_SCOPE,
        method=method,
        source=source,
        assumptions=assumptions,
    )


def _beside_finding(quantity: str, delta: float, value: float, method: str, source: str) -> dps.Finding:
    return dps.Finding(
        quantity=quantity,
        value=value,
        bound="estimate",
        rigor="approximate",
        at=dps.FrozenMap({"delta": delta}),
        scope=_SCOPE,
        method=method,
        source=source,
    )
