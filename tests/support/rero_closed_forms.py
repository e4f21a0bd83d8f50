"""gamma in closed form, where there is one: an oracle for certified intervals, and no part of the product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dpspec.accounting import GaussianTradeOff, LaplaceTradeOff, TradeOff
from dpspec_rero.options import Steps


def closed_form(phases: Sequence[Steps]) -> Callable[[float], float] | None:
    """gamma as a function of kappa; None for mechanisms that have no closed form. Every phase adds noise.

    Gaussian steps on all records: Phi(Phi^-1(kappa) + sqrt(sum of squared effects)) (Kaissis et al. 2023, Corollary 2).
    One Laplace step on all records: Corollary 1. One step on a Poisson sample at rate p: (1 - p) kappa + p gamma, for
    the output law with the record is a mixture of the one without it and of that of the step which draws it.
    """
    moving = [phase for phase in phases if phase.effect > 0.0]
    if all(phase.noise == "gaussian" and phase.rate == 1.0 for phase in moving):
        return GaussianTradeOff(math.hypot(*(phase.effect * math.sqrt(phase.count) for phase in moving))).rero
    if len(moving) != 1 or moving[0].count != 1:
        return None
    (step,) = moving
    curve: TradeOff = GaussianTradeOff(step.effect) if step.noise == "gaussian" else LaplaceTradeOff(step.effect)
    return lambda kappa: (1.0 - step.rate) * kappa + step.rate * curve.rero(kappa)
