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

CLIPPING: dict[str, Json] = {
    "type": "object",
    "description": "How a record's gradient is brought to an l2 norm of at most clip_norm. Left out, it is flat.",
    "properties": {
        "scheme": {
            "enum": ["flat", "per-layer", "truncated"],
            "description": "flat: the whole gradient is scaled by min(1, clip_norm / norm). per-layer: each layer's "
            "part is scaled to a bound of its own. truncated: as flat, and then each coordinate is cut to +- "
            "coordinate_bound.",
        },
        "bounds": {
            "type": "array",
            "items": {"type": "number", "exclusiveMinimum": 0},
            "minItems": 1,
            "description": "The l2 bound of each layer, first to last; their squares add up to at most clip_norm^2. "
            "Left out, each of L layers has clip_norm / sqrt(L) (per-layer).",
        },
        "coordinate_bound": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "The largest absolute value of a coordinate of a contribution (truncated).",
        },
    },
    "required": ["scheme"],
    "additionalProperties": False,
    "allOf": [
        {
            "if": {"properties": {"scheme": {"const": "flat"}}, "required": ["scheme"]},
            "then": {"properties": {"bounds": False, "coordinate_bound": False}},
        },
        {
            "if": {"properties": {"scheme": {"const": "per-layer"}}, "required": ["scheme"]},
            "then": {"properties": {"coordinate_bound": False}},
        },
        {
            "if": {"properties": {"scheme": {"const": "truncated"}}, "required": ["scheme"]},
            "then": {"required": ["coordinate_bound"], "properties": {"bounds": False}},
        },
    ],
}

SAMPLING: dict[str, Json] = {
    "type": "object",
    "description": "How each step draws its batch: afresh and independently of other steps, unless shuffled.",
    "properties": {
        "scheme": {
            "enum": ["poisson", "fixed", "full", "shuffled"],
            "description": "poisson: every record enters with probability rate. fixed: a uniformly random subset of "
            "batch_size records. full: every record, every step. shuffled: every epoch takes all records in a new "
            "random order, batch_size at a time, its last batch being what is left; no accountant here covers it.",
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
            "description": "Number of records in every batch (fixed, shuffled).",
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
            "if": {"properties": {"scheme": {"const": "shuffled"}}, "required": ["scheme"]},
            "then": {"required": ["batch_size"], "properties": {"rate": False}},
        },
        {
            "if": {"properties": {"scheme": {"const": "full"}}, "required": ["scheme"]},
            "then": {"properties": {"rate": False, "batch_size": False}},
        },
    ],
}

NOISE: dict[str, Json] = {
    "enum": ["gaussian", "laplace"],
    "description": "The law of the noise, independent for every parameter; either has the same standard deviation, so "
    "that the scale of laplace is that divided by the square root of 2. gaussian if left out.",
}
