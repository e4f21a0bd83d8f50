"""What Laplace noise, an embedding and the utility theorems need of a spec: no torch, no rows, no numerics."""

from __future__ import annotations

import math
from collections.abc import Iterator

import dpspec.contract as dps
from dpspec_modelmix.options import batch_size, embedding_of, learning_rate, lost, mixing_of, mixing_path, noise_of


def part_refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why one of these cannot be had."""
    for key, why in (("noise", "law of noise"), ("embedding", "embedding")):
        for i, phase in enumerate(spec.phases):
            if phase.get(key) != spec.phases[0].get(key):
                yield _unsupported(f"all phases share one {why}", dps.in_phase(spec, i, key))
    for i, phase in enumerate(spec.phases):
        if noise_of(phase) == "laplace":
            yield from _laplace(spec, facts, i, phase)
        yield from _embedding(spec, facts, i, phase)
    if "utility" in spec.mechanism.options:
        yield from _utility(spec, facts)


def _laplace(spec: dps.Spec, facts: dps.Facts, i: int, phase: dps.FrozenMap) -> Iterator[dps.Diagnostic]:
    if int(phase.get("linf_truncation", 1)) > 1:
        yield _unsupported(
            "linf_truncation belongs to l2 clipping, and Laplace noise needs gradients that are clipped to an l1 norm",
            dps.in_phase(spec, i, "linf_truncation"),
            "leave it out: clip_norm bounds the l1 norm where noise is laplace",
        )
    if phase.get("embedding") is not None:
        yield _unsupported(
            "an embedding clips to l2 norms, and Laplace noise needs l1 norms", dps.in_phase(spec, i, "embedding")
        )
    noise, clip = float(phase["noise_multiplier"]), float(phase["clip_norm"])
    if noise == 0.0 or lost(spec):
        return
    mixing = mixing_of(phase)
    ratio = mixing.threshold if mixing.relative else mixing.threshold / learning_rate(phase, spec.training.options)
    width = ratio * (batch_size(spec.phases, facts.records) if phase.get("reduction", "mean") == "mean" else 1.0)
    lemma = max(2.0 * math.log(max(width, 1e-300)) * noise * clip / math.sqrt(2.0) + clip, 1.0)
    path = mixing_path(spec, i, "threshold")
    if width <= clip:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"the gap is {width:.3g} on the scale of the sum, and Lemma D.2 needs one wider than clip_norm "
            f"{clip:g}, which one record can move it by",
            path=path,
            help="a larger threshold, or threshold: 0 for plain Laplace noise",
        )
    elif width <= lemma:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"the gap is {width:.3g} on the scale of the sum, and Lemma D.2 as printed covers gaps above "
            f"{lemma:.3g} only, which depends on units",
            path=path,
            severity="warning",
            help="the bound cuts the uniform elsewhere and holds; it will gain little",
        )


def _embedding(spec: dps.Spec, facts: dps.Facts, i: int, phase: dps.FrozenMap) -> Iterator[dps.Diagnostic]:
    embedding = embedding_of(phase)
    if embedding is None:
        return

    def path(key: str) -> dps.Path:
        return dps.in_phase(spec, i, "embedding", key)

    if facts.parameters is not None and embedding.dimension > facts.parameters:
        yield dps.Diagnostic(
            code="out-of-range",
            message=f"dimension {embedding.dimension} is above the {facts.parameters} parameters of the model",
            path=path("dimension"),
        )
    if embedding.anchors and embedding.anchors < embedding.dimension:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"{embedding.anchors} anchors span no subspace of dimension {embedding.dimension}",
            path=path("anchors"),
            help="at least as many anchors as dimensions, or 0 for a random subspace",
        )
    if embedding.anchors > facts.test_records:
        yield dps.Diagnostic(
            code="out-of-range",
            message=f"{embedding.anchors} anchors are more than the {facts.test_records} records of the test split",
            path=path("anchors"),
            help="public records are taken from the test split, never from the training records",
        )
    if not embedding.floor and embedding.noise_multiplier == 0.0:
        yield dps.Diagnostic(
            code="no-noise",
            message="the part within the subspace counts against its own noise, and there is none: epsilon is infinite",
            path=path("noise_multiplier"),
            severity="warning",
        )


def _utility(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    path = ("mechanism", "utility")
    if facts.parameters is None:
        yield dps.Diagnostic(
            code="no-model", message="the utility theorems need the number of parameters: name a model", path=path
        )
    if not {"distance", "span", "tail"} & set(spec.mechanism["utility"]):
        yield dps.Diagnostic(
            code="missing-key",
            message="utility says nothing of the loss but its smoothness",
            path=path,
            help="distance for Theorem 3.1, span for Theorems B.1 and 3.2, tail for Lemma B.1",
        )
    phase = spec.phases[0]
    schedule = (spec.training.get("schedule") or {}).get("kind", "constant")
    if len(spec.phases) > 1 or schedule != "constant":
        yield _unsupported("the utility theorems have one learning rate and one threshold", path)
    if noise_of(phase) != "gaussian" or embedding_of(phase) is not None:
        yield _unsupported("the utility theorems clip whole gradients to an l2 norm", path)
    if any(where[-1] != "threshold" for where, _ in lost(spec)):
        yield _unsupported("the utility theorems speak of Algorithm 1 with plain descent, every coordinate mixed", path)


def _unsupported(message: str, path: dps.Path, hint: str | None = None) -> dps.Diagnostic:
    return dps.Diagnostic(code="unsupported", message=message, path=path, help=hint)
