"""The Gaussian noise that dominates discrete Gaussian noise of a training: ``proofs/floating-point.md``, Theorem F3."""

import math

from dpspec.accounting.numerics import positive

#: Standard deviation of the noise in spacings of its grid.
DISCRETE_SCALE = 2**20

#: Variance, in squared spacings, that the Gaussian lacks; the factors of probabilities are then within 1e-136 of 1.
_SMOOTH = 16.0

#: Relative charge for the rounding of this file and for these factors.
_ROUNDING = 1e-13


def dominating_noise_multiplier(noise_multiplier: float) -> float:
    """Noise multiplier of the Gaussian mechanism that dominates the discrete one of ``noise_multiplier``.

    Contributions are integer vectors of a norm of at most ``DISCRETE_SCALE`` / noise_multiplier, and the noise of each
    coordinate has the parameter ``DISCRETE_SCALE``.

    >>> 1.0 - 1e-11 < dominating_noise_multiplier(1.0) < 1.0
    True
    """
    sigma = positive("noise_multiplier", noise_multiplier)
    return sigma * math.sqrt(1.0 - _SMOOTH / DISCRETE_SCALE**2) * (1.0 - _ROUNDING)
