"""The keys of the audit block that decide nothing, the mean rule and a reference, and what of them is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec_per_instance.options import AuditBlock, Composition

#: The mean rule holds all clipped gradients at once: bytes at most.
MOST_BYTES = 2**30

MEAN_RULE: dict[str, dps.Json] = kit.block(
    "Also estimate, at models along a run, what one step would lose if it added the same noise to the mean of its "
    "batch: an estimate for each expected batch size, and no bound.",
    ["batches"],
    batches=kit.array(
        "Expected batch sizes.", kit.number("An expected batch size.", above=0), least=1, most=20, unique=True
    ),
    orders=kit.array(
        "Renyi orders, whole ones.",
        kit.integer("A whole order.", least=2, most=256),
        least=1,
        most=20,
        unique=True,
        default=[8],
    ),
    points=kit.integer("How many of the audited records, the first ones.", least=1, most=100000, default=30),
    outer=kit.integer("How many batches to compare with.", least=1, most=10000, default=20),
    inner=kit.integer("How many tuples of batches for each of them.", least=1, most=10000, default=20),
)

REFERENCE: dict[str, dps.Json] = kit.block(
    "Figures of somebody else's audit of the same experiment, for a table beside what is found.",
    ["source"],
    source={"type": "string", "minLength": 1, "description": "Whose figures they are."},
    step_bound=kit.choice(
        "How steps were bounded there; the table is shown where they are here too. Always if left out.",
        "directional",
        "theorem",
    ),
    ratios=kit.array(
        "Ratios over training.",
        kit.block(
            "What steps add at one order, relative to a saturated record, on average over records.",
            ["order", "steps", "means"],
            order=kit.number("One of mechanism.orders.", above=1),
            steps=kit.array("Observed steps.", kit.integer("An observed step, from 1.", least=1), most=1000),
            means=kit.array("The mean at each of these steps.", kit.number("The mean at a step.", above=0), most=1000),
        ),
        most=100,
    ),
    median=kit.number("The median record's epsilon by Renyi divergences.", above=0),
    tenth=kit.number("Its 10th percentile over records.", above=0),
    share_below=kit.number(
        "The share of records that lose less than the data-independent epsilon by one method.", above=0, most=1
    ),
    data_independent=kit.number("The data-independent epsilon by Renyi divergences.", above=0),
)


def refuse_mean_rule(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Why the estimate of the mean rule cannot be made: batches or gradients that are too large."""
    assert spec.audit is not None
    path: dps.Path = ("audit", "mean_rule")
    mean_rule = AuditBlock.of(spec.audit.options).mean_rule
    if mean_rule is None:
        return
    for i, batch in enumerate(mean_rule.batches):
        if batch > facts.records:
            yield kit.bad_value(
                f"an expected batch of {batch:g} is more than the {facts.records} training records",
                (*path, "batches", i),
            )
    if 4 * facts.records * (facts.parameters or 0) > MOST_BYTES:
        yield kit.bad_value(
            f"the mean rule holds the clipped gradients of all {facts.records} records, "
            f"{facts.parameters} numbers each: more than 1 GiB",
            path,
            "leave mean_rule out, or take fewer records or a smaller model",
        )


def refuse_reference(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    """Figures of a reference at orders or steps that are not observed here."""
    assert spec.audit is not None
    reference: Mapping[str, Any] = spec.audit.options.get("reference") or {}
    composition = Composition.of(spec.mechanism.options)
    observed = composition.observed(spec.steps)
    for i, ratios in enumerate(reference.get("ratios", ())):
        path: dps.Path = ("audit", "reference", "ratios", i)
        if float(ratios["order"]) not in composition.orders:
            yield kit.bad_value(
                f"order {ratios['order']:g} is not among mechanism.orders",
                (*path, "order"),
            )
        if len(ratios["means"]) != len(ratios["steps"]):
            yield kit.bad_value(
                f"{len(ratios['means'])} means for {len(ratios['steps'])} steps",
                (*path, "means"),
            )
        for j, step in enumerate(ratios["steps"]):
            if int(step) not in observed:
                yield kit.bad_value(
                    f"step {step} is not observed: the observed ones are 1 and every {composition.observe_every} steps "
                    f"further, up to {spec.steps}",
                    (*path, "steps", j),
                )
