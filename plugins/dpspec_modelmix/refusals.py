"""Located messages for specs that the theory or the attack does not cover. No torch, data or numerics."""

from collections.abc import Iterator
from dataclasses import replace

import dpspec.contract as dps
from dpspec import kit
from dpspec.training.loop.learning_rates import optimizer_kind
from dpspec_modelmix.options import KINDS, Attack, PhaseOptions, gap_on_sum, unmet_conditions

#: Gap in units of the noise below which the amplification is negligible.
_NEGLIGIBLE = 0.5

#: Largest clip norm whose product with the noise keeps full precision. The schema has the smallest one.
MOST_CLIP = 1e30

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
    if "utility" in spec.mechanism.options:
        yield from _utility(spec, facts)
    yield from _amplification(spec, facts)
    if spec.audit is not None:
        yield from _attack(spec, facts)


def _scope(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    yield from dps.other_adjacencies(spec, "add-remove", "the theorem")
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
    clips: list[tuple[tuple[str, ...], float]] = [(("clip_norm",), phase.clip_norm)]
    if options.embedding is not None:
        clips.append((("embedding", "clip_norm"), options.embedding.clip_norm))
    for keys, clip in clips:
        if clip > MOST_CLIP:
            message = f"clip_norm must be at most {MOST_CLIP:g}, got {clip:g}: rounding errors would change the noise"
            yield kit.bad_value(message, dps.in_phase(spec, i, *keys), "rescale clip_norm, learning_rate and threshold")
    if phase.noiseless:
        path, message = dps.in_phase(spec, i, "noise_multiplier"), "without noise epsilon is infinite"
        yield dps.Diagnostic(code="no-noise", message=message, path=path, severity="warning")
    if not options.mixing.relative and (spec.training.get("schedule") or {}).get("kind", "constant") != "constant":
        message = "an absolute threshold with a learning-rate schedule gives every step a different gap"
        path = dps.in_phase(spec, i, "mixing", "relative_to")
        yield kit.unsupported(message, path, "write relative_to: learning-rate")


def _between_phases(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    if any(PhaseOptions.of(phase).learning_rate is not None for phase in spec.phases) and spec.training.get("schedule"):
        message = "mechanism.learning_rate and training.schedule must not both be set"
        yield dps.Diagnostic(code="conflicting-key", message=message, path=("training", "schedule"))
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
    for key, given in (("linf_truncation", options.sparsity > 1), ("embedding", options.embedding is not None)):
        if given:
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
    if not embedding.floor and embedding.noise_multiplier == 0.0:
        message = "without noise in the subspace epsilon is infinite"
        yield dps.Diagnostic(code="no-noise", message=message, path=path("noise_multiplier"), severity="warning")


def _utility(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    path, phase = ("mechanism", "utility"), spec.phases[0]
    if facts.parameters is None:
        yield dps.Diagnostic(code="no-model", message="the utility theorems need a model", path=path)
    if not {"distance", "span", "tail"} & set(spec.mechanism["utility"]):
        message = "mechanism.utility needs distance (Theorem 3.1), span (B.1 and 3.2) or tail (Lemma B.1)"
        yield dps.Diagnostic(code="missing-key", message=message, path=path)
    schedule = (spec.training.get("schedule") or {}).get("kind", "constant")
    several = len(spec.phases) > 1 or schedule != "constant"
    clipped = phase.noise != "gaussian" or PhaseOptions.of(phase).embedding is not None
    if several or clipped or any(where[-1] != "threshold" for where, _ in unmet_conditions(spec)):
        message = "the utility theorems cover SGD with one learning rate and threshold, l2 clipping and full mixing"
        yield kit.unsupported(message, path)


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
