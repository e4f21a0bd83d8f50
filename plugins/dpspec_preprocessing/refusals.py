"""Located messages for unsupported specs. Imports neither torch nor numpy, and reads no rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing.options import OLD_REPAIRED, AuditBlock, Declaration, Pipeline
from dpspec_preprocessing.published import (
    PRINTED_ORDER,
    PRINTED_RECORDS,
    changed_records,
    table_2_divergence,
    table_2_sensitivity,
    theorem_2_sensitivity,
)
from dpspec_preprocessing.sensitivity import REQUIRED_LIMITS, TESTABLE, Imputation, Merging, Projection, Scaling

#: Options of each step, by the key that names the step.
_STEP_OPTIONS: dict[str, set[str]] = {
    "impute": {"mask", "trim"},
    "deduplicate": set(),
    "quantise": set(),
    "pca": {"affine"},
    "scale": {"clip"},
}

#: Limits of a collection that each step's bound reads and that are measured on the data.
_LIMITS: dict[str, set[str]] = {
    **{by: {*needs, "max_missing_in_row", "min_observed"} for by, needs in REQUIRED_LIMITS.items()},
    "mean": {*REQUIRED_LIMITS["mean"], "max_missing_in_row", "max_mean_norm"},
    "deduplicate": {"max_ball", "max_cluster"},
    "quantise": {"max_ball", "max_cluster"},
    "pca": set(REQUIRED_LIMITS["pca"]),
    "scale": set(REQUIRED_LIMITS["scale"]),
}

_COLLECTION: dps.Path = ("mechanism", "collection")
_PRIVATE: dps.Path = ("mechanism", "private")
_ACCOUNTING: dps.Path = ("mechanism", "accounting")
_REPAIRED = "accounting: repaired"

#: Range in which the formulas, their squares and quotients, and the noise keep full precision.
_SMALLEST, _LARGEST = 1e-30, 1e30

_NUMBERS = ("eps_noise", "lipschitz", "smooth", "sensitivity", "theta_radius", "learning_rate", "factor")

#: Minimum number of executions with any power.
_MIN_EXECUTIONS = 16


def refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    declared = Declaration.of(spec.mechanism.options)
    first = [
        *_threat_model(spec, declared),
        *_steps(spec, declared, facts),
        *_private(spec, declared, facts),
        *_impossible_limits(declared, facts),
    ]
    yield from first
    if any(diagnostic.severity == "error" for diagnostic in first):
        return
    pipeline = declared.pipeline(facts.records, facts.features)
    yield from _collection(facts, pipeline)
    yield from _accounting(spec, declared, pipeline)
    if declared.ptr is not None:
        yield from _test(spec, declared, pipeline, declared.ptr.delta)
    if spec.audit is not None:
        yield from _attack(declared, spec.audit, facts)


def _warning(message: str, path: dps.Path, help: str | None = None) -> dps.Diagnostic:
    return replace(kit.unsupported(message, path, help), severity="warning")


def _threat_model(spec: dps.Spec, declared: Declaration) -> Iterator[dps.Diagnostic]:
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
    if declared.private.kind == "sgd-iterated":
        paths: list[dps.Path] = [("threat_model", "access")] if threat.access != "final-model" else []
        paths += [("claims", i, "access") for i, claim in enumerate(spec.claims) if claim.access != threat.access]
        for path in paths:
            yield kit.unsupported(
                "the bound of sgd-iterated covers only the last iterate",
                path,
                "write access: final-model, or use sgd-sampled, whose bound covers all iterates",
            )


def _steps(spec: dps.Spec, declared: Declaration, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
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
        if step.name == "trimmed" and "trim" not in block:
            yield kit.missing_key("trim", path, "for example {impute: trimmed, trim: 10}")
        if isinstance(step, Scaling) and "clip" not in block:
            example = "for example {scale: standard, clip: 1.0}, with constants for that norm"
            yield kit.missing_key("clip", path, f"scaled records can leave the ball; {example}")
        limit = min(facts.features, facts.records)
        if isinstance(step, Projection) and step.components >= limit:
            yield kit.bad_value(
                f"k must be below {limit}, the smaller of the numbers of features and records, got {step.components}",
                (*path, "pca"),
                f"choose k from 1 to {limit - 1}" if limit > 1 else "remove the step: there is only one direction",
            )
    if declared.sweep is not None and declared.sweep.over == "eta" and not isinstance(declared.steps[0], Merging):
        message = "a sweep over 'eta' needs deduplicate or quantise as the first step"
        yield kit.unsupported(message, ("mechanism", "sweep", "over"), "sweep over another value, or remove sweep")
    if len(blocks) > 1:
        yield _warning(
            f"for a chain of {len(blocks)} steps only group privacy for all {facts.records} records is proved: after "
            "the first step the inputs of the next differ in many records",
            ("mechanism", "pipeline"),
            "keep one step, and replace the others by public constants (data.standardise)",
        )


def _collection(facts: dps.Facts, pipeline: Pipeline) -> Iterator[dps.Diagnostic]:
    limits, name, n = pipeline.collection, pipeline.step_name, facts.records
    if name is None:
        return
    for key in sorted(set(limits) - _LIMITS[name]):
        help = f"limits of {name}: {', '.join(sorted(_LIMITS[name]))}"
        yield kit.unsupported(f"{key!r} does not apply to {name}", (*_COLLECTION, key), help)
    missing = [key for key in REQUIRED_LIMITS[name] if key not in limits]
    if missing:
        yield _warning(
            f"without {' and '.join(missing)} only group privacy for all {n} records is proved",
            _COLLECTION,
            f"declare collection: {{{', '.join(f'{key}: ...' for key in missing)}}}",
        )
        return
    if name == "scale" and pipeline.radius / float(limits["min_std"]) > 1e6:
        yield kit.bad_value(
            f"min_std must be at least radius / 1e6 = {pipeline.radius / 1e6:g}: a constant feature cannot be scaled",
            (*_COLLECTION, "min_std"),
            "remove such features, or declare a larger min_std",
        )
    if name == "pca" and float(limits["min_eigengap"]) <= _minimum_gap(pipeline):
        yield _warning(
            f"an eigengap of at most 8 radius^2 / n = {_minimum_gap(pipeline):.3g} proves only group privacy",
            (*_COLLECTION, "min_eigengap"),
            "choose another k, more records, or a larger gap from public knowledge",
        )
    if name in ("deduplicate", "quantise") and 2 * int(limits["max_ball"]) >= n:
        yield _warning(
            f"2 max_ball reaches {n} records: any record can change all others, so the bound is vacuous",
            (*_COLLECTION, "max_ball"),
            "choose a smaller eta, with fewer records within 8 eta of each other",
        )


def _minimum_gap(pipeline: Pipeline) -> float:
    """Eigengap that the bounds of a projection must exceed: 8 radius^2 / n."""
    return 8.0 * pipeline.radius**2 / pipeline.private.records


def _impossible_limits(declared: Declaration, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    steps, limits, n = declared.steps, declared.collection, facts.records
    if len(steps) != 1:
        return
    observed, rows = int(limits.get("min_observed", 2)), int(limits.get("max_missing_rows", 0))
    fewest = min(observed, n - rows)
    if isinstance(steps[0], Imputation) and steps[0].name == "trimmed" and "min_observed" in limits:
        trim = steps[0].trim
        if trim and fewest <= 2 * trim:
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
    if steps[0].name == "regression" and "min_eigenvalue" in limits:
        if float(limits["min_eigenvalue"]) <= declared.radius**2:
            message = "min_eigenvalue must exceed radius^2: removing one record could reduce it to 0"
            yield kit.bad_value(message, (*_COLLECTION, "min_eigenvalue"), "declare a larger value, or impute: mean")
        elif float(limits.get("max_eigenvalue", math.inf)) < float(limits["min_eigenvalue"]):
            message = "max_eigenvalue must be at least min_eigenvalue"
            help = "declare an upper bound on the largest eigenvalue of X^T X"
            yield kit.bad_value(message, (*_COLLECTION, "max_eigenvalue"), help)


def _accounting(spec: dps.Spec, declared: Declaration, pipeline: Pipeline) -> Iterator[dps.Diagnostic]:
    if spec.mechanism.get("accounting") == OLD_REPAIRED:
        yield _warning(f"accounting: {OLD_REPAIRED} is the former name of repaired", _ACCOUNTING, f"write {_REPAIRED}")
    mode, m, tabled = declared.accounting, pipeline.private, table_2_sensitivity(pipeline)
    if mode == "repaired":
        return
    yield _warning(f"accounting: {mode} proves nothing", _ACCOUNTING, "accounting: repaired proves claims")
    if mode == "theorem2":
        if theorem_2_sensitivity(pipeline) is None:
            yield kit.unsupported("Theorem 2 has no sensitivity for this pipeline", _ACCOUNTING, _REPAIRED)
        return
    if tabled is None:
        too_few = pipeline.step_name == "pca" and m.records < PRINTED_RECORDS
        columns = "a step of one of its columns, radius 1 and its limits"
        needs = f"n >= {PRINTED_RECORDS} records" if too_few else columns
        yield kit.unsupported(f"Table 2 needs {needs}", _ACCOUNTING, _REPAIRED)
    if not m.unit:
        help = "accounting: theorem2 supports any constants"
        yield kit.unsupported("Table 2 needs constants of 1", _ACCOUNTING, help)
    for i, claim in enumerate(spec.claims):
        if claim.kind != "renyi-dp":
            continue
        path, order = ("claims", i, "alpha"), float(claim["alpha"])
        if order < PRINTED_ORDER:
            yield kit.unsupported(f"Table 2 needs an order of at least {PRINTED_ORDER:g}", path, _REPAIRED)
        elif tabled is not None and math.isnan(table_2_divergence(m, order, tabled.tau, changed_records(pipeline))):
            yield kit.unsupported(
                f"Theorem 16 needs {m.kind} at twice the order, {2.0 * order:g}, which is not covered",
                path,
                f"{_REPAIRED}, a smaller order, or a smaller eps_noise",
            )


def _test(spec: dps.Spec, declared: Declaration, pipeline: Pipeline, delta: float) -> Iterator[dps.Diagnostic]:
    path = ("mechanism", "ptr")
    if pipeline.step_name not in TESTABLE or pipeline.repaired is None:
        yield kit.unsupported(
            "ptr supports mean imputation, deduplication, quantisation and pca with a declared collection",
            path,
            "declare the collection of such a step, or remove ptr and claim over: collection",
        )
    elif pipeline.step_name == "pca" and float(pipeline.collection["min_eigengap"]) <= _minimum_gap(pipeline):
        yield kit.bad_value(
            f"ptr needs an eigengap above 8 radius^2 / n = {_minimum_gap(pipeline):.3g}",
            (*_COLLECTION, "min_eigengap"),
            "propose a larger gap from public knowledge, or use more records",
        )
    for i, claim in enumerate(spec.claims):
        if claim.over is None and claim.kind == "approx-dp" and float(claim["delta"]) < delta:
            message = f"no bound holds for all datasets at a delta below ptr.delta = {delta}"
            yield _warning(message, ("claims", i, "delta"))
    if declared.accounting != "repaired":
        help = "write accounting: repaired, or remove accounting"
        yield kit.unsupported("ptr needs accounting: repaired", path, help)


def _private(spec: dps.Spec, declared: Declaration, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    private, block = declared.private, spec.mechanism["private"]
    kind, gradient, sampled = private.kind, private.takes_gradients, private.kind == "sgd-sampled"
    linear = gradient and not private.network
    applicable = {"loss": gradient, "smooth": gradient, "theta_radius": linear, "learning_rate": linear}
    applicable |= {"sensitivity": not gradient, "steps": kind == "dp-gd" or sampled, "factor": sampled}
    for key, applies in applicable.items():
        if key in block and not applies:
            help = "write training.learning_rate" if gradient and key == "learning_rate" else "remove it"
            subject = "a network" if gradient and key in ("theta_radius", "learning_rate") else kind
            yield kit.unsupported(f"{key!r} does not apply to {subject}", (*_PRIVATE, key), help)
    # Squares and quotients of other numbers overflow or lose precision.
    numbers: list[tuple[dps.Path, Any]] = [((*_PRIVATE, key), block[key]) for key in _NUMBERS if key in block]
    numbers.append((("mechanism", "radius"), declared.radius))
    steps = enumerate(spec.mechanism["pipeline"])
    numbers += [(("mechanism", "pipeline", i, "clip"), step["clip"]) for i, step in steps if "clip" in step]
    for path, value in numbers:
        if not _SMALLEST <= float(value) <= _LARGEST:
            message = f"{path[-1]} must be from {_SMALLEST:g} to {_LARGEST:g}, got {float(value):g}"
            yield kit.bad_value(message, path, "use other units: only quotients of these numbers matter")
    if private.network and spec.model is None:
        message, help = "loss: cross-entropy needs a model", "for example model: {kind: mlp, hidden: [16]}"
        yield dps.Diagnostic(code="missing-key", message=message, path=(*_PRIVATE, "loss"), help=help)
    elif spec.model is not None and not private.network:
        help = "remove it, or train it with loss: cross-entropy in mechanism.private"
        yield kit.unsupported("mechanism.private does not train the spec's model", ("model",), help)
    if private.takes_gradients:
        yield from _training(declared, facts)
        return
    reach = 2.0 * private.constants()[0] * declared.processed_norm
    if private.sensitivity > reach:
        message = f"one record moves the query by at most 2 L radius = {reach:g}, less than the declared sensitivity"
        yield _warning(message, (*_PRIVATE, "sensitivity"))


def _training(declared: Declaration, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    private, norm = declared.private, declared.processed_norm
    kind, declared_constants = private.kind, private.loss is None or private.network
    if kind in ("dp-gd", "sgd-sampled") and private.steps is None:
        yield kit.missing_key("steps", _PRIVATE, "for example steps: 100")
    if private.lipschitz is None and declared_constants:
        help = "the norm that each record's gradient is clipped to, for example lipschitz: 1.0"
        help = help if private.network else "write loss: logistic, or declare lipschitz and smooth"
        yield kit.missing_key("lipschitz", _PRIVATE, help)
    if private.smooth is None and declared_constants:
        yield _warning(
            "no smoothness constant ('smooth') declared, so only the group-privacy bound applies",
            _PRIVATE,
            "declare smooth, or train a linear model with loss: logistic or squared",
        )
    if kind == "sgd-sampled" and private.factor < 4.0 and declared.accounting != "repaired":
        yield kit.unsupported(
            "the paper's closed form is refuted for a factor below 4 (noise below 2 L sqrt(steps) / (eps_noise n))",
            (*_PRIVATE, "factor"),
            "write factor: 4, or accounting: repaired, which holds for any factor",
        )
    if kind == "sgd-iterated":
        if not private.known_loss:
            yield kit.unsupported(
                "sgd-iterated needs a convex loss of known curvature: its proof requires contractive steps",
                _PRIVATE if private.loss is None else (*_PRIVATE, "loss"),
                "write loss: logistic or squared, or kind: dp-gd",
            )
        limit = 2.0 / max(1.0, norm) ** 2
        if private.learning_rate > limit:
            message = f"learning_rate must be at most 2 / curvature = {limit:.4g}: larger steps do not contract"
            help = "curvature is the squared maximum norm of a processed record, at least 1"
            yield kit.bad_value(message, (*_PRIVATE, "learning_rate"), help)
    if declared_constants:
        return
    if declared.radius > 1.0:
        yield kit.bad_value(
            f"the constants of this loss need radius 1, got {declared.radius:g}",
            ("mechanism", "radius"),
            "write radius: 1.0 and data.radius: 1.0, which scales longer records down",
        )
    if facts.classes != 2:
        message = f"loss: {private.loss} needs data with two classes, got {facts.classes}"
        help = "use other data, or loss: cross-entropy with a model, which has only the group bound"
        yield kit.bad_value(message, (*_PRIVATE, "loss"), help)
    stated = (("lipschitz", private.lipschitz), ("smooth", private.smooth))
    for (key, value), derived in zip(stated, private.derived_constants(norm), strict=True):
        if value is not None and value < derived:
            help = f"remove {key}: it follows from theta_radius and the norm of processed records, {norm:g}"
            yield kit.bad_value(f"{key} must be at least {derived:.4g} for this loss", (*_PRIVATE, key), help)


def _attack(declared: Declaration, audit: dps.AuditOptions, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    options = AuditBlock.of(audit.options)
    private, step, n = declared.private, declared.steps[0], facts.records
    if audit.method != "many-run":
        message = "audit.method must be many-run: one record changes how others are processed"
        help = "write method: many-run; runs and repeats determine the power"
        yield kit.unsupported(message, ("audit", "method"), help)
    if "canary" in audit.options:
        message = "audit.canary does not apply: the first step determines the canary"
        help = "remove canary; clusters and members configure the inserted near-duplicates"
        yield kit.unsupported(message, ("audit", "canary"), help)
    yield from kit.requires_data(facts)
    if private.takes_gradients and private.loss is None:
        help = "the attack needs loss: logistic or squared, or cross-entropy with a model"
        yield kit.missing_key("loss", _PRIVATE, help)
    executions = audit.runs * options.repeats
    if executions < _MIN_EXECUTIONS:
        message = f"runs times repeats must be at least {_MIN_EXECUTIONS}, got {executions}"
        yield kit.bad_value(message, ("audit", "runs"), f"repeats: {-(-_MIN_EXECUTIONS // audit.runs)} or more")
    if not isinstance(step, Merging):
        for key, number in (("clusters", options.clusters), ("members", options.members)):
            if number is not None:
                yield kit.unsupported(f"{key!r} applies to deduplicate and quantise only", ("audit", key), "remove it")
        return
    clusters, members = options.cluster_layout
    limit = 2 * facts.features if step.drops else facts.features
    if clusters > limit and not (clusters == 5 and facts.features == 2 and step.drops):
        message = f"clusters must be at most {limit} in {facts.features} dimensions, got {clusters}"
        yield kit.bad_value(message, ("audit", "clusters"), f"clusters: {min(limit, 5)}")
    if clusters * members >= n:
        message = f"{clusters} clusters of {members} do not fit into {n} records"
        yield kit.bad_value(message, ("audit",), "use fewer clusters or fewer members")
