"""gamma by a contour integral: about eleven digits for Gaussian steps, *approximate* because its error has no bound.

With G(s) the product over the steps of E_null[e^(s L)] and any tilt t > 0,

    P[S > c] = (1/pi) integral over u > 0 of Re[G(a + t + iu) e^(-(t + iu) c) / (t + iu)] du,

with a = 0 for the null and 1 for the alternative; a tilt t < 0 gives -P[S < c]. The level is solved for c, and gamma
follows from the tangent of slope e^c there. The method shares no code with the certified grids, so it serves as their
oracle, and resolves errors that are smaller than a grid's interval. For losses with atoms (Laplace) and for very few
steps the integral does not converge, and the functions raise ``ArithmeticError``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpspec.accounting import Floats, inside
from dpspec_rero.options import Steps
from dpspec_rero.printed.edgeworth import ORDER, series, threshold
from dpspec_rero.printed.loss_table import LossTable, tabulate_loss

SOURCE = "contour integral of the characteristic function"

#: Nodes in u per batch, maximum number of nodes, and relative size of the last batch that ends the sum.
_BATCH, _NODES, _LAST = 256, 1 << 13, 1e-16

#: Newton steps for c, and error of ln(level) at which the tangent suffices.
_ROUNDS, _NEAR = 20, 1e-5


def gammas_contour(kappas: Sequence[float], phases: Sequence[Steps]) -> list[float]:
    """gamma at each kappa for Gaussian steps.

    Raises ``ValueError`` if a kappa is not in (0, 1]. Raises ``ArithmeticError`` if the noise is not Gaussian or the
    integral does not converge.
    """
    if any(phase.noise != "gaussian" for phase in phases):
        raise ArithmeticError("the contour integral does not converge for noise whose loss has atoms")
    moving = [phase for phase in phases if phase.effect > 0.0]
    law = _Law(tuple((tabulate_loss(phase), phase.count) for phase in moving))
    null = series(moving, 0.0, ORDER) if moving else None
    gammas = []
    for kappa in kappas:
        level = inside("kappa", kappa, one=True)
        start = None if null is None else threshold(level, null) if level < 1.0 else None
        if null is None or level == 1.0:
            gammas.append(level)
        else:
            gammas.append(law.gamma(level, null.mean if start is None else start))
    return gammas


@dataclass(frozen=True, eq=False)
class _Law:
    """Distribution of the composed loss: tables of (one step, number of steps)."""

    phases: tuple[tuple[LossTable, int], ...]

    def gamma(self, kappa: float, start: float) -> float:
        """Newton's iteration on ln P_null[S > c] from ``start``, whose derivative is about minus the tilt."""
        c = start
        for _ in range(_ROUNDS):
            tail, tilt = self.tail(c, 0.0)
            miss = math.log(tail / kappa)
            if abs(miss) < _NEAR:
                return self.tail(c, 1.0)[0] + math.exp(c) * (kappa - tail)
            # the derivative is -density / tail, which the tilt estimates well in the tail and badly in the middle
            slope = (math.log(self.tail(c + 1e-3 * self.deviation, 0.0)[0] / tail)) / (1e-3 * self.deviation)
            c -= miss / min(slope, -1e-3 * tilt)
        raise ArithmeticError(f"no threshold was found at kappa {kappa:g}")

    @cached_property
    def deviation(self) -> float:
        """The standard deviation of the loss under the null."""
        return math.sqrt(_Tilted.at(self.phases, 0.0).variance)

    def tail(self, c: float, power: float) -> tuple[float, float]:
        """(P[S > ``c``] under the null (``power`` 0) or the alternative (1), the size of the tilt used)."""
        tilt = self._saddle(c, power)
        value = _Tilted.at(self.phases, power + tilt).integral(c, tilt)
        return (value if tilt > 0.0 else 1.0 + value), abs(tilt)

    def _saddle(self, c: float, power: float) -> float:
        """Approximate solution t of K'(power + t) = c + 1 / t, on the side of the smaller tail."""
        sign = 1.0 if c >= _Tilted.at(self.phases, power).mean else -1.0
        low, high, t = 1e-8, 1e8, 1.0
        while high > 1.3 * low:
            t = math.sqrt(low * high)
            tilted = _Tilted.at(self.phases, power + sign * t)
            miss = sign * (tilted.mean - c) - 1.0 / t
            if abs(miss) < 0.3 * math.sqrt(tilted.variance + t**-2):
                break
            low, high = (t, high) if miss < 0.0 else (low, t)
        return sign * t


@dataclass(frozen=True, eq=False)
class _Tilted:
    """The steps' losses under the null tilted by e^(s loss), and ln of the tilting's total mass."""

    steps: tuple[tuple[Floats, Floats, int], ...]
    log_mass: float
    mean: float
    variance: float

    @classmethod
    def at(cls, phases: Sequence[tuple[LossTable, int]], s: float) -> _Tilted:
        steps, log_mass, mean, variance = [], 0.0, 0.0, 0.0
        for step_table, count in phases:
            weights = step_table.weights(s)
            likely = weights > 1e-26
            losses, weights = step_table.losses[likely], weights[likely]
            middle = float(weights @ losses)
            steps.append((losses - middle, weights, count))
            log_mass += count * float(step_table.moment(s))
            mean += count * middle
            variance += count * float(weights @ np.square(losses - middle))
        return cls(tuple(steps), log_mass, mean, variance)

    def integral(self, c: float, tilt: float) -> float:
        """The integral above, by the trapezoid rule; it converges exponentially."""
        width = 2.0 * math.pi / (60.0 * math.sqrt(self.variance) + 40.0 / min(abs(tilt), 1.0) + 40.0)
        drift, total, size = self.mean - c, 0.0, 0.0
        first = width * np.arange(_BATCH)
        waves = [np.exp(1j * np.outer(first, losses)) for losses, _, _ in self.steps]
        for start in range(0, _NODES, _BATCH):
            u = first + width * start
            value = np.exp(1j * u * drift) / (tilt + 1j * u)
            for (losses, weights, count), wave in zip(self.steps, waves, strict=True):
                value *= (wave @ (weights * np.exp(1j * width * start * losses))) ** count
            if start == 0:
                value[0] *= 0.5
                size = abs(value[0])
            total += float(value.real.sum())
            if float(np.max(np.abs(value[-_BATCH // 4 :]))) < _LAST * size:
                return total * width / math.pi * math.exp(self.log_mass - tilt * c)
        raise ArithmeticError("the contour integral does not converge: too few steps")
