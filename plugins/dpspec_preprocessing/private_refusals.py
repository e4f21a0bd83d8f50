"""What is refused of the mechanism behind the pre-processing, located and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dpspec.contract as dps
from dpspec_preprocessing.messages import refused, warned
from dpspec_preprocessing.options import constants, is_network
from dpspec_preprocessing.private import GRADIENT

_AT = ("mechanism", "private")


def private_refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Keys that say nothing about the mechanism, constants that are missing or cannot hold, and uncovered training."""
    block = spec.mechanism["private"]
    if block.get("norm", "summed") == "frobenius":
        yield refused(
            (*_AT, "norm"),
            "bounds take the Lipschitz constant in the sum of the distances between records",
            "state it in that norm: 1 / n, not 1 / sqrt(n), for a mean",
        )
    yield from _idle(block)
    if is_network(block):
        yield from _network(spec)
    elif spec.model is not None:
        help = "leave it out, or train it: loss: cross-entropy in mechanism.private"
        yield refused(("model",), "nothing trains this model: mechanism.private has its own", help)
    if str(block["kind"]) in GRADIENT:
        yield from _training(spec, facts)
        return
    radius, weight = float(spec.mechanism["radius"]), float(block.get("lipschitz", 1.0))
    if float(block.get("sensitivity", 1.0)) > 2.0 * weight * radius:
        yield warned(
            (*_AT, "sensitivity"),
            f"one record moves the query by 2 L radius = {2.0 * weight * radius:g} at most: a smaller sensitivity "
            "is enough",
        )


def _idle(block: Mapping[str, Any]) -> Iterator[dps.Diagnostic]:
    kind = str(block["kind"])
    gradient, sampled = kind in GRADIENT, kind == "sgd-sampled"
    linear = gradient and not is_network(block)
    only = {"loss": gradient, "smooth": gradient, "theta_radius": linear, "learning_rate": linear}
    only |= {"sensitivity": not gradient, "steps": kind in ("dp-gd", "sgd-sampled")}
    only |= {"factor": sampled, "batch_size": sampled}
    for key, applies in only.items():
        if key in block and not applies:
            instead = "write training.learning_rate" if gradient and key == "learning_rate" else "leave it out"
            what = "a network" if gradient and key in ("theta_radius", "learning_rate") else kind
            yield refused((*_AT, key), f"{key!r} says nothing about {what}", instead)


def _training(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    block = spec.mechanism["private"]
    kind = str(block["kind"])
    if kind in ("dp-gd", "sgd-sampled") and "steps" not in block:
        yield refused(_AT, "missing key 'steps' in mechanism.private", "for example steps: 100", "missing-key")
    if "lipschitz" not in block and ("loss" not in block or is_network(block)):
        help = "the norm that each record's gradient is clipped to, for example lipschitz: 1.0"
        help = help if is_network(block) else "name a known loss: logistic, or state lipschitz and smooth"
        yield refused(_AT, "missing key 'lipschitz' in mechanism.private", help, "missing-key")
    if "smooth" not in block and ("loss" not in block or is_network(block)):
        yield warned(
            _AT,
            "nothing is declared of how gradients move with records (smooth): only group privacy is proved",
            "state smooth, or train a linear model with a known loss: logistic or squared",
        )
    if block.get("batch_size", 1) != 1:
        help = "batch_size: 1; Lemma 2 is refuted for larger batches drawn with replacement"
        yield refused((*_AT, "batch_size"), "sampled gradients are covered one record at a time", help)
    if kind == "sgd-sampled" and float(block.get("factor", 4.0)) < 4.0 and spec.mechanism["accounting"] != "certified":
        yield refused(
            (*_AT, "factor"),
            "the closed form is refuted where the noise is below 2 L sqrt(steps) / (eps_noise n), factor 4",
            "factor: 4, or accounting: certified, which holds for any",
        )
    if kind == "sgd-iterated":
        yield from _iterated(block)
    if "loss" in block and not is_network(block):
        yield from _constants(block, float(spec.mechanism["radius"]), facts)


def _iterated(block: Mapping[str, Any]) -> Iterator[dps.Diagnostic]:
    if block.get("loss") not in ("logistic", "squared"):
        yield refused(
            (*_AT, "loss") if "loss" in block else _AT,
            "iterates are hidden by steps that contract: the loss must be convex, of known curvature",
            "loss: logistic or squared, or kind: dp-gd",
        )
    if float(block.get("learning_rate", 0.5)) > 2.0:
        help = "losses here have curvature at most 1: learning_rate at most 2"
        yield refused((*_AT, "learning_rate"), "steps longer than 2 / curvature do not contract", help, "bad-value")


def _network(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    if spec.model is None:
        help = "for example model: {kind: mlp, hidden: [16]}"
        yield refused(
            (*_AT, "loss"), "loss cross-entropy trains the spec's model, and there is none", help, "missing-key"
        )


def _constants(block: Mapping[str, Any], radius: float, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    if radius > 1.0:
        yield refused(
            ("mechanism", "radius"),
            f"the constants of this loss hold for radius 1, got {radius:g}",
            "radius: 1.0, with data.radius: 1.0, which scales longer records down",
            "bad-value",
        )
    if facts.classes != 2:
        help = "data with two classes, or loss: cross-entropy with a model, which has the group bound only"
        yield refused((*_AT, "loss"), f"a linear model of two classes cannot tell {facts.classes}", help, "bad-value")
    derived = constants({key: value for key, value in block.items() if key not in ("lipschitz", "smooth")})
    for key, least in zip(("lipschitz", "smooth"), derived, strict=True):
        if key in block and float(block[key]) < least:
            help = f"leave {key} out: it follows from theta_radius"
            yield refused((*_AT, key), f"this loss needs {key} of {least:.4g} at least", help, "bad-value")
