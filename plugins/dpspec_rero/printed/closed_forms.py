"""Closed forms of the paper: gamma from one epsilon and delta, the central limit, epsilon of Laplace noise.

*Central limit.* Over many steps at small rates the loss is nearly normal, N(-+ m^2 / 2, m^2) with m^2 = sum of N p^2
chi^2, where chi^2 = E_null[(dP/dQ)^2] - 1 of one step that draws the record: e^(s^2) - 1 for Gaussian noise,
(2 e^s + e^(-2s)) / 3 - 1 for Laplace noise. Then gamma is approximately Phi(Phi^-1(kappa) + m) (Kaissis et al. 2023,
Corollary 3; Bu et al. 2020). The approximation is neither an upper nor a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpspec.accounting import GaussianTradeOff, finite, inside
from dpspec_rero.options import Steps
from dpspec_rero.theory import amplified_epsilon

CLT_SOURCE = "Kaissis et al. 2023, Corollary 3 with the exponent of Bu et al. 2020"

#: Reason why the formula of the main text supports no verdict.
CLT_MISPRINT = (
    "the main text prints e^mu where the derivation needs e^(mu^2): at mu = 0.1 three times too large an effect"
)


def gamma_from_epsilon_delta(kappa: float, epsilon: float, delta: float, *, both: bool) -> float:
    """min(1, e^epsilon kappa + delta), for an (epsilon, delta)-DP mechanism (Theorem 1c as printed).

    both: (epsilon, delta) holds in both directions, which also gives 1 - e^-epsilon (1 - delta - kappa): the whole
    trade-off function of (epsilon, delta)-DP. epsilon >= 0, delta in [0, 1). Raises ``ValueError`` naming the argument.
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
    """Phi(Phi^-1(kappa) + m), *approximate*. ``as_printed`` puts e^mu for e^(mu^2), as the paper's main text does.

    The printed form covers only Gaussian noise. An m that overflows gives 1.
    """
    return GaussianTradeOff(min(clt_effect(phases, as_printed=as_printed), 1e300)).rero(kappa)


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
