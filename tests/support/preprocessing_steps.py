"""One step applied to the rows that it is fitted to, and records counted in balls, for tests of the plugin."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dpspec_preprocessing.sensitivity import read_step
from dpspec_preprocessing.steps import Neighbourhoods, fit_step


def apply_step(x: npt.NDArray[np.float64], step: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """One step, fitted to the rows that it is applied to."""
    return np.asarray(fit_step(x, read_step(step))(x))


def count_in_balls(x: npt.NDArray[np.float64], radius: float) -> npt.NDArray[np.int64]:
    """How many records lie within ``radius`` of each, itself included, (n,)."""
    return np.asarray(Neighbourhoods(x).count_in_balls(radius), dtype=np.int64)
