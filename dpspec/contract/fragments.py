"""JSON Schema fragments that mechanisms share, so that the same idea has the same key and the same words everywhere."""

from __future__ import annotations

from dpspec.contract.frozen import Json

NOISE_MULTIPLIER: dict[str, Json] = {
    "type": "number",
    "minimum": 0,
    "maximum": 1e6,
    "description": "Standard deviation of the noise divided by clip_norm. The noise is added to the sum of clipped "
    "gradients.",
}

CLIP_NORM: dict[str, Json] = {
    "type": "number",
    "exclusiveMinimum": 0,
    "description": "Each record's gradient is scaled down to at most this l2 norm.",
}

SAMPLING: dict[str, Json] = {
    "type": "object",
    "description": "How each step draws its batch, afresh and independently of other steps.",
    "properties": {
        "scheme": {
            "enum": ["poisson", "fixed", "full"],
            "description": "poisson: every record enters with probability rate. fixed: a uniformly random subset of "
            "batch_size records. full: every record, every step.",
        },
        "rate": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "description": "Probability with which each record enters a batch, a public constant (poisson).",
        },
        "batch_size": {
            "type": "integer",
            "minimum": 1,
            "description": "Number of records in every batch (fixed).",
        },
    },
    "required": ["scheme"],
    "additionalProperties": False,
    "allOf": [
        {
            "if": {"properties": {"scheme": {"const": "poisson"}}, "required": ["scheme"]},
            "then": {"required": ["rate"], "properties": {"batch_size": False}},
        },
        {
            "if": {"properties": {"scheme": {"const": "fixed"}}, "required": ["scheme"]},
            "then": {"required": ["batch_size"], "properties": {"rate": False}},
        },
        {
            "if": {"properties": {"scheme": {"const": "full"}}, "required": ["scheme"]},
            "then": {"properties": {"rate": False, "batch_size": False}},
        },
    ],
}
