"""What the plugin offers: the mechanism kind, its keys, and the report format ``records-csv``. Light values only."""

from __future__ import annotations

import csv
import io
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.fragments import CLIP_NORM, NOISE_MULTIPLIER, SAMPLING
from dpspec_per_instance.printed.options import MEAN_RULE, REFERENCE

#: The orders of the paper's sweeps and those between them that matter at common noise.
ORDERS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)

_COMPOSITION: dict[str, dps.Json] = {
    **kit.block(
        "How the divergences of steps become that of the run.",
        exponent={
            "type": ["string", "number", "array"],
            "exclusiveMinimum": 1,
            "minItems": 2,
            "maxItems": 1000,
            "items": kit.number("An exponent above 1.", above=1),
            "default": "auto",
            "description": "The exponent p > 1 of the composition theorem. auto: three times the number of steps. A "
            "list: one exponent after the other, from the last step to the first, spread evenly.",
        },
        observe_every=kit.integer(
            "The gradient norms of all records are measured before the first step and before every so many further "
            "ones.",
            least=1,
            most=1000000,
            default=10,
        ),
        unobserved=kit.choice(
            "What a step between observations counts for in estimates. nearest: what was observed last. "
            "data-independent: a saturated gradient. Confidence bounds always take the second.",
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
        "Renyi orders at which runs are composed; the best one counts. They change no trial.",
        kit.number("An order above 1, whole or not.", above=1, most=256),
        least=1,
        most=100,
        unique=True,
        default=list(ORDERS),
    ),
    step_bound=kit.choice(
        "How a step is bounded. theorem: by the paper's formula, one number for both directions. directional: where a "
        "record is added, by a smaller number that its proof gives too.",
        "directional",
        "theorem",
        default="directional",
    ),
    composition=_COMPOSITION,
)

_THREAT_MODEL: dict[str, dps.Json] = kit.block(
    None,
    population=kit.choice(
        "train: training records, each comparing the data with the data without it. test: test records, each comparing "
        "the data with the data that has it too.",
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
        "items": kit.integer("A record, by its place in the population.", least=0),
        "properties": {
            "count": kit.integer("How many records, drawn at random without repetition.", least=1, most=100000000),
            "seed": kit.integer("Decides which are drawn.", least=0, default=0),
        },
        "required": ["count"],
        "additionalProperties": False,
        "description": "Which records of the population are audited: all, {count, seed} or a list of indices.",
    },
)

_ATTACK: dict[str, dps.Json] = kit.block(
    "Also attack single records: in each of many runs one record is there by a fair coin, all else is as declared, and "
    "the adversary sees every iterate.",
    most=kit.integer(
        "How many audited records to attack, those with the largest gradients in a pilot run.",
        least=0,
        most=100,
        default=1,
    ),
    least=kit.integer("How many of those with the smallest gradients to attack.", least=0, most=100, default=1),
    records=kit.array(
        "Further records to attack, by their place in the population.",
        kit.integer("An audited record.", least=0),
        most=100,
        unique=True,
        default=[],
    ),
    runs=kit.integer(
        "How many runs each attacked record gets in every one of audit.runs.", least=2, most=100000, default=20
    ),
    looks=kit.integer(
        "How many of a run's steps the adversary scores, spread evenly; all if left out.", least=1, most=1000000
    ),
)

_AUDIT: dict[str, dps.Json] = kit.block(
    None,
    attack=_ATTACK,
    mean_rule=MEAN_RULE,
    reference=REFERENCE,
    shard_records=kit.integer(
        "At most so many of the audited records in one trial: each run becomes several trials, which all repeat its "
        "training and look at other records, so that workers share the work. Left out, one trial looks at all records "
        "of a run. It changes no seed.",
        least=1,
        most=100000000,
    ),
    use=kit.choice(
        "What the values per record are for. They depend on the data: training that is changed by them is not what was "
        "audited.",
        "inspect",
        default="inspect",
    ),
)

EXAMPLE = """\
dpspec: 1
name: per-instance-example
description: DP-SGD on synthetic points. What does each training record lose by itself?

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
    summary="DP-SGD: what each record loses by itself, from its gradients along training",
    schemas=dps.Schemas(mechanism=_MECHANISM, threat_model=_THREAT_MODEL, audit=_AUDIT),
    claims=frozenset({"per-instance-dp", "approx-dp", "metric"}),
    audit="dpspec_per_instance.audit:PerInstanceAudit",
    example=EXAMPLE,
    trial_revision=3,
)

RECORDS = dps.Reporter(
    format="records-csv",
    summary="One row per audited record, where values per record may be shown",
    render="dpspec_per_instance.mechanism:render_records",
    suffix=".csv",
)


#: What stands in place of values that a report may not show.
LEFT_OUT = "# values per record are left out: give --internal to have them\n"


def render_records(result: Any, *, internal: bool = False) -> str:
    """CSV text with a header: the table ``records`` of all audits of a result, one below the other.

    Values per record speak of the rows; without ``internal`` there is but a line that says so.
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
