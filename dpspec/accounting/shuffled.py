"""Shuffled batches from below: the largest batch sum of an epoch, on data that attains its distributions.

``docs/explanation/proofs/shuffle.md`` has the datasets (Theorems 22 and 23) and the reason why rounding tails towards
each other gives a pair with a smaller privacy profile.
"""

import math

import numpy as np
from scipy.special import log_ndtr

from dpspec.accounting.discrete import Discrete
from dpspec.accounting.numerics import EPS, Floats, bounded_effect, finite, inside, positive, whole
from dpspec.renames import old_arguments

#: Distance of the cells' edges, and their largest distance from the means, in units of sigma.
_STEP, _REACH = 0.02, 37.0

#: Tails are rounded down to 0 below it, or up by as much.
_SMALLEST = 1e-290

#: Less noise counts as this much, which is post-processing: losses of less noise fit on no grid.
_LEAST = 0.05

#: Relative difference of two likelihood ratios that no rounding reverses.
_DISTINCT = 1e-11


@old_arguments("dpspec.accounting.largest_sum_pair")
def largest_sum_pair(
    batches: int, noise_multiplier: float, present: float, absent: float, share: float = 1.0
) -> Discrete:
    """Bound the largest of ``batches`` sums from below: one random sum has noise of mean m, all others of mean 0.

    P[largest > x] = 1 - (1 - share) Phi(x / sigma)^batches - share Phi((x - m) / sigma) Phi(x / sigma)^(batches - 1),
    with m = ``present`` or ``absent``, at the edges of cells. Tails of the larger mean are rounded down, tails of the
    other one up, and cells are merged until the likelihood ratio is monotone. Therefore delta(epsilon) of any number of
    compositions is at most the delta of the sums, in both directions.

    Args:
        batches: number of observed sums, at least 1.
        noise_multiplier: sigma, the noise's standard deviation in clip norms, > 0.
        present: the mean with the record, at least 0.
        absent: the mean without it, at least 0 and another one.
        share: the probability that the random sum is among them, in (0, 1].

    Raises:
        ValueError: an argument is out of range.
    """
    whole("batches", batches, 1)
    positive("noise_multiplier", noise_multiplier)
    inside("share", share, one=True)
    low, high = sorted((finite("present", present), finite("absent", absent)))
    if not 0.0 <= low < high:
        raise ValueError(f"present and absent must be different and at least 0, got {present!r} and {absent!r}")
    noise = max(noise_multiplier, _LEAST)
    means = (0.0, bounded_effect("noise_multiplier", low, noise), bounded_effect("noise_multiplier", high, noise))
    steps = np.arange(-_REACH, _REACH, _STEP)
    edges = np.unique(np.concatenate([mean + steps for mean in means]))
    edges = edges[edges > -_REACH / math.sqrt(batches)]  # the largest of many sums is not smaller
    high_mean_masses, low_mean_masses = _with_increasing_ratios(
        _masses(edges, batches, means[2], share, up=False), _masses(edges, batches, means[1], share, up=True)
    )
    if present > absent:
        return Discrete(high_mean_masses, low_mean_masses)
    return Discrete(low_mean_masses, high_mean_masses)


def _masses(edges: Floats, batches: int, mean: float, share: float, *, up: bool) -> Floats:
    """Masses of the cells (-inf, e_0], (e_0, e_1], ..., whose tails bound the exact ones from above or below."""
    unmoved, unmoved_error = _log_cdf(edges, 0.0)
    moved, moved_error = _log_cdf(edges, mean)
    error = unmoved_error + moved_error + 64.0 * EPS
    with np.errstate(under="ignore"):
        tails = -share * np.expm1(moved + (batches - 1) * unmoved)
        if share < 1.0:
            tails = tails - (1.0 - share) * np.expm1(batches * unmoved)
    if up:
        tails = tails * (1.0 + error) + _SMALLEST
        tails = np.maximum.accumulate(tails[::-1])[::-1]
    else:
        tails = np.minimum.accumulate(tails * np.maximum(0.0, 1.0 - error))
        tails[tails < _SMALLEST] = 0.0
    whole_tails = np.concatenate(([1.0], np.minimum(tails, 1.0), [0.0]))
    return np.asarray(whole_tails[:-1] - whole_tails[1:], dtype=np.float64)


def _log_cdf(edges: Floats, mean: float) -> tuple[Floats, Floats]:
    """ln Phi(edges - mean), and a bound on its relative error."""
    z = edges - mean
    with np.errstate(under="ignore"):
        logs = np.where(z < 0.0, log_ndtr(z), np.log1p(-np.exp(log_ndtr(-np.abs(z)))))
    moved = 4.0 * EPS * (np.abs(edges) + mean)
    error = 8.0 * EPS * (12.0 + z * z) + (np.abs(z) + 2.0) * moved
    # far above the mean a missing tail is below _SMALLEST, and far below it one minus e^log is 1 for any such error
    error[np.abs(z) - moved > _REACH + 1.0] = 0.0
    return np.asarray(logs, dtype=np.float64), np.minimum(error, 1.0)


def _with_increasing_ratios(high_mean_masses: Floats, low_mean_masses: Floats) -> tuple[Floats, Floats]:
    """Merge neighboring cells until the likelihood ratio increases, and drop those without mass.

    Only then are the regions of the best tests monotone in each coordinate, as the proof needs.
    """
    cells: list[tuple[float, float, float]] = []
    for p, q in zip(high_mean_masses.tolist(), low_mean_masses.tolist(), strict=True):
        if p == q == 0.0:
            continue
        ratio = p / q if q > 0.0 else math.inf
        while cells and cells[-1][2] * (1.0 + _DISTINCT) >= ratio:
            p, q = p + cells[-1][0], q + cells[-1][1]
            ratio = p / q if q > 0.0 else math.inf
            cells.pop()
        cells.append((p, q, ratio))
    return np.array([p for p, _, _ in cells]), np.array([q for _, q, _ in cells])
