"""Bounds without a grid for mixtures whose usual step has a loss of millions: part 6 of Theorem 21 of
``docs/explanation/proofs/grids.md``.

Grids of losses have cells of at most 300, so that too many are needed there. Given the draws c_i of T steps, the
composition is a Gaussian pair whose squared effect is the sum of all c_i^2, which varies little for large groups:

>>> from dpspec.accounting.mixture import Mixture
>>> draws = LargeDraws.of([(Mixture.poisson(1_000_000, 0.5, 20.0), 3)])
>>> low, high = draws.log_lower(9.38e8), draws.log_upper(9.48e8)  # ln delta at either epsilon
>>> low > -13.8 > high
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpspec.accounting import gaussian
from dpspec.accounting.grid import Pair
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.numerics import EPS, Floats

#: Grids narrow all answers if half of the draws of each phase have at most this effect.
_LEAST_EFFECT = 1000.0

#: With a larger median effect and more usual components, grids take seconds and narrow no answer.
_BEYOND_GRIDS, _MANY = 3500.0, 512

#: ln of the weight below which components are unusual, and of their total weight at most (2^60 components).
_UNUSUAL, _LOG_UNUSUAL = -800.0, -758.0

#: ln of chances of larger sums of squares, each 1.1 times the last: a bound of delta adds the best one.
_MISSED = -np.geomspace(0.1, 720.0, 96)

#: The number of tilts of Chernoff's bound, and its smallest and its largest tilt in units of the best for normal sums.
_TILTS, _LEAST_TILT, _LARGEST_TILT = 160, 0.125, 2.0

#: Chances that a draw is at least as large as one that all steps reach.
_REACHED = np.concatenate(
    (1.0 - np.logspace(-1.0, -15.0, 29), np.linspace(0.85, 0.1, 16), np.logspace(-1.25, -40.0, 64))
)

#: Chances of smaller sums of draws.
_SHORT = np.array([0.9, 0.7, 0.5, 0.3, 0.1, 1e-3, 1e-6, 1e-12])

#: Relative rounding of sums of squares, and absolute of logarithms of chances.
_SUM, _LOG = 1e-9, 1e-9


@dataclass(frozen=True, eq=False)
class LargeDraws:
    """Gaussian pairs above and below a composition of mixtures, each with a chance.

    Attributes:
        above: effects that the root of the sum of squares exceeds with the chances ``e^missed``, (n,).
        missed: logarithms of these chances.
        below: effects that the composition has with the chances ``e^reached``, (m,): each step's draw is at least a
            quantile, or their sum is large.
        reached: logarithms of these chances.
        is_beyond_grids: whether no grid can narrow the bounds from these.
    """

    above: Floats
    missed: Floats
    below: Floats
    reached: Floats
    is_beyond_grids: bool

    @classmethod
    def of(cls, phases: Sequence[tuple[Pair, int]]) -> LargeDraws | None:
        """None unless all are mixtures, and half of the draws of one have a loss of more than half a million."""
        mixtures = [(pair, steps) for pair, steps in phases if isinstance(pair, Mixture)]
        is_small = max((pair.dominating_effect for pair, _ in phases), default=0.0) <= _LEAST_EFFECT
        if is_small or len(mixtures) < len(phases):
            return None
        medians = [_quantile(pair, np.array([0.5]))[0][0] for pair, _ in mixtures]
        if max(medians, default=0.0) <= _LEAST_EFFECT:
            return None
        steps = sum(count for _, count in mixtures)
        terms, log_unusual = _usual(mixtures)
        above, missed = _squares(terms, log_unusual)
        squares = reached = np.zeros(len(_REACHED))
        for pair, count in mixtures:
            effects, logs = _quantile(pair, _REACHED)
            squares, reached = squares + count * np.square(effects), reached + count * logs
        is_beyond = any(
            median > _BEYOND_GRIDS and int(np.count_nonzero(pair.log_probabilities > _UNUSUAL)) > _MANY
            for median, (pair, _) in zip(medians, mixtures, strict=True)
        )
        is_large = bool(np.all(np.isfinite(above))) and steps < 1 << 53
        projected, chances = _projections(terms, log_unusual)
        below = np.concatenate((np.sqrt(squares) * (1.0 - _SUM), projected))
        reached = np.concatenate((reached - steps * _LOG, chances))
        return cls(above, missed, below, reached, is_beyond) if is_large else None

    def log_upper(self, epsilon: float) -> float:
        """ln of an upper bound of delta(``epsilon``), in both directions."""
        return min(0.0, float(np.min(np.logaddexp(self.missed, gaussian.log_delta_bounds(epsilon, self.above)[1]))))

    def log_lower(self, epsilon: float) -> float:
        """ln of a lower bound of delta(``epsilon``), present-first."""
        shifted = epsilon - self.reached * (1.0 + _LOG)
        return float(np.max(self.reached + gaussian.log_delta_bounds(shifted, self.below)[0]))

    def tests(self, epsilon: float) -> list[tuple[float, float]]:
        """Upper bounds of ln(level) + ``epsilon``, and lower bounds of ln(power), present-first."""
        log_powers = self.reached + gaussian.log_delta_bounds(0.0, self.below)[0]  # of thresholds at half of the effect
        log_levels = -np.square(self.below) / 8.0 * (1.0 - _SUM)
        return list(zip((log_levels + epsilon).tolist(), log_powers.tolist(), strict=True))


def _quantile(pair: Mixture, chances: Floats) -> tuple[Floats, Floats]:
    """The largest effects that a draw reaches with at least these ``chances``, and logarithms of the exact chances."""
    tails = np.logaddexp.accumulate(pair.log_probabilities[::-1])[::-1]
    # tails fall; the last one that is large enough, or 0 with the chance 1
    last = np.searchsorted(-tails, -np.log(chances), "right") - 1
    effects = np.where(last >= 0, pair.ratio.shifts[np.maximum(last, 0)], 0.0)
    return effects, np.where(last >= 0, np.minimum(tails[np.maximum(last, 0)], 0.0), 0.0)


#: For each phase its values, (m,), the logarithms of their weights, (m,), and its steps.
Terms = Sequence[tuple[Floats, Floats, int]]


def _squares(terms: Terms, log_unusual: float) -> tuple[Floats, Floats]:
    """Roots of sums of squares of all effects, and logarithms of the chances of larger ones."""
    squares: Terms = [(np.square(effects), logs, steps) for effects, logs, steps in terms]
    most = math.fsum(steps * float(values[-1]) for values, _, steps in squares)
    limits = np.minimum(_exceeded(squares, _MISSED), most)
    return np.sqrt(limits) * (1.0 + _SUM), np.logaddexp(_MISSED, log_unusual)


def _projections(terms: Terms, log_unusual: float) -> tuple[Floats, Floats]:
    """Effects of the sum of all outputs, weighted by their means, and logarithms of the chances of as large ones."""
    means = [float(np.exp(logs) @ effects) for effects, logs, _ in terms]
    missed = np.log(_SHORT)
    negative: Terms = [
        (-mean * effects, logs, steps) for (effects, logs, steps), mean in zip(terms, means, strict=True)
    ]
    norm = math.sqrt(sum(steps * mean * mean for (_, _, steps), mean in zip(terms, means, strict=True)))
    sums = np.maximum(-_exceeded(negative, missed), 0.0) / norm
    return sums * (1.0 - _SUM), np.log1p(-np.exp(missed) - math.exp(log_unusual)) - _LOG


def _usual(mixtures: Sequence[tuple[Mixture, int]]) -> tuple[Terms, float]:
    """The usual effects of each phase, and ln of the chance that any step has another one."""
    terms = []
    for pair, steps in mixtures:
        usual = pair.log_probabilities > _UNUSUAL
        terms.append((pair.ratio.shifts[usual], pair.log_probabilities[usual], steps))
    return terms, _LOG_UNUSUAL + math.log(sum(steps for _, _, steps in terms))


def _exceeded(terms: Terms, missed: Floats) -> Floats:
    """Numbers that the sum of all steps' values exceeds with chances of at most e^``missed``, by Chernoff's bound."""
    means = [float(np.exp(logs) @ values) for values, logs, _ in terms]
    variance = sum(
        steps * float(np.exp(logs) @ np.square(values - mean))
        for (values, logs, steps), mean in zip(terms, means, strict=True)
    )
    total = math.fsum(steps * mean for (_, _, steps), mean in zip(terms, means, strict=True))
    if not variance > 0.0:
        return np.full(len(missed), math.inf)
    # one table of ln E e^(t (value - mean)) for all chances
    normal = np.sqrt(-2.0 * missed / variance)
    tilts = np.geomspace(_LEAST_TILT * normal.min(), _LARGEST_TILT * normal.max(), _TILTS)
    log_means = np.zeros(len(tilts))
    for (values, logs, steps), mean in zip(terms, means, strict=True):
        for index, tilt in enumerate(tilts.tolist()):
            exponents = logs + tilt * (values - mean)
            top = float(exponents.max())
            log_means[index] += steps * (top + math.log(float(np.exp(exponents - top).sum())))
        rounding = 8.0 * EPS * float(np.abs(values).max())
        log_means += steps * (_LOG + rounding * tilts)
    return np.asarray(total + ((log_means * (1.0 + _LOG) - missed[:, None]) / tilts).min(axis=1))
