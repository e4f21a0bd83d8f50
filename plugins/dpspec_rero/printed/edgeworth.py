"""Edgeworth series for gamma, orders 0 to 4: corrections to the normal law of the loss from its cumulants.

With K_r the cumulants of the composed loss (sums over steps), rho_r = K_r / K_2^(r/2) and z = (c - K_1) / sqrt(K_2),

    P[L > c] ~ 1 - Phi(z) + phi(z) { rho_3 He_2 / 6
      + rho_4 He_3 / 24 + rho_3^2 He_5 / 72
      + rho_5 He_4 / 120 + rho_3 rho_4 He_6 / 144 + rho_3^3 He_8 / 1296
      + rho_6 He_5 / 720 + (rho_4^2 / 1152 + rho_3 rho_5 / 720) He_7 + rho_3^2 rho_4 He_9 / 1728
      + rho_3^4 He_11 / 31104 },

one line per order. c solves P[L > c] = kappa under the null (record absent); gamma is P[L > c] under the alternative.
The fourth order has an error of order N^(-5/2); the paper's O(N^-2) is the error of order three. Neither has a bound:
the values are *approximate* and often too small for small kappa.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.hermite_e import hermeval
from scipy.special import ndtr, ndtri

from dpspec.accounting import Floats, inside, whole
from dpspec_rero.options import Steps
from dpspec_rero.printed.loss_table import tabulate_loss

SOURCE = "Kaissis et al. 2023, Corollary 3"

#: The highest order.
ORDER = 4

#: Half-width and spacing of the root search around the normal quantile.
_REACH, _SPACING = 6.0, 0.01


@dataclass(frozen=True)
class Series:
    """A composed loss: mean, standard deviation and standardized cumulants rho_3 .. rho_6, up to an order."""

    mean: float
    deviation: float
    rho: tuple[float, float, float, float]
    order: int

    def tail(self, z: Floats) -> Floats:
        """P[L > mean + z deviation] by the series, any shape; outside [0, 1] where the series has broken down."""
        density = np.exp(-0.5 * np.square(z)) / math.sqrt(2.0 * math.pi)
        return np.asarray(ndtr(-z) + density * hermeval(z, self._coefficients()), dtype=np.float64)

    def _coefficients(self) -> Floats:
        """Of He_0 .. He_11."""
        r3, r4, r5, r6 = self.rho
        by_order = (
            {2: r3 / 6.0},
            {3: r4 / 24.0, 5: r3**2 / 72.0},
            {4: r5 / 120.0, 6: r3 * r4 / 144.0, 8: r3**3 / 1296.0},
            {5: r6 / 720.0, 7: r4**2 / 1152.0 + r3 * r5 / 720.0, 9: r3**2 * r4 / 1728.0, 11: r3**4 / 31104.0},
        )
        coefficients = np.zeros(12)
        for terms in by_order[: self.order]:
            for degree, value in terms.items():
                coefficients[degree] += value
        return coefficients


def gammas_edgeworth(kappas: Sequence[float], phases: Sequence[Steps], order: int = ORDER) -> list[float | None]:
    """gamma at each kappa; None if the series has no root near the normal quantile or leaves [kappa, 1].

    Raises ``ValueError`` if an argument is out of range. Raises ``ArithmeticError`` if an effect is too large to be
    tabulated.
    """
    if whole("order", order, 0) > ORDER:
        raise ValueError(f"order must be at most {ORDER}, got {order}")
    levels = [inside("kappa", kappa, one=True) for kappa in kappas]
    moving = [phase for phase in phases if phase.effect > 0.0]
    if not moving:
        return list(levels)
    null, alternative = series(moving, 0.0, order), series(moving, 1.0, order)
    return [_gamma(level, null, alternative) for level in levels]


def threshold(kappa: float, null: Series) -> float | None:
    """The loss c with P[L > c] = ``kappa`` by the series: the root nearest the normal quantile, or None."""
    quantile = float(-ndtri(kappa))
    z = quantile + np.arange(-_REACH, _REACH + _SPACING, _SPACING)
    above = null.tail(z) - kappa
    changes = np.flatnonzero(np.signbit(above[:-1]) != np.signbit(above[1:]))
    if not len(changes):
        return None
    nearest = int(changes[np.argmin(np.abs(z[changes] - quantile))])
    low, high = float(z[nearest]), float(z[nearest + 1])
    rising = above[nearest] < 0.0
    while low < (middle := 0.5 * (low + high)) < high:
        below = float(null.tail(np.asarray(middle))) < kappa
        low, high = (middle, high) if below == rising else (low, middle)
    return null.mean + null.deviation * low


def series(phases: Sequence[Steps], power: float, order: int) -> Series:
    """The series of the composed loss under the null (``power`` 0) or the alternative (1)."""
    totals = np.zeros(6)
    for phase in phases:
        totals += phase.count * _cumulants(phase, power)
    deviation = math.sqrt(totals[1])
    rho = tuple(float(totals[r] / deviation ** (r + 1)) for r in range(2, 6))
    return Series(float(totals[0]), deviation, rho, order)  # type: ignore[arg-type]


def _gamma(kappa: float, null: Series, alternative: Series) -> float | None:
    if kappa == 1.0:
        return 1.0
    c = threshold(kappa, null)
    if c is None:
        return None
    value = float(alternative.tail(np.asarray((c - alternative.mean) / alternative.deviation)))
    return value if kappa <= value <= 1.0 else None


def _cumulants(phase: Steps, power: float) -> Floats:
    """K_1 .. K_6 of one step's loss, from standardised central moments."""
    losses, weights = tabulate_loss(phase).losses, tabulate_loss(phase).weights(power)
    mean = float(weights @ losses)
    deviation = math.sqrt(float(weights @ np.square(losses - mean)))
    x = (losses - mean) / deviation
    m3, m4, m5, m6 = (float(weights @ x**r) for r in (3, 4, 5, 6))
    standard = (m3, m4 - 3.0, m5 - 10.0 * m3, m6 - 15.0 * m4 - 10.0 * m3**2 + 30.0)
    scaled = (value * deviation**r for r, value in zip((3, 4, 5, 6), standard, strict=True))
    return np.array([mean, deviation**2, *scaled])
