"""The keys ``mean_rule`` and ``reference`` of the audit block, and located messages for invalid values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec_per_instance.options import AuditBlock, Composition

#: Maximum bytes of clipped gradients of the mean rule, which needs all of them in memory.
MOST_BYTES = 2**30

MEAN_RULE: dict[str, dps.Json] = kit.block(
    "Also estimate the privacy loss of one step with the same noise on the mean of its batch, at models of a run: an "
    "estimate for each expected batch size, not a bound.",
    ["batches"],
    batches=kit.array(
        "Expected batch sizes.", kit.number("An expected batch size.", above=0), least=1, most=20, unique=True
    ),
    orders=kit.array(
        "Integer Renyi orders.",
        kit.integer("A whole order.", least=2, most=256),
        least=1,
        most=20,
        unique=True,
        default=[8],
    ),
    points=kit.integer("Number of audited records, from the first.", least=1, most=100000, default=30),
    outer=kit.integer("Number of reference batches.", least=1, most=10000, default=20),
    inner=kit.integer("Number of tuples of batches per reference batch.", least=1, most=10000, default=20),
)

REFERENCE: dict[str, dps.Json] = kit.block(
    "Values of an external audit of the same experiment, for a table of comparison.",
    ["source"],
    source={"type": "string", "minLength": 1, "description": "Source of the values."},
    step_bound=kit.choice(
        "Bound on steps in the reference; the table requires the same bound here. Omit to always show it.",
        "directional",
        "theorem",
    ),
    ratios=kit.array(
        "Ratios over training.",
        kit.block(
            "Mean contribution of steps at one order, relative to a saturated record.",
            ["order", "steps", "means"],
            order=kit.number("One of mechanism.orders.", above=1),
            steps=kit.array("Observed steps.", kit.integer("An observed step, from 1.", least=1), most=1000),
            means=kit.array("The mean at each of these steps.", kit.number("The mean at a step.", above=0), most=1000),
        ),
        most=100,
    ),
    median=kit.number("Median epsilon over records, from Renyi divergences.", above=0),
    tenth=kit.number("10th percentile of epsilon over records.", above=0),
    share_below=kit.number(
        "Fraction of records below the data-independent epsilon of the same method.", above=0, most=1
    ),
    data_independent=kit.number("Data-independent epsilon from Renyi divergences.", above=0),
)


def refuse_mean_rule(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Errors for mean-rule estimates with too large batches or gradients."""
    assert spec.audit is not None
    path: dps.Path = ("audit", "mean_rule")
    mean_rule = AuditBlock.of(spec.audit.options).mean_rule
    if mean_rule is None:
        return
    for i, batch in enumerate(mean_rule.batches):
        if batch > facts.records:
            yield kit.bad_value(
                f"an expected batch size of {batch:g} exceeds the {facts.records} training records",
                (*path, "batches", i),
            )
    if 4 * facts.records * (facts.parameters or 0) > MOST_BYTES:
        yield kit.bad_value(
            f"the mean rule needs the clipped gradients of all {facts.records} records in memory, "
            f"{facts.parameters} numbers each: more than 1 GiB",
            path,
            "remove mean_rule, or use fewer records or a smaller model",
        )


def refuse_reference(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    """Errors for reference values at unobserved orders or steps."""
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
                    f"step {step} is not observed: observed steps are 1 and every {composition.observe_every} steps "
                    f"after it, up to {spec.steps}",
                    (*path, "steps", j),
                )
