"""What a spec declares: mixing, embedding, attack, and the segments that theory computes with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec.training.loop.learning_rates import optimizer_kind

#: The kinds of canaries, the default first.
KINDS = ("one-hot", "spread")

#: With less noise than this, epsilon is beyond what a float can hold.
NO_NOISE = 1e-100

#: The delta of the epsilon that twins share where the spec names none.
DEFAULT_TWIN_DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """The ``mixing`` block: see the schema."""

    threshold: float
    relative: bool
    literal: bool
    zero_ties: bool
    shared: bool
    unmixed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """The ``embedding`` block: a gradient's part within a public subspace is clipped and noised on its own.

    floor: the isotropic floor: both parts count against the noise of the residual, which fills all directions. Without
    it each part counts against its own noise, and mixing amplifies the residual alone.
    """

    floor: bool
    dimension: int
    clip_norm: float
    noise_multiplier: float
    anchors: int

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise within the subspace, on the sum."""
        return self.noise_multiplier * self.clip_norm


@dataclass(frozen=True, kw_only=True)
class PhaseOptions(kit.Options):
    """What a phase declares beside the options that all DP-SGD has.

    embedding: None where gradients are taken as they are. sparsity: ``linf_truncation``, how many coordinates a
    gradient has at least where it is as long as it may be. by_mean: whether updates take the mean of a batch.
    learning_rate: the phase's own, None where it has that of the training block.
    """

    mixing: Mixing
    embedding: Embedding | None
    sparsity: int
    by_mean: bool
    learning_rate: float | None

    @classmethod
    def read(cls, block: dps.FrozenMap) -> PhaseOptions:
        """From a phase."""
        rate = block.get("learning_rate")
        return cls(
            mixing=_mixing(block["mixing"]),
            embedding=_embedding(block.get("embedding")),
            sparsity=int(block.get("linf_truncation", 1)),
            by_mean=block.get("reduction", "mean") == "mean",
            learning_rate=None if rate is None else float(rate),
        )


@dataclass(frozen=True, kw_only=True)
class Twins:
    """Runs of plain DP-SGD beside ModelMix: ``delta`` of the epsilon that they share, and their learning rate."""

    delta: float
    learning_rate: float | None


@dataclass(frozen=True, kw_only=True)
class Attack(kit.Options):
    """How many canaries are planted, each by a fair coin of its own, and how they look; of the block ``audit``.

    one-hot: each gradient stands in linf_truncation coordinates of its own, the theorem's worst case. spread: in as
    many as there are, which shows more where epsilon is small.
    """

    kind: str
    count: int
    twins: Twins | None = None

    @classmethod
    def read(cls, block: dps.FrozenMap) -> Attack:
        """From the audit's options."""
        canary, twins = block.get("canary") or {}, block.get("twins")
        rate = None if twins is None else twins.get("learning_rate")
        return cls(
            kind=str(canary.get("kind", KINDS[0])),
            count=int(canary.get("count", 0)),
            twins=None
            if twins is None
            else Twins(
                delta=float(twins.get("delta", DEFAULT_TWIN_DELTA)), learning_rate=None if rate is None else float(rate)
            ),
        )


def _mixing(block: dps.FrozenMap) -> Mixing:
    return Mixing(
        threshold=float(block["threshold"]),
        relative=block.get("relative_to", "learning-rate") == "learning-rate",
        literal=block.get("enforcement", "exact") == "literal",
        zero_ties=block.get("ties", "positive") == "zero",
        shared=block.get("weights", "per-coordinate") == "shared",
        unmixed=tuple(block.get("unmixed", ())),
    )


def _embedding(block: dps.FrozenMap | None) -> Embedding | None:
    if block is None:
        return None
    return Embedding(
        floor=block["form"] == "isotropic-floor",
        dimension=int(block["dimension"]),
        clip_norm=float(block["clip_norm"]),
        noise_multiplier=float(block["noise_multiplier"]),
        anchors=int(block.get("anchors", 0)),
    )


def mixing_of(phase: Mapping[str, Any]) -> Mixing:
    """How a phase mixes models."""
    return PhaseOptions.of(phase).mixing


def embedding_of(phase: Mapping[str, Any]) -> Embedding | None:
    """The subspace of a phase; None where gradients are taken as they are."""
    return PhaseOptions.of(phase).embedding


def mixed_norm(phase: dps.Phase) -> float:
    """The norm of what counts against the mixed noise: of both parts with the isotropic floor, else ``clip_norm``."""
    embedding, clip_norm = embedding_of(phase), phase.clip_norm
    return math.hypot(clip_norm, embedding.clip_norm) if embedding is not None and embedding.floor else clip_norm


def learning_rate(phase: dps.FrozenMap, training: Mapping[str, Any]) -> float:
    """eta of a phase: its own, or that of the training block."""
    own = PhaseOptions.of(phase).learning_rate
    return float(training["learning_rate"]) if own is None else own


def gap_on_sum(phase: dps.Phase, phases: Sequence[dps.Phase], training: Mapping[str, Any], records: int) -> float:
    """(tau / eta) B, the enforced gap of a phase on the scale of the noisy sum, B the divisor of the update."""
    mixing = mixing_of(phase)
    ratio = mixing.threshold if mixing.relative else mixing.threshold / learning_rate(phase, training)
    return ratio * divisor_of(phase, phases, training, records)


def divisor_of(phase: dps.Phase, phases: Sequence[dps.Phase], training: Mapping[str, Any], records: int) -> float:
    """What an update divides the noisy sum by: the expected batch size, or 1 where ``reduction`` is sum."""
    return dps.expected_batch_size(training, phases, records) if PhaseOptions.of(phase).by_mean else 1.0


def unmet_conditions(spec: dps.Spec) -> list[tuple[dps.Path, str]]:
    """Why mixing amplifies nothing: for each condition that is not met, its path and the reason in words."""
    unmet: list[tuple[dps.Path, str]] = []
    for phase, key, reason in unmet_in(spec.phases, spec.training.options):
        unmet.append((("training", key) if phase is None else mixing_path(spec, phase, key), reason))
    return list(dict.fromkeys(unmet))


def unmet_in(phases: Sequence[Mapping[str, Any]], training: Mapping[str, Any]) -> list[tuple[int | None, str, str]]:
    """The same as (phase, or None for the training block; key; reason)."""
    unmet: list[tuple[int | None, str, str]] = []
    kind = optimizer_kind(training)
    if kind != "sgd":
        unmet.append((None, "optimizer", f"{kind} carries noisy gradients from step to step, which undoes the mixing"))
    for i, phase in enumerate(phases):
        mixing = mixing_of(phase)
        if mixing.threshold == 0.0:
            unmet.append((i, "threshold", "a threshold of 0 leaves gaps as small as they are"))
        if mixing.shared:
            unmet.append((i, "weights", "a shared weight adds no noise across the line between both models"))
        if mixing.unmixed:
            unmet.append((i, "unmixed", f"{', '.join(mixing.unmixed)} shows its Gaussian noise alone"))
        if mixing.zero_ties:
            unmet.append((i, "ties", "the first step starts from two equal models and gets no gap"))
    return unmet


def mixing_path(spec: dps.Spec, phase: int, key: str) -> dps.Path:
    """Where a key of ``mixing`` was written: in the phase, or in the block that phases share."""
    phases = spec.mechanism.get("phases")
    own = phases is not None and "mixing" in phases[phase]
    return ("mechanism", "phases", phase, "mixing", key) if own else ("mechanism", "mixing", key)


@dataclass(frozen=True)
class Segment:
    """Steps that are alike.

    rate: q; effect: s = clip_norm / sigma = 1 / noise_multiplier; gap: t, the enforced gap in units of sigma on the
    scale of the sum; sparsity: p, how many coordinates share the worst gradient; inflation: at least 1, by how much the
    logarithms of moments are raised where a gradient other than the one-hot one was seen to be worse; embedded: what a
    second part of the gradient has for s, which meets Gaussian noise of its own and no mixing; noise: the law of sigma.
    """

    steps: int
    rate: float
    effect: float
    gap: float
    sparsity: int = 1
    inflation: float = 1.0
    embedded: float = 0.0
    noise: str = "gaussian"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if not 0.0 < self.rate <= 1.0:
            raise ValueError(f"rate must be above 0 and at most 1, got {self.rate}")
        for name in ("effect", "gap", "embedded"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} must be finite and not negative, got {value}")
        if self.sparsity < 1:
            raise ValueError(f"sparsity must be at least 1, got {self.sparsity}")

    @property
    def shift(self) -> float:
        """v = s / sqrt(p), by how much the worst gradient moves one coordinate."""
        return self.effect / math.sqrt(self.sparsity)

    @property
    def one_dimensional(self) -> bool:
        """Whether the worst gradient moves a single coordinate."""
        return self.sparsity == 1 and self.embedded == 0.0

    @property
    def laplace_loss(self) -> float:
        """epsilon_0 of a step with Laplace noise that takes all records: sqrt(2) s, the scale being sigma / sqrt(2)."""
        return math.sqrt(2.0) * self.effect


def declared_segments(spec: dps.Spec, facts: dps.Facts) -> list[Segment] | None:
    """The phases of a spec as segments; see :func:`segments_of`."""
    return segments_of(spec.phases, spec.training.options, facts.records, facts.parameters)


def segments_of(
    phases: Sequence[dps.Phase], training: Mapping[str, Any], records: int, parameters: int | None
) -> list[Segment] | None:
    """The phases as segments whose gaps hold as if every condition of the amplification were met.

    None without noise. The sparsity is no larger than the number of ``parameters``.
    """
    if any(_lacks_noise(phase) for phase in phases):
        return None
    segments = []
    for phase in phases:
        embedding, sigma = embedding_of(phase), phase.deviation
        segments.append(
            Segment(
                steps=phase.steps,
                rate=phase.rate(records),
                effect=mixed_norm(phase) / sigma,
                gap=gap_on_sum(phase, phases, training, records) / sigma,
                sparsity=min(PhaseOptions.of(phase).sparsity, parameters or 10**9),
                embedded=1.0 / embedding.noise_multiplier if embedding is not None and not embedding.floor else 0.0,
                noise=phase.noise,
            )
        )
    return segments


def _lacks_noise(phase: dps.Phase) -> bool:
    """Whether some part of a contribution meets no noise, or far less than it is long."""
    embedding = embedding_of(phase)
    levels = [phase.noise_multiplier / (mixed_norm(phase) / phase.clip_norm)]
    if embedding is not None and not embedding.floor:
        levels.append(embedding.noise_multiplier)
    return min(levels) < NO_NOISE
