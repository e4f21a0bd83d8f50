"""The divergence of one step for a million gradient norms: tabulated once, looked up upwards.

(a - 1) D_a is tabulated over orders and over r = (clipped norm) / clip_norm. It is convex in the order, so that a line
between two orders lies above it; it grows with r, so that the next larger tabulated r gives more. Present-first,
exp((a - 1) D_a) is convex in r^2 too, so that more values of r are filled in by chords: along Y_s = e^(B_s - s / 2),
d/ds E f(Y_s) = E[Y_s^2 f''(Y_s)] / 2, and y^2 f''(y) is convex for f(y) = (1 - q + q y)^a. All errors are upwards: a
percent at most, but where D is about to jump or r is below a thousandth.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dpspec.accounting.checks import Direction, Floats, inside, positive

#: Neighbouring orders differ by this factor in a - 1, and neighbouring values of r by a factor of _LEAST^(-1 / nodes).
_GROWTH = 1.04
_LEAST, _COARSE, _FINE = 1e-3, 2048, 16384

#: The quadrature: half width in standard deviations, and its step.
_REACH, _STEP = 14.0, 0.25

#: Moments below this are computed without the one that they exceed.
_SMALL = 1e-2

#: What rounding can have taken from a tabulated value, relatively.
_SLACK = 1e-9

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class StepTable:
    """(a - 1) D_a of one sampled Gaussian step in one direction, for orders from ``lowest`` to ``highest``."""

    def __init__(
        self, rate: float, noise_multiplier: float, lowest: float, highest: float, direction: Direction
    ) -> None:
        """``noise_multiplier`` > 0 in units of the clip norm; 1 < lowest <= highest."""
        self.highest = highest
        q, sigma = inside("rate", rate, one=True), positive("noise_multiplier", noise_multiplier)
        nodes = 2 + math.ceil(math.log((highest - 1.0) / (lowest - 1.0)) / math.log(_GROWTH))
        self._orders: Floats = 1.0 + np.geomspace(lowest - 1.0, highest - 1.0, nodes)
        self._orders[[0, -1]] = lowest, highest
        coarse = np.geomspace(_LEAST, 1.0, _COARSE)
        found = np.stack([log_moments(self._orders, q, r / sigma, direction) for r in coarse], axis=1)
        sizes = np.concatenate([[0.0], coarse])
        values = np.concatenate([np.zeros((nodes, 1)), found], axis=1) * (1.0 + _SLACK)
        if direction == "present-first":
            sizes, values = _chords(sizes, values)
        self.sizes: Floats = sizes
        self._values: Floats = values

    def places(self, sizes: npt.ArrayLike) -> npt.NDArray[np.uint16]:
        """Where each r in [0, 1] stands in the table: the first tabulated value that is not smaller."""
        found = np.searchsorted(self.sizes, np.asarray(sizes, dtype=np.float64), side="left")
        return np.minimum(found, len(self.sizes) - 1).astype(np.uint16)

    def row(self, order: float) -> Floats:
        """(a - 1) D_a at ``order`` for every tabulated r, from above."""
        after = int(np.clip(np.searchsorted(self._orders, order), 1, len(self._orders) - 1))
        low, high = self._orders[after - 1], self._orders[after]
        share = min(1.0, max(0.0, (order - low) / (high - low))) if high > low else 1.0
        return np.asarray((1.0 - share) * self._values[after - 1] + share * self._values[after], dtype=np.float64)

    def saturated(self, orders: npt.ArrayLike) -> Floats:
        """D_a of a gradient at the clip norm, at ``orders``, from above."""
        a = np.asarray(orders, dtype=np.float64)
        return np.asarray(np.interp(a, self._orders, self._values[:, -1]) / (a - 1.0), dtype=np.float64)


def log_moments(orders: Floats, rate: float, ratio: float, direction: Direction) -> Floats:
    """(a - 1) D_a = ln E[(1 - q + q e^(nu z - nu^2 / 2))^b], b = a or 1 - a, at ``orders`` (k,).

    By the trapezoidal rule: the integrand is analytic in a strip of half width pi / nu, so that its error falls
    exponentially.
    """
    if rate == 1.0:
        return np.asarray(0.5 * orders * (orders - 1.0) * ratio**2, dtype=np.float64)
    powers = (orders if direction == "present-first" else 1.0 - orders)[:, None]
    top = max(float(np.max(orders)) if direction == "present-first" else 1.0, 1.0) * ratio + _REACH
    step = min(_STEP, 0.5 / ratio)
    z = np.arange(-_REACH, top + step, step)
    shift = ratio * z - 0.5 * ratio**2
    logs = np.logaddexp(math.log1p(-rate), math.log(rate) + shift)
    weights = math.log(step) - _LOG_ROOT_TWO_PI - 0.5 * z**2
    exponents = powers * logs + weights
    most = exponents.max(axis=1)
    found = most + np.log(np.exp(exponents - most[:, None]).sum(axis=1))
    small = found < _SMALL
    if np.any(small):
        excess = rate * np.expm1(np.minimum(shift, 600.0))
        b = powers[small]
        high = b * logs > 30.0
        terms = np.where(high, np.exp(exponents[small]), np.expm1(np.where(high, 0.0, b * logs)) * np.exp(weights))
        found[small] = np.log1p(np.maximum(0.0, (terms - b * excess * np.exp(weights)).sum(axis=1)))
    return np.asarray(found, dtype=np.float64)


def _chords(sizes: Floats, values: Floats) -> tuple[Floats, Floats]:
    """More values of r between those given, on chords of exp((a - 1) D_a) over r^2."""
    fine = np.concatenate([[0.0], np.geomspace(_LEAST, 1.0, _FINE)])
    fine[-1] = 1.0
    after = np.clip(np.searchsorted(sizes, fine), 1, len(sizes) - 1)
    low, high = np.square(sizes[after - 1]), np.square(sizes[after])
    share = np.clip((np.square(fine) - low) / (high - low), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        rise = values[:, after] - values[:, after - 1]
        # ln(e^u + s (e^v - e^u)) = u + ln(1 + s (e^(v - u) - 1)), and without overflow where v - u is large
        steep = np.logaddexp(np.log1p(-share), np.log(share) + rise)
        gentle = np.log1p(share * np.expm1(np.minimum(rise, 30.0)))
    return fine, values[:, after - 1] + np.where(rise < 30.0, gentle, steep)
