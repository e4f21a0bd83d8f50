"""What the pair of the bound leaks: at or below the bound."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr
from support.modelmix_densities import FIGURE, loss_of_pair

from dpspec_modelmix import theory
from dpspec_modelmix.options import Segment


def panels(low: float, high: float, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss and Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    count = math.ceil((high - low) / width)
    size = (high - low) / count
    middles = low + size * (np.arange(count) + 0.5)
    return (middles[:, None] + 0.5 * size * nodes).ravel(), np.tile(0.5 * size * weights, count)


def inverted(segment: Segment, delta: float, tilt: float, reach: float = 9.0, terms: int = 2500) -> float:
    """Epsilon of the pair by two inversions of transforms: no grid of losses and no FFT.

    First the loss of a step's p coordinates, whose density times e^(-L / 2) is even and has the transform
    E_p0[r^(1/2 + iu)]^p. Then the loss X of all steps, with
    E[(1 - e^(epsilon - X))_+] = integral of M(z) e^(-z epsilon) / (z (z + 1)) dz / (2 pi i) along Re z = tilt.
    """
    t, v, p, q = segment.gap, segment.shift, segment.sparsity, segment.rate

    def log_p0(o: np.ndarray) -> np.ndarray:
        a = np.abs(o)
        upper, lower = log_ndtr(t / 2 - a), log_ndtr(-t / 2 - a)
        return np.asarray(upper + np.log(-np.expm1(lower - upper)) - math.log(t))

    o, weights = panels(-t / 2 - 12, t / 2 + 12 + v, 0.5)
    loss = log_p0(o - v) - log_p0(o)
    even = weights * np.exp(log_p0(o) + 0.5 * loss)
    base = float(even.sum())
    deviation = math.sqrt(p * float(even @ loss**2) / base)
    spacing = 2.0 * math.pi / (3.0 * reach * deviation)
    transform = np.array([float(even @ np.cos(spacing * k * loss)) / base for k in range(terms)]) ** p
    transform[0] *= 0.5
    far, right = panels(0.0, reach * deviation, deviation / 6.0)
    found = np.zeros(len(far))
    for k, value in enumerate(transform):
        found += value * np.cos(spacing * k * far)
    found *= spacing / math.pi * base**p
    losses, masses = np.concatenate([-far[::-1], far]), np.concatenate([(found * right)[::-1], found * right])
    masses = masses * ((1.0 - q) * np.exp(-losses / 2.0) + q * np.exp(losses / 2.0))
    # Rounding and the ends cost this much, and so many times as much after all steps.
    assert abs(masses.sum() - 1.0) * segment.steps < 1e-4
    steps = np.log1p(q * np.expm1(losses))
    tilted = masses * np.exp(tilt * steps)
    mean = float(tilted @ steps) / float(tilted.sum())
    spread = math.sqrt(segment.steps * (float(tilted @ steps**2) / float(tilted.sum()) - mean**2))
    line = tilt + 1j * np.arange(400) * 2.0 * math.pi / (60.0 * spread)
    logs = segment.steps * np.log(np.array([masses @ np.exp(z * steps) for z in line]))

    def log_delta(epsilon: float) -> float:
        parts = (np.exp(logs - line * epsilon) / (line * (line + 1.0))).real
        parts[0] *= 0.5
        # Far above the answer, rounding leaves as much below zero as above.
        return math.log(max(float(parts.sum()) * 2.0 / (60.0 * spread), 1e-300)) - math.log(delta)

    return float(brentq(log_delta, 1.0, 30.0, xtol=1e-9))


@pytest.mark.parametrize(
    ("ratio", "p", "value", "printed"),
    [
        (0.075, 25, 13.944925, 13.959),
        (0.075, 100, 12.829683, 12.658),
        (0.3, 100, 3.93185, 4.054),
    ],
)
def test_where_the_reference_values_are_inexact(ratio: float, p: int, value: float, printed: float) -> None:
    """The table of reference values says ``printed``: 0.1 % and 3 % too much, and in the middle 1.3 % too little.

    ``value`` is by inversion, and the same at 25 digits (mpmath): 13.944933, 12.829683 and 3.932.
    """
    segment = FIGURE[ratio, p]
    assert inverted(segment, 1e-5, 1.5 if ratio == 0.075 else 4.0) == pytest.approx(value, rel=2e-5)
    assert abs(printed / value - 1.0) > 9e-4
    assert max(value, printed) < theory.mixed_epsilon([segment], 1e-5).epsilon


@pytest.mark.parametrize(
    ("q", "s", "t", "p"),
    [
        *itertools.product((0.02, 0.2, 1.0), (0.4, 1.5), (0.0, 3.0, 40.0), (1,)),
        *((1.0, 1.5, t, 9) for t in (3.0, 40.0)),
    ],
)
def test_the_truth_lies_at_or_below_the_bound_in_many_settings(q: float, s: float, t: float, p: int) -> None:
    segment = Segment(20, q, s, t, p)
    bound, improved = (theory.mixed_epsilon([segment], 1e-5, how).epsilon for how in ("mironov", "improved"))
    assert loss_of_pair(segment).epsilon(1e-5).upper <= improved * (1 + 1e-6)
    assert improved <= bound * (1 + 1e-9)
