"""Laplace noise with l1 clipping: mean and second moment of one step's loss, and a total by Freedman's inequality.

Noise of density (lambda / 2) e^(-lambda |o|), l1 sensitivity c, epsilon_0 = lambda c, a uniform of width tau (all in
units of the gradient). Xiao, Wan and Devadas, Lemma D.2, cuts ln(tau) / lambda off either end of the uniform, which
compares tau with 1 and so depends on units. Nothing in its proof does: any cut u > 0 with 2 u + c < tau will do, and
with y = e^(-lambda u)

    mean    e0 (e^e0 - 1) R + e_I (e^e_I - 1) (1 - W),      W = (1 - e^(-lambda tau)) / (lambda tau),
    square  e0^2 R + e_I^2 (1 - W),                         R = W + (2 u + c) / tau,  e_I = y (e^e0 - 1) / (2 (1 - y)),

which is the lemma's own where y = 1 / tau. Both bounds rise relative to c: of all gradients within the clip norm the
one-hot one has the largest sum of them, and no convexity has to be taken on trust. A wider gap only helps, as with
Gaussian noise, since Laplace noise is log-concave too. Sampling can only help: nothing is gained from it here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpspec.accounting.checks import Floats, inside, positive, whole
from dpspec.accounting.interval import Interval
from dpspec.accounting.laplace import Laplace
from dpspec.accounting.pld import PrivacyLoss
from dpspec_modelmix.theory import Segment

SOURCE = "Xiao, Wan & Devadas, Lemma D.2, corrected; Freedman 1975"

#: How many cuts are tried, and up to how many scales of the noise.
_CUTS, _FARTHEST = 200, 40.0

#: Where one step's epsilon_0 is above this, e^epsilon_0 is out of all range, and epsilon is taken to add up.
LARGEST = 300.0


class Moments(NamedTuple):
    """Upper bounds on the mean of one step's loss, on its second moment, and on the loss itself."""

    mean: float
    second: float
    largest: float


def applies(scale: float, sensitivity: float, width: float) -> bool:
    """Whether Lemma D.2, in its own units, covers a uniform so wide. ``scale``: 1 / lambda."""
    return width > max(2.0 * math.log(max(width, 1e-300)) * scale + sensitivity, 1.0)


def moments(scale: float, sensitivity: float, width: float, *, printed: bool = False) -> Moments:
    """Lemma D.2 with its second summand corrected, and its own cut.

    ``printed`` takes the smaller exponent e0 / (2 (tau - 1)) of the paper in place of e_I, which its proof does not
    give. Raises ``ValueError`` where the lemma does not apply.
    """
    b, c, tau = positive("scale", scale), positive("sensitivity", sensitivity), positive("width", width)
    if not applies(b, c, tau):
        raise ValueError(f"the lemma needs a width above max(2 ln(width) scale + sensitivity, 1), got {tau}")
    found = cut_moments(c / b, tau / b, math.log(tau))
    if not printed:
        return found
    outside, twice = _outside(tau / b), 2.0 * (tau - 1.0)
    mean = found.largest * math.expm1(found.largest) * (outside + (2.0 * math.log(tau) * b + c) / tau)
    mean += math.expm1(found.largest) / twice * math.expm1(min(found.largest / twice, LARGEST)) * (1.0 - outside)
    return found._replace(mean=mean)


def cut_moments(loss: float, width: float, cut: float) -> Moments:
    """The same with any ``cut``, all in units of the noise's scale: ``loss`` epsilon_0, ``width`` lambda tau."""
    if not (cut > 0.0 and 2.0 * cut + loss < width):
        raise ValueError(f"2 cut + loss must be below the width {width}, got a cut of {cut}")
    outside = _outside(width)
    reach = outside + (2.0 * cut + loss) / width
    inner = math.exp(-cut) * math.expm1(loss) / (-2.0 * math.expm1(-cut))
    mean = loss * math.expm1(loss) * reach + inner * math.expm1(min(inner, LARGEST)) * (1.0 - outside)
    return Moments(mean, loss**2 * reach + inner**2 * (1.0 - outside), loss)


def total_epsilon(parts: Sequence[tuple[int, Moments]], delta: float) -> float:
    """sum T E + e0 L / 3 + sqrt((e0 L / 3)^2 + 2 L sum T V), L = ln(1 / delta), over (T, moments of one of T steps).

    Freedman's inequality for martingales whose steps stay below the largest e0; in place of the printed total.
    """
    log = -math.log(inside("delta", delta))
    mean = math.fsum(whole("steps", steps, 1) * one.mean for steps, one in parts)
    second = math.fsum(steps * one.second for steps, one in parts)
    linear = max(one.largest for _, one in parts) * log / 3.0
    return mean + linear + math.sqrt(linear**2 + 2.0 * second * log)


def printed_total(steps: int, one: Moments, delta: float) -> float:
    """T E + sqrt(2 (T V L + L e0^2 / 9)) + L e0^2 / 3, as printed: no form of Bernstein's inequality."""
    log = -math.log(inside("delta", delta))
    square = one.largest**2
    return steps * one.mean + math.sqrt(2.0 * log * (steps * one.second + square / 9.0)) + log * square / 3.0


def epsilon(segments: Sequence[Segment], delta: float) -> float:
    """Epsilon at ``delta`` of all steps, the least over a range of cuts, and over adding up epsilon_0 as it is.

    A gap that is no wider than what one record moves leaves no cut, and an epsilon_0 above ``LARGEST`` none worth it.
    """
    scaled = [(s.steps, loss_of(s), math.sqrt(2.0) * s.gap) for s in segments]
    found = [math.fsum(steps * loss for steps, loss, _ in scaled)]
    if all(loss < min(width, LARGEST) for _, loss, width in scaled):
        for cut in np.geomspace(1e-2, _FARTHEST, _CUTS).tolist():
            parts = [(n, cut_moments(loss, width, min(cut, 0.499 * (width - loss)))) for n, loss, width in scaled]
            found.append(total_epsilon(parts, delta))
    return min(found)


def plain(segments: Sequence[Segment], deltas: Sequence[float]) -> list[Interval]:
    """Epsilon at each delta without mixing, from the exact privacy loss, sampling included."""
    losses = [loss_of(s) for s in segments]
    if max(losses) > LARGEST:
        total = math.fsum(s.steps * loss for s, loss in zip(segments, losses, strict=True))
        return [Interval(0.0, total)] * len(deltas)
    phases = tuple((Laplace(1.0, loss, s.rate), s.steps) for s, loss in zip(segments, losses, strict=True))
    return PrivacyLoss(phases).epsilons(deltas)


def advanced_composition(steps: int, one: float, delta: float) -> float:
    """Without mixing: sqrt(2 T ln(1 / delta)) e0 + T e0 (e^e0 - 1) (Theorem 2.1)."""
    return math.sqrt(-2.0 * steps * math.log(inside("delta", delta))) * one + steps * one * math.expm1(one)


def log_density(o: Floats, scale: float, width: float) -> Floats:
    """ln of the density of U[0, width] + Laplace(scale) at each of ``o``."""
    below, above = np.minimum(o, 0.0) / scale, np.maximum(o - width, 0.0) / scale
    inner = np.clip(o, 0.0, width)
    edges = np.log(2.0 - np.exp(-inner / scale) - np.exp(-(width - inner) / scale))
    return np.asarray(below - above + edges - math.log(2.0 * width), dtype=np.float64)


def loss_of(segment: Segment) -> float:
    """epsilon_0 of one step, all records taken: sqrt(2) / noise_multiplier, as the scale is the deviation / sqrt(2)."""
    return math.sqrt(2.0) * segment.effect


def _outside(width: float) -> float:
    """W, what lies beyond either end of the uniform."""
    return -math.expm1(-width) / width
