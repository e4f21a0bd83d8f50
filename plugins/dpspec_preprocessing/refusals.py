"""What the plugin refuses of threat models, steps and collections, as located messages: no torch, no numpy, no rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing.execution.refusals import attack_refusals, private_refusals, warning
from dpspec_preprocessing.options import Declaration, Pipeline, Test
from dpspec_preprocessing.printed.formulas import mode_refusals
from dpspec_preprocessing.theory.declared_steps import Imputation, Merging, Projection, Scaling, Step
from dpspec_preprocessing.theory.sensitivity import REQUIRED_LIMITS, TESTABLE

#: What may stand beside the key that names a step.
_BESIDE: dict[str, set[str]] = {
    "impute": {"mask", "trim"},
    "deduplicate": set(),
    "quantise": set(),
    "pca": {"affine"},
    "scale": {"clip"},
}

#: The limits of a collection that are read and measured, by what a step does; for all others no data is held to them.
_LIMITS: dict[str, frozenset[str]] = {
    **{by: frozenset({*needs, "max_missing_in_row", "min_observed"}) for by, needs in REQUIRED_LIMITS.items()},
    "mean": frozenset({*REQUIRED_LIMITS["mean"], "max_missing_in_row", "max_mean_norm"}),
    "deduplicate": frozenset({"max_ball", "max_cluster"}),
    "quantise": frozenset({"max_ball", "max_cluster"}),
    "pca": frozenset(REQUIRED_LIMITS["pca"]),
    "scale": frozenset(REQUIRED_LIMITS["scale"]),
}

_COLLECTION: dps.Path = ("mechanism", "collection")


def refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the spec cannot be audited as it stands, and warnings about what it will show."""
    declared = Declaration.of(spec.mechanism.options)
    first = [*_threat_model(spec), *_steps(spec, facts), *private_refusals(spec, facts)]
    first += _impossible_limits(declared, facts)
    yield from first
    if any(diagnostic.severity == "error" for diagnostic in first):
        return
    pipeline = declared.pipeline(facts.records, facts.features)
    yield from _collection(facts, pipeline)
    yield from mode_refusals(spec, facts, pipeline)
    if declared.test is not None:
        yield from _test(spec, pipeline, declared.test)
    if spec.audit is not None:
        yield from attack_refusals(spec, facts)


def _threat_model(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    threat = spec.threat_model
    help = "write threat_model: {adjacency: replace-one}: the number of records is public here"
    yield from dps.other_adjacencies(spec, "replace-one", "the theory", help)
    sizes: list[tuple[dps.Path, int]] = [(("threat_model", "group_size"), size) for size in threat.group_size]
    sizes += [(("claims", i, "group_size"), claim.group_size) for i, claim in enumerate(spec.claims)]
    groups = [path for path, size in sizes if size != 1]
    if groups:
        yield kit.unsupported("bounds are for one replaced record, not for groups", groups[0], "leave group_size out")
    extra = [what for what in threat.options.get("released", ()) if what != "output"]
    if extra:
        yield kit.unsupported(
            f"releasing {' and '.join(extra)} besides the output voids every bound",
            ("threat_model", "released"),
            "the bounds cover the private mechanism's output alone; make the rest private by a mechanism of its own",
        )
    if Declaration.of(spec.mechanism.options).private.kind == "sgd-iterated":
        paths: list[dps.Path] = [("threat_model", "access")] if threat.access != "final-model" else []
        paths += [("claims", i, "access") for i, claim in enumerate(spec.claims) if claim.access != threat.access]
        for path in paths:
            yield kit.unsupported(
                "sgd-iterated has a bound for its last iterate only",
                path,
                "write access: final-model, or take sgd-sampled, whose iterates may all be seen",
            )


def _steps(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    declared = Declaration.of(spec.mechanism.options)
    blocks = spec.mechanism["pipeline"]
    for i, (block, step) in enumerate(zip(blocks, declared.steps, strict=True)):
        path = ("mechanism", "pipeline", i)
        names = [key for key in _BESIDE if key in block]
        if len(names) > 1:
            yield kit.unsupported(f"a step does one thing, this one has {' and '.join(names)}", path, "write two steps")
            continue
        allowed = _BESIDE[names[0]]
        for key in block:
            if key != names[0] and key not in allowed:
                help = f"valid beside it: {', '.join(sorted(allowed))}" if allowed else "leave it out"
                yield kit.unsupported(f"{key!r} does not apply to {names[0]}", (*path, key), help)
        yield from _step(path, block, step, facts)
    if declared.sweep is not None and declared.sweep.over == "eta" and not isinstance(declared.steps[0], Merging):
        message = "'eta' is swept of deduplicate and quantise only: no other first step has one"
        yield kit.unsupported(message, ("mechanism", "sweep", "over"), "sweep over another value, or leave sweep out")
    if len(blocks) > 1:
        yield warning(
            f"of a chain of {len(blocks)} steps only group privacy for all {facts.records} records is proved: after "
            "the first step inputs of the next differ in many records",
            ("mechanism", "pipeline"),
            "keep the one step that matters, and do the others with public constants before (data.standardise)",
        )


def _step(
    path: tuple[str | int, ...], block: Mapping[str, Any], step: Step, facts: dps.Facts
) -> Iterator[dps.Diagnostic]:
    if step.name == "trimmed" and "trim" not in block:
        yield kit.missing_key("trim", path, "for example {impute: trimmed, trim: 10}")
    if isinstance(step, Scaling) and "clip" not in block:
        help = "scaled records leave the ball: for example {scale: standard, clip: 1.0}, and constants for that norm"
        yield kit.missing_key("clip", path, help)
    if isinstance(step, Projection):
        k, limit = step.components, min(facts.features, facts.records)
        if k >= limit:
            message = f"k must be below {limit}, the smaller of the numbers of features and records, got {k}"
            help = f"a k from 1 to {limit - 1}" if limit > 1 else "leave the step out: there is one direction only"
            yield kit.bad_value(message, (*path, "pca"), help)


def _collection(facts: dps.Facts, pipeline: Pipeline) -> Iterator[dps.Diagnostic]:
    limits, name, n = pipeline.collection, pipeline.step_name, facts.records
    if name is None:
        return
    for key in sorted(set(limits) - _LIMITS[name]):
        message = f"{key!r} does not apply to {name}: no data is checked against it"
        yield kit.unsupported(message, (*_COLLECTION, key), f"limits of {name}: {', '.join(sorted(_LIMITS[name]))}")
    missing = [key for key in REQUIRED_LIMITS[name] if key not in limits]
    if missing:
        yield warning(
            f"without {' and '.join(missing)} only group privacy for all {n} records is proved",
            _COLLECTION,
            f"declare collection: {{{', '.join(f'{key}: ...' for key in missing)}}}",
        )
        return
    if name == "scale" and pipeline.radius / float(limits["min_std"]) > 1e6:
        help = "leave such features out, or declare a larger min_std"
        yield kit.bad_value(
            f"min_std must be at least radius / 1e6 = {pipeline.radius / 1e6:g}: a constant feature cannot be scaled",
            (*_COLLECTION, "min_std"),
            help,
        )
    if name == "pca" and float(limits["min_eigengap"]) <= (least := _least_gap(pipeline)):
        yield warning(
            f"an eigengap of at most 8 radius^2 / n = {least:.3g} proves group privacy only",
            (*_COLLECTION, "min_eigengap"),
            "another k, more records, or a larger gap from public knowledge",
        )
    if name in ("deduplicate", "quantise") and 2 * int(limits["max_ball"]) >= n:
        yield warning(
            f"2 max_ball reaches {n} records: any record can change all others, the bound is vacuous",
            (*_COLLECTION, "max_ball"),
            "a smaller eta, with fewer records within 8 eta of one",
        )


def _least_gap(pipeline: Pipeline) -> float:
    """The eigengap that a projection's bounds need more than: 8 radius^2 / n."""
    return 8.0 * pipeline.radius**2 / pipeline.private.records


def _impossible_limits(declared: Declaration, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Declared limits for which the formulas have no value."""
    steps, limits = declared.steps, declared.collection
    if len(steps) != 1:
        return
    step, n = steps[0], facts.records
    observed, rows = int(limits.get("min_observed", 2)), int(limits.get("max_missing_rows", 0))
    if isinstance(step, Imputation) and step.by == "trimmed" and step.trim and "min_observed" in limits:
        trim, least = step.trim, min(observed, n - rows)
        if least <= 2 * trim:
            message = f"trimming {trim} values at each end leaves nothing of {least}"
            help = f"a trim below {least / 2:g}, or impute: median"
            yield kit.bad_value(message, ("mechanism", "pipeline", 0, "trim"), help)
    if observed < 2 or observed > n:
        message = f"min_observed must be from 2 to {n}, got {observed}"
        help = "how many values every feature has at least; leave features without values out"
        yield kit.bad_value(message, (*_COLLECTION, "min_observed"), help)
    if rows >= n:
        message = f"max_missing_rows must be below {n} records, got {rows}"
        help = "how many records miss a value at most; where all do, nothing is known to impute from"
        yield kit.bad_value(message, (*_COLLECTION, "max_missing_rows"), help)
    if step.name == "regression" and "min_eigenvalue" in limits:
        if float(limits["min_eigenvalue"]) <= declared.radius**2:
            message = "min_eigenvalue must exceed radius^2: without one record it could be 0"
            yield kit.bad_value(message, (*_COLLECTION, "min_eigenvalue"), "a larger one, or impute: mean")
        elif float(limits.get("max_eigenvalue", math.inf)) < float(limits["min_eigenvalue"]):
            message = "max_eigenvalue must be at least min_eigenvalue"
            help = "an upper bound on the largest eigenvalue of X^T X"
            yield kit.bad_value(message, (*_COLLECTION, "max_eigenvalue"), help)


def _test(spec: dps.Spec, pipeline: Pipeline, test: Test) -> Iterator[dps.Diagnostic]:
    """What propose, test, release needs: a collection whose edge has a known distance, and repaired accounting."""
    path = ("mechanism", "ptr")
    if pipeline.step_name not in TESTABLE or pipeline.repaired is None:
        yield kit.unsupported(
            "the distance to the collection's edge is known for mean imputation, deduplication, quantisation and pca",
            path,
            "declare their collection, or leave ptr out and claim over: collection",
        )
    elif pipeline.step_name == "pca" and float(pipeline.collection["min_eigengap"]) <= (least := _least_gap(pipeline)):
        yield kit.bad_value(
            f"ptr needs an eigengap above 8 radius^2 / n = {least:.3g}",
            (*_COLLECTION, "min_eigengap"),
            "propose a larger one, from public knowledge, or take more records",
        )
    for i, claim in enumerate(spec.claims):
        if claim.over is None and claim.kind == "approx-dp" and float(claim["delta"]) < test.delta:
            yield warning(
                f"at a delta below ptr.delta, {test.delta}, nothing is proved for all data sets",
                ("claims", i, "delta"),
            )
    if Declaration.of(spec.mechanism.options).accounting != "repaired":
        yield kit.unsupported("ptr needs accounting: repaired", path, "accounting: repaired, the default")
