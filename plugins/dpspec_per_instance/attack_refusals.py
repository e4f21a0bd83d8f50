"""What of the attack and of the mean rule cannot be done, located and in words."""

from __future__ import annotations

from collections.abc import Iterator

import dpspec.contract as dps
from dpspec_per_instance.options import Audited, attack_of

#: With fewer runs than this for a record an attack can show nothing.
LEAST_RUNS = 16

#: The mean rule holds all clipped gradients at once: bytes at most.
MOST_BYTES = 2**30

_ATTACK, _MEAN = ("audit", "attack"), ("audit", "mean_rule")


def attack_refusals(spec: dps.Spec, facts: dps.Facts, audited: Audited) -> Iterator[dps.Diagnostic]:
    """Reasons why the attack or the estimate of the mean rule cannot be made."""
    assert spec.audit is not None
    attack, points = attack_of(spec.audit.options), set(audited.points)
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
