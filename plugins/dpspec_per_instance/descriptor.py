"""What the plugin offers, as a light value."""

from __future__ import annotations

import dpspec.contract as dps
from dpspec.contract.fragments import CLIP_NORM, NOISE_MULTIPLIER, SAMPLING
from dpspec_per_instance.audit_keys import AUDIT

#: The orders of the paper's sweeps and those between them that matter at common noise.
ORDERS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)

_COMPOSITION: dict[str, dps.Json] = {
    "type": "object",
    "description": "How the divergences of steps become that of the run.",
    "properties": {
        "exponent": {
            "type": ["string", "number", "array"],
            "exclusiveMinimum": 1,
            "minItems": 2,
            "maxItems": 1000,
            "items": {"type": "number", "exclusiveMinimum": 1, "description": "An exponent above 1."},
            "default": "auto",
            "description": "The exponent p > 1 of the composition theorem. auto: three times the number of steps. A "
            "list: one exponent after the other, from the last step to the first, spread evenly.",
        },
        "observe_every": {
            "type": "integer",
            "minimum": 1,
            "maximum": 1000000,
            "default": 10,
            "description": "The gradient norms of all records are measured before the first step and before every so "
            "many further ones.",
        },
        "unobserved": {
            "enum": ["nearest", "data-independent"],
            "default": "nearest",
            "description": "What a step between observations counts for in estimates. nearest: what was observed last. "
            "data-independent: a saturated gradient. Certified values always take the second.",
        },
    },
    "default": {},
    "additionalProperties": False,
}

_MECHANISM: dict[str, dps.Json] = {
    "type": "object",
    "properties": {
        "noise_multiplier": NOISE_MULTIPLIER,
        "clip_norm": CLIP_NORM,
        "sampling": SAMPLING,
        "orders": {
            "type": "array",
            "minItems": 1,
            "maxItems": 100,
            "uniqueItems": True,
            "items": {
                "type": "number",
                "exclusiveMinimum": 1,
                "maximum": 256,
                "description": "An order above 1, whole or not.",
            },
            "default": list(ORDERS),
            "description": "Renyi orders at which runs are composed; the best one counts. They change no trial.",
        },
        "step_bound": {
            "enum": ["directional", "theorem"],
            "default": "directional",
            "description": "How a step is bounded. theorem: by the paper's formula, one number for both directions. "
            "directional: where a record is added, by a smaller number that its proof gives too.",
        },
        "composition": _COMPOSITION,
    },
    "required": ["noise_multiplier", "clip_norm", "sampling"],
    "additionalProperties": False,
}

_THREAT_MODEL: dict[str, dps.Json] = {
    "type": "object",
    "properties": {
        "population": {
            "enum": ["train", "test"],
            "default": "train",
            "description": "train: training records, each comparing the data with the data without it. test: test "
            "records, each comparing the data with the data that has it too.",
        },
        "points": {
            "type": ["string", "array", "object"],
            "default": "all",
            "minItems": 1,
            "maxItems": 100000,
            "uniqueItems": True,
            "items": {"type": "integer", "minimum": 0, "description": "A record, by its place in the population."},
            "properties": {
                "count": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 100000000,
                    "description": "How many records, drawn at random without repetition.",
                },
                "seed": {"type": "integer", "minimum": 0, "default": 0, "description": "Decides which are drawn."},
            },
            "required": ["count"],
            "additionalProperties": False,
            "description": "Which records of the population are audited: all, {count, seed} or a list of indices.",
        },
    },
    "additionalProperties": False,
}

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
    schemas=dps.Schemas(mechanism=_MECHANISM, threat_model=_THREAT_MODEL, audit=AUDIT),
    claims=frozenset({"per-instance-dp", "approx-dp", "metric"}),
    audit="dpspec_per_instance.audit:PerInstanceAudit",
    example=EXAMPLE,
    trial_revision=2,
)

RECORDS = dps.Reporter(
    format="records-csv",
    summary="One row per audited record, where values per record may be shown",
    render="dpspec_per_instance.table_file:render",
    suffix=".csv",
)
