"""The keys of the audit block: the attack, the rule for means of batches, a reference, shards, what values are for."""

from __future__ import annotations

import dpspec.contract as dps

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

AUDIT: dict[str, dps.Json] = {
    "type": "object",
    "properties": {
        "attack": _ATTACK,
        "mean_rule": _MEAN_RULE,
        "reference": _REFERENCE,
        "shard_records": {
            "type": "integer",
            "minimum": 1,
            "maximum": 100000000,
            "description": "At most so many of the audited records in one trial: each run becomes several trials, "
            "which all repeat its training and look at other records, so that workers share the work. Left out, one "
            "trial looks at all records of a run. It changes no seed.",
        },
        "use": {
            "enum": ["inspect", "modify-training"],
            "default": "inspect",
            "description": "What the values per record are for. They depend on the data: training that is changed by "
            "them is not what was audited.",
        },
    },
    "additionalProperties": False,
}
