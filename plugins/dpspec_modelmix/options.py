"""Typed options of a spec, the segments for the theory, and located messages for specs that it does not cover.

No torch, data or numerics.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec.training.providers import optimizer_kind

#: The kinds of canaries, the default first.
KINDS = ("one-hot", "spread")

#: Noise multiplier below which epsilon overflows.
NO_NOISE = 1e-100


@dataclass(frozen=True, kw_only=True)
class Mixing(kit.Options):
    threshold: float
    relative: bool
    literal: bool
    zero_ties: bool
    shared: bool
    unmixed: tuple[str, ...] = ()

    @classmethod
    def read(cls, block: dps.FrozenMap) -> "Mixing":
        return cls.fill(
            block,
            relative=block.get("relative_to", "learning-rate") == "learning-rate",
            literal=block.get("enforcement", "exact") == "literal",
            zero_ties=block.get("ties", "positive") == "zero",
            shared=block.get("weights", "per-coordinate") == "shared",
        )


@dataclass(frozen=True, kw_only=True)
class Embedding(kit.Options):
    """Separate clipping and noise for a gradient's component in a public subspace; ``floor``: isotropic-floor."""

    floor: bool
    dimension: int
    clip_norm: float
    noise_multiplier: float
    anchors: int = 0

    @classmethod
    def read(cls, block: dps.FrozenMap) -> "Embedding":
        return cls.fill(block, floor=block["form"] == "isotropic-floor")

    @property
    def deviation(self) -> float:
        return self.noise_multiplier * self.clip_norm


@dataclass(frozen=True, kw_only=True)
class PhaseOptions(kit.Options):
    """``sparsity`` is ``linf_truncation``: the minimum number of non-zero coordinates of a gradient of maximum norm."""

    mixing: Mixing
    embedding: Embedding | None = None
    sparsity: int
    by_mean: bool

    @classmethod
    def read(cls, block: dps.FrozenMap) -> "PhaseOptions":
        by_mean = block.get("reduction", "mean") == "mean"
        return cls.fill(block, sparsity=int(block.get("linf_truncation", 1)), by_mean=by_mean)


@dataclass(frozen=True, kw_only=True)
class Twins(kit.Options):
    delta: float = 1e-5
    learning_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Attack(kit.Options):
    """Canaries, each included with probability 1/2, on linf_truncation coordinates (one-hot) or many (spread)."""

    kind: str
    count: int
    twins: Twins | None = None

    @classmethod
    def read(cls, block: dps.FrozenMap) -> "Attack":
        canary = block.get("canary") or {}
        return cls.fill(block, kind=str(canary.get("kind", KINDS[0])), count=int(canary.get("count", 0)))


def mixed_norm(phase: dps.Phase) -> float:
    """Sensitivity relative to the mixed noise: of both parts with the isotropic floor, else ``clip_norm``."""
    embedding, clip_norm = PhaseOptions.of(phase).embedding, phase.clip_norm
    return math.hypot(clip_norm, embedding.clip_norm) if embedding is not None and embedding.floor else clip_norm


def gap_on_sum(phase: dps.Phase, phases: Sequence[dps.Phase], training: Mapping[str, Any], records: int) -> float:
    """(tau / eta) B: the enforced gap of a phase on the scale of the noisy sum, with B the divisor of the update."""
    mixing = PhaseOptions.of(phase).mixing
    ratio = mixing.threshold if mixing.relative else mixing.threshold / float(training["learning_rate"])
    return ratio * divisor_of(phase, phases, training, records)


def divisor_of(phase: dps.Phase, phases: Sequence[dps.Phase], training: Mapping[str, Any], records: int) -> float:
    """Divisor of the noisy sum in an update: the expected batch size, or 1 if ``reduction`` is sum."""
    return dps.expected_batch_size(training, phases, records) if PhaseOptions.of(phase).by_mean else 1.0


def unmet_conditions(spec: dps.Spec) -> list[tuple[dps.Path, str]]:
    unmet = {
        (("training", key) if phase is None else dps.in_phase(spec, phase, "mixing", key), reason): None
        for phase, key, reason in unmet_in(spec.phases, spec.training.options)
    }
    return list(unmet)


def unmet_in(phases: Sequence[Mapping[str, Any]], training: Mapping[str, Any]) -> list[tuple[int | None, str, str]]:
    unmet: list[tuple[int | None, str, str]] = []
    kind = optimizer_kind(training)
    if kind != "sgd":
        unmet.append((None, "optimizer", f"{kind} reuses noisy gradients of earlier steps, which undoes the mixing"))
    for i, phase in enumerate(phases):
        mixing = PhaseOptions.of(phase).mixing
        if mixing.threshold == 0.0:
            unmet.append((i, "threshold", "a threshold of 0 enforces no gap"))
        if mixing.shared:
            unmet.append((i, "weights", "a shared weight adds no noise across the line between both models"))
        if mixing.unmixed:
            unmet.append((i, "unmixed", f"{', '.join(mixing.unmixed)} has only Gaussian noise"))
        if mixing.zero_ties:
            unmet.append((i, "ties", "the first step starts from two equal models and has no gap"))
    return unmet


@dataclass(frozen=True)
class Segment:
    """Consecutive steps with equal parameters.

    Attributes:
        rate: Sampling rate q.
        effect: s = clip_norm / sigma = 1 / noise_multiplier.
        gap: Enforced gap t in units of sigma, on the scale of the sum.
        sparsity: Number p of non-zero coordinates of the worst gradient.
        inflation: Factor on the logarithms of moments; above 1 if a check found a worse gradient than the one-hot one.
        embedded: Effect of the component in a subspace, which has separate Gaussian noise without mixing.
    """

    steps: int
    rate: float
    effect: float
    gap: float
    sparsity: int = 1
    inflation: float = 1.0
    embedded: float = 0.0
    noise: str = "gaussian"

    @property
    def shift(self) -> float:
        """v = s / sqrt(p), the shift of one coordinate by the worst gradient."""
        return self.effect / math.sqrt(self.sparsity)

    @property
    def one_dimensional(self) -> bool:
        return self.sparsity == 1 and self.embedded == 0.0

    @property
    def laplace_loss(self) -> float:
        """epsilon_0 of a full-batch step with Laplace noise: sqrt(2) s, since its scale is sigma / sqrt(2)."""
        return math.sqrt(2.0) * self.effect


def segments_of(phases: Sequence[dps.Phase], training: Mapping[str, Any], facts: dps.Facts) -> list[Segment] | None:
    """Convert phases to segments, assuming all conditions of the amplification; None if a part has no noise."""
    segments = []
    for phase in phases:
        embedding, sigma = PhaseOptions.of(phase).embedding, phase.deviation
        least = phase.noise_multiplier / (mixed_norm(phase) / phase.clip_norm)
        if embedding is not None and not embedding.floor:
            least = min(least, embedding.noise_multiplier)
        if least < NO_NOISE:
            return None
        segments.append(
            Segment(
                steps=phase.steps,
                rate=phase.rate(facts.records),
                effect=mixed_norm(phase) / sigma,
                gap=gap_on_sum(phase, phases, training, facts.records) / sigma,
                sparsity=min(PhaseOptions.of(phase).sparsity, facts.parameters or 10**9),
                embedded=1.0 / embedding.noise_multiplier if embedding is not None and not embedding.floor else 0.0,
                noise=phase.noise,
            )
        )
    return segments


#: Gap in units of the noise below which the amplification is negligible.
_NEGLIGIBLE = 0.5

#: Largest number of canaries whose order fits a trial's evidence.
MAX_CANARIES = 50_000

_LEAST_CANARIES = 8

_CANARY = ("audit", "canary")


def refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    yield from _scope(spec)
    for i, phase in enumerate(spec.phases):
        yield from _phase(spec, facts, i, phase)
    yield from _between_phases(spec)
    for i, phase in enumerate(spec.phases):
        if phase.noise == "laplace":
            yield from _laplace(spec, facts, i, phase)
        yield from _embedding(spec, facts, i, phase)
    yield from _amplification(spec, facts)
    if spec.audit is not None:
        yield from _attack(spec, facts)


def _scope(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    yield from dps.other_adjacencies(spec, "add-remove", "the theorem", "write threat_model: {adjacency: add-remove}")
    sizes: list[tuple[dps.Path, int]] = [(("threat_model", "group_size"), max(spec.threat_model.group_size))]
    sizes += [(("claims", i, "group_size"), c.group_size) for i, c in enumerate(spec.claims)]
    for path, size in sizes:
        if size > 1:
            message = f"the theorem covers single records, not groups of {size}"
            yield kit.unsupported(message, path, "use mechanism kind group")


def _phase(spec: dps.Spec, facts: dps.Facts, i: int, phase: dps.Phase) -> Iterator[dps.Diagnostic]:
    message = "the theorem covers Poisson batches, not {scheme} ones"
    yield from kit.other_scheme(spec, i, dps.Sampling.INDEPENDENT, message, "train with scheme: poisson")
    options = PhaseOptions.of(phase)
    if facts.parameters is not None and options.sparsity > facts.parameters:
        message = f"linf_truncation must be at most the {facts.parameters} parameters, got {options.sparsity}"
        yield dps.Diagnostic(code="out-of-range", message=message, path=dps.in_phase(spec, i, "linf_truncation"))
    yield from kit.too_little_noise(phase.noise_multiplier, dps.in_phase(spec, i, "noise_multiplier"))
    if phase.noiseless:
        path, message = dps.in_phase(spec, i, "noise_multiplier"), "without noise epsilon is infinite"
        yield dps.Diagnostic(code="no-noise", message=message, path=path, severity="warning")
    if not options.mixing.relative and (spec.training.get("schedule") or {}).get("kind", "constant") != "constant":
        message = "an absolute threshold with a learning-rate schedule gives every step a different gap"
        path = dps.in_phase(spec, i, "mixing", "relative_to")
        yield kit.unsupported(message, path, "write relative_to: learning-rate")


def _between_phases(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    first = spec.phases[0]
    rules = [replace(PhaseOptions.of(phase).mixing, threshold=0.0, relative=True) for phase in spec.phases]
    for i, (phase, rule) in enumerate(zip(spec.phases, rules, strict=True)):
        if rule != rules[0]:
            path = dps.in_phase(spec, i, "mixing", "threshold")[:-1]
            yield kit.unsupported("phases may differ only in threshold, not in other keys of mixing", path)
        for key in ("noise", "embedding", "reduction"):
            if phase.get(key) != first.get(key):
                yield kit.unsupported(f"all phases must have the same {key}", dps.in_phase(spec, i, key))


def _laplace(spec: dps.Spec, facts: dps.Facts, i: int, phase: dps.Phase) -> Iterator[dps.Diagnostic]:
    options = PhaseOptions.of(phase)
    for key, is_set in (("linf_truncation", options.sparsity > 1), ("embedding", options.embedding is not None)):
        if is_set:
            message = f"{key} needs l2 clipping, and Laplace noise clips to an l1 norm"
            yield kit.unsupported(message, dps.in_phase(spec, i, key), "remove it: clip_norm bounds the l1 norm")
    if phase.noiseless or unmet_conditions(spec):
        return
    clip, path = phase.clip_norm, dps.in_phase(spec, i, "mixing", "threshold")
    width = gap_on_sum(phase, spec.phases, spec.training.options, facts.records)
    if width <= clip:
        message = f"the gap must be above clip_norm {clip:g} on the scale of the sum (Lemma D.2), got {width:.3g}"
        yield kit.bad_value(message, path, "increase the threshold, or write threshold: 0")


def _embedding(spec: dps.Spec, facts: dps.Facts, i: int, phase: dps.Phase) -> Iterator[dps.Diagnostic]:
    embedding = PhaseOptions.of(phase).embedding
    if embedding is None:
        return

    def path(key: str) -> dps.Path:
        return dps.in_phase(spec, i, "embedding", key)

    if facts.parameters is not None and embedding.dimension > facts.parameters:
        message = f"dimension must be at most the {facts.parameters} parameters of the model, got {embedding.dimension}"
        yield dps.Diagnostic(code="out-of-range", message=message, path=path("dimension"))
    if embedding.anchors and embedding.anchors < embedding.dimension:
        message = f"anchors must be at least dimension ({embedding.dimension}), got {embedding.anchors}"
        yield kit.bad_value(message, path("anchors"), "use more anchors, or 0 for a random subspace")
    if embedding.anchors > facts.test_records:
        message = f"anchors must be at most the {facts.test_records} records of the test split, got {embedding.anchors}"
        yield dps.Diagnostic(code="out-of-range", message=message, path=path("anchors"))
    yield from kit.too_little_noise(embedding.noise_multiplier, path("noise_multiplier"))
    if not embedding.floor and embedding.noise_multiplier == 0.0:
        message = "without noise in the subspace epsilon is infinite"
        yield dps.Diagnostic(code="no-noise", message=message, path=path("noise_multiplier"), severity="warning")


def _amplification(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    unmet = unmet_conditions(spec)
    for path, reason in unmet:
        message, help = f"mixing gives no amplification: {reason}", "the bound of plain DP-SGD applies"
        yield replace(kit.unsupported(message, path, help), severity="warning")
    if unmet:
        return
    for i, phase in enumerate(spec.phases):
        if phase.noiseless or phase.noise != "gaussian":
            continue
        gap = gap_on_sum(phase, spec.phases, spec.training.options, facts.records) / phase.deviation
        if gap < _NEGLIGIBLE:
            # First-order ratio of divergences at order 2: 1 / I(t), with I(t) about 1 / (1 + t^2 / 12).
            factor = 1.0 + gap**2 / 12.0
            message = f"the gap is {gap:.2g} times the noise: its amplification factor is about {factor:.4f}"
            path = dps.in_phase(spec, i, "mixing", "threshold")
            help = "increase the threshold" + ("" if PhaseOptions.of(phase).by_mean else ", or write reduction: mean")
            yield replace(kit.bad_value(message, path, help), severity="warning")


def _attack(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    canary = spec.audit.options.get("canary")
    if canary is None or "count" not in canary:
        key, block = ("canary", ("audit",)) if canary is None else ("count", _CANARY)
        yield kit.missing_key(key, block, "for example canary: {space: gradient, kind: one-hot, count: 100}")
        return
    yield from dps.untrainable(spec, facts, ["parts"])
    if facts.parameters is None:
        return
    attack = Attack.of(spec.audit.options)
    audit, plain = spec.audit.method, optimizer_kind(spec.training.options) == "sgd"
    unknown = f"{attack.kind!r} is not a canary kind of modelmix{kit.did_you_mean(attack.kind, KINDS)}"
    refused: list[tuple[bool, dps.Path, str]] = [
        (audit != "one-run", ("audit", "method"), f"audit.method must be one-run, got {audit}"),
        (canary.get("space", "gradient") != "gradient", (*_CANARY, "space"), "canary.space must be gradient"),
        (attack.kind not in KINDS, (*_CANARY, "kind"), unknown),
        ("spread" in canary, (*_CANARY, "spread"), "canary.spread does not apply: canaries are single records"),
        (spec.threat_model.access != "all-iterates", ("threat_model", "access"), "the attack needs all-iterates"),
        (not plain, ("training", "optimizer"), "the attack needs optimizer: {kind: sgd}"),
    ]
    for wrong, path, message in refused:
        if wrong:
            yield kit.unsupported(message, path, "remove audit for bounds without an attack")
    width = max(PhaseOptions.of(phase).sparsity for phase in spec.phases) if attack.kind == "one-hot" else 1
    most = min(MAX_CANARIES, facts.parameters // width)
    if width <= facts.parameters and not _LEAST_CANARIES <= attack.count <= most:
        message = f"count must be from {_LEAST_CANARIES} to {most}, got {attack.count}: each has {width} coordinates"
        yield kit.bad_value(message, (*_CANARY, "count"))
    if any(PhaseOptions.of(phase).mixing.unmixed for phase in spec.phases) and attack.kind == "spread":
        message = "spread canaries cover all parameters: use kind: one-hot with unmixed parameters"
        yield kit.unsupported(message, (*_CANARY, "kind"))
