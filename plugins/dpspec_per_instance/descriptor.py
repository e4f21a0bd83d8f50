"""What the plugin offers, as a light value."""

from __future__ import annotations

import dpspec.contract as dps
from dpspec.contract.fragments import CLIP_NORM, NOISE_MULTIPLIER, SAMPLING

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

_ATTACK: dict[str, dps.Json] = {
    "type": "object",
    "description": "Also attack single records: in each of many runs one record is there by a fair coin, all else is "
    "as declared, and the adversary sees every iterate.",
    "properties": {
        "most": {
            "type": "integer",
            "minimum": 0,
            "maximum": 100,
            "default": 1,
            "description": "How many audited records to attack, those with the largest gradients in a pilot run.",
        },
        "least": {
            "type": "integer",
            "minimum": 0,
            "maximum": 100,
            "default": 1,
            "description": "How many of those with the smallest gradients to attack.",
        },
        "records": {
            "type": "array",
            "maxItems": 100,
            "uniqueItems": True,
            "items": {"type": "integer", "minimum": 0, "description": "An audited record."},
            "default": [],
            "description": "Further records to attack, by their place in the population.",
        },
        "runs": {
            "type": "integer",
            "minimum": 2,
            "maximum": 100000,
            "default": 20,
            "description": "How many runs each attacked record gets in every one of audit.runs.",
        },
        "looks": {
            "type": "integer",
            "minimum": 1,
            "maximum": 1000000,
            "description": "How many of a run's steps the adversary scores, spread evenly; all if left out.",
        },
    },
    "additionalProperties": False,
}

_MEAN_RULE: dict[str, dps.Json] = {
    "type": "object",
    "description": "Also estimate, at models along a run, what one step would lose if it added the same noise to the "
    "mean of its batch: an estimate for each expected batch size, and no bound.",
    "properties": {
        "batches": {
            "type": "array",
            "minItems": 1,
            "maxItems": 20,
            "uniqueItems": True,
            "items": {"type": "number", "exclusiveMinimum": 0, "description": "An expected batch size."},
            "description": "Expected batch sizes.",
        },
        "orders": {
            "type": "array",
            "minItems": 1,
            "maxItems": 20,
            "uniqueItems": True,
            "items": {"type": "integer", "minimum": 2, "maximum": 256, "description": "A whole order."},
            "default": [8],
            "description": "Renyi orders, whole ones.",
        },
        "points": {
            "type": "integer",
            "minimum": 1,
            "maximum": 100000,
            "default": 30,
            "description": "How many of the audited records, the first ones.",
        },
        "outer": {
            "type": "integer",
            "minimum": 1,
            "maximum": 10000,
            "default": 20,
            "description": "How many batches to compare with.",
        },
        "inner": {
            "type": "integer",
            "minimum": 1,
            "maximum": 10000,
            "default": 20,
            "description": "How many tuples of batches for each of them.",
        },
    },
    "required": ["batches"],
    "additionalProperties": False,
}

_REFERENCE: dict[str, dps.Json] = {
    "type": "object",
    "description": "Figures of somebody else's audit of the same experiment, for a table beside what is found.",
    "properties": {
        "source": {"type": "string", "minLength": 1, "description": "Whose figures they are."},
        "step_bound": {
            "enum": ["directional", "theorem"],
            "description": "How steps were bounded there; the table is shown where they are here too. Always if left "
            "out.",
        },
        "ratios": {
            "type": "array",
            "maxItems": 100,
            "items": {
                "type": "object",
                "description": "What steps add at one order, relative to a saturated record, on average over records.",
                "properties": {
                    "order": {"type": "number", "exclusiveMinimum": 1, "description": "One of mechanism.orders."},
                    "steps": {
                        "type": "array",
                        "maxItems": 1000,
                        "items": {"type": "integer", "minimum": 1, "description": "An observed step, from 1."},
                        "description": "Observed steps.",
                    },
                    "means": {
                        "type": "array",
                        "maxItems": 1000,
                        "items": {"type": "number", "exclusiveMinimum": 0, "description": "The mean at a step."},
                        "description": "The mean at each of these steps.",
                    },
                },
                "required": ["order", "steps", "means"],
                "additionalProperties": False,
            },
            "description": "Ratios over training.",
        },
        "median": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "The median record's epsilon by Renyi divergences.",
        },
        "tenth": {"type": "number", "exclusiveMinimum": 0, "description": "Its 10th percentile over records."},
        "share_below": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "description": "The share of records that lose less than the data-independent epsilon by one method.",
        },
        "data_independent": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "The data-independent epsilon by Renyi divergences.",
        },
    },
    "required": ["source"],
    "additionalProperties": False,
}

_AUDIT: dict[str, dps.Json] = {
    "type": "object",
    "properties": {
        "attack": _ATTACK,
        "mean_rule": _MEAN_RULE,
        "reference": _REFERENCE,
        "use": {
            "enum": ["inspect", "modify-training"],
            "default": "inspect",
            "description": "What the values per record are for. They depend on the data: training that is changed by "
            "them is not what was audited.",
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
    schemas=dps.Schemas(mechanism=_MECHANISM, threat_model=_THREAT_MODEL, audit=_AUDIT),
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
