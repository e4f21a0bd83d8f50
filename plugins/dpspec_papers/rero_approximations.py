"""Approximations of gamma and looser bounds without verdicts (``docs/explanation/proofs/reconstruction.md``)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial.hermite_e import hermeval
from scipy.special import ndtr, ndtri

from dpspec.accounting import (
    Floats,
    GaussianTradeOff,
    bisect,
    finite,
    inside,
    laplace_rdp,
    sampled_gaussian_rdp,
    smallest,
    whole,
)
from dpspec_rero.options import Steps
from dpspec_rero.theory import amplified_epsilon

CLT_SOURCE = "Kaissis et al. 2023, Corollary 3 with the exponent of Bu et al. 2020"

#: Reason why the formula of the main text supports no verdict.
CLT_MISPRINT = (
    "the main text prints e^mu where the derivation needs e^(mu^2): at mu = 0.1 three times too large an effect"
)


def gamma_from_epsilon_delta(kappa: float, epsilon: float, delta: float, *, both: bool) -> float:
    """min(1, e^epsilon kappa + delta), for an (epsilon, delta)-DP mechanism (Theorem 1c as printed).

    ``both`` directions also give 1 - e^-epsilon (1 - delta - kappa), the whole trade-off function.
    """
    level = inside("kappa", kappa, one=True)
    if epsilon < 0.0 or math.isnan(epsilon):
        raise ValueError(f"epsilon must not be negative, got {epsilon!r}")
    if not 0.0 <= finite("delta", delta) < 1.0:
        raise ValueError(f"delta must be at least 0 and below 1, got {delta!r}")
    grown = epsilon + math.log(level)
    value = math.exp(grown) + delta if grown < 1.0 else math.inf
    if both:
        value = min(value, 1.0 - math.exp(-epsilon) * (1.0 - delta - level))
    return min(1.0, value)


def gamma_clt(kappa: float, phases: Sequence[Steps], *, as_printed: bool = False) -> float:
    """Phi(Phi^-1(kappa) + m); ``as_printed`` (Gaussian noise only): e^mu for e^(mu^2), as in the paper's main text."""
    effect = min(clt_effect(phases, as_printed=as_printed), 1e300)
    return float(GaussianTradeOff(effect).tpr(inside("kappa", kappa, one=True)))


def clt_effect(phases: Sequence[Steps], *, as_printed: bool = False) -> float:
    """m, the effect size of the normal limit; infinite if it overflows."""
    return math.sqrt(math.fsum(phase.count * phase.rate**2 * _chi_squared(phase, as_printed) for phase in phases))


def printed_pure_epsilon(phases: Sequence[Steps]) -> float:
    """ln(1 + p (e^(N s) - 1)) as printed, of one phase: N steps as if sampled once. A bound, and a very loose one."""
    (phase,) = phases
    if phase.noise != "laplace" or phase.effect == math.inf:
        return math.inf
    return amplified_epsilon(phase.rate, phase.count * phase.effect)


def _chi_squared(phase: Steps, as_printed: bool) -> float:
    s = phase.effect
    if phase.noise == "gaussian":
        return _expm1(s if as_printed else s * s)
    if as_printed:
        raise ValueError("the paper prints no central-limit form for Laplace noise")
    return (2.0 * _expm1(s) + math.expm1(-2.0 * s)) / 3.0


def _expm1(x: float) -> float:
    return math.expm1(x) if x < 700.0 else math.inf


#: Gaussian: half-width of the grid in standard deviations, maximum step, maximum step times effect, maximum nodes.
_TABLE_REACH, _STEP, _STEP_EFFECT, _TABLE_NODES = 14.0, 0.04, 0.2, 1_000_000

#: Laplace: nodes per panel, and maximum width of a panel.
_GAUSS, _PANEL = 24, 0.5


@dataclass(frozen=True, eq=False)
class LossTable:
    """Losses of one step and their log-probabilities if the record is absent, shape (n,) each.

    The probabilities if the record is present are e^loss times as large.
    """

    losses: Floats
    log_weights: Floats

    def moment(self, powers: Iterable[float]) -> Floats:
        """ln of the mean of e^(a loss) when the record is absent, at real ``powers`` a, shape (n,)."""
        return np.array([float(np.logaddexp.reduce(self.log_weights + a * self.losses)) for a in powers])

    def weights(self, power: float) -> Floats:
        """Probabilities under the null tilted by e^(power loss), summing to one: power 1 is the alternative."""
        logs = self.log_weights + power * self.losses
        weights = np.exp(logs - logs.max())
        return np.asarray(weights / weights.sum(), dtype=np.float64)


@lru_cache(maxsize=32)
def tabulate_loss(step: Steps) -> LossTable:
    return _gaussian(step) if step.noise == "gaussian" else _laplace(step)


def _gaussian(step: Steps) -> LossTable:
    spacing = min(_STEP, _STEP_EFFECT / max(step.effect, 1e-12))
    count = (2.0 * _TABLE_REACH + step.effect) / spacing
    if not count < _TABLE_NODES:
        raise ArithmeticError(f"an effect of {step.effect:g} is too large to be tabulated")
    z = -_TABLE_REACH + spacing * np.arange(math.ceil(count) + 1)
    logs = np.asarray(-0.5 * np.square(z) + math.log(spacing / math.sqrt(2.0 * math.pi)), dtype=np.float64)
    losses = np.asarray(step.effect * z - 0.5 * step.effect**2, dtype=np.float64)
    return LossTable(_sampled(step.rate, losses), logs)


def _laplace(step: Steps) -> LossTable:
    s = step.effect
    panels = max(1, math.ceil(2.0 * s / _PANEL))
    if panels * _GAUSS > _TABLE_NODES:
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
    by_expm1 = np.log1p(rate * np.expm1(np.minimum(losses, 1.0)))
    by_logaddexp = np.logaddexp(math.log1p(-rate), math.log(rate) + losses)
    return np.asarray(np.where(losses < 1.0, by_expm1, by_logaddexp), dtype=np.float64)


RDP_SOURCE = "Balle, Cherubin and Hayes 2022"

#: The first grid of orders minus one, and how precisely ln of the best one is searched between its nodes.
_FIRST, _ORDER_TOLERANCE = np.geomspace(1e-4, 1e4, 193), 5e-4


def gammas_rdp(kappas: Sequence[float], phases: Sequence[Steps]) -> list[float]:
    """gamma at each kappa: the minimum over orders a of (kappa e^eps_a)^((a - 1) / a).

    The formula is a bound at every order, so an inexact search only costs tightness.
    """
    first, bounds = _divergences(1.0 + _FIRST, phases), []
    for kappa in kappas:
        log_kappa = math.log(inside("kappa", kappa, one=True))
        values = _FIRST / (1.0 + _FIRST) * (log_kappa + first)
        best = int(np.argmin(values))
        low, high = _FIRST[max(best - 1, 0)], _FIRST[min(best + 1, len(_FIRST) - 1)]

        def log_gammas(log_excess: Floats, log_kappa: float = log_kappa) -> Floats:
            orders = 1.0 + np.exp(log_excess)
            return (1.0 - 1.0 / orders) * (log_kappa + _divergences(orders, phases))

        searched = smallest(log_gammas, math.log(low), math.log(high), within=_ORDER_TOLERANCE)
        bounds.append(math.exp(min(float(values[best]), searched, 0.0)))
    return bounds


def _divergences(orders: Floats, phases: Sequence[Steps]) -> Floats:
    total = np.zeros(orders.shape)
    for phase in phases:
        if phase.effect == 0.0:
            continue
        if phase.noise == "gaussian":
            step_divergences = _gaussian_divergences(tuple(orders.tolist()), phase.rate, phase.effect)
        elif phase.rate == 1.0:
            step_divergences = laplace_rdp(orders, phase.effect)
        else:
            step_divergences = np.maximum(tabulate_loss(phase).moment(orders), 0.0) / (orders - 1.0)
        total += phase.count * step_divergences
    return total


@lru_cache(maxsize=256)  # groups, phases and later runs of a spec share steps
def _gaussian_divergences(orders: tuple[float, ...], rate: float, effect: float) -> Floats:
    return sampled_gaussian_rdp(np.array(orders), rate, 1.0 / effect, "present-first")


EDGEWORTH_SOURCE = "Kaissis et al. 2023, Corollary 3"

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
        density = np.exp(-0.5 * np.square(z)) / math.sqrt(2.0 * math.pi)
        return np.asarray(ndtr(-z) + density * hermeval(z, coefficients), dtype=np.float64)


def gammas_edgeworth(kappas: Sequence[float], phases: Sequence[Steps], order: int = ORDER) -> list[float | None]:
    """gamma at each kappa; None if the series has no root near the normal quantile or leaves [kappa, 1]."""
    if whole("order", order, 0) > ORDER:
        raise ValueError(f"order must be at most {ORDER}, got {order}")
    levels = [inside("kappa", kappa, one=True) for kappa in kappas]
    moving = [phase for phase in phases if phase.effect > 0.0]
    if not moving:
        return list(levels)
    null, alternative = series(moving, 0.0, order), series(moving, 1.0, order)
    gammas: list[float | None] = []
    for level in levels:
        c = threshold(level, null) if level < 1.0 else None
        if c is None:
            gammas.append(1.0 if level == 1.0 else None)
            continue
        value = float(alternative.tail(np.asarray((c - alternative.mean) / alternative.deviation)))
        gammas.append(value if level <= value <= 1.0 else None)
    return gammas


def threshold(kappa: float, null: Series) -> float | None:
    """The loss c with P[L > c] = ``kappa`` by the series: the root nearest the normal quantile, or None."""
    quantile = float(-ndtri(kappa))
    z = quantile + np.arange(-_REACH, _REACH + _SPACING, _SPACING)
    above = null.tail(z) - kappa
    changes = np.flatnonzero(np.signbit(above[:-1]) != np.signbit(above[1:]))
    if not len(changes):
        return None
    nearest = int(changes[np.argmin(np.abs(z[changes] - quantile))])
    rising, ends = above[nearest] < 0.0, (float(z[nearest]), float(z[nearest + 1]))
    low, _ = bisect(lambda middle: (float(null.tail(np.asarray(middle))) < kappa) == rising, *ends)
    return null.mean + null.deviation * low


def series(phases: Sequence[Steps], power: float, order: int) -> Series:
    totals = np.zeros(6)
    for phase in phases:
        totals += phase.count * _cumulants(phase, power)
    if not totals[1] > 0.0:
        raise ArithmeticError("the variance of the privacy loss underflows")
    deviation = math.sqrt(totals[1])
    rho = tuple(float(totals[r] / deviation ** (r + 1)) for r in range(2, 6))
    return Series(float(totals[0]), deviation, rho, order)  # type: ignore[arg-type]


def _cumulants(phase: Steps, power: float) -> Floats:
    """K_1 .. K_6 of one step's loss, from standardised central moments."""
    losses, weights = tabulate_loss(phase).losses, tabulate_loss(phase).weights(power)
    mean = float(weights @ losses)
    deviation = math.sqrt(float(weights @ np.square(losses - mean)))
    if deviation == 0.0:
        return np.array([mean, 0.0, 0.0, 0.0, 0.0, 0.0])
    x = (losses - mean) / deviation
    m3, m4, m5, m6 = (float(weights @ x**r) for r in (3, 4, 5, 6))
    standard = (m3, m4 - 3.0, m5 - 10.0 * m3, m6 - 15.0 * m4 - 10.0 * m3**2 + 30.0)
    scaled = (value * deviation**r for r, value in zip((3, 4, 5, 6), standard, strict=True))
    return np.array([mean, deviation**2, *scaled])
