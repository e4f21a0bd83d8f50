"""Refusals of unsupported threat models, steps and collections. Imports neither torch nor numpy, and reads no rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing.attack_refusals import attack_refusals, private_refusals, warning
from dpspec_preprocessing.options import Declaration, Pipeline, Test
from dpspec_preprocessing.printed.formulas import mode_refusals
from dpspec_preprocessing.theory.declared_steps import Imputation, Merging, Projection, Scaling, Step
from dpspec_preprocessing.theory.sensitivity import REQUIRED_LIMITS, TESTABLE

#: Options of each step, by the key that names the step.
_STEP_OPTIONS: dict[str, set[str]] = {
    "impute": {"mask", "trim"},
    "deduplicate": set(),
    "quantise": set(),
    "pca": {"affine"},
    "scale": {"clip"},
}

#: Limits of a collection that each step's bound reads and that are measured on the data.
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
    """Errors that prevent the audit of the spec, and warnings about vacuous bounds."""
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
    help = "write threat_model: {adjacency: replace-one}; the number of records is public"
    yield from dps.other_adjacencies(spec, "replace-one", "the theory", help)
    sizes: list[tuple[dps.Path, int]] = [(("threat_model", "group_size"), size) for size in threat.group_size]
    sizes += [(("claims", i, "group_size"), claim.group_size) for i, claim in enumerate(spec.claims)]
    groups = [path for path, size in sizes if size != 1]
    if groups:
        yield kit.unsupported("bounds cover one replaced record, not groups", groups[0], "remove group_size")
    extra = [release for release in threat.options.get("released", ()) if release != "output"]
    if extra:
        yield kit.unsupported(
            f"releasing {' and '.join(extra)} in addition to the output voids every bound",
            ("threat_model", "released"),
            "the bounds cover only the private mechanism's output; release other values through a separate mechanism",
        )
    if Declaration.of(spec.mechanism.options).private.kind == "sgd-iterated":
        paths: list[dps.Path] = [("threat_model", "access")] if threat.access != "final-model" else []
        paths += [("claims", i, "access") for i, claim in enumerate(spec.claims) if claim.access != threat.access]
        for path in paths:
            yield kit.unsupported(
                "the bound of sgd-iterated covers only the last iterate",
                path,
                "write access: final-model, or use sgd-sampled, whose bound covers all iterates",
            )


def _steps(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    declared = Declaration.of(spec.mechanism.options)
    blocks = spec.mechanism["pipeline"]
    for i, (block, step) in enumerate(zip(blocks, declared.steps, strict=True)):
        path = ("mechanism", "pipeline", i)
        names = [key for key in _STEP_OPTIONS if key in block]
        if len(names) > 1:
            yield kit.unsupported(f"a step names one operation, got {' and '.join(names)}", path, "write two steps")
            continue
        allowed = _STEP_OPTIONS[names[0]]
        for key in block:
            if key != names[0] and key not in allowed:
                help = f"options of {names[0]}: {', '.join(sorted(allowed))}" if allowed else "remove it"
                yield kit.unsupported(f"{key!r} does not apply to {names[0]}", (*path, key), help)
        yield from _step(path, block, step, facts)
    if declared.sweep is not None and declared.sweep.over == "eta" and not isinstance(declared.steps[0], Merging):
        message = "a sweep over 'eta' needs deduplicate or quantise as the first step"
        yield kit.unsupported(message, ("mechanism", "sweep", "over"), "sweep over another value, or remove sweep")
    if len(blocks) > 1:
        yield warning(
            f"for a chain of {len(blocks)} steps only group privacy for all {facts.records} records is proved: after "
            "the first step the inputs of the next differ in many records",
            ("mechanism", "pipeline"),
            "keep one step, and replace the others by public constants (data.standardise)",
        )


def _step(
    path: tuple[str | int, ...], block: Mapping[str, Any], step: Step, facts: dps.Facts
) -> Iterator[dps.Diagnostic]:
    if step.name == "trimmed" and "trim" not in block:
        yield kit.missing_key("trim", path, "for example {impute: trimmed, trim: 10}")
    if isinstance(step, Scaling) and "clip" not in block:
        help = (
            "scaled records can leave the ball; for example {scale: standard, clip: 1.0}, with constants for that norm"
        )
        yield kit.missing_key("clip", path, help)
    if isinstance(step, Projection):
        k, limit = step.components, min(facts.features, facts.records)
        if k >= limit:
            message = f"k must be below {limit}, the smaller of the numbers of features and records, got {k}"
            help = f"choose k from 1 to {limit - 1}" if limit > 1 else "remove the step: there is only one direction"
            yield kit.bad_value(message, (*path, "pca"), help)


def _collection(facts: dps.Facts, pipeline: Pipeline) -> Iterator[dps.Diagnostic]:
    limits, name, n = pipeline.collection, pipeline.step_name, facts.records
    if name is None:
        return
    for key in sorted(set(limits) - _LIMITS[name]):
        message = f"{key!r} does not apply to {name}"
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
        help = "remove such features, or declare a larger min_std"
        yield kit.bad_value(
            f"min_std must be at least radius / 1e6 = {pipeline.radius / 1e6:g}: a constant feature cannot be scaled",
            (*_COLLECTION, "min_std"),
            help,
        )
    if name == "pca" and float(limits["min_eigengap"]) <= (smallest := _minimum_gap(pipeline)):
        yield warning(
            f"an eigengap of at most 8 radius^2 / n = {smallest:.3g} proves only group privacy",
            (*_COLLECTION, "min_eigengap"),
            "choose another k, more records, or a larger gap from public knowledge",
        )
    if name in ("deduplicate", "quantise") and 2 * int(limits["max_ball"]) >= n:
        yield warning(
            f"2 max_ball reaches {n} records: any record can change all others, so the bound is vacuous",
            (*_COLLECTION, "max_ball"),
            "choose a smaller eta, with fewer records within 8 eta of each other",
        )


def _minimum_gap(pipeline: Pipeline) -> float:
    """Eigengap that the bounds of a projection must exceed: 8 radius^2 / n."""
    return 8.0 * pipeline.radius**2 / pipeline.private.records


def _impossible_limits(declared: Declaration, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Refuse limits outside the domain of the formulas."""
    steps, limits = declared.steps, declared.collection
    if len(steps) != 1:
        return
    step, n = steps[0], facts.records
    observed, rows = int(limits.get("min_observed", 2)), int(limits.get("max_missing_rows", 0))
    if isinstance(step, Imputation) and step.by == "trimmed" and step.trim and "min_observed" in limits:
        trim, fewest = step.trim, min(observed, n - rows)
        if fewest <= 2 * trim:
            message = f"trimming {trim} values at each end removes all {fewest} values"
            help = f"choose a trim below {fewest / 2:g}, or impute: median"
            yield kit.bad_value(message, ("mechanism", "pipeline", 0, "trim"), help)
    if observed < 2 or observed > n:
        message = f"min_observed must be from 2 to {n}, got {observed}"
        help = "declare the minimum number of observed values of a feature; remove features without values"
        yield kit.bad_value(message, (*_COLLECTION, "min_observed"), help)
    if rows >= n:
        message = f"max_missing_rows must be below {n} records, got {rows}"
        help = "declare the maximum number of records with a missing value; imputation needs complete records"
        yield kit.bad_value(message, (*_COLLECTION, "max_missing_rows"), help)
    if step.name == "regression" and "min_eigenvalue" in limits:
        if float(limits["min_eigenvalue"]) <= declared.radius**2:
            message = "min_eigenvalue must exceed radius^2: removing one record could reduce it to 0"
            yield kit.bad_value(message, (*_COLLECTION, "min_eigenvalue"), "declare a larger value, or impute: mean")
        elif float(limits.get("max_eigenvalue", math.inf)) < float(limits["min_eigenvalue"]):
            message = "max_eigenvalue must be at least min_eigenvalue"
            help = "declare an upper bound on the largest eigenvalue of X^T X"
            yield kit.bad_value(message, (*_COLLECTION, "max_eigenvalue"), help)


def _test(spec: dps.Spec, pipeline: Pipeline, test: Test) -> Iterator[dps.Diagnostic]:
    """Refuse propose-test-release without a known distance to the collection's edge or repaired accounting."""
    path = ("mechanism", "ptr")
    if pipeline.step_name not in TESTABLE or pipeline.repaired is None:
        yield kit.unsupported(
            "ptr supports mean imputation, deduplication, quantisation and pca with a declared collection",
            path,
            "declare the collection of such a step, or remove ptr and claim over: collection",
        )
    elif pipeline.step_name == "pca" and float(pipeline.collection["min_eigengap"]) <= (
        smallest := _minimum_gap(pipeline)
    ):
        yield kit.bad_value(
            f"ptr needs an eigengap above 8 radius^2 / n = {smallest:.3g}",
            (*_COLLECTION, "min_eigengap"),
            "propose a larger gap from public knowledge, or use more records",
        )
    for i, claim in enumerate(spec.claims):
        if claim.over is None and claim.kind == "approx-dp" and float(claim["delta"]) < test.delta:
            yield warning(
                f"no bound holds for all datasets at a delta below ptr.delta = {test.delta}",
                ("claims", i, "delta"),
            )
    if Declaration.of(spec.mechanism.options).accounting != "repaired":
        yield kit.unsupported(
            "ptr needs accounting: repaired", path, "write accounting: repaired, or remove accounting"
        )
