"""The settings of ModelMix's figure 3, and the density of a uniform mixed with Laplace noise, written out."""

from __future__ import annotations

import math

import numpy as np

from dpspec_modelmix.options import Segment


def mixed(rate: float, steps: int, noise: float, ratio: float, batch: float, clip: float, p: int = 1) -> Segment:
    return Segment(steps, rate, 1.0 / noise, ratio * batch / (noise * clip), p)


FIGURE = {(r, p): mixed(0.02, 5000, 0.3675, r, 1000, 20, p) for r in (0.075, 0.15, 0.3) for p in (1, 25, 100)}


def log_density_of_sum(o: np.ndarray, scale: float, width: float) -> np.ndarray:
    """ln of the density of U[0, width] + Laplace(scale) at each of ``o``."""
    below, above = np.minimum(o, 0.0) / scale, np.maximum(o - width, 0.0) / scale
    inner = np.clip(o, 0.0, width)
    edges = np.log(2.0 - np.exp(-inner / scale) - np.exp(-(width - inner) / scale))
    return np.asarray(below - above + edges - math.log(2.0 * width), dtype=np.float64)
