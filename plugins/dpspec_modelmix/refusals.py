"""What this plugin refuses, and what it says beforehand, located and in words: no torch, no rows, no numerics."""

from __future__ import annotations

from collections.abc import Iterator

import dpspec.contract as dps
from dpspec_modelmix.attack_refusals import attack_refusals
from dpspec_modelmix.options import batch_size, learning_rate, lost, mixing_of, mixing_path, noise_of
from dpspec_modelmix.part_refusals import part_refusals

#: Below this, in units of the noise, the gap hides nothing.
_NEGLIGIBLE = 0.5


def refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the spec cannot be audited as it stands, and warnings about what it will show."""
    yield from _scope(spec)
    yield from _mechanism(spec, facts)
    yield from part_refusals(spec, facts)
    yield from _amplification(spec, facts)
    if spec.audit is not None:
        yield from attack_refusals(spec, facts)


def _scope(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    yield from dps.other_adjacencies(spec, "add-remove", "the theorem")
    sizes: list[tuple[dps.Path, int]] = [(("threat_model", "group_size"), max(spec.threat_model.group_size))]
    sizes += [(("claims", i, "group_size"), c.group_size) for i, c in enumerate(spec.claims)]
    for path, size in sizes:
        if size > 1:
            yield dps.Diagnostic(
                code="unsupported",
                message=f"the theorem speaks of single records, not of groups of {size}",
                path=path,
                help="the mechanism group covers groups, without mixing",
            )


def _mechanism(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    for i, phase in enumerate(spec.phases):
        scheme = phase["sampling"]["scheme"]
        if scheme not in ("poisson", "full"):
            yield dps.Diagnostic(
                code="unsupported",
                message=f"the theorem covers Poisson batches, not {scheme} ones",
                path=dps.in_phase(spec, i, "sampling", "scheme"),
                help="train with scheme: poisson",
            )
        sparsity = int(phase.get("linf_truncation", 1))
        if facts.parameters is not None and sparsity > facts.parameters:
            yield dps.Diagnostic(
                code="out-of-range",
                message=f"linf_truncation {sparsity} is above the {facts.parameters} parameters of the model",
                path=dps.in_phase(spec, i, "linf_truncation"),
                help="p coordinates share the worst gradient, and there are no more than that",
            )
        if float(phase["noise_multiplier"]) == 0.0:
            yield dps.Diagnostic(
                code="no-noise",
                message="without noise epsilon is infinite: mixing alone gives no privacy",
                path=dps.in_phase(spec, i, "noise_multiplier"),
                severity="warning",
            )
        mixing = mixing_of(phase)
        if not mixing.relative and (spec.training.get("schedule") or {}).get("kind", "constant") != "constant":
            yield dps.Diagnostic(
                code="unsupported",
                message="an absolute threshold beside a schedule of learning rates gives every step a gap of its own",
                path=mixing_path(spec, i, "relative_to"),
                help="write relative_to: learning-rate, or phases with a learning_rate each",
            )
    if any("learning_rate" in phase for phase in spec.phases) and spec.training.get("schedule"):
        yield dps.Diagnostic(
            code="conflicting-key",
            message="mechanism.learning_rate and training.schedule both say how large steps are",
            path=("training", "schedule"),
            help="leave one of them out",
        )
    rules = [{**phase["mixing"], "threshold": 0, "relative_to": ""} for phase in spec.phases]
    for i, rule in enumerate(rules):
        if rule != rules[0]:
            yield dps.Diagnostic(
                code="unsupported",
                message="phases may differ in threshold only, not in how models are mixed",
                path=mixing_path(spec, i, "threshold")[:-1],
            )
    if len({phase.get("reduction", "mean") for phase in spec.phases}) > 1:
        yield dps.Diagnostic(code="unsupported", message="all phases share one reduction", path=("mechanism",))


def _amplification(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    for path, reason in lost(spec):
        yield dps.Diagnostic(
            code="unsupported",
            message=f"mixing amplifies nothing here: {reason}",
            path=path,
            severity="warning",
            help="the bound is that of plain DP-SGD, of which mixing is post-processing",
        )
    if lost(spec):
        return
    for i, phase in enumerate(spec.phases):
        mixing, noise = mixing_of(phase), float(phase["noise_multiplier"])
        if noise == 0.0 or noise_of(phase) != "gaussian":
            continue
        ratio = mixing.threshold if mixing.relative else mixing.threshold / learning_rate(phase, spec.training.options)
        mean = phase.get("reduction", "mean") == "mean"
        gap = ratio * (batch_size(spec.phases, facts.records) if mean else 1.0) / (noise * float(phase["clip_norm"]))
        if gap < _NEGLIGIBLE:
            factor = 1.0 + gap**2 / 12.0
            # Of the divergence at order 2, to first order: 1 / I(t), and I(t) is about 1 / (1 + t^2 / 12) there.
            yield dps.Diagnostic(
                code="bad-value",
                message=f"the gap is {gap:.2g} times the noise: it amplifies by a factor of about {factor:.4f}",
                path=mixing_path(spec, i, "threshold"),
                severity="warning",
                help="the noise is added to a sum: probably reduction: mean is meant"
                if not mean
                else "a threshold of several times noise_multiplier * clip_norm / expected batch size is needed",
            )
