"""The mechanism kind ``per-instance``, its schema, and the report format ``records-csv``."""

from __future__ import annotations

import csv
import io
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.fragments import CLIP_NORM, NOISE_MULTIPLIER, SAMPLING
from dpspec_per_instance.printed.options import MEAN_RULE, REFERENCE

#: Default Renyi orders: those of the paper, with intermediate ones for common noise multipliers.
ORDERS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)

_COMPOSITION: dict[str, dps.Json] = {
    **kit.block(
        "Composition of the steps' divergences.",
        exponent={
            "type": ["string", "number", "array"],
            "exclusiveMinimum": 1,
            "minItems": 2,
            "maxItems": 1000,
            "items": kit.number("An exponent above 1.", above=1),
            "default": "auto",
            "description": "Exponent p > 1 of the composition theorem. auto: three times the number of steps. A list: "
            "exponents from the last step to the first, spread evenly.",
        },
        observe_every=kit.integer(
            "Number of steps between measurements of all records' gradient norms. The first is before step 1.",
            least=1,
            most=1000000,
            default=10,
        ),
        unobserved=kit.choice(
            "Value of unobserved steps in estimates. nearest: the last observed value. data-independent: that of a "
            "saturated gradient. Confidence bounds always use data-independent.",
            "nearest",
            "data-independent",
            default="nearest",
        ),
    ),
    "default": {},
}

_MECHANISM: dict[str, dps.Json] = kit.block(
    None,
    ["noise_multiplier", "clip_norm", "sampling"],
    noise_multiplier=NOISE_MULTIPLIER,
    clip_norm=CLIP_NORM,
    sampling=SAMPLING,
    orders=kit.array(
        "Renyi orders of the composition; the best one counts. They change no trial.",
        kit.number("An order above 1, not necessarily an integer.", above=1, most=256),
        least=1,
        most=100,
        unique=True,
        default=list(ORDERS),
    ),
    step_bound=kit.choice(
        "Bound on a step. theorem: the paper's formula, equal in both directions. directional: a smaller value in "
        "direction add, which the paper's proof also gives.",
        "directional",
        "theorem",
        default="directional",
    ),
    composition=_COMPOSITION,
)

_THREAT_MODEL: dict[str, dps.Json] = kit.block(
    None,
    population=kit.choice(
        "train: training records; the neighbor lacks the record. test: test records; the neighbor also has the record.",
        "train",
        "test",
        default="train",
    ),
    points={
        "type": ["string", "array", "object"],
        "default": "all",
        "minItems": 1,
        "maxItems": 100000,
        "uniqueItems": True,
        "items": kit.integer("Index of a record in the population.", least=0),
        "properties": {
            "count": kit.integer("Number of records, drawn without replacement.", least=1, most=100000000),
            "seed": kit.integer("Seed of the sample.", least=0, default=0),
        },
        "required": ["count"],
        "additionalProperties": False,
        "description": "Audited records of the population: all, {count, seed} or a list of indices.",
    },
)

_ATTACK: dict[str, dps.Json] = kit.block(
    "Also attack single records: many runs each include one record with probability 1/2, and the adversary sees every "
    "iterate.",
    most=kit.integer(
        "Number of audited records with the largest gradients in a pilot run to attack.",
        least=0,
        most=100,
        default=1,
    ),
    least=kit.integer("Number of records with the smallest gradients to attack.", least=0, most=100, default=1),
    records=kit.array(
        "Indices of further records to attack.",
        kit.integer("An audited record.", least=0),
        most=100,
        unique=True,
        default=[],
    ),
    runs=kit.integer(
        "Number of attack runs per attacked record in each of audit.runs.", least=2, most=100000, default=20
    ),
    looks=kit.integer(
        "Number of evenly spaced steps that the adversary scores; all by default.", least=1, most=1000000
    ),
)

_AUDIT: dict[str, dps.Json] = kit.block(
    None,
    attack=_ATTACK,
    mean_rule=MEAN_RULE,
    reference=REFERENCE,
    shard_records=kit.integer(
        "Maximum number of audited records per trial. Each run becomes several trials that repeat its training and "
        "measure different records, so that workers share the work. By default one trial measures all records. It "
        "changes no seed.",
        least=1,
        most=100000000,
    ),
    use=kit.choice(
        "Intended use of the per-record values. They depend on the data, and the audit does not cover training that "
        "uses them.",
        "inspect",
        default="inspect",
    ),
)

EXAMPLE = """\
dpspec: 1
name: per-instance-example
description: DP-SGD on synthetic points. What is the privacy loss of each training record?

mechanism:
  kind: per-instance
  noise_multiplier: 2.0
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.05}
  steps: 20
  orders: [2, 4, 8, 16, 32]
  composition: {observe_every: 5}

data: {kind: synthetic, pattern: blobs, records: 200, features: 16, classes: 2}
model: {kind: linear}
training: {backend: native, learning_rate: 0.5}

threat_model:
  points: all
  direction: remove

claims:
  - {id: everyone, kind: approx-dp, epsilon: 2.0, delta: 1e-5}
  - {id: one, kind: per-instance-dp, epsilon: 2.0, delta: 1e-5, record: 7}
  - id: most
    kind: per-instance-dp
    epsilon: 1.2
    delta: 1e-5
    fraction: 0.9
    population: train
    expect: [supported, open]

audit:
  method: many-run
  runs: 4
  seed: 1
"""

PER_INSTANCE = dps.Mechanism(
    kind="per-instance",
    summary="DP-SGD: per-instance privacy loss of each record, from its gradients during training",
    description="training with noise (DP-SGD), with a bound for every single record",
    schemas=dps.Schemas(mechanism=_MECHANISM, threat_model=_THREAT_MODEL, audit=_AUDIT),
    claims=frozenset({"per-instance-dp", "approx-dp", "metric"}),
    audit="dpspec_per_instance.audit:PerInstanceAudit",
    example=EXAMPLE,
    trial_revision=3,
)

RECORDS = dps.Reporter(
    format="records-csv",
    summary="One row per audited record, with --internal",
    render="dpspec_per_instance.mechanism:render_records",
    suffix=".csv",
)


#: Content of a report that must not show per-record values.
LEFT_OUT = "# per-record values are omitted: use --internal to include them\n"


def render_records(result: Any, *, internal: bool = False) -> str:
    """Render the tables ``records`` of all audits of a result as one CSV text with a header.

    Without ``internal`` the text is a single comment, because per-record values depend on the records.
    """
    if not internal:
        return LEFT_OUT
    tables = [
        (audit.name, series.columns) for audit in result.audits for series in audit.series if series.name == "records"
    ]
    names = list(dict.fromkeys(name for _, columns in tables for name in columns))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["audit", *names])
    for audit, columns in tables:
        empty: list[object] = [""] * len(columns["record"])
        writer.writerows(zip([audit] * len(empty), *(columns.get(name, empty) for name in names), strict=True))
    return out.getvalue()
