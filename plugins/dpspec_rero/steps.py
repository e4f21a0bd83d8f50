"""The declared mechanism as theory sees it: per phase the kind of noise, effect size, sampling rate and steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dpspec.contract import FrozenMap

Noise: TypeAlias = Literal["gaussian", "laplace"]

#: With effects above this the noise hides nothing that a float could tell from no noise at all.
NO_NOISE = 1e100


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Equal steps: ``count`` times a query of one effect size, each time on a Poisson sample.

    effect: sensitivity over scale, >= 0; infinite without noise. Gaussian: l2 sensitivity over standard deviation;
        Laplace: l1 sensitivity over the scale b.
    rate: the probability with which the record enters a step, in (0, 1].
    """

    noise: Noise
    effect: float
    rate: float
    count: int


def declared(phases: Sequence[FrozenMap]) -> tuple[Steps, ...]:
    """The steps of every phase, in order."""
    return tuple(_steps(phase) for phase in phases)


def revealed(phases: Sequence[Steps]) -> float:
    """The probability that the record enters some step that adds no noise: whoever looks there sees it plainly."""
    log_hidden = sum(_log_missed(phase) for phase in phases if phase.effect > NO_NOISE)
    return -math.expm1(log_hidden)


def noisy(phases: Sequence[Steps]) -> tuple[Steps, ...]:
    """The phases that add noise."""
    return tuple(phase for phase in phases if phase.effect <= NO_NOISE)


def _log_missed(phase: Steps) -> float:
    return phase.count * math.log1p(-phase.rate) if phase.rate < 1.0 else -math.inf


def _steps(phase: FrozenMap) -> Steps:
    if "noise_multiplier" in phase:
        size, sensitivity = float(phase["noise_multiplier"]), 1.0
    else:
        size, sensitivity = float(phase["scale"]), float(next(iter(phase["sensitivity"].values())))
    sampling = phase["sampling"]
    return Steps(
        noise=phase.get("noise", "gaussian"),
        effect=sensitivity / size if size > 0.0 else math.inf,
        rate=float(sampling["rate"]) if sampling["scheme"] == "poisson" else 1.0,
        count=int(phase["steps"]),
    )
