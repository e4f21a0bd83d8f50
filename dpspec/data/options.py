"""The keys that every data kind with rows shares: which records, on what scale, in what ball."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpspec.contract import Json

_SEED: dict[str, Json] = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1, "default": 0}

COMMON: dict[str, Json] = {
    "split": {
        "type": "object",
        "description": "Holds some records back for testing. For sources that bring no test records of their own.",
        "properties": {
            "test": {
                "type": ["number", "array"],
                "exclusiveMinimum": 0,
                "minItems": 1,
                "maxItems": 100_000,
                "uniqueItems": True,
                "items": {"type": "integer", "minimum": 0, "description": "A record, by its place, counted from 0."},
                "description": "How many records to hold back: below 1 a fraction of all records, otherwise a count. "
                "Or a list of those records, to repeat a published split.",
            },
            "seed": {**_SEED, "description": "Decides which records are held back, where test says how many."},
        },
        "required": ["test"],
        "additionalProperties": False,
    },
    "size": {
        "type": "integer",
        "minimum": 1,
        "description": "Train on this many records, drawn at random from the training records by seed. With one seed "
        "a smaller size draws a subset of a larger one.",
    },
    "seed": {**_SEED, "description": "Decides which records size keeps; synthetic data is generated from it too."},
    "standardise": {
        "type": "object",
        "description": "Replaces x by (x - mean) / std. Public constants: they are never computed from the records.",
        "properties": {
            "mean": {
                "type": ["number", "array"],
                "items": {"type": "number"},
                "default": 0.0,
                "description": "What to subtract: one number, or one per feature (images: one per channel).",
            },
            "std": {
                "type": ["number", "array"],
                "exclusiveMinimum": 0,
                "items": {"type": "number", "exclusiveMinimum": 0},
                "default": 1.0,
                "description": "What to divide by: one number, or one per feature (images: one per channel).",
            },
        },
        "additionalProperties": False,
    },
    "radius": {
        "type": "number",
        "minimum": 1e-6,
        "description": "Scales every longer record down to this l2 norm, after standardise. A public constant.",
    },
}


def schema(own: Mapping[str, Json], required: Sequence[str] = (), *, public: bool = False) -> dict[str, Json]:
    """The JSON Schema of a data block: a kind's own keys and the common ones; ``public`` is that key's default."""
    return {
        "type": "object",
        "properties": {**own, **COMMON, "public": {**_PUBLIC, "default": public}},
        "required": list(required),
        "additionalProperties": False,
    }


_PUBLIC: dict[str, Json] = {
    "type": "boolean",
    "description": "Whether the records are public, so that reports may show values that depend on them, such as "
    "accuracy. Otherwise reports leave such values out unless asked for with --internal.",
}

#: How many classes the labels have, for file formats that do not say.
CLASSES: dict[str, Json] = {
    "type": "integer",
    "minimum": 2,
    "maximum": 100_000,
    "description": "How many classes there are; labels run from 0 to classes - 1. A public constant, declared rather "
    "than counted.",
}


def path(description: str) -> dict[str, Json]:
    """The schema of a key that names a file."""
    return {"type": "string", "minLength": 1, "description": f"{description} Relative to the spec's directory."}
