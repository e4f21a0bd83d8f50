"""Audit of noiseless pre-processing before a private mechanism (Hu, Sanyal and Schoelkopf 2024)."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import dpspec.contract as dps
from dpspec import decimals, kit
from dpspec_preprocessing import options, sensitivity
from dpspec_preprocessing.options import AuditBlock, Declaration, Pipeline

DPSPEC_API = 1

#: Number of runs that share one processing of both datasets.
_TOGETHER = 16

#: Rough rates per second on one core: values read by steps, gradient products of linear models, and of networks.
_VALUES, _FLOPS, _NETWORK_FLOPS = 2e7, 4e8, 3e9

_COLLECTION: dps.Path = ("mechanism", "collection")
_PRIVATE: dps.Path = ("mechanism", "private")

#: Minimum number of executions with any power.
_MIN_EXECUTIONS = 16


class PreprocessingAudit(dps.Audit):
    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
        declared = Declaration.of(spec.mechanism.options)
        first = [
            *_threat_model(spec, declared),
            *_steps(declared, facts),
            *_private(spec, declared, facts),
            *_metrics(spec, declared),
            *_impossible_limits(declared, facts),
        ]
        yield from first
        if any(diagnostic.severity == "error" for diagnostic in first):
            return
        pipeline = declared.pipeline(facts.records, facts.features)
        yield from _collection(facts, pipeline)
        if declared.ptr is not None:
            yield from _test(spec, pipeline, declared.ptr.delta)
        if spec.audit is not None:
            yield from _attack(declared, spec.audit, facts)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        from dpspec_preprocessing import bounds, constants

        declared = Declaration.of(spec.mechanism.options)
        pipeline = declared.pipeline(context.facts.records, context.facts.features)
        yield from bounds.upper_bounds(spec, pipeline)
        yield from bounds.lower_bounds(spec, pipeline)
        yield constants.constants_series(declared, pipeline)
        if context.facts.digest is not None and pipeline.step is not None:
            from dpspec_preprocessing import steps

            x, device = steps.flat_rows(context, declared), steps.search_device(context, pipeline)
            tested = declared.ptr is not None
            limits = steps.require_in_collection(x, pipeline, tested=tested, device=device)
            if limits:
                yield constants.measured_series(pipeline, limits)
            if declared.ptr is not None:
                distance = steps.distance_to_edge(x, pipeline)
                yield dps.Finding(
                    quantity="refusal-probability",
                    value=sensitivity.refusal_probability(distance, declared.ptr.epsilon, declared.ptr.delta),
                    bound="estimate",
                    rigor="approximate",
                    scope=options.bound_scope(spec, pipeline.private, data="this"),
                    method="propose-test-release on these records",
                    source=bounds.TESTED,
                    privacy="data-dependent",
                )

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        from dpspec.stats.attacks import thresholds
        from dpspec_preprocessing.attack import predict_checks

        assert spec.audit is not None
        private, runs = Declaration.of(spec.mechanism.options).private, spec.audit.runs
        executions = runs * AuditBlock.of(spec.audit.options).repeats
        network = private.network
        steps = {"dp-gd": facts.records * private.steps, "sgd-iterated": facts.records}
        work = float(steps.get(private.kind, private.steps))
        work *= float((facts.parameters or 0) if network else facts.features)
        # Eigenvectors of a private projection, in every execution.
        projections = sum(1 for step in Declaration.of(spec.mechanism.options).steps if step.mu)
        work += projections * 5.0 * float(facts.features) ** 3
        rate = _NETWORK_FLOPS if network else _FLOPS
        rows = float(facts.records * max(1, facts.features))
        return dps.Plan(
            chunks=kit.chunks(runs, _TOGETHER),
            seconds=-(-runs // _TOGETHER) * 40.0 * rows / _VALUES + executions * 4.0 * work / rate,
            memory_bytes=int(64 * rows) + (1 << 28) + (_TOGETHER * 64 * (facts.parameters or 0) if network else 0),
            power=tuple(
                dps.Power(
                    at=dps.FrozenMap({"delta": delta}),
                    epsilon=thresholds.largest(
                        executions - executions // 2, executions // 2, delta, spec.audit.confidence
                    ),
                    method=f"{executions} executions with one record or its replacement",
                )
                for delta in kit.claimed_deltas(spec)
            ),
            checks=tuple(predict_checks(spec, facts, executions)),
            independent=True,
        )

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        return kit.select_inputs(super().trial_inputs(spec), threat_model=("adjacency", "access"))

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        from dpspec_preprocessing.attack import run_trials

        return run_trials(inputs, context, indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        from dpspec_preprocessing.attack import conclude_trials

        return conclude_trials(spec, trials)


def _warning(message: str, path: dps.Path, help: str | None = None) -> dps.Diagnostic:
    return replace(kit.unsupported(message, path, help), severity="warning")


def _threat_model(spec: dps.Spec, declared: Declaration) -> Iterator[dps.Diagnostic]:
    threat = spec.threat_model
    yield from dps.other_adjacencies(spec, "replace-one", "the theory", "write threat_model: {adjacency: replace-one}")
    if threat.group_size != (1,):
        path: dps.Path = ("threat_model", "group_size")
        yield kit.unsupported("bounds cover one replaced record, not groups", path, "remove group_size")
    if declared.private.kind == "sgd-iterated":
        paths: list[dps.Path] = [("threat_model", "access")] if threat.access != "final-model" else []
        paths += [("claims", i, "access") for i, claim in enumerate(spec.claims) if claim.access != threat.access]
        for path in paths:
            help = "write access: final-model, or use sgd-sampled"
            yield kit.unsupported("the bound of sgd-iterated covers only the last iterate", path, help)


def _steps(declared: Declaration, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    limit = min(facts.features, facts.records)
    for i, step in enumerate(declared.steps):
        path: dps.Path = ("mechanism", "pipeline", i, step.kind.key)
        if step.components >= limit:
            message = f"k must be below {limit}, the smaller of the numbers of features and records"
            yield kit.bad_value(message, path, "choose a smaller k, or remove the step")
        if step.mu and len(declared.steps) > 1:
            message = "no bound is known for dp-pca before or after another step"
            yield kit.unsupported(message, path, "keep it as the only step")
    if len(declared.steps) > 1:
        message = f"for several steps only group privacy for all {facts.records} records is proved"
        help = "keep one step, and replace the others by public constants (data.standardise)"
        yield _warning(message, ("mechanism", "pipeline"), help)


def _collection(facts: dps.Facts, pipeline: Pipeline) -> Iterator[dps.Diagnostic]:
    limits, step, n = pipeline.collection, pipeline.step, facts.records
    if pipeline.for_all_data and limits:
        message = "without a noiseless step the bound holds for all datasets, so that no limit applies"
        yield kit.unsupported(message, _COLLECTION, "remove collection")
    if step is None or pipeline.for_all_data:
        return
    name, valid, needed = step.name, {*step.kind.required, *step.kind.further}, step.kind.required
    for key in sorted(set(limits) - valid):
        help = f"limits of {name}: {', '.join(sorted(valid))}"
        yield kit.unsupported(f"{key!r} does not apply to {name}", (*_COLLECTION, key), help)
    missing = [key for key in needed if key not in limits]
    if missing:
        message = f"without {' and '.join(missing)} only group privacy for all {n} records is proved"
        yield _warning(message, _COLLECTION, f"declare {', '.join(missing)}")
    elif name == "scale" and pipeline.radius / float(limits["min_std"]) > 1e6:
        message = f"min_std must be at least radius / 1e6 = {pipeline.radius / 1e6:g}"
        yield kit.bad_value(message, (*_COLLECTION, "min_std"), "remove features that are almost constant")
    elif _is_small(pipeline) or (step.merges and 2 * int(limits["max_ball"]) >= n):
        rule = f"exceed 8 radius^2 / n = {decimals.upper(_gap(pipeline))}"
        if step.merges:
            rule = f"be below n / 2 = {n / 2:g}"
        message = f"this {needed[0]} proves only group privacy: it must {rule}"
        yield _warning(message, (*_COLLECTION, needed[0]), "choose a smaller eta, another k or a stricter limit")


def _gap(pipeline: Pipeline) -> float:
    """Eigengap that the bounds of a projection must exceed: 8 radius^2 / n."""
    return 8.0 * pipeline.radius**2 / pipeline.private.records


def _is_small(pipeline: Pipeline) -> bool:
    return pipeline.step_name == "pca" and float(pipeline.collection["min_eigengap"]) <= _gap(pipeline)


def _impossible_limits(declared: Declaration, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    limits, n = declared.collection, facts.records
    if len(declared.steps) != 1:
        return
    (step,) = declared.steps
    observed, rows = int(limits.get("min_observed", 2)), int(limits.get("max_missing_rows", 0))
    fewest = min(observed, n - rows)
    if step.trim and "min_observed" in limits and fewest <= 2 * step.trim:
        message = f"trimming {step.trim} values at each end removes all {fewest} values"
        help = f"choose a trim below {fewest / 2:g}, or impute: median"
        yield kit.bad_value(message, ("mechanism", "pipeline", 0, "trim"), help)
    smallest = float(limits.get("min_eigenvalue", math.inf))
    impossible = (
        (not 2 <= observed <= n, "min_observed", f"must be from 2 to {n}, got {observed}"),
        (rows >= n, "max_missing_rows", f"must be below {n} records, got {rows}"),
        (smallest <= declared.radius**2, "min_eigenvalue", "must exceed radius^2: one record could reduce it to 0"),
        (math.inf > smallest > float(limits.get("max_eigenvalue", math.inf)), "max_eigenvalue", "is below the minimum"),
    )
    for wrong, key, rule in impossible:
        if wrong:
            yield kit.bad_value(f"{key} {rule}", (*_COLLECTION, key), f"declare a public limit of the data as {key}")


def _test(spec: dps.Spec, pipeline: Pipeline, delta: float) -> Iterator[dps.Diagnostic]:
    path = ("mechanism", "ptr")
    if pipeline.step is None or not pipeline.step.kind.testable or pipeline.repaired is None:
        message = "ptr supports mean imputation, deduplication, quantisation and pca with a declared collection"
        yield kit.unsupported(message, path, "use such a step, or remove ptr and claim over: collection")
    elif _is_small(pipeline):
        message = f"ptr needs an eigengap above 8 radius^2 / n = {decimals.upper(_gap(pipeline))}"
        yield kit.bad_value(message, (*_COLLECTION, "min_eigengap"), "propose a larger gap, or use more records")
    for i, claim in enumerate(spec.claims):
        if claim.over is None and claim.kind == "approx-dp" and float(claim["delta"]) < delta:
            message = f"no bound holds for all datasets at a delta below ptr.delta = {delta}"
            yield _warning(message, ("claims", i, "delta"))


def _private(spec: dps.Spec, declared: Declaration, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    private, norm = declared.private, declared.processed_norm
    if private.network and spec.model is None:
        message, help = "loss: cross-entropy needs a model", "for example model: {kind: mlp, hidden: [16]}"
        yield dps.Diagnostic(code="missing-key", message=message, path=(*_PRIVATE, "loss"), help=help)
    elif spec.model is not None and not private.network:
        help = "remove it, or write loss: cross-entropy"
        yield kit.unsupported("mechanism.private does not train the spec's model", ("model",), help)
    if private.kind == "sgd-iterated":
        if private.network:
            message = "sgd-iterated needs a convex loss of known curvature"
            yield kit.unsupported(message, (*_PRIVATE, "loss"), "write loss: logistic or squared, or kind: dp-gd")
        limit = 2.0 / max(1.0, norm) ** 2
        if private.learning_rate > limit:
            largest = decimals.lower(limit)
            message = f"learning_rate must be at most 2 / curvature = {largest}: larger steps do not contract"
            yield kit.bad_value(message, (*_PRIVATE, "learning_rate"), f"write learning_rate: {largest} or less")
    if not private.known_loss:
        if private.takes_gradients and private.smooth is None:
            message = "no smoothness constant ('smooth') declared, so only the group-privacy bound applies"
            yield _warning(message, _PRIVATE, "declare smooth, or write loss: logistic or squared")
        return
    if declared.radius > 1.0:
        message = f"the constants of this loss need radius 1, got {declared.radius:g}"
        yield kit.bad_value(message, ("mechanism", "radius"), "write radius: 1.0 and data.radius: 1.0")
    if facts.classes != 2:
        message = f"loss: {private.loss} needs data with two classes, got {facts.classes}"
        yield kit.bad_value(message, (*_PRIVATE, "loss"), "use other data, or loss: cross-entropy with a model")
    stated = (("lipschitz", private.lipschitz), ("smooth", private.smooth))
    for (key, value), derived in zip(stated, private.derived_constants(norm), strict=True):
        if value is not None and value < derived:
            help = f"remove {key}: it follows from theta_radius and the norm of processed records, {norm:g}"
            message = f"{key} must be at least {decimals.upper(derived)} for this loss"
            yield kit.bad_value(message, (*_PRIVATE, key), help)


def _metrics(spec: dps.Spec, declared: Declaration) -> Iterator[dps.Diagnostic]:
    """Metrics that this mechanism does not measure would stay open after the training."""
    if spec.audit is None:
        return
    for i, claim in enumerate(spec.claims):
        name = claim["name"] if claim.kind == "metric" else None
        if name == "loss" and not declared.private.known_loss:
            message = "the loss is measured for loss: logistic and squared, which are bounded"
            yield kit.unsupported(message, ("claims", i, "name"), "claim the accuracy, or use such a loss")
        elif name == "accuracy" and declared.private.loss is None:
            message = "a query trains no model, so that it has no accuracy"
            yield kit.unsupported(message, ("claims", i, "name"), "remove the claim, or use kind: dp-gd")


def _attack(declared: Declaration, audit: dps.AuditOptions, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    options = AuditBlock.of(audit.options)
    private, step, n = declared.private, declared.steps[0] if declared.steps else None, facts.records
    if audit.method != "many-run":
        message = "audit.method must be many-run: one record changes how others are processed"
        yield kit.unsupported(message, ("audit", "method"), "write method: many-run")
    if "canary" in audit.options:
        message = "audit.canary does not apply: the first step determines the canary"
        yield kit.unsupported(message, ("audit", "canary"), "remove canary")
    yield from kit.requires_data(facts)
    if private.takes_gradients and private.loss is None:
        yield kit.missing_key("loss", _PRIVATE, "write loss: logistic or squared, or cross-entropy with a model")
    executions = audit.runs * options.repeats
    if executions < _MIN_EXECUTIONS:
        message = f"runs times repeats must be at least {_MIN_EXECUTIONS}, got {executions}"
        yield kit.bad_value(message, ("audit", "runs"), f"repeats: {-(-_MIN_EXECUTIONS // audit.runs)} or more")
    if step is None or not step.merges:
        for key in sorted({"clusters", "members"} & set(audit.options)):
            yield kit.unsupported(f"{key!r} applies to deduplicate and quantise only", ("audit", key), "remove it")
        return
    drops, clusters, members = step.name == "deduplicate", options.clusters, options.members
    limit = 2 * facts.features if drops else facts.features
    if clusters > limit and not (clusters == 5 and facts.features == 2 and drops):
        message = f"clusters must be at most {limit} in {facts.features} dimensions, got {clusters}"
        yield kit.bad_value(message, ("audit", "clusters"), f"clusters: {min(limit, 5)}")
    if clusters * members >= n:
        message = f"{clusters} clusters of {members} do not fit into {n} records"
        yield kit.bad_value(message, ("audit",), "use fewer clusters or fewer members")


PREPROCESSING = dps.Mechanism(
    kind="preprocessing",
    summary="Privacy cost of noiseless pre-processing before a private mechanism",
    assumptions=("dpspec_preprocessing.bounds", "dpspec_preprocessing.attack"),
    description="preparing the records without noise (such as filling gaps or removing copies), then a private "
    "computation",
    schemas=dps.Schemas(mechanism=options.MECHANISM, threat_model=options.THREAT_MODEL, audit=options.AUDIT),
    metrics=frozenset({"accuracy", "loss"}),
    claims=frozenset({"approx-dp", "pure-dp", "renyi-dp", "gdp", "metric"}),
    audit="dpspec_preprocessing:PreprocessingAudit",
    example=Path(__file__).with_name("example.yaml").read_text(encoding="utf-8"),
    trial_revision=4,
    steps=False,
    missing=True,
)


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    yield PREPROCESSING
