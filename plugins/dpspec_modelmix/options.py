"""Typed options of a spec: mixing, embedding, attack, and the segments for the theory."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec.training.loop.learning_rates import optimizer_kind

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
    learning_rate: float | None = None

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


def learning_rate(phase: dps.FrozenMap, training: Mapping[str, Any]) -> float:
    own = PhaseOptions.of(phase).learning_rate
    return float(training["learning_rate"]) if own is None else own


def gap_on_sum(phase: dps.Phase, phases: Sequence[dps.Phase], training: Mapping[str, Any], records: int) -> float:
    """(tau / eta) B: the enforced gap of a phase on the scale of the noisy sum, with B the divisor of the update."""
    mixing = PhaseOptions.of(phase).mixing
    ratio = mixing.threshold if mixing.relative else mixing.threshold / learning_rate(phase, training)
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
