"""What the paper prints and what does not hold of it: shown beside repaired values, never the ground of a verdict."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dpspec.accounting.checks import inside
from dpspec_modelmix.theory import INTEGER_ORDERS, Segment, epsilon, step_rdp

#: Why Corollary 4.1 as printed is none.
MISSING_T = "the factor T is missing, and with the printed denominator 1 - a the value is below zero"

#: Why Theorem 4.1 as printed does not cover Algorithm 1 as printed.
ZERO_GAP = "sign(0) = 0 leaves a gap of 0 where both models agree: that step has no uniform noise at all"

#: Why the asymptotic theorem gives no number.
ASYMPTOTIC = (
    "constants are hidden, the tail event is bounded for a one-hot gradient although a spread one exceeds it, and T "
    "delta_0 has to be below delta"
)


def corollary_as_printed(segment: Segment, delta: float) -> float:
    """min over integer orders of [ln(sum ...) + ln(1 / delta)] / (1 - a): one step for all of them, and negative."""
    target = -math.log(inside("delta", delta))
    below = np.asarray(INTEGER_ORDERS, dtype=np.float64) - 1.0
    return -float(np.max(step_rdp(INTEGER_ORDERS, segment) + target / below))


def corollary_without_steps(segment: Segment, delta: float) -> float:
    """The same with the denominator's sign repaired and T still missing: one step for all of them."""
    return epsilon([replace(segment, steps=1)], delta).epsilon


class Asymptotic(NamedTuple):
    """Lemma D.1's explicit tail event of one step: Pr[loss >= ``epsilon``] < ``delta``, if ``applies``.

    total: T times ``delta``, to which Theorem 4.2 adds the rest of its delta: vacuous from 1 on.
    """

    epsilon: float
    delta: float
    total: float
    applies: bool

    @property
    def vacuous(self) -> bool:
        """Whether nothing at all follows."""
        return self.total >= 1.0 or not self.applies


def asymptotic(segment: Segment) -> Asymptotic:
    """Lemma D.1 in units of sigma, c = s and tau = t: epsilon_0 = 1 / (t sqrt(2 ln t)), its delta_0, and T delta_0.

    delta_0 = (2 s + 2 sqrt(2 ln(t max(s, 1)))) / t, for t > max(2 ln t + 2 s, e^(3 s), 2). For one coordinate only:
    of 10^4 equal shifts the true probability is larger.
    """
    t, s = segment.gap, segment.effect
    if t <= 1.0:
        return Asymptotic(math.inf, 1.0, float(segment.steps), False)
    epsilon = 1.0 / (t * math.sqrt(2.0 * math.log(t)))
    delta = (2.0 * s + 2.0 * math.sqrt(2.0 * math.log(t * max(s, 1.0)))) / t
    applies = t > max(2.0 * math.log(t) + 2.0 * s, math.exp(min(3.0 * s, 700.0)), 2.0)
    return Asymptotic(epsilon, delta, segment.steps * delta, applies)
