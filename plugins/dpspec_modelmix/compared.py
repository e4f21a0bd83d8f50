"""What stands beside the bounds: fractional orders, printed formulas, DP-SGD of equal variance, the pair's truth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import dpspec.contract as dps
from dpspec_modelmix import laplace as laplace_noise
from dpspec_modelmix import printed, theory
from dpspec_modelmix.findings import beside
from dpspec_modelmix.theory import Segment

#: Wrong in the theorem's own words: orders below 2.
_FRACTIONAL = "the proof expands a binomial and covers integer orders only; supported by numbers"

_PRINTED = "Xiao, Wan & Devadas, as printed"

#: With shifts above this, and deltas below, what stands beside the bounds is lost in float64: it is left out.
_LARGEST, _LEAST_DELTA = 30.0, 1e-11


def as_claimed(delta: float, value: float, method: str, reasons: Sequence[str]) -> dps.Finding:
    """What the paper would claim if its conditions were met."""
    return beside("epsilon", value, method, _PRINTED, delta=delta, refuted="; ".join(reasons))


def gaussian(
    found: Sequence[Segment], delta: float, wanted: set[str], assumptions: tuple[dps.Assumption, ...]
) -> Iterator[dps.Finding]:
    """Those of ``wanted`` that Gaussian noise has; ``assumptions`` are the bound's but for the one-hot gradient."""
    within = max(max(s.shift, s.embedded) for s in found) <= _LARGEST
    if "fractional" in wanted and within and all(theory.one_dimensional(s) for s in found):
        yield from _fractional(found, delta, assumptions)
    if "printed" in wanted:
        yield from _printed(found, delta)
    if "variance-matched" in wanted:
        yield _variance_matched(found, delta, "the same variance per step, a smaller epsilon", "Cramer-Rao")
    if "limit" in wanted:
        value = theory.gaussian_epsilon(theory.limit(found), delta).epsilon
        yield beside("epsilon-limit", value, "linf_truncation without end", "Fisher information", delta=delta)
    if "pair" in wanted and within and delta >= _LEAST_DELTA:
        yield _pair(found, delta)


def laplace(
    found: Sequence[Segment], clip_norms: Sequence[float], delta: float, wanted: set[str]
) -> Iterator[dps.Finding]:
    """Those of ``wanted`` that Laplace noise has; ``clip_norms``, the phases', are the units of the printed lemma."""
    steps, largest = sum(s.steps for s in found), max(laplace_noise.loss_of(s) for s in found)
    if largest > laplace_noise.LARGEST:
        return
    value = laplace_noise.advanced_composition(steps, largest, delta)
    source = "Xiao, Wan & Devadas, Theorem 2.1"
    yield beside("epsilon-without-mixing", value, "advanced composition, all records", source, delta=delta)
    if "printed" in wanted and len(found) == 1:
        yield from _printed_laplace(found[0], clip_norms[0], delta)
    if "variance-matched" in wanted:
        yield _variance_matched(found, delta, "Gaussian noise of the same variance per step", "Mironov et al. 2019")
    if "pair" in wanted and delta >= _LEAST_DELTA:
        yield _pair(found, delta)


def _fractional(
    found: Sequence[Segment], delta: float, assumptions: tuple[dps.Assumption, ...]
) -> Iterator[dps.Finding]:
    real = theory.real_epsilon(found, delta)
    unchecked = dps.Assumption(name="one-hot-worst", status="unchecked", text=_FRACTIONAL)
    method, source = f"rdp/fractional-orders, best at {real.order:g}", f"{theory.SOURCE}; {_FRACTIONAL}"
    yield beside("epsilon", real.epsilon, method, source, delta=delta, assumptions=(*assumptions, unchecked))
    plain = theory.gaussian_epsilon(found, delta, real=True).epsilon
    method = "the same, fractional orders"
    yield beside("amplification", plain / real.epsilon, method, _FRACTIONAL, delta=delta)
    method, source = "rdp/fractional-orders, at the paper's orders", "Mironov et al. 2019"
    yield beside("epsilon-without-mixing", plain, method, source, delta=delta)


def _printed(found: Sequence[Segment], delta: float) -> Iterator[dps.Finding]:
    segment = replace(found[0], inflation=1.0)
    value = printed.corollary_without_steps(segment, delta)
    yield beside("epsilon", value, "Corollary 4.1, T left out", _PRINTED, delta=delta, refuted=printed.MISSING_T)
    far = printed.asymptotic(segment)
    why = f"{printed.ASYMPTOTIC}; here T delta_0 is {far.total:.3g}"
    if not far.applies:
        why += ", and the condition on the gap fails"
    method = "Theorem 4.2, delta of its tail events" + (", vacuous" if far.vacuous else "")
    yield beside("delta-asymptotic", far.total, method, "Xiao, Wan & Devadas, Theorem 4.2 and Lemma D.1", refuted=why)


def _printed_laplace(segment: Segment, clip_norm: float, delta: float) -> Iterator[dps.Finding]:
    """Lemma D.2 in the units of the spec, where its condition holds in them."""
    loss, width = laplace_noise.loss_of(segment), segment.gap * clip_norm / segment.effect
    if not laplace_noise.applies(clip_norm / loss, clip_norm, width):
        return
    one = laplace_noise.moments(clip_norm / loss, clip_norm, width, printed=True)
    value = laplace_noise.printed_total(segment.steps, one, delta)
    yield beside(
        "epsilon",
        value,
        "Lemma D.2 and its total, in units of the spec",
        _PRINTED,
        delta=delta,
        refuted="the total is no form of Bernstein's inequality, and one exponent is smaller than the proof gives",
    )


def _variance_matched(found: Sequence[Segment], delta: float, what: str, source: str) -> dps.Finding:
    matched = theory.variance_matched(found)
    value = theory.gaussian_epsilon(matched, delta).epsilon
    noise = ", ".join(f"{1.0 / s.effect:.4g}" for s in matched)
    method = f"DP-SGD with noise_multiplier {noise}: {what}"
    return beside("epsilon-variance-matched", value, method, source, delta=delta)


def _pair(found: Sequence[Segment], delta: float) -> dps.Finding:
    from dpspec_modelmix import truth

    method = "fft: how tight the bound is; no bound itself, on either side"
    source = "one-hot pair, all steps at the enforced gap"
    return beside("epsilon-of-the-pair", truth.epsilon(found, delta), method, source, delta=delta)
