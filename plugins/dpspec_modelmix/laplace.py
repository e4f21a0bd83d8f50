"""Laplace noise with l1 clipping: mean and second moment of one step's loss, and a total by Freedman's inequality.

Noise of density (lambda / 2) e^(-lambda |o|), l1 sensitivity c, epsilon_0 = lambda c, a uniform of width tau (all in
units of the gradient). Xiao, Wan and Devadas, Lemma D.2, holds for tau > max(2 ln(tau) / lambda + c, 1). The one-hot
gradient is the worst: the mean and the second moment rise relative to it. Without sampling.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpspec.accounting.checks import Floats, inside, positive, whole

SOURCE = "Xiao, Wan & Devadas, Lemma D.2, corrected; Freedman 1975"


class Moments(NamedTuple):
    """Upper bounds on the mean of one step's loss, on its second moment, and on the loss itself."""

    mean: float
    second: float
    largest: float


def applies(scale: float, sensitivity: float, width: float) -> bool:
    """Whether Lemma D.2 covers a uniform so wide. ``scale``: 1 / lambda."""
    return width > max(2.0 * math.log(max(width, 1e-300)) * scale + sensitivity, 1.0)


def moments(scale: float, sensitivity: float, width: float, *, printed: bool = False) -> Moments:
    """Lemma D.2 with its second summand corrected to e_I (e^e_I - 1) (1 - W), e_I = (e^e0 - 1) / (2 (tau - 1)).

    ``printed`` takes the smaller exponent e0 / (2 (tau - 1)) of the paper, which its proof does not give. Raises
    ``ValueError`` where the lemma does not apply.
    """
    b, c, tau = positive("scale", scale), positive("sensitivity", sensitivity), positive("width", width)
    if not applies(b, c, tau):
        raise ValueError(f"the lemma needs a width above max(2 ln(width) scale + sensitivity, 1), got {tau}")
    loss = c / b
    outside = -math.expm1(-tau / b) * b / tau
    reach = outside + (2.0 * math.log(tau) * b + c) / tau
    inner = math.expm1(loss) / (2.0 * (tau - 1.0))
    growth = math.expm1(loss / (2.0 * (tau - 1.0)) if printed else inner)
    mean = loss * math.expm1(loss) * reach + inner * growth * (1.0 - outside)
    return Moments(mean, loss**2 * reach + inner**2 * (1.0 - outside), loss)


def total_epsilon(steps: int, one: Moments, delta: float) -> float:
    """T E + e0 L / 3 + sqrt((e0 L / 3)^2 + 2 T V L) with L = ln(1 / delta), for martingales whose steps stay below e0.

    In place of the printed total, which is no form of Bernstein's inequality.
    """
    count, log = whole("steps", steps, 1), -math.log(inside("delta", delta))
    linear = one.largest * log / 3.0
    return count * one.mean + linear + math.sqrt(linear**2 + 2.0 * count * one.second * log)


def advanced_composition(steps: int, one: float, delta: float) -> float:
    """Without mixing: sqrt(2 T ln(1 / delta)) e0 + T e0 (e^e0 - 1) (Theorem 2.1)."""
    return math.sqrt(-2.0 * steps * math.log(inside("delta", delta))) * one + steps * one * math.expm1(one)


def log_density(o: Floats, scale: float, width: float) -> Floats:
    """ln of the density of U[0, width] + Laplace(scale) at each of ``o``."""
    below, above = np.minimum(o, 0.0) / scale, np.maximum(o - width, 0.0) / scale
    inner = np.clip(o, 0.0, width)
    edges = np.log(2.0 - np.exp(-inner / scale) - np.exp(-(width - inner) / scale))
    return np.asarray(below - above + edges - math.log(2.0 * width), dtype=np.float64)
