"""What every record must satisfy, and the public transformations: checked, standardised, clipped to a ball."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, FrozenMap, Json

if TYPE_CHECKING:
    import numpy as np


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
