"""One step's privacy loss as a table of values with probabilities: what the approximations are computed from.

L = ln(1 - p + p e^l) with l the log-likelihood ratio of a step that draws the record. Gaussian: l = s z - s^2 / 2, z
standard normal under the null, on an even grid, where sums of smooth functions converge exponentially. Laplace: l lies
in [-s, s] with an atom at either end and the null density e^(-(l + s) / 2) / 4 between, by Gauss and Legendre.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpspec.accounting.checks import Floats
from dpspec_rero.steps import Steps

#: Gaussian: how far the grid reaches in deviations, its step at most, its step times the effect, the most nodes.
_REACH, _STEP, _STEP_EFFECT, _NODES = 14.0, 0.04, 0.2, 1_000_000

#: Laplace: nodes of each panel, and the panels' width at most.
_GAUSS, _PANEL = 24, 0.5


@dataclass(frozen=True, eq=False)
class Table:
    """Losses of one step with the logarithms of their probabilities when the record is absent, shape (n,) each.

    Their probabilities when it is present are e^loss times as large. ``atoms`` says that some of the losses are atoms
    of the law rather than nodes of a density.
    """

    losses: Floats
    log_weights: Floats
    atoms: bool

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
def table(step: Steps) -> Table:
    """The table of one of ``step``'s steps. Raises ``ArithmeticError`` for effects beyond any grid."""
    if step.noise == "gaussian":
        return _gaussian(step)
    return _laplace(step)


def _gaussian(step: Steps) -> Table:
    spacing = min(_STEP, _STEP_EFFECT / max(step.effect, 1e-12))
    count = (2.0 * _REACH + step.effect) / spacing
    if not count < _NODES:
        raise ArithmeticError(f"an effect of {step.effect:g} is too large to be tabulated")
    z = -_REACH + spacing * np.arange(math.ceil(count) + 1)
    logs = np.asarray(-0.5 * np.square(z) + math.log(spacing / math.sqrt(2.0 * math.pi)), dtype=np.float64)
    losses = np.asarray(step.effect * z - 0.5 * step.effect**2, dtype=np.float64)
    return Table(_sampled(step.rate, losses), logs, atoms=False)


def _laplace(step: Steps) -> Table:
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
    return Table(_sampled(step.rate, losses), logs, atoms=True)


def _sampled(rate: float, losses: Floats) -> Floats:
    """ln(1 - p + p e^l) at each l."""
    if rate == 1.0:
        return np.asarray(losses, dtype=np.float64)
    near = np.log1p(rate * np.expm1(np.minimum(losses, 1.0)))
    far = np.logaddexp(math.log1p(-rate), math.log(rate) + losses)
    return np.asarray(np.where(losses < 1.0, near, far), dtype=np.float64)
