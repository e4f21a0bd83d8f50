"""Keys shared by all data kinds with records, and the transformations that they control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, FrozenMap, Json
from dpspec.contract.fragments import block, flag, integer, number, string

if TYPE_CHECKING:
    import numpy as np


_SEED: dict[str, Json] = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1, "default": 0}

COMMON: dict[str, Json] = {
    "split": block(
        "Holds out some records for testing, if the source has no test records.",
        ["test"],
        test={
            "type": ["number", "array"],
            "exclusiveMinimum": 0,
            "minItems": 1,
            "maxItems": 100_000,
            "uniqueItems": True,
            "items": integer("A record's index, from 0.", least=0),
            "description": "The records to hold out: a fraction below 1, a count, or a list of indices, for "
            "example to repeat a published split.",
        },
        seed={**_SEED, "description": "Seed of the held-out records, if test is a fraction or a count."},
    ),
    "size": integer(
        "The number of training records to use, drawn at random by seed. With the same seed, a smaller "
        "size draws a subset of a larger one.",
        least=1,
    ),
    "seed": {
        **_SEED,
        "description": "Seed of the records that size and max_records_per_user keep, and of synthetic data.",
    },
    "standardise": block(
        "Replaces x by (x - mean) / std. Public constants, never computed from the records.",
        mean={
            "type": ["number", "array"],
            "items": {"type": "number"},
            "default": 0.0,
            "description": "The subtrahend: one number, or one per feature (images: one per channel).",
        },
        std={
            "type": ["number", "array"],
            "exclusiveMinimum": 0,
            "items": {"type": "number", "exclusiveMinimum": 0},
            "default": 1.0,
            "description": "The divisor: one number, or one per feature (images: one per channel).",
        },
    ),
    "radius": number(
        "Maximum l2 norm of a record after standardise; longer records are scaled down. A public constant.", least=1e-6
    ),
}


def schema(
    own: Mapping[str, Json], required: Sequence[str] = (), *, public: bool = False, scaled: bool = True
) -> dict[str, Json]:
    """Return the JSON Schema of a data block with a kind's own keys and the common ones.

    ``public`` is the default of this key. ``scaled``: ``standardise`` and ``radius`` can scale the features.
    """
    common = {key: value for key, value in COMMON.items() if scaled or key not in ("standardise", "radius")}
    return block(None, list(required), **own, **common, public={**_PUBLIC, "default": public})


_PUBLIC: dict[str, Json] = flag(
    "True if the records are public. Reports of private records omit values that depend on them, such "
    "as accuracy, except with --internal."
)

#: Schema of the number of classes, for file formats that do not contain it.
CLASSES: dict[str, Json] = integer(
    "The number of classes; labels are 0 to classes - 1. A public constant, declared rather than counted.",
    least=2,
    most=100_000,
)


def path(description: str) -> dict[str, Json]:
    return string(f"{description} Relative to the spec's directory.")


def checked(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], classes: int, what: object, *, missing: bool = False
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Validate records (n, ...) and labels (n,), and convert them to float32 and int64. ``missing`` accepts NaN."""
    import numpy as np

    if x.dtype.kind not in "fiu":
        raise DataError(f"{what}: features must be real numbers, got dtype {x.dtype}")
    if y.dtype.kind not in "iu":
        raise DataError(f"{what}: labels must be integers, got dtype {y.dtype}")
    if y.shape != x.shape[:1]:
        raise DataError(f"{what}: {x.shape[0]} records need {x.shape[0]} labels, got labels of shape {y.shape}")
    wrong = np.flatnonzero((y < 0) | (y >= classes))
    if wrong.size:
        raise DataError(f"{what}: label {y[wrong[0]]} of record {wrong[0]} is not in 0..{classes - 1}")
    with np.errstate(over="ignore", invalid="ignore"):
        rows = x.astype(np.float32)
    check_finite(rows, what, "features", missing=missing)
    return rows, y.astype(np.int64)


def check_finite(x: np.ndarray[Any, Any], what: object, when: str, *, missing: bool = False) -> None:
    import numpy as np

    good = np.isfinite(x) | np.isnan(x) if missing else np.isfinite(x)
    bad = np.flatnonzero(~good.all(axis=tuple(range(1, x.ndim))))
    if bad.size:
        raise DataError(f"{what}: record {bad[0]} is not finite in float32 ({when})")


def check_constants(options: FrozenMap, shape: tuple[int, ...]) -> None:
    for key, value in (options.get("standardise") or {}).items():
        if isinstance(value, tuple) and len(value) != shape[0]:
            unit = "feature" if len(shape) == 1 else "channel"
            raise DataError(f"standardise.{key} must list one number per {unit} ({shape[0]}), got {len(value)}")


def transformed(x: np.ndarray[Any, Any], options: FrozenMap, what: object) -> np.ndarray[Any, Any]:
    """Apply ``standardise`` and ``radius`` to each record of float32 (n, *shape) independently, in float64.

    Records with an l2 norm above ``radius`` are multiplied by radius (1 - 2^-22) / norm: the margin exceeds the
    rounding error of float32. Missing values stay missing and contribute 0 to the norm.
    """
    import numpy as np

    def spread(constant: Json) -> np.ndarray[Any, Any]:
        array = np.asarray(constant, dtype=np.float64)  # a list applies to the first axis of a record
        return array.reshape((-1,) + (1,) * (x.ndim - 2)) if array.ndim else array

    constants, radius = options.get("standardise"), options.get("radius")
    if constants is not None and len(x):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            centred = x.astype(np.float64) - spread(constants.get("mean", 0.0))
            x = (centred / spread(constants.get("std", 1.0))).astype(np.float32)
        check_finite(x, what, "after standardise", missing=bool(options.get("missing")))
    if radius is not None and len(x):
        flat = x.reshape(len(x), -1).astype(np.float64)
        norms = np.linalg.norm(np.nan_to_num(flat), axis=1, keepdims=True)
        shorter = flat * (radius * (1 - 2.0**-22) / np.maximum(norms, radius))
        x = np.where(norms > radius, shorter, flat).astype(np.float32).reshape(x.shape)
    return x
