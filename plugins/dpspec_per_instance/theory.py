"""Formulas for one step, for all steps and for estimates from R runs (``docs/explanation/proofs/per-instance.md``).

One step has sampling rate q and ratio nu = clipped norm / (noise_multiplier * clip_norm). The composition theorem with
exponent p uses order a_t = 1 + rho^(n - t) (a - 1), rho = p / (p - 1), and weight l_t = p (a_t - 1) at step t of n.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpspec.accounting import Direction, Directions, Floats, inside, positive, sampled_gaussian_rdp, whole

Array: TypeAlias = np.ndarray[Any, Any]

STEP_SOURCE = "Thudi et al. 2024, Theorem 3.2"
RUN_SOURCE = "Thudi et al. 2024, Theorem 3.3"
CONFIDENCE_SOURCE = "Hoeffding 1963, for the expectations of Thudi et al. 2024, Theorem 3.3"

#: Factor between adjacent orders in a - 1; adjacent values of r differ by a factor of _LEAST^(-1 / nodes).
_GROWTH = 1.04
_LEAST, _COARSE, _FINE = 1e-3, 2048, 16384

#: Half-width of the quadrature in standard deviations, and its step.
_REACH, _STEP = 14.0, 0.25

#: Moments whose excess over 1 is below this are computed as an excess.
_SMALL = 1e-2

#: Relative rounding error of a tabulated value.
_SLACK = 1e-9

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def step_divergence(
    orders: npt.ArrayLike, rate: npt.ArrayLike, ratio: npt.ArrayLike, direction: Directions = "both"
) -> Floats:
    """Bound on the Renyi divergence of one step, for a ``rate`` and ``ratio`` above 0; arrays broadcast."""
    return sampled_gaussian_rdp(orders, rate, 1.0 / np.asarray(ratio, dtype=np.float64), direction)


class StepTable:
    """Upper bounds on (a - 1) D_a of one sampled Gaussian step in one direction, by order and r = norm / clip_norm.

    The function is convex in the order (linear interpolation is a bound) and increases with r (the next larger r is
    one). Present-first, exp((a - 1) D_a) is also convex in r^2, so chords fill in further r: along Y_s = e^(B_s - s /
    2), d/ds E f(Y_s) = E[Y_s^2 f''(Y_s)] / 2, and y^2 f''(y) is convex for f(y) = (1 - q + q y)^a. Errors are upwards,
    and at most one percent except for r below 0.001 and near jumps of D.
    """

    def __init__(
        self, rate: float, noise_multiplier: float, lowest: float, highest: float, direction: Direction
    ) -> None:
        """Tabulate orders from ``lowest`` > 1 to ``highest``; ``noise_multiplier`` > 0 is in clip norms."""
        q, sigma = inside("rate", rate, one=True), positive("noise_multiplier", noise_multiplier)
        nodes = 2 + math.ceil(math.log((highest - 1.0) / (lowest - 1.0)) / math.log(_GROWTH))
        self._orders: Floats = 1.0 + np.geomspace(lowest - 1.0, highest - 1.0, nodes)
        self._orders[[0, -1]] = lowest, highest
        coarse = np.geomspace(_LEAST, 1.0, _COARSE)
        moments = np.stack([log_moments(self._orders, q, r / sigma, direction) for r in coarse], axis=1)
        sizes = np.concatenate([[0.0], coarse])
        values = np.concatenate([np.zeros((nodes, 1)), moments], axis=1) * (1.0 + _SLACK)
        if direction == "present-first":
            sizes, values = _chords(sizes, values)
        self.sizes: Floats = sizes
        self._values: Floats = values

    def places(self, sizes: npt.ArrayLike) -> npt.NDArray[np.uint16]:
        """Table index of each r in [0, 1]: the first tabulated value that is at least r."""
        after = np.searchsorted(self.sizes, np.asarray(sizes, dtype=np.float64), side="left")
        return np.minimum(after, len(self.sizes) - 1).astype(np.uint16)

    def row(self, order: float) -> Floats:
        """Upper bounds on (a - 1) D_a at ``order`` for every tabulated r."""
        after = int(np.clip(np.searchsorted(self._orders, order), 1, len(self._orders) - 1))
        low, high = self._orders[after - 1], self._orders[after]
        share = min(1.0, max(0.0, (order - low) / (high - low))) if high > low else 1.0
        return np.asarray((1.0 - share) * self._values[after - 1] + share * self._values[after], dtype=np.float64)

    def saturated(self, orders: npt.ArrayLike) -> Floats:
        a = np.asarray(orders, dtype=np.float64)
        return np.asarray(np.interp(a, self._orders, self._values[:, -1]) / (a - 1.0), dtype=np.float64)


step_table = lru_cache(maxsize=32)(StepTable)


def log_moments(orders: Floats, rate: float, ratio: float, direction: Direction) -> Floats:
    """(a - 1) D_a = ln E[(1 - q + q e^(nu z - nu^2 / 2))^b], b = a or 1 - a, shape (k,), by the trapezoidal rule.

    The integrand is analytic in a strip of half-width pi / nu, so the error decreases exponentially.
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
    integrand = powers * logs + weights
    most = integrand.max(axis=1)
    moments = most + np.log(np.exp(integrand - most[:, None]).sum(axis=1))
    small = moments < _SMALL
    if np.any(small):
        excess = rate * np.expm1(np.minimum(shift, 600.0))
        b = powers[small]
        high = b * logs > 30.0
        terms = np.where(high, np.exp(integrand[small]), np.expm1(np.where(high, 0.0, b * logs)) * np.exp(weights))
        moments[small] = np.log1p(np.maximum(0.0, (terms - b * excess * np.exp(weights)).sum(axis=1)))
    return np.asarray(moments, dtype=np.float64)


def _chords(sizes: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Interpolate further values of r on chords of exp((a - 1) D_a) over r^2."""
    fine = np.concatenate([[0.0], np.geomspace(_LEAST, 1.0, _FINE)])
    fine[-1] = 1.0
    after = np.clip(np.searchsorted(sizes, fine), 1, len(sizes) - 1)
    low, high = np.square(sizes[after - 1]), np.square(sizes[after])
    share = np.clip((np.square(fine) - low) / (high - low), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        rise = values[:, after] - values[:, after - 1]
        # ln(e^u + s (e^v - e^u)) = u + ln(1 + s (e^(v - u) - 1)), without overflow for large v - u
        steep = np.logaddexp(np.log1p(-share), np.log(share) + rise)
        gentle = np.log1p(share * np.expm1(np.minimum(rise, 30.0)))
    return fine, values[:, after - 1] + np.where(rise < 30.0, gentle, steep)


class Exponents(NamedTuple):
    """Orders a_t and weights l_t of the composition theorem by step, shape (n,) each."""

    orders: Floats
    weights: Floats


def exponents(order: float, steps: int, p: float) -> Exponents:
    """a_t and l_t for the divergence at ``order`` > 1 of ``steps`` >= 1 steps with exponent ``p`` > 1."""
    growth = -math.log1p(-1.0 / p)
    above = (order - 1.0) * np.exp(growth * np.arange(steps - 1, -1, -1, dtype=np.float64))
    return Exponents(orders=1.0 + above, weights=p * above)


def entropic_mean(values: npt.ArrayLike, weight: float, log_masses: npt.ArrayLike | None = None) -> Floats:
    """(1 / l) ln E exp(l v) over the first axis of ``values`` (k, ...); ``log_masses`` (k,), uniform by default.

    Between the mean (l -> 0) and the maximum with positive mass (l -> inf). Over runs it is an estimate, not a bound.
    """
    v = np.asarray(values, dtype=np.float64)
    logs = np.full(len(v), -math.log(len(v))) if log_masses is None else np.asarray(log_masses, dtype=np.float64)
    logs = logs.reshape(-1, *[1] * (v.ndim - 1))
    if not weight > 0.0:
        raise ValueError(f"weight must be above 0, got {weight!r}")
    possible = np.where(np.isneginf(logs), -np.inf, v)
    top = np.max(possible, axis=0)
    with np.errstate(over="ignore"):
        rest = np.log(np.sum(np.exp(weight * (possible - top) + logs), axis=0))
    return np.asarray(top + rest / weight, dtype=np.float64)


def confidence_upper_mean(mean: npt.ArrayLike, weight: float, largest: float, runs: float, log_terms: float) -> Floats:
    """Upper confidence bound of one term from plug-in estimates ``mean`` (...), at most ``largest``.

    ``weight`` is l, and ``log_terms`` ln(s / J) for s jointly valid terms and failure probability J.
    """
    kappa = float(weight * largest)
    if kappa == 0.0:
        return np.zeros_like(np.asarray(mean, dtype=np.float64))
    gap = kappa + math.log(-math.expm1(-kappa)) + 0.5 * (math.log(log_terms) - math.log(2.0 * runs))
    bound = np.logaddexp(weight * np.asarray(mean, dtype=np.float64), gap) / weight
    return np.asarray(np.minimum(bound, largest), dtype=np.float64)


def log_terms(terms: int, failure: float) -> float:
    """ln(s / J) for ``terms`` s >= 1 bounds that fail jointly with probability at most ``failure`` J."""
    return math.log(whole("terms", terms, 1)) - math.log(inside("failure", failure))
