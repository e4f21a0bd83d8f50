"""Black-box conversions of single-record guarantees to groups, as baselines of the table of epsilon by group size.

A mechanism that is (e, delta_1(e))-DP for one record is (k e, s_k(e) delta_1(e))-DP for groups of k (Vadhan 2017, Lemma
2.2), with either of two factors:

    literal   s_k(e) = k e^(k e)
    sharp     s_k(e) = 1 + e^e + ... + e^((k - 1) e) = (e^(k e) - 1) / (e^e - 1), the sum in the proof

A conversion finds the smallest e at which s_k(e) delta_1(e) is at most the target delta. The necessary delta_1 can be
below 1e-700, so profiles are functions from epsilon to ln delta_1, *approximate*, by a contour integral. With M(s) the
product over phases of E_P[e^(s L)]^steps, L the loss of one step, and any tilt s > 0,

    delta(epsilon) = (1/pi) integral over u > 0 of Re[M(s + iu) e^(-(s + iu) epsilon) / ((s + iu) (s + iu + 1))] du.

The trapezoid rule converges exponentially, in u and over outputs. About eleven digits; errors are not bounded.
``ArithmeticError`` reports an integrand that does not decay or cancels, as for few steps.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from dpspec.accounting import DIRECTIONS, Direction, Floats, Mixture, Pair, PrivacyLoss

#: ln delta_1 as a decreasing function of epsilon >= 0; -inf if delta_1 is 0.
Profile: TypeAlias = Callable[[float], float]

#: The factor s_k: as printed, or as in its proof.
Factor: TypeAlias = Literal["literal", "sharp"]

#: Single-record epsilons above this are not searched.
CAP = 20_000.0

#: Relative precision of an answer.
_DIGITS = 1e-12

#: Grid of outputs: reach in units of sigma, maximum step, maximum step times largest shift, maximum size.
_REACH, _STEP, _STEP_SHIFT, _OUTPUTS = 13.0, 0.08, 1.0 / 16.0, 200_000

#: Nodes in u: per batch, in total, and relative size of the last node that ends the sum.
_BATCH, _NODES, _LAST = 256, 1 << 13, 1e-16

#: Maximum ln of the cancellation in the integral.
_CANCELLED = 9.0

#: Range of tilts.
_LOWEST, _HIGHEST = 1e-6, 1e6


def converted_epsilons(
    phases: Sequence[tuple[Pair, int]], sizes: Sequence[int], delta: float, baseline: str
) -> list[float]:
    """Epsilon at ``delta`` of groups of each size; one record has its own epsilon, which the literal factor loses."""
    profile = one_record_profile(phases)
    factor: Factor = "literal" if baseline == "vadhan-literal" else "sharp"
    return [group_epsilon(profile, size, delta, factor if size > 1 else "sharp") for size in sizes]


def log_factor(k: int, epsilon: float, factor: Factor) -> float:
    if factor == "literal":
        return math.log(k) + k * epsilon
    if k == 1:
        return 0.0
    if epsilon == 0.0:
        return math.log(k)
    top, bottom = (x + math.log(-math.expm1(-x)) for x in (k * epsilon, epsilon))
    return top - bottom


def group_epsilon(profile: Profile, k: int, delta: float, factor: Factor = "sharp", *, cap: float = CAP) -> float:
    """The smallest k e with s_k(e) delta_1(e) <= ``delta`` and e <= ``cap``, rounded up by at most 1e-12, or inf."""
    from scipy.optimize import brentq  # a fifth of a second, which runs without this question need not wait for

    def excess(epsilon: float) -> float:
        return profile(epsilon) + log_factor(k, epsilon, factor) - math.log(delta)

    if excess(0.0) <= 0.0:
        return 0.0
    low, high = 0.0, min(0.25, cap)
    # The excess can increase at first, and then decreases monotonically.
    while excess(high) > 0.0:
        if high >= cap:
            return math.inf
        low, high = high, min(2.0 * high, cap)
    while excess(high) == -math.inf and high - low > _DIGITS * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0.0 else (low, middle)
    if excess(high) == -math.inf:
        return k * high
    epsilon_of_one = float(brentq(excess, low, high, xtol=_DIGITS * high, rtol=_DIGITS))
    step = _DIGITS * epsilon_of_one
    while epsilon_of_one < high and excess(epsilon_of_one) > 0.0:  # round up
        epsilon_of_one, step = min(epsilon_of_one + step, high), 2.0 * step
    return k * epsilon_of_one


def one_record_profile(phases: Sequence[tuple[Pair, int]]) -> Profile:
    """ln delta_1, the maximum of both directions, by the contour integral, or certified if that fails (few steps)."""

    @functools.cache
    def profile(epsilon: float) -> float:
        worst = -math.inf
        for direction in DIRECTIONS:
            try:
                value = log_delta(phases, direction, epsilon)
            except ArithmeticError:
                upper = PrivacyLoss(tuple(phases), direction).delta(epsilon).upper
                value = math.log(upper) if upper > 0.0 else -math.inf
            worst = max(worst, value)
        return worst

    return profile


def log_delta(phases: Sequence[tuple[Pair, int]], direction: Direction, epsilon: float) -> float:
    """ln delta(``epsilon``) of (mixture of Gaussians, steps) for epsilon >= 0; -inf if delta is 0."""
    mixtures = []
    for pair, steps in phases:
        assert isinstance(pair, Mixture), "specs with other pairs have no black-box conversion"
        if pair.effect != 0.0:
            mixtures.append((pair, steps))
    # The largest loss absent-first is -ln P[no member in any batch].
    largest = -math.fsum(
        steps * (float(pair.log_probabilities[0]) if pair.sensitivities[0] == 0.0 else -math.inf)
        for pair, steps in mixtures
    )
    if not mixtures or (direction == "absent-first" and epsilon >= largest):
        return -math.inf
    if sum(steps for _, steps in mixtures) == 1:
        return float(mixtures[0][0].log_delta(epsilon, direction))
    # All tilts give the same integral. The tilted mean of the loss is epsilon + 1/s + 1/(1 + s) at the best tilt s;
    # within half a standard deviation cancellation is negligible.
    tables = latest = _Tables.at(1.0, mixtures, direction)
    factor = 8.0 if tables.offset(epsilon) < 0.0 else 0.125
    while latest.offset(epsilon) * tables.offset(epsilon) > 0.0:
        tables, latest = latest, _Tables.at(latest.tilt * factor, mixtures, direction)
        if not _LOWEST < latest.tilt < _HIGHEST:
            return latest.log_delta(epsilon)
    low, high = min(tables.tilt, latest.tilt), max(tables.tilt, latest.tilt)
    while abs(latest.offset(epsilon)) > 0.5 and high > low * (1.0 + 1e-12):
        latest = _Tables.at(math.sqrt(low * high), mixtures, direction)
        low, high = (latest.tilt, high) if latest.offset(epsilon) < 0.0 else (low, latest.tilt)
    return latest.log_delta(epsilon)


class _Phase(NamedTuple):
    """Losses of one step with tilted probabilities and their mean, ln E[e^(tilt loss)], and the number of steps."""

    losses: Floats
    weights: Floats
    mean: float
    log_moment: float
    steps: int


@dataclass(frozen=True, eq=False)
class _Tables:
    """The tilted losses of all phases; ``mean`` and ``spread``: mean and standard deviation of their sum."""

    tilt: float
    phases: tuple[_Phase, ...]
    mean: float
    spread: float

    @classmethod
    def at(cls, tilt: float, mixtures: Sequence[tuple[Mixture, int]], direction: Direction) -> "_Tables":
        phases = []
        for pair, steps in mixtures:
            shifts = pair.sensitivities / pair.noise_multiplier
            power = 1.0 + tilt if direction == "present-first" else -tilt
            top = float(shifts[-1])
            step = min(_STEP, _STEP_SHIFT / top)
            low, high = min(0.0, power * top) - _REACH, max(0.0, power * top) + _REACH
            if high - low > _OUTPUTS * step:
                raise ArithmeticError(f"the contour at tilt {tilt:g} needs too many outputs")
            z = np.arange(low, high, step)
            loss = pair.log_ratio(z * pair.noise_multiplier)
            exponents = power * loss - 0.5 * np.square(z)
            heavy = exponents > exponents.max() - 60.0
            weights = np.exp(exponents[heavy] - exponents.max())
            log_moment = float(exponents.max()) + math.log(weights.sum() * step / math.sqrt(2.0 * math.pi))
            signed = loss[heavy] if direction == "present-first" else -loss[heavy]
            shares = weights / weights.sum()
            phases.append(_Phase(signed, shares, float(shares @ signed), log_moment, steps))
        squares = (phase.steps * float(phase.weights @ np.square(phase.losses - phase.mean)) for phase in phases)
        mean = math.fsum(phase.steps * phase.mean for phase in phases)
        return cls(tilt, tuple(phases), mean, math.sqrt(math.fsum(squares)))

    def offset(self, epsilon: float) -> float:
        """Signed distance of the tilt from the saddle in standard deviations; negative if the tilt is too low."""
        s = self.tilt
        width = math.sqrt(self.spread**2 + s**-2 + (1.0 + s) ** -2)
        return (self.mean - epsilon - 1.0 / s - 1.0 / (1.0 + s)) / width

    def log_delta(self, epsilon: float) -> float:
        """The integral, in units of e^-(tilt epsilon) M(tilt)."""
        s = self.tilt
        width = 2.0 * math.pi / (60.0 * self.spread + 40.0 / min(s, 1.0) + 40.0)
        drift = self.mean - epsilon
        total = size = 0.0
        for start in range(0, _NODES, _BATCH):
            u = width * np.arange(start, start + _BATCH)
            value = np.exp(1j * u * drift) / ((s + 1j * u) * (s + 1.0 + 1j * u))
            for phase in self.phases:
                value *= (np.exp(1j * np.outer(u, phase.losses - phase.mean)) @ phase.weights) ** phase.steps
            if start == 0:
                value[0] *= 0.5
                size = abs(value[0])
            total += float(value.real.sum())
            if np.max(np.abs(value[-_BATCH // 4 :])) < _LAST * size:
                break
        else:
            raise ArithmeticError(f"the contour integral does not converge at epsilon {epsilon:g}")
        if total < math.exp(-_CANCELLED) * size:
            raise ArithmeticError(f"the contour integral cancels at epsilon {epsilon:g}")
        scale = math.fsum(phase.steps * phase.log_moment for phase in self.phases) - s * epsilon
        return scale + math.log(total * width / math.pi)
