"""Formulas as printed in the paper, with their errors, and other comparisons. They support no verdict."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

import dpspec.contract as dps
from dpspec.accounting import BestEpsilon, Floats, best_epsilon, gaussian_rdp, inside, sampled_gaussian_rdp
from dpspec_modelmix.options import Segment
from dpspec_modelmix.theory import (
    LARGEST_LOSS,
    NARROW,
    SCOPE,
    SOURCE,
    Moments,
    cut_moments,
    gaussian_epsilon,
    log_excess_moments,
    mass_outside,
    mixed_epsilon,
    total_rdp,
    variance_matched,
    without_mixing,
)

#: Error of Corollary 4.1 as printed.
MISSING_T = "the factor T is missing, and the printed denominator 1 - a makes the value negative"

#: Reason why the asymptotic theorem gives no number.
ASYMPTOTIC = (
    "constants are hidden, the bound on the tail event holds for a one-hot gradient but not for a spread one, and T "
    "delta_0 must be below delta"
)


class Asymptotic(NamedTuple):
    """Tail event of one step in Lemma D.1: Pr[loss >= ``epsilon``] < ``delta`` if ``applies``; ``total`` = T ``delta``.

    Theorem 4.2 adds the rest of its delta; vacuous from 1.
    """

    epsilon: float
    delta: float
    total: float
    applies: bool

    @property
    def vacuous(self) -> bool:
        return self.total >= 1.0 or not self.applies


def asymptotic(segment: Segment) -> Asymptotic:
    """Lemma D.1 in units of sigma, c = s and tau = t: epsilon_0 = 1 / (t sqrt(2 ln t)), its delta_0, and T delta_0.

    delta_0 = (2 s + 2 sqrt(2 ln(t max(s, 1)))) / t, for t > max(2 ln t + 2 s, e^(3 s), 2). The lemma holds for one
    coordinate: for 10^4 equal shifts the true probability is larger.
    """
    t, s = segment.gap, segment.effect
    if t <= 1.0:
        return Asymptotic(math.inf, 1.0, float(segment.steps), False)
    epsilon = 1.0 / (t * math.sqrt(2.0 * math.log(t)))
    delta = (2.0 * s + 2.0 * math.sqrt(2.0 * math.log(t * max(s, 1.0)))) / t
    applies = t > max(2.0 * math.log(t) + 2.0 * s, math.exp(min(3.0 * s, 700.0)), 2.0)
    return Asymptotic(epsilon, delta, segment.steps * delta, applies)


def printed_moments(b: float, c: float, tau: float) -> Moments | None:
    """Lemma D.2 as printed, for scale ``b`` 1 / lambda, sensitivity ``c`` and width ``tau``; None if it does not apply.

    The mean has the exponent e0 / (2 (tau - 1)), which is smaller than the e_I of the proof.
    """
    if tau <= max(2.0 * math.log(max(tau, 1e-300)) * b + c, 1.0):
        return None
    corrected = cut_moments(c / b, tau / b, math.log(tau))
    loss, outside, twice = corrected.largest, mass_outside(tau / b), 2.0 * (tau - 1.0)
    mean = loss * math.expm1(loss) * (outside + (2.0 * math.log(tau) * b + c) / tau)
    mean += math.expm1(loss) / twice * math.expm1(min(loss / twice, LARGEST_LOSS)) * (1.0 - outside)
    return corrected._replace(mean=mean)


def printed_total(steps: int, one: Moments, delta: float) -> float:
    """T E + sqrt(2 (T V L + L e0^2 / 9)) + L e0^2 / 3, as printed; not a form of Bernstein's inequality."""
    log = -math.log(inside("delta", delta))
    square = one.largest**2
    return steps * one.mean + math.sqrt(2.0 * log * (steps * one.second + square / 9.0)) + log * square / 3.0


def advanced_composition(steps: int, one: float, delta: float) -> float:
    """Without mixing: sqrt(2 T ln(1 / delta)) e0 + T e0 (e^e0 - 1) (Theorem 2.1)."""
    return math.sqrt(-2.0 * steps * math.log(inside("delta", delta))) * one + steps * one * math.expm1(one)


#: Orders that reproduce the paper's printed values. Its proof does not cover the fractional ones.
REAL_ORDERS = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *map(float, range(5, 64)), 128.0, 256.0)


def real_epsilon(segments: Sequence[Segment], delta: float) -> BestEpsilon:
    """The theorem's epsilon over the paper's fractional orders, which no theorem covers; without mixing at gap 0."""
    return best_epsilon(REAL_ORDERS, total_rdp(real_step_rdp, REAL_ORDERS, segments), delta, "mironov")


def real_step_rdp(orders: Sequence[float], segment: Segment) -> Floats:
    """D_a of one step at real ``orders`` > 1, shape (n,), for the one-hot pair."""
    if not segment.one_dimensional:
        raise ValueError("fractional orders are defined for p = 1 only")
    a = np.asarray(orders, dtype=np.float64)
    if segment.gap < NARROW:
        if segment.rate == 1.0:
            return gaussian_rdp(a, segment.effect)
        return sampled_gaussian_rdp(a, segment.rate, 1.0 / segment.effect)
    excess = log_excess_moments(a, segment.shift, segment.gap, segment.rate)
    return np.asarray(np.logaddexp(0.0, excess) / (a - 1.0), dtype=np.float64)


#: Reason why orders below 2 support no verdict.
_FRACTIONAL = "the proof expands a binomial and covers integer orders only; supported by numbers"

PRINTED = "Xiao, Wan & Devadas, as printed"

#: Fractional orders are omitted for larger shifts, because float64 cannot represent them.
_LARGEST_SHIFT = 30.0


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


def comparisons(
    spec: dps.Spec, segments: Sequence[Segment], delta: float, assumptions: tuple[dps.Assumption, ...]
) -> Iterator[dps.Finding]:
    """Values for comparison; ``assumptions`` exclude that of the one-hot gradient."""
    laplace = segments[0].noise == "laplace"
    if laplace:
        steps, largest = sum(s.steps for s in segments), max(s.laplace_loss for s in segments)
        if largest > LARGEST_LOSS:
            return
        value = advanced_composition(steps, largest, delta)
        source = "Xiao, Wan & Devadas, Theorem 2.1"
        yield compared("epsilon-without-mixing", value, "advanced composition, all records", source, delta=delta)
        if len(segments) == 1:
            yield from _printed_laplace(segments[0], spec.phases[0].clip_norm, delta)
    else:
        if all(s.one_dimensional and s.shift <= _LARGEST_SHIFT for s in segments):
            real = real_epsilon(segments, delta)
            unchecked = dps.Assumption(name="one-hot-worst", status="unchecked", text=_FRACTIONAL)
            method, source = f"rdp/fractional-orders, best at {real.order:g}", f"{SOURCE}; {_FRACTIONAL}"
            yield compared("epsilon", real.epsilon, method, source, delta=delta, assumptions=(*assumptions, unchecked))
            plain = real_epsilon(without_mixing(segments), delta).epsilon
            method = "the same, fractional orders"
            yield compared("amplification", plain / real.epsilon, method, _FRACTIONAL, delta=delta)
            method, source = "rdp/fractional-orders, at the paper's orders", "Mironov et al. 2019"
            yield compared("epsilon-without-mixing", plain, method, source, delta=delta)
        yield from _printed(segments, delta)
    matched = variance_matched(segments)
    noise = ", ".join(f"{1.0 / s.effect:.4g}" for s in matched)
    what, source = "the same variance per step, a smaller epsilon", "Cramer-Rao"
    if laplace:
        what, source = "Gaussian noise of the same variance per step", "Mironov et al. 2019"
    value, method = gaussian_epsilon(matched, delta).epsilon, f"DP-SGD with noise_multiplier {noise}: {what}"
    yield compared("epsilon-variance-matched", value, method, source, delta=delta)


def _printed(segments: Sequence[Segment], delta: float) -> Iterator[dps.Finding]:
    segment = replace(segments[0], inflation=1.0)
    # The corollary with the repaired sign of the denominator and without T is the value of a single step.
    value = mixed_epsilon([replace(segment, steps=1)], delta).epsilon
    yield compared("epsilon", value, "Corollary 4.1, without T", PRINTED, delta=delta, refuted=MISSING_T)
    far = asymptotic(segment)
    why = f"{ASYMPTOTIC}; here T delta_0 is {far.total:.3g}"
    if not far.applies:
        why += ", and the condition on the gap fails"
    method = "Theorem 4.2, delta of its tail events" + (", vacuous" if far.vacuous else "")
    yield compared("delta-asymptotic", far.total, method, "Xiao, Wan & Devadas, Theorem 4.2 and Lemma D.1", refuted=why)


def _printed_laplace(segment: Segment, clip_norm: float, delta: float) -> Iterator[dps.Finding]:
    """Lemma D.2 in the units of the spec, if its condition holds in these units."""
    loss, width = segment.laplace_loss, segment.gap * clip_norm / segment.effect
    one = printed_moments(clip_norm / loss, clip_norm, width)
    if one is None:
        return
    value = printed_total(segment.steps, one, delta)
    yield compared(
        "epsilon",
        value,
        "Lemma D.2 and its total, in units of the spec",
        PRINTED,
        delta=delta,
        refuted="the total is not a form of Bernstein's inequality, and one exponent is smaller than in the proof",
    )
