"""The paper's utility theorems at the numbers of a spec, as findings: repaired ones, and printed ones flagged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import dpspec.contract as dps
from dpspec_modelmix import utility
from dpspec_modelmix.findings import beside
from dpspec_modelmix.options import batch_size, learning_rate, mixing_of

_SOURCE = "Xiao, Wan & Devadas"

_SCOPE: Final = dps.Scope(direction="both", access="all-iterates", adversary="none")

_SMOOTH = dps.Assumption(name="smooth-loss", status="declared", text="the loss is smooth, with the declared constant")

_MOVED = dps.Assumption(
    name="moved-models",
    status="unchecked",
    text="the paper's proof leaves out that a model which was moved apart is the one that the next step starts from",
)


def findings(spec: dps.Spec, facts: dps.Facts, delta: float) -> Iterator[dps.Finding]:
    """Theorem 3.1 where a distance is declared, Theorems B.1 and 3.2 where a span is, Lemma B.1 where a tail is."""
    declared, phase = spec.mechanism["utility"], spec.phases[0]
    if "distance" in declared:
        yield from _convex(declared, phase, spec, facts)
    if "tail" in declared:
        yield from _bias(declared, phase)
    if "span" in declared:
        yield from _non_convex(declared, phase, spec, facts, delta)


def _convex(
    declared: Mapping[str, Any], phase: dps.FrozenMap, spec: dps.Spec, facts: dps.Facts
) -> Iterator[dps.Finding]:
    steps, rate, expected = int(phase["steps"]), _rate(phase), _rate(phase) * facts.records
    eta, mixing = learning_rate(phase, spec.training.options), mixing_of(phase)
    divisor = batch_size(spec.phases, facts.records) if phase.get("reduction", "mean") == "mean" else 1.0
    setting: dict[str, Any] = {
        "distance": float(declared["distance"]),
        "dimension": facts.parameters,
        "thresholds": _threshold(phase, spec),
        "steps": steps,
        "gamma": eta / divisor * expected * math.sqrt(steps),
        "lipschitz": float(phase["clip_norm"]),
        "rate": rate,
        "records": facts.records,
        "noise_square": _noise_square(phase, facts),
        "smoothness": float(declared["smoothness"]),
    }
    convex = dps.Assumption(
        name="convex-loss", status="declared", text="the loss is convex, its gradients no longer than clip_norm"
    )
    how = "literal" if mixing.literal else "exact"
    value = utility.convex(**setting, enforcement=how)
    yield _upper("excess-risk", value, f"Theorem 3.1, {how} enforcement", (_SMOOTH, convex, _MOVED))
    if mixing.literal:
        why = "a gap that grows by tau adds up to d tau^2 / 4 a step, not d tau^2 / 12"
        yield beside("excess-risk", utility.convex(**setting), "Theorem 3.1", f"{_SOURCE}, as printed", refuted=why)


def _bias(declared: Mapping[str, Any], phase: dps.FrozenMap) -> Iterator[dps.Finding]:
    bias = utility.clipping_bias(float(phase["clip_norm"]), float(declared["tail"]))
    for name, value in bias._asdict().items():
        method = "<grad, clipped> is at least min(a1 |grad|^2 - a2, a3 |grad|), p' = 4"
        yield beside(f"clipping-{name}", value, method, f"{_SOURCE}, Lemma B.1")


def _non_convex(
    declared: Mapping[str, Any], phase: dps.FrozenMap, spec: dps.Spec, facts: dps.Facts, delta: float
) -> Iterator[dps.Finding]:
    """Both theorems at the learning rate that they choose, over the steps of the spec."""
    steps, clip, span = int(phase["steps"]), float(phase["clip_norm"]), float(declared["span"])
    dimension, beta = int(facts.parameters or 0), float(declared["smoothness"])
    case = utility.NonConvex(
        dimension=dimension,
        records=facts.records,
        rate=_rate(phase),
        clip_norm=clip,
        # They choose T by an epsilon. Here T is given, and this is the epsilon that chooses it.
        epsilon=math.sqrt(steps * dimension * -math.log(delta)) / facts.records,
        delta=delta,
        smoothness=beta,
        span=span,
        noise=_noise_square(phase, facts) / (facts.records * _rate(phase)) ** 2,
    )
    moved = steps * dimension * _threshold(phase, spec) ** 2 * (3.0 if mixing_of(phase).literal else 1.0)
    covered = "tail" in declared and case.covers(float(declared["tail"]))
    tail = dps.Assumption(
        name="clip-above-tail",
        status=("declared" if covered else "false") if "tail" in declared else "unchecked",
        text="clip_norm is above what the noise of samples asks for",
    )
    why = "a factor 1 / q is dropped, and Theorem 3.2 drops a root as well"
    for name, theorem, assumed, values in (
        ("mean-gradient-without-mixing", "Theorem B.1", (), (case.dpsgd(), case.dpsgd(printed=True))),
        (
            "mean-gradient",
            "Theorem 3.2",
            (_MOVED,),
            (case.modelmix(moved, 0.0), case.modelmix(moved, 0.0, printed=True)),
        ),
    ):
        method = f"{theorem}, mean of min(9/20 |grad|^2, c/20 |grad|) at the learning rate it chooses"
        yield _upper(name, values[0], f"{method}, constants derived again", (_SMOOTH, tail, *assumed))
        yield beside(name, values[1], method, f"{_SOURCE}, as printed", refuted=why)


def _upper(quantity: str, value: float, method: str, assumptions: tuple[dps.Assumption, ...]) -> dps.Finding:
    return dps.Finding(
        quantity=quantity,
        value=value,
        bound="upper",
        rigor="theorem",
        scope=_SCOPE,
        method=method,
        source=_SOURCE,
        assumptions=assumptions,
    )


def _rate(phase: dps.FrozenMap) -> float:
    sampling = phase["sampling"]
    return float(sampling["rate"]) if sampling["scheme"] == "poisson" else 1.0


def _noise_square(phase: dps.FrozenMap, facts: dps.Facts) -> float:
    """E||noise||^2 = d sigma^2, on the scale of the sum."""
    return int(facts.parameters or 0) * (float(phase["noise_multiplier"]) * float(phase["clip_norm"])) ** 2


def _threshold(phase: dps.FrozenMap, spec: dps.Spec) -> float:
    mixing = mixing_of(phase)
    return mixing.threshold * (learning_rate(phase, spec.training.options) if mixing.relative else 1.0)
