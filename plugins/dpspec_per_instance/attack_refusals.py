"""What of the attack, the mean rule and the comparison with a reference cannot be done, located and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dpspec.contract as dps
from dpspec_per_instance.options import Audited, attack_of, observe_every, observed_steps

#: With fewer runs than this for a record an attack can show nothing.
LEAST_RUNS = 16

#: The mean rule holds all clipped gradients at once: bytes at most.
MOST_BYTES = 2**30

_ATTACK, _MEAN, _REFERENCE = ("audit", "attack"), ("audit", "mean_rule"), ("audit", "reference")


def attack_refusals(spec: dps.Spec, facts: dps.Facts, audited: Audited) -> Iterator[dps.Diagnostic]:
    """Reasons why the attack or the estimate of the mean rule cannot be made."""
    assert spec.audit is not None
    attack, points = attack_of(spec.audit.options), audited.known
    if attack is not None:
        if attack.targets == 0:
            yield dps.Diagnostic(
                code="bad-value",
                message="the attack has no record to look for",
                path=_ATTACK,
                help="say most, least or records, or leave attack out",
            )
        if attack.most + attack.least > len(points):
            yield dps.Diagnostic(
                code="bad-value",
                message=f"{attack.most} most and {attack.least} least exposed records are more than the {len(points)} "
                "that are audited",
                path=(*_ATTACK, "most"),
            )
        for place, record in enumerate(attack.records):
            if record not in points:
                yield dps.Diagnostic(
                    code="bad-value",
                    message=f"record {record} is not among the audited {audited.population} records",
                    path=(*_ATTACK, "records", place),
                    help="add it to threat_model.points",
                )
        if attack.runs * spec.audit.runs < LEAST_RUNS:
            yield dps.Diagnostic(
                code="bad-value",
                message=f"{attack.runs} runs of each record in each of {spec.audit.runs} runs are fewer than "
                f"{LEAST_RUNS}, which can show nothing",
                path=(*_ATTACK, "runs"),
            )
        if spec.threat_model.access != "all-iterates":
            yield dps.Diagnostic(
                code="unsupported",
                message="the attack scores every iterate, and the threat model releases the final model only",
                path=("threat_model", "access"),
                help="leave audit.attack out, or write access: all-iterates",
            )
    mean = spec.audit.options.get("mean_rule")
    if mean is not None:
        for place, batch in enumerate(mean["batches"]):
            if float(batch) > facts.records:
                yield dps.Diagnostic(
                    code="bad-value",
                    message=f"an expected batch of {batch:g} is more than the {facts.records} training records",
                    path=(*_MEAN, "batches", place),
                )
        if 4 * facts.records * (facts.parameters or 0) > MOST_BYTES:
            yield dps.Diagnostic(
                code="bad-value",
                message=f"the mean rule holds the clipped gradients of all {facts.records} records, "
                f"{facts.parameters} numbers each: more than 1 GiB",
                path=_MEAN,
                help="leave mean_rule out, or take fewer records or a smaller model",
            )


def reference_refusals(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    """Figures of orders and steps that are not observed here."""
    assert spec.audit is not None
    asked: Mapping[str, Any] = spec.audit.options.get("reference") or {}
    orders = [float(order) for order in spec.mechanism["orders"]]
    observed = observed_steps(spec.steps, observe_every(spec.mechanism.options))
    for i, one in enumerate(asked.get("ratios", ())):
        if float(one["order"]) not in orders:
            yield dps.Diagnostic(
                code="bad-value",
                message=f"order {one['order']:g} is not among mechanism.orders",
                path=(*_REFERENCE, "ratios", i, "order"),
            )
        if len(one["means"]) != len(one["steps"]):
            yield dps.Diagnostic(
                code="bad-value",
                message=f"{len(one['means'])} means for {len(one['steps'])} steps",
                path=(*_REFERENCE, "ratios", i, "means"),
            )
        for place, step in enumerate(one["steps"]):
            if int(step) not in observed:
                yield dps.Diagnostic(
                    code="bad-value",
                    message=f"step {step} is not observed: the observed ones are 1 and every "
                    f"{observe_every(spec.mechanism.options)} steps further, up to {spec.steps}",
                    path=(*_REFERENCE, "ratios", i, "steps", place),
                )
