"""What a spec declares of the mixing, the embedding and the attack: no torch, no numerics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dpspec.contract as dps

#: The kinds of canaries, the default first.
KINDS = ("one-hot", "spread")


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """The ``mixing`` block: see the descriptor."""

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
class Attack:
    """How many canaries are planted, each by a fair coin of its own, and how they look.

    one-hot: each gradient stands in linf_truncation coordinates of its own, the theorem's worst case. spread: in as
    many as there are, which shows more where epsilon is small.
    """

    kind: str
    count: int


def mixing_of(options: Mapping[str, Any]) -> Mixing:
    """From the options of a mechanism or of one phase."""
    block = options["mixing"]
    return Mixing(
        threshold=float(block["threshold"]),
        relative=block.get("relative_to", "learning-rate") == "learning-rate",
        literal=block.get("enforcement", "exact") == "literal",
        zero_ties=block.get("ties", "positive") == "zero",
        shared=block.get("weights", "per-coordinate") == "shared",
        unmixed=tuple(block.get("unmixed", ())),
    )


def embedding_of(options: Mapping[str, Any]) -> Embedding | None:
    """From the options of a mechanism or of one phase; None where gradients are taken as they are."""
    block = options.get("embedding")
    if block is None:
        return None
    return Embedding(
        floor=block["form"] == "isotropic-floor",
        dimension=int(block["dimension"]),
        clip_norm=float(block["clip_norm"]),
        noise_multiplier=float(block["noise_multiplier"]),
        anchors=int(block.get("anchors", 0)),
    )


def noise_of(options: Mapping[str, Any]) -> str:
    """The law of the noise: gaussian or laplace."""
    return str(options.get("noise", "gaussian"))


def floor_of(phase: Mapping[str, Any]) -> float:
    """The norm of what counts against the mixed noise: of both parts with the isotropic floor, else clip_norm."""
    embedding, clip_norm = embedding_of(phase), float(phase["clip_norm"])
    return math.hypot(clip_norm, embedding.clip_norm) if embedding is not None and embedding.floor else clip_norm


def attack_of(audit: Mapping[str, Any]) -> Attack:
    """From the ``audit`` block of a spec's document or of the inputs of a trial."""
    canary = audit.get("canary") or {}
    return Attack(kind=str(canary.get("kind", KINDS[0])), count=int(canary.get("count", 0)))


def learning_rate(phase: Mapping[str, Any], training: Mapping[str, Any]) -> float:
    """eta of a phase: its own, or that of the training block."""
    return float(phase.get("learning_rate", training["learning_rate"]))


def batch_size(phases: Sequence[dps.FrozenMap], records: int) -> float:
    """The expected batch size of the first phase, the public divisor of a mean."""
    sampling = phases[0]["sampling"]
    rate = float(sampling["rate"]) if sampling["scheme"] == "poisson" else 1.0
    return max(1.0, rate * records)


def lost(spec: dps.Spec) -> list[tuple[dps.Path, str]]:
    """Why nothing is amplified: for each condition that fails, where it was written and in words."""
    found: list[tuple[dps.Path, str]] = []
    for phase, key, reason in lost_in(spec.phases, spec.training.options):
        found.append((("training", key) if phase is None else mixing_path(spec, phase, key), reason))
    return list(dict.fromkeys(found))


def lost_in(phases: Sequence[Mapping[str, Any]], training: Mapping[str, Any]) -> list[tuple[int | None, str, str]]:
    """The same as (phase, or None for the training block; key; reason)."""
    found: list[tuple[int | None, str, str]] = []
    kind = (training.get("optimizer") or {}).get("kind", "sgd")
    if kind != "sgd":
        found.append((None, "optimizer", f"{kind} carries noisy gradients from step to step, which undoes the mixing"))
    for i, phase in enumerate(phases):
        mixing = mixing_of(phase)
        if mixing.threshold == 0.0:
            found.append((i, "threshold", "a threshold of 0 leaves gaps as small as they are"))
        if mixing.shared:
            found.append((i, "weights", "a shared weight adds no noise across the line between both models"))
        if mixing.unmixed:
            found.append((i, "unmixed", f"{', '.join(mixing.unmixed)} shows its Gaussian noise alone"))
        if mixing.zero_ties:
            found.append((i, "ties", "the first step starts from two equal models and gets no gap"))
    return found


def mixing_path(spec: dps.Spec, phase: int, key: str) -> dps.Path:
    """Where a key of ``mixing`` was written: in the phase, or in the block that phases share."""
    phases = spec.mechanism.get("phases")
    own = phases is not None and "mixing" in phases[phase]
    return ("mechanism", "phases", phase, "mixing", key) if own else ("mechanism", "mixing", key)
