"""From a spec to the segments of the theory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dpspec.contract as dps
from dpspec_modelmix import density, theory
from dpspec_modelmix.options import batch_size, embedding_of, floor_of, learning_rate, mixing_of, noise_of
from dpspec_modelmix.theory import Segment

#: With less noise than this, epsilon is beyond what a float can hold.
NO_NOISE = 1e-100


def segments(
    phases: Sequence[dps.FrozenMap], training: Mapping[str, Any], records: int, parameters: int | None
) -> list[Segment] | None:
    """The phases as segments whose gaps hold as if every condition of the amplification were met.

    None without noise. The sparsity is no larger than the number of ``parameters``.
    """
    if any(_quiet(phase) for phase in phases):
        return None
    found = []
    for phase in phases:
        embedding = embedding_of(phase)
        mixing, noise, clip = mixing_of(phase), float(phase["noise_multiplier"]), float(phase["clip_norm"])
        ratio = mixing.threshold if mixing.relative else mixing.threshold / learning_rate(phase, training)
        divisor = batch_size(phases, records) if phase.get("reduction", "mean") == "mean" else 1.0
        sampling = phase["sampling"]
        found.append(
            Segment(
                steps=int(phase["steps"]),
                rate=float(sampling["rate"]) if sampling["scheme"] == "poisson" else 1.0,
                effect=floor_of(phase) / (noise * clip),
                gap=theory.gap(ratio, divisor, noise, clip),
                sparsity=min(int(phase.get("linf_truncation", 1)), parameters or 10**9),
                embedded=1.0 / embedding.noise_multiplier if embedding is not None and not embedding.floor else 0.0,
                noise=noise_of(phase),
            )
        )
    return found


def _quiet(phase: Mapping[str, Any]) -> bool:
    """Whether some part of a contribution meets no noise, or far less than it is long."""
    embedding = embedding_of(phase)
    levels = [float(phase["noise_multiplier"]) / (floor_of(phase) / float(phase["clip_norm"]))]
    if embedding is not None and not embedding.floor:
        levels.append(embedding.noise_multiplier)
    return min(levels) < NO_NOISE


def segments_of(spec: dps.Spec, facts: dps.Facts) -> list[Segment] | None:
    """The same of a spec."""
    return segments(spec.phases, spec.training.options, facts.records, facts.parameters)


def certified_shape(found: Sequence[Segment], order: float) -> tuple[list[Segment], float]:
    """The segments with ``inflation`` where a look at smaller shifts shows a worse gradient than the one-hot one.

    Also the largest ratio that was seen: at most 1 where all is as the paper asserts. No proof.
    """
    top = max(2, int(order))
    orders = sorted({2, min(3, top), max(2, top // 2), top})
    seen = [density.star_shape(orders, s.shift, s.gap) for s in found]
    looked = [replace(s, inflation=ratio) if ratio > 1.0 + 1e-9 else s for s, ratio in zip(found, seen, strict=True)]
    return looked, max(seen)
