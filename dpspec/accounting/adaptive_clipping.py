"""Adaptive clipping: gradients and a noisy count of unclipped records as one Gaussian release.

Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", Theorem 1; Theorems 54 and 55 of
``docs/explanation/proofs/adaptive-clipping.md`` have the proofs and the limits.
"""

import math

import numpy as np

from dpspec.accounting.densities import log_binomial
from dpspec.accounting.double_mixture import SymmetricMixture
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.numerics import bounded_effect, inside, positive, whole

#: Relative rounding error of a square root of two squares.
_ROUNDING = 4e-15


def joint_noise_multiplier(noise_multiplier: float, count_std: float, *, centered: bool = True) -> float:
    """The noise multiplier that costs as much as noisy gradients and a noisy count together, rounded down.

    sigma^-2 = noise_multiplier^-2 + (c / count_std)^2, with c = 1/2 for a sum of 1/2 per unclipped and -1/2 per clipped
    record, and c = 1 for a plain number of unclipped records. A division of the count by a public number is free.

    Args:
        noise_multiplier: standard deviation of the noise on the sum of gradients, in clip norms, > 0.
        count_std: standard deviation of the noise on the count, in records, > 0.
        centered: whether the count is centered.

    Raises:
        ValueError: an argument is out of range.
    """
    moved = bounded_effect("noise_multiplier", 1.0, positive("noise_multiplier", noise_multiplier))
    counted = bounded_effect("count_std", 0.5 if centered else 1.0, positive("count_std", count_std))
    return 1.0 / math.hypot(moved, counted) * (1.0 - _ROUNDING)


def gradient_noise_multiplier(joint: float, count_std: float) -> float:
    """The noise multiplier for gradients that costs ``joint`` together with a centered count, rounded up.

    Args:
        joint: the noise multiplier to account, > 0.
        count_std: standard deviation of the noise on the count, in records, above half of ``joint``.

    Raises:
        ValueError: the count alone costs as much, or an argument is out of range.
    """
    total, share = positive("joint", joint), 0.5 * bounded_effect("count_std", joint, positive("count_std", count_std))
    if share >= 1.0:
        raise ValueError(f"count_std must be above joint / 2 = {0.5 * joint!r}, got {count_std!r}")
    return total / math.sqrt((1.0 - share) * (1.0 + share)) * (1.0 + _ROUNDING / (1.0 - share))


def real_divisor_pair(
    rate: float, noise_multiplier: float, count_std: float, group_size: int = 1, *, replaced: bool = False
) -> SymmetricMixture:
    """A pair that dominates a Poisson step whose noisy count is divided by the real batch size (Theorem 55).

    For zero-out adjacency, or with ``replaced`` for replace-one; nothing is known for add-remove. The drawn records
    count as revealed: with j members drawn the step is Gaussian with effect j sqrt(s^2 / noise_multiplier^2 + 1 /
    count_std^2), s = 1 or 2.

    Args:
        rate: the Poisson sampling rate, in (0, 1].
        noise_multiplier: standard deviation of the noise on the sum of gradients, in clip norms, > 0.
        count_std: standard deviation of the noise on the count, in records, > 0.
        group_size: the largest number of null or replaced records.
        replaced: whether records are replaced by other records.

    Raises:
        ValueError: an argument is out of range.
    """
    size, q = whole("group_size", group_size, 1), inside("rate", rate, one=True)
    moved = bounded_effect("noise_multiplier", 2.0 if replaced else 1.0, positive("noise_multiplier", noise_multiplier))
    joint = math.hypot(moved, bounded_effect("count_std", 1.0, positive("count_std", count_std))) * (1.0 + _ROUNDING)
    weights = [0.0] * size + [1.0] if q == 1.0 else np.exp(log_binomial(size, q)).tolist()
    cases = [(min(1.0, weight), Mixture([j * joint], [1.0], 1.0)) for j, weight in enumerate(weights)]
    return SymmetricMixture(*(case for case in cases[1:] if case[0] > 0.0))
