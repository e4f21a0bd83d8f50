"""Table of one step's privacy loss and its probabilities, used by the approximations.

L = ln(1 - p + p e^l) with l the log-likelihood ratio of a step that draws the record. Gaussian: l = s z - s^2 / 2, z
standard normal under the null, on an even grid, where sums of smooth functions converge exponentially. Laplace: l lies
in [-s, s] with an atom at either end and the null density e^(-(l + s) / 2) / 4 between, by Gauss and Legendre.

The module also computes the bound from Renyi divergences, which is looser than the trade-off curve: if
D_a(present || absent) <= eps_a then gamma <= (kappa e^eps_a)^((a - 1) / a) for every order a > 1 (Balle, Cherubin and
Hayes 2022). Divergences of steps add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpspec.accounting import Floats, inside, laplace_rdp, sampled_gaussian_rdp
from dpspec_rero.options import Steps

#: Gaussian: half-width of the grid in standard deviations, maximum step, maximum step times effect, maximum nodes.
_REACH, _STEP, _STEP_EFFECT, _NODES = 14.0, 0.04, 0.2, 1_000_000

#: Laplace: nodes per panel, and maximum width of a panel.
_GAUSS, _PANEL = 24, 0.5


@dataclass(frozen=True, eq=False)
class LossTable:
    """Losses of one step and their log-probabilities if the record is absent, shape (n,) each.

    The probabilities if the record is present are e^loss times as large.
    """

    losses: Floats
    log_weights: Floats

    def moment(self, powers: npt.ArrayLike) -> Floats:
        """ln of the mean of e^(a loss) when the record is absent, at real ``powers`` a (any shape)."""
        a = np.asarray(powers, dtype=np.float64)
        flat = [float(np.logaddexp.reduce(self.log_weights + x * self.losses)) for x in a.ravel()]
        return np.asarray(flat, dtype=np.float64).reshape(a.shape)

    def weights(self, power: float) -> Floats:
        """Probabilities under the null tilted by e^(power loss), summing to one: power 1 is the alternative."""
        logs = self.log_weights + power * self.losses
        weights = np.exp(logs - logs.max())
        return np.asarray(weights / weights.sum(), dtype=np.float64)


@lru_cache(maxsize=32)
def tabulate_loss(step: Steps) -> LossTable:
    """The table of one of ``step``'s steps. Raises ``ArithmeticError`` if the effect is too large for a grid."""
    if step.noise == "gaussian":
        return _gaussian(step)
    return _laplace(step)


def _gaussian(step: Steps) -> LossTable:
    spacing = min(_STEP, _STEP_EFFECT / max(step.effect, 1e-12))
    count = (2.0 * _REACH + step.effect) / spacing
    if not count < _NODES:
        raise ArithmeticError(f"an effect of {step.effect:g} is too large to be tabulated")
    z = -_REACH + spacing * np.arange(math.ceil(count) + 1)
    logs = np.asarray(-0.5 * np.square(z) + math.log(spacing / math.sqrt(2.0 * math.pi)), dtype=np.float64)
    losses = np.asarray(step.effect * z - 0.5 * step.effect**2, dtype=np.float64)
    return LossTable(_sampled(step.rate, losses), logs)


def _laplace(step: Steps) -> LossTable:
    s = step.effect
    panels = max(1, math.ceil(2.0 * s / _PANEL))
    if panels * _GAUSS > _NODES:
        raise ArithmeticError(f"an effect of {s:g} is too large to be tabulated")
    nodes, weights = np.polynomial.legendre.leggauss(_GAUSS)
    half = s / panels
    middles = -s + half * (2.0 * np.arange(panels) + 1.0)
    inner = (middles[:, None] + half * nodes).ravel()
    logs = np.tile(np.log(weights * half), panels) - 0.5 * (inner + s) - math.log(4.0)
    losses = np.asarray(np.concatenate(([-s], inner, [s])), dtype=np.float64)
    logs = np.concatenate(([-math.log(2.0)], logs, [-s - math.log(2.0)]))
    return LossTable(_sampled(step.rate, losses), logs)


def _sampled(rate: float, losses: Floats) -> Floats:
    """ln(1 - p + p e^l) at each l."""
    if rate == 1.0:
        return np.asarray(losses, dtype=np.float64)
    near = np.log1p(rate * np.expm1(np.minimum(losses, 1.0)))
    far = np.logaddexp(math.log1p(-rate), math.log(rate) + losses)
    return np.asarray(np.where(losses < 1.0, near, far), dtype=np.float64)


SOURCE = "Balle, Cherubin and Hayes 2022"

#: First grid of orders minus one, number of refinements, and nodes of each.
_FIRST, _ROUNDS, _ZOOM = np.geomspace(1e-4, 1e4, 193), 3, 33


def gammas_rdp(kappas: Sequence[float], phases: Sequence[Steps]) -> list[tuple[float, float]]:
    """(gamma, best order) at each kappa: the minimum over orders a of (kappa e^eps_a)^((a - 1) / a).

    The formula is a bound at every order, so an inexact search only costs tightness. Raises ``ValueError`` if a kappa
    is not in (0, 1].
    """
    first = _divergences(1.0 + _FIRST, phases)
    return [_least(math.log(inside("kappa", kappa, one=True)), phases, first) for kappa in kappas]


def _least(log_kappa: float, phases: Sequence[Steps], first: Floats) -> tuple[float, float]:
    orders, divergences = 1.0 + _FIRST, first
    for _ in range(_ROUNDS + 1):
        values = (1.0 - 1.0 / orders) * (log_kappa + divergences)
        best = int(np.argmin(values))
        value, order = float(values[best]), float(orders[best])
        low, high = orders[max(best - 1, 0)], orders[min(best + 1, len(orders) - 1)]
        orders = 1.0 + np.geomspace(low - 1.0, high - 1.0, _ZOOM)
        divergences = _divergences(orders, phases)
    return min(1.0, math.exp(min(value, 0.0))), order


def _divergences(orders: Floats, phases: Sequence[Steps]) -> Floats:
    """The sum over all steps of the present-first divergences at ``orders``, same shape."""
    total = np.zeros(orders.shape)
    for phase in phases:
        if phase.effect == 0.0:
            continue
        if phase.noise == "gaussian":
            one = sampled_gaussian_rdp(orders, phase.rate, 1.0 / phase.effect, "present-first")
        elif phase.rate == 1.0:
            one = laplace_rdp(orders, phase.effect)
        else:
            one = np.maximum(tabulate_loss(phase).moment(orders), 0.0) / (orders - 1.0)
        total += phase.count * one
    return total
