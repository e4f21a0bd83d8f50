"""Formulas as printed in the paper, with their errors, and other comparisons. They support no verdict.

The utility theorems for smooth losses are computed as printed and with the constants that their proofs give.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import inside
from dpspec_modelmix import theory
from dpspec_modelmix.options import PhaseOptions, Segment, divisor_of, segments_of, unmet_conditions
from dpspec_modelmix.theory import SCOPE, SOURCE, Moments

#: Error of Corollary 4.1 as printed.
MISSING_T = "the factor T is missing, and the printed denominator 1 - a makes the value negative"

#: Reason why the asymptotic theorem gives no number.
ASYMPTOTIC = (
    "constants are hidden, the bound on the tail event holds for a one-hot gradient but not for a spread one, and T "
    "delta_0 must be below delta"
)


def compare(
    spec: dps.Spec, facts: dps.Facts, bounds: Sequence[dps.Finding | dps.Series]
) -> Iterator[dps.Finding | dps.Series]:
    """Printed formulas, amplification and comparable noise at each claimed delta, and the utility theorems."""
    segments, deltas = segments_of(spec.phases, spec.training.options, facts), kit.claimed_deltas(spec)
    if segments is None:
        return
    reasons = [reason for _, reason in unmet_conditions(spec)]
    for delta in deltas:
        if reasons:
            yield _as_if_mixed(segments, delta, reasons)
        else:
            yield from _amplification(segments, delta, bounds)
            yield from figure_3(spec, segments, delta)
            yield from comparisons(spec, segments, delta)
    if "utility" in spec.mechanism.options:
        yield from utility_findings(spec, facts, deltas[-1])


def _as_if_mixed(segments: Sequence[Segment], delta: float, reasons: Sequence[str]) -> dps.Finding:
    """Epsilon by the paper's theorem although conditions of it fail."""
    laplace = segments[0].noise == "laplace"
    mixed = theory.freedman_epsilon(segments, delta) if laplace else theory.mixed_epsilon(segments, delta).epsilon
    method = f"{'Lemma D.2' if laplace else 'Theorem 4.1'} as if all conditions held"
    return compared("epsilon", mixed, method, PRINTED, delta=delta, refuted="; ".join(reasons))


def _amplification(
    segments: Sequence[Segment], delta: float, bounds: Sequence[dps.Finding | dps.Series]
) -> Iterator[dps.Finding]:
    """Epsilon without mixing divided by epsilon with it, and the order of the latter."""
    if segments[0].noise == "laplace":
        plain = next(
            bound.value
            for bound in bounds
            if isinstance(bound, dps.Finding) and bound.rigor == "certified" and bound.at["delta"] == delta
        )
        ratio, method = plain / theory.freedman_epsilon(segments, delta), "without mixing (pld) / with mixing"
        yield compared("amplification", ratio, method, theory.LAPLACE_SOURCE, delta=delta)
        return
    best = theory.repaired_bound(tuple(segments), delta).best
    edge = "at the edge of the orders searched" if best.at_edge else "within the orders searched"
    yield compared("renyi-order", best.order, f"order used, {edge}", SOURCE, delta=delta)
    plain = theory.gaussian_epsilon(theory.without_mixing(segments), delta).epsilon
    method = "without mixing / with mixing, integer orders"
    yield compared("amplification", plain / best.epsilon, method, SOURCE, delta=delta)


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
    corrected = theory.step_loss_moments(c / b, tau / b, math.log(tau))
    loss, outside, twice = corrected.largest, theory.mass_outside(tau / b), 2.0 * (tau - 1.0)
    mean = loss * math.expm1(loss) * (outside + (2.0 * math.log(tau) * b + c) / tau)
    mean += math.expm1(loss) / twice * math.expm1(min(loss / twice, theory.LARGEST_LOSS)) * (1.0 - outside)
    return corrected._replace(mean=mean)


def printed_total(steps: int, step_moments: Moments, delta: float) -> float:
    """T E + sqrt(2 (T V L + L e0^2 / 9)) + L e0^2 / 3, as printed; not a form of Bernstein's inequality."""
    log = -math.log(inside("delta", delta))
    square = step_moments.largest**2
    return (
        steps * step_moments.mean
        + math.sqrt(2.0 * log * (steps * step_moments.second + square / 9.0))
        + log * square / 3.0
    )


def advanced_composition(steps: int, step_epsilon: float, delta: float) -> float:
    """Without mixing: sqrt(2 T ln(1 / delta)) e0 + T e0 (e^e0 - 1) (Theorem 2.1)."""
    return math.sqrt(
        -2.0 * steps * math.log(inside("delta", delta))
    ) * step_epsilon + steps * step_epsilon * math.expm1(step_epsilon)


PRINTED = "Xiao, Wan & Devadas, as printed"


def compared(
    quantity: str,
    value: float,
    method: str,
    source: str,
    *,
    delta: float | None = None,
    refuted: str = "",
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
        printed=dps.Printed(refuted=True, reason=refuted) if refuted else None,
    )


def comparisons(spec: dps.Spec, segments: Sequence[Segment], delta: float) -> Iterator[dps.Finding]:
    laplace = segments[0].noise == "laplace"
    if laplace:
        steps, largest = sum(s.steps for s in segments), max(s.laplace_loss for s in segments)
        if largest > theory.LARGEST_LOSS:
            return
        value = advanced_composition(steps, largest, delta)
        source = "Xiao, Wan & Devadas, Theorem 2.1"
        yield compared("epsilon-without-mixing", value, "advanced composition, all records", source, delta=delta)
        if len(segments) == 1:
            yield from _printed_laplace(segments[0], spec.phases[0].clip_norm, delta)
    else:
        if theory.has_fractional_orders(segments):
            real = theory.real_epsilon(segments, delta)
            plain = theory.real_epsilon(theory.without_mixing(segments), delta).epsilon
            method = "the same, fractional orders"
            yield compared("amplification", plain / real.epsilon, method, theory.FRACTIONAL, delta=delta)
            method, source = "rdp/fractional-orders, at the paper's orders", "Mironov et al. 2019"
            yield compared("epsilon-without-mixing", plain, method, source, delta=delta)
        yield from _printed(segments, delta)
    matched = theory.variance_matched(segments)
    noise = ", ".join(f"{1.0 / s.effect:.4g}" for s in matched)
    remark, source = "the same variance per step, a smaller epsilon", "Cramer-Rao"
    if laplace:
        remark, source = "Gaussian noise of the same variance per step", "Mironov et al. 2019"
    value, method = theory.gaussian_epsilon(matched, delta).epsilon, f"DP-SGD with noise_multiplier {noise}: {remark}"
    yield compared("epsilon-variance-matched", value, method, source, delta=delta)


#: Epsilon printed in Figure 3, panels a to c, by threshold and linf_truncation.
FIGURE_3 = dict(
    zip(
        [(threshold, truncation) for threshold in (0.075, 0.15, 0.3) for truncation in (1, 25, 100)],
        (57.2, 17.9, 15.3, 40.4, 9.0, 7.9, 31.7, 5.4, 4.8),
        strict=True,
    )
)

#: Noise multiplier and sampling rate of panels a to c, and of d to f, for which no value is printed.
_PANELS = ((0.3675, 0.02), (0.456371, 0.04))


def figure_3(spec: dps.Spec, segments: Sequence[Segment], delta: float) -> Iterator[dps.Series]:
    """The printed value of a spec of Figure 3 and the values of the paper's and the repaired formulas.

    The columns ``repaired`` and ``improved`` have the paper's conversion to epsilon and a better one.
    """
    phase, options = spec.phases[0], PhaseOptions.of(spec.phases[0])
    panel = (phase.noise_multiplier, phase.sampling.rate)
    if panel not in _PANELS or (len(spec.phases), phase.steps, phase.clip_norm, delta) != (1, 5000, 20.0, 1e-5):
        return
    if segments[0].noise == "laplace":
        return
    bound = theory.repaired_bound(tuple(segments), delta)
    repaired, improved = bound.best.epsilon, bound.improved.epsilon
    setting = (options.mixing.threshold, options.sparsity)
    columns: dict[str, list[dps.Json]] = {
        "printed": [FIGURE_3.get(setting) if panel == _PANELS[0] else None],
        "recomputed": [theory.real_epsilon(segments, delta).epsilon if segments[0].one_dimensional else repaired],
        "repaired": [repaired],
        "improved": [improved],
    }
    yield kit.series(
        "figure-3",
        "Figure 3: epsilon as printed, by the paper's orders, by the repaired theorem, and by a better conversion",
        columns,
        rigor="approximate",
        source=f"{PRINTED}; {SOURCE}; Canonne, Kamath & Steinke 2020",
        upper=("repaired", "improved"),
    )


def _printed(segments: Sequence[Segment], delta: float) -> Iterator[dps.Finding]:
    segment = replace(segments[0], inflation=1.0)
    # The corollary with the repaired sign of the denominator and without T is the value of a single step.
    value = theory.mixed_epsilon([replace(segment, steps=1)], delta).epsilon
    yield compared("epsilon", value, "Corollary 4.1, without T", PRINTED, delta=delta, refuted=MISSING_T)
    far = asymptotic(segment)
    refuted = f"{ASYMPTOTIC}; here T delta_0 is {far.total:.3g}"
    if not far.applies:
        refuted += ", and the condition on the gap fails"
    method = "Theorem 4.2, delta of its tail events" + (", vacuous" if far.vacuous else "")
    yield compared(
        "delta-asymptotic", far.total, method, "Xiao, Wan & Devadas, Theorem 4.2 and Lemma D.1", refuted=refuted
    )


def _printed_laplace(segment: Segment, clip_norm: float, delta: float) -> Iterator[dps.Finding]:
    """Lemma D.2 in the units of the spec, if its condition holds in these units."""
    loss, width = segment.laplace_loss, segment.gap * clip_norm / segment.effect
    step_moments = printed_moments(clip_norm / loss, clip_norm, width)
    if step_moments is None:
        return
    value = printed_total(segment.steps, step_moments, delta)
    yield compared(
        "epsilon",
        value,
        "Lemma D.2 and its total, in units of the spec",
        PRINTED,
        delta=delta,
        refuted="the total is not a form of Bernstein's inequality, and one exponent is smaller than in the proof",
    )


def clipping_bias(clip_norm: float, tail: float) -> dict[str, float]:
    """Lemma B.1: E<grad, clipped gradient> >= min(a1 ||grad||^2 - a2, a3 ||grad||).

    With c = 4 c_0, so p' = 4; the noise of samples has the tail e^(-u / kappa), kappa = ``tail``.
    """
    part = clip_norm / 4.0
    left = math.exp(-part / tail)
    remaining = 1.0 - left
    a3 = clip_norm * (remaining * (1.0 - 1.0 / 3.0 - 1.0 / 2.0) - left)
    return {"a1": remaining / 2.0, "a2": ((part + tail) * left / remaining) ** 2, "a3": a3}


@dataclass(frozen=True, kw_only=True)
class NonConvex:
    """Setting of Theorems B.1 and 3.2: a smooth loss with ``span`` sup F - inf F that need not be convex.

    ``noise`` is v, with E||noise||^2 / (n q)^2 = v d T ln(1 / delta) / (n epsilon)^2.
    """

    dimension: int
    records: int
    rate: float
    clip_norm: float
    epsilon: float
    delta: float
    smoothness: float
    span: float
    noise: float

    def covers(self, tail: float) -> bool:
        """True if clip_norm is large enough for the proof: c >= 4 kappa ln 10, with kappa = ``tail``, and
        c / (2 kappa) - ln((c / 4 + kappa)^2 / c) >= 0.4 - ln(sqrt(R beta d ln(1 / delta)) / (n epsilon)).
        """
        c, ratio = self.clip_norm, self._unit(1.0) / self.clip_norm
        left = c / (2.0 * tail) - math.log((c / 4.0 + tail) ** 2 / c)
        return c >= 4.0 * tail * math.log(10.0) and left >= 0.4 - math.log(ratio)

    def dpsgd(self, *, printed: bool = False) -> float:
        """Theorem B.1: the mean of min(9/20 ||grad||^2, c/20 ||grad||) over the steps of clipped DP-SGD.

        The derived first factor is 3 / (2 q) + 1 + v q / (2 c^2); the printed one, v / 2 + 5 / 2, drops the rate.
        """
        rederived = 1.5 / self.rate + 1.0 + self._share
        return (self.noise / 2.0 + 2.5 if printed else rederived) * self._unit(1.0)

    def modelmix(self, moved: float, *, printed: bool = False) -> float:
        """Theorem 3.2: the bound with mixing from two equal first models. moved: sum over steps of d tau_k^2.

        The derived first factor is 2 / q + 1 + v q / (2 c^2). The paper drops the root of the second term's
        d ln(1 / delta).
        """
        first = (self.noise / 2.0 + 2.5 if printed else 2.0 / self.rate + 1.0 + self._share) * self._unit(101.0 / 12.0)
        leak = self._leak if printed else math.sqrt(self._leak)
        second = self.clip_norm * leak * math.sqrt(101.0 / 12.0) * self.smoothness**1.5
        second *= moved / 12.0 / (self.rate * self.records * self.epsilon * math.sqrt(self.span))
        return float(first + second)

    @property
    def _leak(self) -> float:
        return self.dimension * math.log(1.0 / self.delta)

    @property
    def _share(self) -> float:
        return self.noise * self.rate / (2.0 * self.clip_norm**2)

    def _unit(self, factor: float) -> float:
        root = math.sqrt(self.span * factor * self.smoothness * self._leak)
        return self.clip_norm * root / (self.records * self.epsilon)


_SOURCE = "Xiao, Wan & Devadas"

#: The theorems are evaluated at the declared number of records.
_SCOPE: Final = dps.Scope(direction="both", access="all-iterates", adversary="none", data="this")

_SMOOTH = dps.Assumption(name="smooth-loss", status="declared", text="the loss is smooth, with the declared constant")

_CONVEX = dps.Assumption(
    name="convex-loss", status="declared", text="the loss is convex with gradient norms of at most clip_norm"
)

_TAIL = dps.Assumption(
    name="clip-above-tail", status="unchecked", text="clip_norm is large enough for the sampling noise"
)

_MOVED = dps.Assumption(
    name="moved-models",
    status="unchecked",
    text="the paper's proof ignores that the next step starts from the moved model",
)


def utility_findings(spec: dps.Spec, facts: dps.Facts, delta: float) -> Iterator[dps.Finding]:
    """Theorem 3.1 if a distance is declared, Theorems B.1 and 3.2 if a span is, Lemma B.1 if a tail is."""
    declared, phase = spec.mechanism["utility"], spec.phases[0]
    if "distance" in declared:
        yield from _convex(declared, phase, spec, facts)
    if "tail" in declared:
        for name, value in clipping_bias(phase.clip_norm, float(declared["tail"])).items():
            method = "<grad, clipped> is at least min(a1 |grad|^2 - a2, a3 |grad|), p' = 4"
            yield compared(f"clipping-{name}", value, method, f"{_SOURCE}, Lemma B.1")
    if "span" in declared:
        yield from _non_convex(declared, phase, spec, facts, delta)


def _convex(declared: Mapping[str, Any], phase: dps.Phase, spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Finding]:
    """Theorem 3.1: E[F(mean model) - F(best)] for convex losses, step size gamma / (n q sqrt(T)), clipped at L.

    With D = sup ||w - w*|| and E||noise||^2 = d sigma^2. The enforced gap adds d tau^2 / 12 per step with the exact
    rule, and up to d tau^2 / 4 with the literal rule.
    """
    distance, lipschitz, noise_square = float(declared["distance"]), phase.clip_norm, _noise_square(phase, facts)
    steps, rate, records = phase.steps, phase.rate(facts.records), facts.records
    eta, mixing = float(spec.training["learning_rate"]), PhaseOptions.of(phase).mixing
    divisor = divisor_of(phase, spec.phases, spec.training.options, records)
    root, size = math.sqrt(steps), math.sqrt(noise_square)
    gamma = eta / divisor * phase.expected_batch(records) * root
    second = gamma * (lipschitz**2 / rate**2 + noise_square / (records * rate) ** 2) / root
    third = 12.0 * distance**2 / (8.0 * steps)
    third += 2.0 * gamma * distance * (lipschitz + size / records) / (rate * steps**1.5)
    third += 11.0 * gamma**2 * (lipschitz**2 + noise_square / records**2) / (8.0 * steps * rate**2)

    def risk(share: float) -> float:
        tau = np.full(steps, _threshold(phase, spec))
        moved = int(facts.parameters or 0) * float(np.square(tau).sum()) / share
        first = (3.0 * distance**2 + moved) / (2.0 * gamma * root)
        return float(first + second + float(declared["smoothness"]) * third)

    enforcement, share = ("literal", 4.0) if mixing.literal else ("exact", 12.0)
    yield _upper("excess-risk", risk(share), f"Theorem 3.1, {enforcement} enforcement", (_SMOOTH, _CONVEX, _MOVED))
    if mixing.literal:
        misprint = "a gap that grows by tau adds up to d tau^2 / 4 per step, not d tau^2 / 12"
        yield compared("excess-risk", risk(12.0), "Theorem 3.1", f"{_SOURCE}, as printed", refuted=misprint)


def _non_convex(
    declared: Mapping[str, Any], phase: dps.Phase, spec: dps.Spec, facts: dps.Facts, delta: float
) -> Iterator[dps.Finding]:
    steps, clip, span = phase.steps, phase.clip_norm, float(declared["span"])
    dimension, beta = int(facts.parameters or 0), float(declared["smoothness"])
    case = NonConvex(
        dimension=dimension,
        records=facts.records,
        rate=phase.rate(facts.records),
        clip_norm=clip,
        # The theorems choose T by epsilon. Here T is given, so this is the matching epsilon.
        epsilon=math.sqrt(steps * dimension * -math.log(delta)) / facts.records,
        delta=delta,
        smoothness=beta,
        span=span,
        noise=_noise_square(phase, facts) / (facts.records * phase.rate(facts.records)) ** 2,
    )
    moved = steps * dimension * _threshold(phase, spec) ** 2 * (3.0 if PhaseOptions.of(phase).mixing.literal else 1.0)
    covered = "tail" in declared and case.covers(float(declared["tail"]))
    tail = _TAIL
    if "tail" in declared:
        tail = replace(_TAIL, status="declared" if covered else "false")
    misprint = "a factor 1 / q is dropped, and Theorem 3.2 drops a root as well"
    for name, theorem, assumed, values in (
        ("mean-gradient-without-mixing", "Theorem B.1", (), (case.dpsgd(), case.dpsgd(printed=True))),
        ("mean-gradient", "Theorem 3.2", (_MOVED,), (case.modelmix(moved), case.modelmix(moved, printed=True))),
    ):
        method = f"{theorem}, mean of min(9/20 |grad|^2, c/20 |grad|) at the learning rate it chooses"
        yield _upper(name, values[0], f"{method}, derived constants", (_SMOOTH, tail, *assumed))
        yield compared(name, values[1], method, f"{_SOURCE}, as printed", refuted=misprint)


def _upper(quantity: str, value: float, method: str, assumptions: tuple[dps.Assumption, ...]) -> dps.Finding:
    return kit.theorem_upper(quantity, value, scope=_SCOPE, method=method, source=_SOURCE, assumptions=assumptions)


def _noise_square(phase: dps.Phase, facts: dps.Facts) -> float:
    """E||noise||^2 = d sigma^2, on the scale of the sum."""
    return int(facts.parameters or 0) * phase.deviation**2


def _threshold(phase: dps.Phase, spec: dps.Spec) -> float:
    mixing = PhaseOptions.of(phase).mixing
    return mixing.threshold * (float(spec.training["learning_rate"]) if mixing.relative else 1.0)
