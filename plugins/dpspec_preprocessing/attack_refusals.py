"""Refusals of unsupported private mechanisms and attacks. Imports neither torch nor numpy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing.options import AuditBlock, Declaration
from dpspec_preprocessing.theory.declared_steps import Merging, Scaling
from dpspec_preprocessing.theory.private import Private

_PATH = ("mechanism", "private")

#: Range in which the formulas, their squares and quotients, and the noise keep full precision.
_SMALLEST, _LARGEST = 1e-30, 1e30

_NUMBERS = ("eps_noise", "lipschitz", "smooth", "sensitivity", "theta_radius", "learning_rate", "factor")

#: Minimum number of executions with any power.
_MIN_EXECUTIONS = 16


def warning(message: str, path: dps.Path, help: str | None = None) -> dps.Diagnostic:
    """A diagnostic that does not stop the audit."""
    return replace(kit.unsupported(message, path, help), severity="warning")


def private_refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Refuse keys that do not apply, missing or invalid constants, and unsupported training."""
    declared = Declaration.of(spec.mechanism.options)
    private = declared.private
    yield from _unused_keys(spec.mechanism["private"], private)
    yield from _extreme_numbers(spec)
    if private.network and spec.model is None:
        yield dps.Diagnostic(
            code="missing-key",
            message="loss: cross-entropy needs a model",
            path=(*_PATH, "loss"),
            help="for example model: {kind: mlp, hidden: [16]}",
        )
    elif spec.model is not None and not private.network:
        help = "remove it, or train it with loss: cross-entropy in mechanism.private"
        yield kit.unsupported("mechanism.private does not train the spec's model", ("model",), help)
    if private.takes_gradients:
        yield from _training_refusals(declared, facts)
        return
    reach = 2.0 * private.constants()[0] * _processed_norm(declared)
    if private.sensitivity > reach:
        yield warning(
            f"one record moves the query by at most 2 L radius = {reach:g}, less than the declared sensitivity",
            (*_PATH, "sensitivity"),
        )


def _extreme_numbers(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    """Refuse numbers whose squares or quotients overflow or lose precision."""
    block, mechanism = spec.mechanism["private"], spec.mechanism
    numbers: list[tuple[dps.Path, Any]] = [((*_PATH, key), block[key]) for key in _NUMBERS if key in block]
    numbers.append((("mechanism", "radius"), mechanism.get("radius", 1.0)))
    steps = enumerate(mechanism["pipeline"])
    numbers += [(("mechanism", "pipeline", i, "clip"), step["clip"]) for i, step in steps if "clip" in step]
    for path, value in numbers:
        if not _SMALLEST <= float(value) <= _LARGEST:
            message = f"{path[-1]} must be from {_SMALLEST:g} to {_LARGEST:g}, got {float(value):g}"
            yield kit.bad_value(message, path, "use other units: only quotients of these numbers matter")


def _unused_keys(block: Mapping[str, Any], private: Private) -> Iterator[dps.Diagnostic]:
    kind, gradient, sampled = private.kind, private.takes_gradients, private.kind == "sgd-sampled"
    linear = gradient and not private.network
    applicable = {"loss": gradient, "smooth": gradient, "theta_radius": linear, "learning_rate": linear}
    applicable |= {"sensitivity": not gradient, "steps": kind == "dp-gd" or sampled, "factor": sampled}
    for key, applies in applicable.items():
        if key in block and not applies:
            help = "write training.learning_rate" if gradient and key == "learning_rate" else "remove it"
            subject = "a network" if gradient and key in ("theta_radius", "learning_rate") else kind
            yield kit.unsupported(f"{key!r} does not apply to {subject}", (*_PATH, key), help)


def _training_refusals(declared: Declaration, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    private = declared.private
    kind, declared_constants = private.kind, private.loss is None or private.network
    if kind in ("dp-gd", "sgd-sampled") and private.declared_steps is None:
        yield kit.missing_key("steps", _PATH, "for example steps: 100")
    if private.lipschitz is None and declared_constants:
        help = "the norm that each record's gradient is clipped to, for example lipschitz: 1.0"
        help = help if private.network else "write loss: logistic, or declare lipschitz and smooth"
        yield kit.missing_key("lipschitz", _PATH, help)
    if private.smooth is None and declared_constants:
        yield warning(
            "no smoothness constant ('smooth') declared, so only the group-privacy bound applies",
            _PATH,
            "declare smooth, or train a linear model with loss: logistic or squared",
        )
    if kind == "sgd-sampled" and private.factor < 4.0 and declared.accounting != "repaired":
        yield kit.unsupported(
            "the paper's closed form is refuted for a factor below 4 (noise below 2 L sqrt(steps) / (eps_noise n))",
            (*_PATH, "factor"),
            "write factor: 4, or accounting: repaired, which holds for any factor",
        )
    if kind == "sgd-iterated":
        yield from _iterated_refusals(private, _processed_norm(declared))
    if not declared_constants:
        yield from _constant_refusals(declared, facts)


def _processed_norm(declared: Declaration) -> float:
    """Maximum norm of processed records, or of records if a required clip is missing (refused separately)."""
    whole = all(math.isfinite(step.clip) for step in declared.steps if isinstance(step, Scaling))
    return declared.processed_norm if whole else declared.radius


def _iterated_refusals(private: Private, norm: float) -> Iterator[dps.Diagnostic]:
    if not private.known_loss:
        yield kit.unsupported(
            "sgd-iterated needs a convex loss of known curvature: its proof requires contractive steps",
            _PATH if private.loss is None else (*_PATH, "loss"),
            "write loss: logistic or squared, or kind: dp-gd",
        )
    limit = 2.0 / max(1.0, norm) ** 2
    if private.learning_rate > limit:
        message = f"learning_rate must be at most 2 / curvature = {limit:.4g}: larger steps do not contract"
        help = "curvature is the squared maximum norm of a processed record, at least 1"
        yield kit.bad_value(message, (*_PATH, "learning_rate"), help)


def _constant_refusals(declared: Declaration, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    private, radius = declared.private, declared.radius
    if radius > 1.0:
        yield kit.bad_value(
            f"the constants of this loss need radius 1, got {radius:g}",
            ("mechanism", "radius"),
            "write radius: 1.0 and data.radius: 1.0, which scales longer records down",
        )
    if facts.classes != 2:
        message = f"loss: {private.loss} needs data with two classes, got {facts.classes}"
        help = "use other data, or loss: cross-entropy with a model, which has only the group bound"
        yield kit.bad_value(message, (*_PATH, "loss"), help)
    norm = _processed_norm(declared)
    stated = (("lipschitz", private.lipschitz), ("smooth", private.smooth))
    for (key, value), derived in zip(stated, private.derived_constants(norm), strict=True):
        if value is not None and value < derived:
            help = f"remove {key}: it follows from theta_radius and the norm of processed records, {norm:g}"
            yield kit.bad_value(f"{key} must be at least {derived:.4g} for this loss", (*_PATH, key), help)


def attack_refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Errors that prevent the attack of a spec with an audit."""
    assert spec.audit is not None
    private = Declaration.of(spec.mechanism.options).private
    if spec.audit.method != "many-run":
        message = "audit.method must be many-run: one record changes how others are processed"
        help = "write method: many-run; runs and repeats determine the power"
        yield kit.unsupported(message, ("audit", "method"), help)
    if "canary" in spec.audit.options:
        help = "remove canary; clusters and members configure the inserted near-duplicates"
        yield kit.unsupported(
            "audit.canary does not apply: the first step determines the canary", ("audit", "canary"), help
        )
    yield from kit.requires_data(facts)
    if private.takes_gradients and private.loss is None:
        help = "the attack needs loss: logistic or squared, or cross-entropy with a model"
        yield kit.missing_key("loss", _PATH, help)
    executions = spec.audit.runs * AuditBlock.of(spec.audit.options).repeats
    if executions < _MIN_EXECUTIONS:
        message = f"runs times repeats must be at least {_MIN_EXECUTIONS}, got {executions}"
        yield kit.bad_value(message, ("audit", "runs"), f"repeats: {-(-_MIN_EXECUTIONS // spec.audit.runs)} or more")
    yield from _cluster_refusals(spec, facts)


def _cluster_refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    options, step = AuditBlock.of(spec.audit.options), Declaration.of(spec.mechanism.options).steps[0]
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
    if clusters * members >= facts.records:
        message = f"{clusters} clusters of {members} do not fit into {facts.records} records"
        yield kit.bad_value(message, ("audit",), "use fewer clusters or fewer members")
