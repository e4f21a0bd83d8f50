"""The density of a uniform mixed with Laplace noise, written out: an oracle for what the plugin scores and bounds."""

from __future__ import annotations

import math

import numpy as np


def log_density_of_sum(o: np.ndarray, scale: float, width: float) -> np.ndarray:
    """ln of the density of U[0, width] + Laplace(scale) at each of ``o``."""
    below, above = np.minimum(o, 0.0) / scale, np.maximum(o - width, 0.0) / scale
    inner = np.clip(o, 0.0, width)
    edges = np.log(2.0 - np.exp(-inner / scale) - np.exp(-(width - inner) / scale))
    return np.asarray(below - above + edges - math.log(2.0 * width), dtype=np.float64)
