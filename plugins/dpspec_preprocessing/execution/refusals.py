"""What the plugin refuses of the private mechanism and of the attack, as located messages: no torch, no numpy."""

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

#: Within these every formula, its squares and its quotients are computed to full precision, and so is the noise.
LEAST, MOST = 1e-30, 1e30

_NUMBERS = ("eps_noise", "lipschitz", "smooth", "sensitivity", "theta_radius", "learning_rate", "factor")

#: With fewer executions than this nothing can be shown.
_LEAST_EXECUTIONS = 16


def warning(message: str, path: dps.Path, help: str | None = None) -> dps.Diagnostic:
    """The spec runs, and shows less than it seems."""
    return replace(kit.unsupported(message, path, help), severity="warning")


def private_refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Keys that say nothing about the mechanism, constants that are missing or cannot hold, and uncovered training."""
    declared = Declaration.of(spec.mechanism.options)
    private = declared.private
    yield from _unused_keys(spec.mechanism["private"], private)
    yield from _extreme_numbers(spec)
    if private.network and spec.model is None:
        yield dps.Diagnostic(
            code="missing-key",
            message="a model is required for loss: cross-entropy, which trains it",
            path=(*_PATH, "loss"),
            help="for example model: {kind: mlp, hidden: [16]}",
        )
    elif spec.model is not None and not private.network:
        help = "leave it out, or train it: loss: cross-entropy in mechanism.private"
        yield kit.unsupported(
            "no model is trained: mechanism.private is a query or has a linear model of its own", ("model",), help
        )
    if private.takes_gradients:
        yield from _training_refusals(declared, facts)
        return
    reach = 2.0 * private.constants()[0] * _processed_norm(declared)
    if private.sensitivity > reach:
        yield warning(
            f"one record moves the query by 2 L radius = {reach:g} at most: a smaller sensitivity is enough",
            (*_PATH, "sensitivity"),
        )


def _extreme_numbers(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    """Numbers whose squares or quotients leave what a float holds: noise and bounds would be rounded to anything."""
    block, mechanism = spec.mechanism["private"], spec.mechanism
    numbers: list[tuple[dps.Path, Any]] = [((*_PATH, key), block[key]) for key in _NUMBERS if key in block]
    numbers.append((("mechanism", "radius"), mechanism.get("radius", 1.0)))
    steps = enumerate(mechanism["pipeline"])
    numbers += [(("mechanism", "pipeline", i, "clip"), step["clip"]) for i, step in steps if "clip" in step]
    for path, value in numbers:
        if not LEAST <= float(value) <= MOST:
            message = f"{path[-1]} must be from {LEAST:g} to {MOST:g}, got {float(value):g}"
            yield kit.bad_value(message, path, "take other units: only quotients of these numbers count")


def _unused_keys(block: Mapping[str, Any], private: Private) -> Iterator[dps.Diagnostic]:
    kind, gradient, sampled = private.kind, private.takes_gradients, private.kind == "sgd-sampled"
    linear = gradient and not private.network
    applicable = {"loss": gradient, "smooth": gradient, "theta_radius": linear, "learning_rate": linear}
    applicable |= {"sensitivity": not gradient, "steps": kind == "dp-gd" or sampled, "factor": sampled}
    for key, applies in applicable.items():
        if key in block and not applies:
            help = "write training.learning_rate" if gradient and key == "learning_rate" else "leave it out"
            subject = "a network" if gradient and key in ("theta_radius", "learning_rate") else kind
            yield kit.unsupported(f"{key!r} does not apply to {subject}", (*_PATH, key), help)


def _training_refusals(declared: Declaration, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    private = declared.private
    kind, own_constants = private.kind, private.loss is None or private.network
    if kind in ("dp-gd", "sgd-sampled") and private.declared_steps is None:
        yield kit.missing_key("steps", _PATH, "for example steps: 100")
    if private.lipschitz is None and own_constants:
        help = "the norm that each record's gradient is clipped to, for example lipschitz: 1.0"
        help = help if private.network else "name a known loss: logistic, or state lipschitz and smooth"
        yield kit.missing_key("lipschitz", _PATH, help)
    if private.smooth is None and own_constants:
        yield warning(
            "no smoothness constant ('smooth') declared, so only the group-privacy bound applies",
            _PATH,
            "state smooth, or train a linear model with a known loss: logistic or squared",
        )
    if kind == "sgd-sampled" and private.factor < 4.0 and declared.accounting != "repaired":
        yield kit.unsupported(
            "the closed form is refuted where the noise is below 2 L sqrt(steps) / (eps_noise n), factor 4",
            (*_PATH, "factor"),
            "factor: 4, or accounting: repaired, which holds for any",
        )
    if kind == "sgd-iterated":
        yield from _iterated_refusals(private, _processed_norm(declared))
    if not own_constants:
        yield from _constant_refusals(declared, facts)


def _processed_norm(declared: Declaration) -> float:
    """The norm of processed records; of steps that lack what it needs, which is refused elsewhere, that of records."""
    whole = all(math.isfinite(step.clip) for step in declared.steps if isinstance(step, Scaling))
    return declared.processed_norm if whole else declared.radius


def _iterated_refusals(private: Private, norm: float) -> Iterator[dps.Diagnostic]:
    if not private.known_loss:
        yield kit.unsupported(
            "sgd-iterated needs a convex loss of known curvature: its proof takes steps that contract",
            _PATH if private.loss is None else (*_PATH, "loss"),
            "loss: logistic or squared, or kind: dp-gd",
        )
    most = 2.0 / max(1.0, norm) ** 2
    if private.learning_rate > most:
        message = f"learning_rate must be at most 2 / curvature = {most:.4g}: longer steps do not contract"
        help = "the curvature is at most the square of a processed record's norm, and at least 1 is taken"
        yield kit.bad_value(message, (*_PATH, "learning_rate"), help)


def _constant_refusals(declared: Declaration, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    private, radius = declared.private, declared.radius
    if radius > 1.0:
        yield kit.bad_value(
            f"the constants of this loss hold for radius 1, got {radius:g}",
            ("mechanism", "radius"),
            "radius: 1.0, with data.radius: 1.0, which scales longer records down",
        )
    if facts.classes != 2:
        message = f"loss: {private.loss} needs data with two classes, got {facts.classes}"
        help = "other data, or loss: cross-entropy with a model, which has the group bound only"
        yield kit.bad_value(message, (*_PATH, "loss"), help)
    norm = _processed_norm(declared)
    stated = (("lipschitz", private.lipschitz), ("smooth", private.smooth))
    for (key, value), least in zip(stated, private.derived_constants(norm), strict=True):
        if value is not None and value < least:
            help = f"leave {key} out: it follows from theta_radius, and from the norm of processed records, {norm:g}"
            yield kit.bad_value(f"{key} must be at least {least:.4g} for this loss", (*_PATH, key), help)


def attack_refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the attack of a spec with an audit cannot be made."""
    assert spec.audit is not None
    private = Declaration.of(spec.mechanism.options).private
    if spec.audit.method != "many-run":
        message = "audit.method must be many-run: one record changes what becomes of the others"
        help = "method: many-run; runs and repeats decide how much can be shown"
        yield kit.unsupported(message, ("audit", "method"), help)
    if "canary" in spec.audit.options:
        help = "leave canary out; clusters and members say how near-duplicates are planted"
        yield kit.unsupported(
            "audit.canary does not apply: the canary follows from the first step", ("audit", "canary"), help
        )
    yield from kit.requires_data(facts)
    if private.takes_gradients and private.loss is None:
        help = "what the attack trains: loss: logistic or squared, or cross-entropy with a model"
        yield kit.missing_key("loss", _PATH, help)
    executions = spec.audit.runs * AuditBlock.of(spec.audit.options).repeats
    if executions < _LEAST_EXECUTIONS:
        message = f"runs times repeats must be at least {_LEAST_EXECUTIONS}, got {executions}"
        yield kit.bad_value(message, ("audit", "runs"), f"repeats: {-(-_LEAST_EXECUTIONS // spec.audit.runs)} or more")
    yield from _planting_refusals(spec, facts)


def _planting_refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    options, step = AuditBlock.of(spec.audit.options), Declaration.of(spec.mechanism.options).steps[0]
    if not isinstance(step, Merging):
        for key, number in (("clusters", options.clusters), ("members", options.members)):
            if number is not None:
                yield kit.unsupported(
                    f"{key!r} applies to deduplicate and quantise only", ("audit", key), "leave it out"
                )
        return
    clusters, members = options.planted
    fits = 2 * facts.features if step.drops else facts.features
    if clusters > fits and not (clusters == 5 and facts.features == 2 and step.drops):
        message = f"clusters must be at most {fits} in {facts.features} dimensions, got {clusters}"
        yield kit.bad_value(message, ("audit", "clusters"), f"clusters: {min(fits, 5)}")
    if clusters * members >= facts.records:
        message = f"{clusters} clusters of {members} do not fit into {facts.records} records"
        yield kit.bad_value(message, ("audit",), "fewer clusters, or fewer members")
