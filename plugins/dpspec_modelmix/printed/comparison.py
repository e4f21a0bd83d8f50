"""Comparisons with the bounds: fractional orders, printed formulas, DP-SGD of equal variance, the exact pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import dpspec.contract as dps
from dpspec_modelmix.options import Segment
from dpspec_modelmix.printed import formulas, pair
from dpspec_modelmix.theory import LARGEST_LOSS, SCOPE, SOURCE, gaussian_epsilon, variance_matched

#: Reason why orders below 2 support no verdict.
_FRACTIONAL = "the proof expands a binomial and covers integer orders only; supported by numbers"

_PRINTED = "Xiao, Wan & Devadas, as printed"

#: Comparisons are omitted for larger shifts and smaller deltas, because float64 cannot represent them.
_LARGEST_SHIFT, _LEAST_DELTA = 30.0, 1e-11


def compared(
    quantity: str,
    value: float,
    method: str,
    source: str,
    *,
    delta: float | None = None,
    refuted: str = "",
    assumptions: tuple[dps.Assumption, ...] = (),
) -> dps.Finding:
    """A comparison value without effect on verdicts; ``refuted`` is the reason why a printed formula is wrong."""
    return dps.Finding(
        quantity=quantity,
        value=value,
        bound="estimate",
        rigor="approximate",
        at=dps.FrozenMap({} if delta is None else {"delta": delta}),
        scope=SCOPE,
        method=method,
        source=source,
        assumptions=assumptions,
        printed=dps.Printed(refuted=True, reason=refuted) if refuted else None,
    )


def claimed_finding(delta: float, value: float, method: str, reasons: Sequence[str]) -> dps.Finding:
    """The paper's value if its conditions held."""
    return compared("epsilon", value, method, _PRINTED, delta=delta, refuted="; ".join(reasons))


def gaussian_findings(
    segments: Sequence[Segment], delta: float, wanted: set[str], assumptions: tuple[dps.Assumption, ...]
) -> Iterator[dps.Finding]:
    """The comparisons in ``wanted`` for Gaussian noise; ``assumptions`` exclude that of the one-hot gradient."""
    within = max(max(s.shift, s.embedded) for s in segments) <= _LARGEST_SHIFT
    if "fractional" in wanted and within and all(s.one_dimensional for s in segments):
        yield from _fractional(segments, delta, assumptions)
    if "printed" in wanted:
        yield from _printed(segments, delta)
    if "variance-matched" in wanted:
        yield _variance_matched(segments, delta, "the same variance per step, a smaller epsilon", "Cramer-Rao")
    if "limit" in wanted:
        value = gaussian_epsilon(formulas.limit(segments), delta).epsilon
        yield compared("epsilon-limit", value, "linf_truncation without end", "Fisher information", delta=delta)
    if "pair" in wanted and within and delta >= _LEAST_DELTA:
        yield _pair(segments, delta)


def laplace_findings(
    segments: Sequence[Segment], clip_norms: Sequence[float], delta: float, wanted: set[str]
) -> Iterator[dps.Finding]:
    """The comparisons in ``wanted`` for Laplace noise; the phases' ``clip_norms`` are the units of the lemma."""
    steps, largest = sum(s.steps for s in segments), max(s.laplace_loss for s in segments)
    if largest > LARGEST_LOSS:
        return
    value = formulas.advanced_composition(steps, largest, delta)
    source = "Xiao, Wan & Devadas, Theorem 2.1"
    yield compared("epsilon-without-mixing", value, "advanced composition, all records", source, delta=delta)
    if "printed" in wanted and len(segments) == 1:
        yield from _printed_laplace(segments[0], clip_norms[0], delta)
    if "variance-matched" in wanted:
        yield _variance_matched(segments, delta, "Gaussian noise of the same variance per step", "Mironov et al. 2019")
    if "pair" in wanted and delta >= _LEAST_DELTA:
        yield _pair(segments, delta)


def _fractional(
    segments: Sequence[Segment], delta: float, assumptions: tuple[dps.Assumption, ...]
) -> Iterator[dps.Finding]:
    real = formulas.real_epsilon(segments, delta)
    unchecked = dps.Assumption(name="one-hot-worst", status="unchecked", text=_FRACTIONAL)
    method, source = f"rdp/fractional-orders, best at {real.order:g}", f"{SOURCE}; {_FRACTIONAL}"
    yield compared("epsilon", real.epsilon, method, source, delta=delta, assumptions=(*assumptions, unchecked))
    plain = formulas.real_gaussian_epsilon(segments, delta).epsilon
    method = "the same, fractional orders"
    yield compared("amplification", plain / real.epsilon, method, _FRACTIONAL, delta=delta)
    method, source = "rdp/fractional-orders, at the paper's orders", "Mironov et al. 2019"
    yield compared("epsilon-without-mixing", plain, method, source, delta=delta)


def _printed(segments: Sequence[Segment], delta: float) -> Iterator[dps.Finding]:
    segment = replace(segments[0], inflation=1.0)
    value = formulas.corollary_without_steps(segment, delta)
    yield compared("epsilon", value, "Corollary 4.1, without T", _PRINTED, delta=delta, refuted=formulas.MISSING_T)
    far = formulas.asymptotic(segment)
    why = f"{formulas.ASYMPTOTIC}; here T delta_0 is {far.total:.3g}"
    if not far.applies:
        why += ", and the condition on the gap fails"
    method = "Theorem 4.2, delta of its tail events" + (", vacuous" if far.vacuous else "")
    yield compared("delta-asymptotic", far.total, method, "Xiao, Wan & Devadas, Theorem 4.2 and Lemma D.1", refuted=why)


def _printed_laplace(segment: Segment, clip_norm: float, delta: float) -> Iterator[dps.Finding]:
    """Lemma D.2 in the units of the spec, if its condition holds in these units."""
    loss, width = segment.laplace_loss, segment.gap * clip_norm / segment.effect
    if not formulas.lemma_applies(clip_norm / loss, clip_norm, width):
        return
    one = formulas.lemma_moments(clip_norm / loss, clip_norm, width, printed=True)
    value = formulas.printed_total(segment.steps, one, delta)
    yield compared(
        "epsilon",
        value,
        "Lemma D.2 and its total, in units of the spec",
        _PRINTED,
        delta=delta,
        refuted="the total is not a form of Bernstein's inequality, and one exponent is smaller than in the proof",
    )


def _variance_matched(segments: Sequence[Segment], delta: float, what: str, source: str) -> dps.Finding:
    matched = variance_matched(segments)
    value = gaussian_epsilon(matched, delta).epsilon
    noise = ", ".join(f"{1.0 / s.effect:.4g}" for s in matched)
    method = f"DP-SGD with noise_multiplier {noise}: {what}"
    return compared("epsilon-variance-matched", value, method, source, delta=delta)


def _pair(segments: Sequence[Segment], delta: float) -> dps.Finding:
    method = "fft: tightness of the bound; neither an upper nor a lower bound"
    source = "one-hot pair, all steps at the enforced gap"
    return compared("epsilon-of-the-pair", pair.epsilon(segments, delta), method, source, delta=delta)
