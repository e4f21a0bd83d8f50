"""One epsilon at several sampling rates: how unlike for reconstruction what one (epsilon, delta) calls equal can be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import dpspec.contract as dps
from dpspec_rero.certified import Certified
from dpspec_rero.inverse import least_noise, scaled
from dpspec_rero.steps import Steps

#: How near to the declared epsilon the noise is brought.
_RELATIVE = 1e-4


def rates_series(
    phases: Sequence[Steps], kappas: Sequence[float], rates: Sequence[float], delta: float
) -> dps.Series | None:
    """gamma at every baseline with each of ``rates`` in all phases, and the least noise for the declared epsilon.

    The epsilon is that of ``phases`` at ``delta`` in both directions; None where it is not finite, or zero.
    """
    (epsilon,) = Certified(tuple(phases)).epsilons([delta], "both")
    if not 0.0 < epsilon.upper < math.inf:
        return None
    rows: dict[str, list[dps.Json]] = {name: [] for name in ("rate", "factor", "kappa", "gamma", "gamma-lower")}
    for rate in rates:
        drawn = [replace(phase, rate=rate) for phase in phases]
        found = least_noise(
            drawn, lambda leak: leak.epsilons([delta], "both")[0].upper <= epsilon.upper, relative=_RELATIVE
        )
        leak = Certified(scaled(drawn, found.value))
        for kappa, gamma in zip(kappas, leak.gammas(kappas), strict=True):
            row = (rate, found.value, kappa, gamma.upper, gamma.lower)
            for name, value in zip(rows, row, strict=True):
                rows[name].append(value)
    return dps.Series(
        name="gamma-by-rate",
        title=f"Reconstruction at epsilon {epsilon.upper:.4g}, delta {delta:g}, by sampling rate".replace("e-0", "e-"),
        columns=dps.FrozenMap(rows),
        units=dps.FrozenMap(dict.fromkeys(rows, "")),
        rigor="certified",
        source=Certified(tuple(phases)).source,
        plot=dps.FrozenMap({"x": "kappa", "y": ["gamma"], "by": "rate", "log": ["x", "y"], "identity": True}),
    )
