"""What torch's float32 noise reveals with certainty: a lower bound on delta at every finite epsilon.

torch's CPU generator makes pairs of normal numbers by the Box-Muller transform of uniform numbers of 24 bits. No pair
is longer than sqrt(48 ln 2) = 5.768 standard deviations, so a longer difference of a released pair and the sum of the
other records shows a record with certainty. ``docs/explanation/proofs/floating-point.md``, Theorem F1, has the proof,
and Theorem F2 the low-order bits, which reveal more.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpspec.accounting.numerics import positive, whole

#: Bits of a uniform number of torch's CPU generator in float32, and the length of the longest pair.
UNIFORM_BITS = 24
LONGEST_PAIR = math.sqrt(2.0 * UNIFORM_BITS * math.log(2.0))

#: The numbers of a tensor below which torch draws in float64.
SMALLEST_TENSOR = 16

#: Relative error of a pair's length in float32: of logarithm, root, sine, cosine and products, and of the sum.
_ROUNDING = 1e-5

#: The same of a single number.
_OF_A_NUMBER = 1e-6

#: Relative charge for the float64 evaluation of a probability.
_EVALUATION = 1e-6

#: The number of longest pairs that the bound sums one by one, and of blocks of the others, which count as the shortest.
_SINGLE, _BLOCKS = 2**16, 2**13

#: The number of noise multipliers of a schedule that are evaluated one by one: each takes 0.1 seconds.
_MULTIPLIERS = 16


@dataclass(frozen=True)
class FloatFloor:
    """A probability with which a record shows with certainty, and the number of pairs of its worst gradient.

    Attributes:
        delta: Lower bound on delta at every finite epsilon.
        pairs: Number of pairs over which the gradient is spread; the adversary must resolve 1 / sqrt(pairs) clip norms.
    """

    delta: float
    pairs: int


def revealed_by_float32(noise_multiplier: float, values: int, *, rate: float = 1.0, steps: int = 1) -> FloatFloor:
    """Lower bound on delta, at every finite epsilon, of noise that torch's CPU generator draws in float32.

    The record enters each of ``steps`` independently with probability ``rate``; its gradient of one clip norm has equal
    parts in the first numbers of n pairs, n a power of 2. The larger dataset shows itself with the returned probability
    by an output that is impossible without the record.

    Args:
        noise_multiplier: Standard deviation of the noise in clip norms.
        values: Numbers of noise that are drawn in one tensor; below 16 torch draws in float64, and the bound is 0.
        rate: Probability in (0, 1] with which the record enters a step.
        steps: Number of steps with fresh noise.
    """
    sigma, count = positive("noise_multiplier", noise_multiplier), whole("values", values, 1)
    if not 0.0 < rate <= 1.0:
        raise ValueError(f"rate must be in (0, 1], got {rate!r}")
    whole("steps", steps, 1)
    delta = revealed_by_schedule([(sigma, rate, steps)], count)
    return FloatFloor(delta, _in_one_step(sigma, count).pairs)


def revealed_by_schedule(schedule: Iterable[tuple[float, float, int]], values: int) -> float:
    """:func:`revealed_by_float32` of consecutive steps with fresh noise and independent batches.

    Args:
        schedule: Noise multiplier in clip norms, rate, and number of steps. Of many different multipliers, neighboring
            ones count as their largest, which reveals least.
        values: As for :func:`revealed_by_float32`.
    """
    by_rate = Counter[tuple[float, float]]()
    for noise_multiplier, rate, steps in schedule:
        by_rate[noise_multiplier, rate] += steps
    multipliers = sorted({sigma for sigma, _ in by_rate})
    size = max(1, math.ceil(len(multipliers) / _MULTIPLIERS))
    groups = [multipliers[start : start + size] for start in range(0, len(multipliers), size)]
    floors = {sigma: _in_one_step(group[-1], values).delta for group in groups for sigma in group}
    # a floor is below 1, so that no logarithm is infinite
    hidden = (steps * math.log1p(-rate * floors[sigma]) for (sigma, rate), steps in by_rate.items())
    return -math.expm1(math.fsum(hidden)) * (1.0 - _EVALUATION)


@lru_cache(maxsize=1024)
def _in_one_step(sigma: float, values: int) -> FloatFloor:
    """The floor of a step that each record enters, for the worst number of pairs, which is so at each rate."""
    worst, pairs = FloatFloor(0.0, 1), 1
    while pairs <= 8 * (values // SMALLEST_TENSOR):
        of_pair = beyond_the_longest(1.0 / (sigma * math.sqrt(pairs)))
        delta = -math.expm1(pairs * math.log1p(-of_pair)) * (1.0 - _EVALUATION)
        worst = max(worst, FloatFloor(delta, pairs), key=lambda floor: floor.delta)
        pairs *= 2
    return worst


def beyond_the_longest(shift: float) -> float:
    """Lower bound on the probability that a pair is longer than the longest one after its first number has moved.

    The lengths r_k = sqrt(-2 ln(k / 2^24)), k = 1, ..., 2^24, and 2^24 equidistant angles are independent and uniform.
    A pair of length r ends beyond R if the cosine of its angle exceeds (R^2 - r^2 - shift^2) / (2 r shift).

    Args:
        shift: In standard deviations of the noise, > 0.
    """
    longest = LONGEST_PAIR * (1.0 + 2.0 * _ROUNDING)
    # Up to the longest length, a longer pair is beyond it for more angles, and the share rises with the shift.
    shift = min(shift * (1.0 - _ROUNDING), LONGEST_PAIR)
    blocks = np.geomspace(_SINGLE, 2.0**UNIFORM_BITS, _BLOCKS).round()
    ends = np.concatenate([np.arange(1.0, _SINGLE), np.unique(blocks)])
    counts = np.diff(ends, prepend=0.0)
    squares = 2.0 * (UNIFORM_BITS * math.log(2.0) - np.log(ends[:-1]))  # the last length is 0
    lengths = np.sqrt(squares) * (1.0 - _ROUNDING)
    least_cosine = (longest**2 - lengths**2 - shift**2) / (2.0 * lengths * shift)
    angles = np.arccos(np.clip(least_cosine, -1.0, 1.0)) / math.pi
    # An arc has at least its share of the 2^24 angles, except for one at each of two ends.
    shares = np.maximum(0.0, angles - 2.0 * 2.0**-UNIFORM_BITS)
    return float(shares @ counts[:-1]) * 2.0**-UNIFORM_BITS * (1.0 - _EVALUATION)


def exceeded_by_float32(value: float) -> float:
    """Probability that a number of torch's CPU generator in float32 exceeds ``value``, at least 4, in absolute value.

    A number is r cos t with the lengths r and angles t of :func:`beyond_the_longest`, and a relative rounding error of
    at most 1e-6, so that this is a lower bound. 0 from the longest pair on.
    """
    value *= 1.0 + _OF_A_NUMBER
    count = math.ceil(2.0**UNIFORM_BITS * math.exp(-0.5 * value * value))
    lengths = np.sqrt(2.0 * (UNIFORM_BITS * math.log(2.0) - np.log(np.arange(1.0, count + 1.0))))
    longer = lengths[lengths > value]
    return float(np.arccos(value / longer).sum()) * 2.0 / math.pi * 2.0**-UNIFORM_BITS
