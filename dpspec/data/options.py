"""The keys that every data kind with rows shares, and what they do: which records, what scale, in what ball."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, FrozenMap, Json

if TYPE_CHECKING:
    import numpy as np


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
    "seed": {
        **_SEED,
        "description": "Decides which records size keeps, and max_records_per_user of each user; synthetic data is "
        "generated from it too.",
    },
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


#: The common keys that scale features.
_SCALING = ("standardise", "radius")


def schema(
    own: Mapping[str, Json], required: Sequence[str] = (), *, public: bool = False, scaled: bool = True
) -> dict[str, Json]:
    """The JSON Schema of a data block: a kind's own keys and the common ones.

    public: that key's default. scaled: whether the features are quantities, which the common keys can scale.
    """
    common = {key: value for key, value in COMMON.items() if scaled or key not in _SCALING}
    return {
        "type": "object",
        "properties": {**own, **common, "public": {**_PUBLIC, "default": public}},
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


def checked(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], classes: int, what: object, *, missing: bool = False
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Records as float32 (n, ...) and labels as int64 (n,), or ``DataError`` saying what is wrong with ``what``.

    missing: whether NaN stands for a missing value; otherwise it is an error.
    """
    import numpy as np

    if x.dtype.kind not in "fiu":
        raise DataError(f"{what}: features must be real numbers, got dtype {x.dtype}")
    if y.dtype.kind not in "iu":
        raise DataError(f"{what}: labels must be integers, got dtype {y.dtype}")
    if y.shape != x.shape[:1]:
        raise DataError(f"{what}: {x.shape[0]} records need as many labels, got labels of shape {y.shape}")
    wrong = np.flatnonzero((y < 0) | (y >= classes))
    if wrong.size:
        raise DataError(f"{what}: label {y[wrong[0]]} of record {wrong[0]} is not in 0..{classes - 1}")
    with np.errstate(over="ignore", invalid="ignore"):
        rows = x.astype(np.float32)
    require_finite(rows, what, "features", missing=missing)
    return rows, y.astype(np.int64)


def require_finite(x: np.ndarray[Any, Any], what: object, when: str, *, missing: bool = False) -> None:
    """Raise ``DataError`` naming the first record of ``x`` that float32 cannot hold as finite numbers.

    missing: lets NaN pass.
    """
    import numpy as np

    good = np.isfinite(x) | np.isnan(x) if missing else np.isfinite(x)
    bad = np.flatnonzero(~good.all(axis=tuple(range(1, x.ndim))))
    if bad.size:
        raise DataError(f"{what}: record {bad[0]} is not finite in float32 ({when})")


def check_constants(options: FrozenMap, shape: tuple[int, ...]) -> None:
    """Raise ``DataError`` where ``standardise`` lists another number of constants than there are features."""
    for key, value in (options.get("standardise") or {}).items():
        if isinstance(value, tuple) and len(value) != shape[0]:
            unit = "feature" if len(shape) == 1 else "channel"
            raise DataError(f"standardise.{key} must list one number per {unit} ({shape[0]}), got {len(value)}")


def transformed(x: np.ndarray[Any, Any], options: FrozenMap, what: object) -> np.ndarray[Any, Any]:
    """Records (n, *shape) float32 after ``standardise`` and ``radius``, each record by itself.

    Computed in float64. A record of l2 norm above ``radius`` is multiplied by radius (1 - 2^-22) / norm: the margin
    exceeds what rounding to float32 can add (2^-24), so that no returned record is longer than ``radius``. Missing
    values stay missing and count nothing.
    """
    import numpy as np

    constants, radius = options.get("standardise"), options.get("radius")
    if constants is not None and len(x):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            centred = x.astype(np.float64) - _spread(constants.get("mean", 0.0), x.ndim)
            x = (centred / _spread(constants.get("std", 1.0), x.ndim)).astype(np.float32)
        require_finite(x, what, "after standardise", missing=bool(options.get("missing")))
    if radius is not None and len(x):
        flat = x.reshape(len(x), -1).astype(np.float64)
        norms = np.linalg.norm(np.nan_to_num(flat), axis=1, keepdims=True)
        shorter = flat * (radius * (1 - 2.0**-22) / np.maximum(norms, radius))
        x = np.where(norms > radius, shorter, flat).astype(np.float32).reshape(x.shape)
    return x


def _spread(constant: Json, ndim: int) -> np.ndarray[Any, Any]:
    """A constant that broadcasts against records (n, *shape): along the first axis of a record if it is a list."""
    import numpy as np

    array = np.asarray(constant, dtype=np.float64)
    return array.reshape((-1,) + (1,) * (ndim - 2)) if array.ndim else array
