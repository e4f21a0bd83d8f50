"""The settings of ModelMix's figure 3, densities of mixed noise, and the privacy loss of the pair behind the bounds."""

import math

import numpy as np

from dpspec.accounting import Discrete, Mixture, PrivacyLoss
from dpspec_modelmix import theory
from dpspec_modelmix.options import Segment


def mixed(rate: float, steps: int, noise: float, ratio: float, batch: float, clip: float, p: int = 1) -> Segment:
    return Segment(steps, rate, 1.0 / noise, ratio * batch / (noise * clip), p)


FIGURE = {(r, p): mixed(0.02, 5000, 0.3675, r, 1000, 20, p) for r in (0.075, 0.15, 0.3) for p in (1, 25, 100)}


def log_density_of_sum(o: np.ndarray, scale: float, width: float) -> np.ndarray:
    """Return the log-density of U[0, width] + Laplace(scale) at each of ``o``."""
    below, above = np.minimum(o, 0.0) / scale, np.maximum(o - width, 0.0) / scale
    inner = np.clip(o, 0.0, width)
    edges = np.log(2.0 - np.exp(-inner / scale) - np.exp(-(width - inner) / scale))
    return np.asarray(below - above + edges - math.log(2.0 * width), dtype=np.float64)


def loss_of_pair(segment: Segment, cell: float = 0.01) -> PrivacyLoss:
    """The loss of the one-hot gradient, or of p equal coordinates in full batches; discretizing only lowers it."""
    assert segment.rate == 1.0 or (segment.sparsity == 1 and segment.embedded == 0.0)
    half, shift = 0.5 * segment.gap, segment.shift
    middles = np.arange(-half - 11.0, half + shift + 11.0, cell) + 0.5 * cell
    absent, shifted = (cell * np.exp(theory.log_density(middles - by, segment.gap)) for by in (0.0, shift))
    absent, shifted = absent / absent.sum(), shifted / shifted.sum()
    mixed = Discrete((1.0 - segment.rate) * absent + segment.rate * shifted, absent)
    steps = [(mixed, segment.steps * segment.sparsity)]
    if segment.embedded > 0.0:
        steps.append((Mixture.poisson(1, segment.rate, 1.0 / segment.embedded), segment.steps))
    return PrivacyLoss(tuple(steps), "present-first")
