"""Fitted steps, moved rows and counts of records in balls, for tests of the plugin."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dpspec_preprocessing.sensitivity import read_step
from dpspec_preprocessing.steps import Neighbourhoods, fit_step


def apply_step(x: npt.NDArray[np.float64], step: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """Fit a step to rows and apply it to them."""
    return np.asarray(fit_step(x, read_step(step))(x))


def moved_distance(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> tuple[int, float, float]:
    """Number of changed rows, maximum displacement, and sum of displacements between two arrays of rows."""
    gaps = np.linalg.norm(first - second, axis=1)
    return int(np.count_nonzero(gaps)), float(gaps.max()), float(gaps.sum())


def count_in_balls(x: npt.NDArray[np.float64], radius: float) -> npt.NDArray[np.int64]:
    """Return the number of records within ``radius`` of each record, itself included, (n,)."""
    return np.asarray(Neighbourhoods(x).count_in_balls(radius), dtype=np.int64)
