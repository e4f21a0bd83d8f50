"""The questions backwards: how much noise a wanted gamma takes, and from which prior on gamma reaches a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dpspec.accounting.calibrate import Calibrated, calibrate
from dpspec.accounting.checks import inside
from dpspec_rero.certified import Certified
from dpspec_rero.steps import Steps

#: The range of factors on the noise that are tried.
_LEAST, _MOST = 1e-6, 1e9


def least_noise(phases: Sequence[Steps], holds: Callable[[Certified], bool], *, relative: float = 1e-3) -> Calibrated:
    """The least factor on the noise of all ``phases`` for which ``holds`` is true of what they leak.

    More noise must make ``holds`` true and not false. ``fails_at`` is the largest factor tried at which it does not
    hold. Raises ``dpspec.accounting.calibrate.NeverHoldsError`` where no noise is enough.
    """
    return calibrate(
        lambda factor: holds(Certified(scaled(phases, factor))),
        _LEAST,
        _MOST,
        increasing=True,
        relative=relative,
        start=1.0,
    )


def least_noise_for_gamma(phases: Sequence[Steps], kappa: float, gamma: float, *, relative: float = 1e-3) -> Calibrated:
    """The least factor on the noise with gamma(``kappa``) <= ``gamma``, certified at the value that is returned.

    Raises ``ValueError`` unless 0 < kappa < gamma < 1: no noise brings gamma below kappa.
    """
    level, wanted = inside("kappa", kappa), inside("gamma", gamma)
    if wanted <= level:
        raise ValueError(f"gamma must be above kappa, which guessing reaches: {wanted!r} at kappa {level!r}")
    return least_noise(phases, lambda leak: leak.gammas([level])[0].upper <= wanted, relative=relative)


def scaled(phases: Sequence[Steps], factor: float) -> tuple[Steps, ...]:
    """The same steps with ``factor`` times the noise."""
    return tuple(replace(phase, effect=phase.effect / factor) for phase in phases)
