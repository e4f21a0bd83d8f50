"""Reconstruction bounds in closed form: how likely a reconstruction is, from how likely a good guess is.

The adversary knows all records but one, guesses that one with probability kappa before it sees the release and with
probability at most gamma(kappa) afterwards. gamma is the power of the best test of "the record is absent" (null)
against "it is present" at level kappa (Kaissis et al. 2023, Theorem 1): of the present-first trade-off curve f,

    gamma(kappa) = 1 - f(kappa) = min over real epsilon of delta(epsilon) + e^epsilon kappa.

The absent-first curve answers another question; for sampled mechanisms it gives a smaller, false value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dpspec.accounting.checks import finite, inside
from dpspec.accounting.tradeoff import Gaussian, Laplace, TradeOff
from dpspec_rero.steps import Steps, noisy, revealed

THEOREM = "Kaissis et al. 2023, Theorem 1"

#: Where the closed forms stand.
SOURCES = {
    "laplace": "Kaissis et al. 2023, Corollary 1",
    "gaussian": "Kaissis et al. 2023, Corollary 2",
    "sampled once": f"{THEOREM}; the curve of one sampled step is (1 - p) Id + p f",
}


def gamma_of_curve(curve: TradeOff, kappa: float) -> float:
    """1 - f(kappa), for a mechanism that is f-DP (Theorem 1b): ``curve`` is its present-first trade-off function."""
    return curve.rero(kappa)


def gamma_of_epsilon_delta(kappa: float, epsilon: float, delta: float, *, both: bool) -> float:
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


def gamma_gaussian(kappa: float, effects: Sequence[float]) -> float:
    """Phi(Phi^-1(kappa) + sqrt(sum of squared effects)): Gaussian steps on all records (Corollary 2)."""
    return Gaussian(math.hypot(*effects)).rero(kappa)


def gamma_laplace(kappa: float, effect: float) -> float:
    """e^s kappa; 1 - e^-s / (4 kappa); 1 - e^-s (1 - kappa): one Laplace step on all records (Corollary 1)."""
    return Laplace(effect).rero(kappa)


def gamma_sampled_once(kappa: float, rate: float, gamma: float) -> float:
    """(1 - p) kappa + p gamma: one step on a Poisson sample at rate p, from the step's gamma on all records.

    The output law with the record is a mixture of the one without it and of that of the step which draws it. The paper
    calls this unavailable in closed form.
    """
    return (1.0 - rate) * inside("kappa", kappa, one=True) + inside("rate", rate, one=True) * gamma


def closed_form(phases: Sequence[Steps]) -> tuple[Callable[[float], float], str] | None:
    """gamma as a function of kappa and its name in ``SOURCES``; None for mechanisms that have no closed form.

    Only for phases that add noise; see ``with_revealed`` for others.
    """
    moving = [phase for phase in phases if phase.effect > 0.0]
    if all(phase.noise == "gaussian" and phase.rate == 1.0 for phase in moving):
        effects = [phase.effect * math.sqrt(phase.count) for phase in moving]
        return (lambda kappa: gamma_gaussian(kappa, effects)), "gaussian"
    if len(moving) != 1 or moving[0].count != 1:
        return None
    (step,) = moving
    curve: TradeOff = Gaussian(step.effect) if step.noise == "gaussian" else Laplace(step.effect)
    if step.rate == 1.0:
        return curve.rero, "laplace"
    return (lambda kappa: gamma_sampled_once(kappa, step.rate, curve.rero(kappa))), "sampled once"


def with_revealed(gamma: float, seen: float) -> float:
    """1 - (1 - seen)(1 - gamma): ``gamma`` of the noisy phases where the record is also shown plainly at times.

    seen: the probability that the record enters a step without noise, from ``revealed``.
    """
    return gamma + seen * (1.0 - gamma)


def pure_epsilon(phases: Sequence[Steps]) -> float:
    """The sum of ln(1 + p (e^s - 1)): epsilon at delta 0 of Laplace steps sampled afresh; infinite with other noise."""
    if revealed(phases) > 0.0 or any(phase.noise != "laplace" and phase.effect > 0.0 for phase in phases):
        return math.inf
    return math.fsum(phase.count * _sampled_epsilon(phase.rate, phase.effect) for phase in noisy(phases))


def printed_pure_epsilon(phases: Sequence[Steps]) -> float:
    """ln(1 + p (e^(N s) - 1)) as printed, of one phase: N steps as if sampled once. A bound, and a very loose one."""
    (phase,) = phases
    if phase.noise != "laplace" or phase.effect == math.inf:
        return math.inf
    return _sampled_epsilon(phase.rate, phase.count * phase.effect)


def _sampled_epsilon(rate: float, epsilon: float) -> float:
    """ln(1 + p (e^epsilon - 1)), for any epsilon >= 0."""
    if epsilon < 30.0:
        return math.log1p(rate * math.expm1(epsilon))
    return epsilon + math.log(rate + (1.0 - rate) * math.exp(-epsilon))
