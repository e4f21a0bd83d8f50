"""The paper's utility theorems for smooth losses, as printed and with the constants that their proofs give."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

import dpspec.contract as dps
from dpspec import kit
from dpspec_modelmix.options import PhaseOptions, divisor_of, learning_rate
from dpspec_modelmix.published import compared


def clipping_bias(clip_norm: float, tail: float) -> dict[str, float]:
    """Lemma B.1: E<grad, clipped gradient> >= min(a1 ||grad||^2 - a2, a3 ||grad||).

    With c = 4 c_0, so p' = 4; the noise of samples has the tail e^(-u / kappa), kappa = ``tail``.
    """
    part = clip_norm / 4.0
    left = math.exp(-part / tail)
    kept = 1.0 - left
    a3 = clip_norm * (kept * (1.0 - 1.0 / 3.0 - 1.0 / 2.0) - left)
    return {"a1": kept / 2.0, "a2": ((part + tail) * left / kept) ** 2, "a3": a3}


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
    eta, mixing = learning_rate(phase, spec.training.options), PhaseOptions.of(phase).mixing
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
        why = "a gap that grows by tau adds up to d tau^2 / 4 per step, not d tau^2 / 12"
        yield compared("excess-risk", risk(12.0), "Theorem 3.1", f"{_SOURCE}, as printed", refuted=why)


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
    why = "a factor 1 / q is dropped, and Theorem 3.2 drops a root as well"
    for name, theorem, assumed, values in (
        ("mean-gradient-without-mixing", "Theorem B.1", (), (case.dpsgd(), case.dpsgd(printed=True))),
        ("mean-gradient", "Theorem 3.2", (_MOVED,), (case.modelmix(moved), case.modelmix(moved, printed=True))),
    ):
        method = f"{theorem}, mean of min(9/20 |grad|^2, c/20 |grad|) at the learning rate it chooses"
        yield _upper(name, values[0], f"{method}, derived constants", (_SMOOTH, tail, *assumed))
        yield compared(name, values[1], method, f"{_SOURCE}, as printed", refuted=why)


def _upper(quantity: str, value: float, method: str, assumptions: tuple[dps.Assumption, ...]) -> dps.Finding:
    return kit.theorem_upper(quantity, value, scope=_SCOPE, method=method, source=_SOURCE, assumptions=assumptions)


def _noise_square(phase: dps.Phase, facts: dps.Facts) -> float:
    """E||noise||^2 = d sigma^2, on the scale of the sum."""
    return int(facts.parameters or 0) * phase.deviation**2


def _threshold(phase: dps.Phase, spec: dps.Spec) -> float:
    mixing = PhaseOptions.of(phase).mixing
    return mixing.threshold * (learning_rate(phase, spec.training.options) if mixing.relative else 1.0)
