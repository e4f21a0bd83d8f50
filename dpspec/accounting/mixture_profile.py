"""One step of a mixture: the closed form of its privacy profile, with its rounding error on both sides.

Any set bounds delta from below by its first mass less e^epsilon times its second. The outcomes of loss over epsilon,
cut off at l(z) = epsilon, attain it, and a cut whose loss is off by w misses at most 2 w times the first mass.
"""

from __future__ import annotations

import math

import numpy as np

from dpspec.accounting.checks import EPS, Direction
from dpspec.accounting.masses import Masses
from dpspec.accounting.ratio import Ratio


def log_delta_bounds(ratio: Ratio, direction: Direction, epsilon: float) -> tuple[float, float]:
    """Lower and upper bound of ln delta(epsilon)."""
    present = direction == "present-first"
    z = ratio.inverse(np.array([epsilon if present else -epsilon]))
    if np.isneginf(z[0]):  # every outcome exceeds epsilon present-first, none absent-first
        exact = math.log(-math.expm1(epsilon)) if present and epsilon < 0.0 else -math.inf
        return exact - 4.0 * EPS, exact + 4.0 * EPS
    far = np.array([np.inf])
    masses = Masses.of(ratio, z, far) if present else Masses.of(ratio, -far, z)
    logs, errors = (masses.group, masses.none), (masses.group_error, masses.none_error)
    first, second = (float(x[0]) for x in (logs if present else logs[::-1]))
    if first == -math.inf:
        return -math.inf, -math.inf
    excess = max(0.0, -math.expm1(min(0.0, epsilon + second - first)))
    miss = abs(float(ratio(z)[0]) - (epsilon if present else -epsilon))
    near = ratio.relevant(z, z)
    noise = EPS * (32.0 + 8.0 * float(np.max(np.abs(near.log_weights) + near.shifts * (abs(z[0]) + near.shifts))))
    error = 2.0 * (float(errors[0][0]) + float(errors[1][0]) + miss + noise)
    error += 4.0 * EPS * (abs(epsilon) + abs(first) + abs(second))
    return first + _log(excess - error), first + _log(excess + error)


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf
