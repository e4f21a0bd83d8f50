"""Group privacy from the guarantee of single records alone: what people use today, as baselines.

A mechanism that is (e, delta_1(e))-DP for one record is (k e, s_k(e) delta_1(e))-DP for groups of k (Vadhan 2017, Lemma
2.2), with either of two factors:

    literal   s_k(e) = k e^(k e)
    sharp     s_k(e) = 1 + e^e + ... + e^((k - 1) e) = (e^(k e) - 1) / (e^e - 1), the sum in the proof

For a target delta one looks for the least e at which s_k(e) delta_1(e) is within it. The delta_1 that this needs can be
below 1e-700, so profiles are functions from epsilon to ln delta_1. They decide what a result is worth: an
``example_profile`` is *approximate* (a contour integral), an ``rdp_profile`` a *theorem*; ``certified_group_epsilon``
confirms an answer by the certified intervals of ``PrivacyLoss``, down to delta_1 = 1e-300. For what the mechanism
really does to groups, compose the mixture of the group itself: ``dpspec.accounting.group``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dpspec.accounting.checks import DIRECTIONS, EPS, Floats, inside, positive, whole
from dpspec.accounting.contour import Contour
from dpspec.accounting.convert import BestEpsilon, best_log_delta, optimal_epsilon, optimal_log_delta
from dpspec.accounting.pair import Pair
from dpspec.accounting.pld import PrivacyLoss
from dpspec.accounting.rdp import Curve, group_rdp

#: ln delta_1 at an epsilon >= 0: falling, -inf where delta_1 is 0.
Profile: TypeAlias = Callable[[float], float]

#: The factor s_k: as printed, or as in its proof.
Factor: TypeAlias = Literal["literal", "sharp"]

#: Single-record epsilons above this are not searched.
CAP = 400.0

#: Relative precision of an answer.
_DIGITS = 1e-12

#: Deltas of single records that the certified engine can represent.
_LEAST_LOG_DELTA = math.log(1e-300)


@dataclass(frozen=True)
class GroupEpsilon:
    """The answer of a conversion for groups of ``k``.

    epsilon: of the group; infinite where none was found up to the cap, and then more than ``above``.
    log_delta: ln of the delta that single records need, at ``epsilon / k``; log10_delta: in tens.
    """

    k: int
    epsilon: float
    log_delta: float
    above: float | None = None

    @property
    def log10_delta(self) -> float:
        """log10 of the delta of single records."""
        return self.log_delta / math.log(10.0)

    def __str__(self) -> str:
        """The epsilon, or ``> k * cap`` where nothing was found."""
        return f"> {self.above:g}" if self.above is not None else f"{self.epsilon:.6g}"


def log_factor(k: int, epsilon: float, factor: Factor) -> float:
    """ln s_k(epsilon), epsilon >= 0. Raises ``ValueError`` naming the argument that makes no sense."""
    whole("k", k, 1)
    if factor == "literal":
        return math.log(k) + k * epsilon
    if factor != "sharp":
        raise ValueError(f"factor must be literal or sharp, got {factor!r}")
    if k == 1:
        return 0.0
    if epsilon == 0.0:
        return math.log(k)
    top, bottom = (x + math.log(-math.expm1(-x)) for x in (k * epsilon, epsilon))
    return top - bottom


def group_epsilon_from_profile(
    profile: Profile, k: int, delta: float, factor: Factor = "sharp", *, cap: float = CAP, as_printed: bool = False
) -> GroupEpsilon:
    """The least k e with s_k(e) delta_1(e) <= ``delta`` and e <= ``cap``, rounded up by 1e-12 at most.

    For k = 1 both factors give the single-record epsilon at ``delta``; ``as_printed`` keeps the literal factor e^e,
    with which the lemma does not return what it was given.
    """
    log_target = math.log(inside("delta", delta))
    positive("cap", cap)
    if whole("k", k, 1) == 1 and not as_printed:
        factor = "sharp"

    def excess(epsilon: float) -> float:
        return profile(epsilon) + log_factor(k, epsilon, factor) - log_target

    if excess(0.0) <= 0.0:
        return GroupEpsilon(k, 0.0, profile(0.0))
    low, high = 0.0, min(0.25, cap)
    # the excess may rise at first, and falls for good once it does
    while excess(high) > 0.0:
        if high >= cap:
            return GroupEpsilon(k, math.inf, -math.inf, above=k * cap)
        low, high = high, min(2.0 * high, cap)
    found = _root(excess, low, high)
    return GroupEpsilon(k, k * found, profile(found))


def example_profile(phases: Sequence[tuple[Pair, int]]) -> Profile:
    """ln delta_1 of a schedule of (pair, steps), the worse direction: *approximate*, about eleven digits at any size.

    By ``Contour``; where that refuses a value (a few steps, an almost discrete loss) the certified upper bound instead.
    """
    contours = [Contour.of(phases, direction) for direction in DIRECTIONS]
    losses = {contour.direction: PrivacyLoss(tuple(phases), contour.direction) for contour in contours}

    def profile(epsilon: float) -> float:
        worst = -math.inf
        for contour in contours:
            try:
                value = contour.log_delta(epsilon)
            except ArithmeticError:
                value = _log(losses[contour.direction].delta(epsilon).upper)
            worst = max(worst, value)
        return worst

    return profile


def rdp_profile(curve: Curve, orders: npt.ArrayLike | None = None) -> Profile:
    """ln delta_1 from Renyi divergences of single records: a *theorem*, any magnitude.

    orders: (n,), those to choose from; by default the best real order is searched for at each epsilon.
    """
    if orders is not None:
        grid = np.asarray(orders, dtype=np.float64)
        divergences = curve(grid)
        return lambda epsilon: best_log_delta(grid, divergences, epsilon).value
    known: dict[bytes, Floats] = {}

    def remembered(grid: Floats) -> Floats:  # every search starts from the same orders
        key = grid.tobytes()
        if key not in known:
            known[key] = curve(grid)
        return known[key]

    return lambda epsilon: optimal_log_delta(remembered, epsilon).value


def certified_group_epsilon(
    loss: PrivacyLoss, k: int, delta: float, factor: Factor = "sharp", *, cap: float = CAP, slack: float = 1e-3
) -> GroupEpsilon:
    """An upper bound of the conversion's answer, *certified*: within ``slack``, relative, of the approximate one.

    ``loss``: of single records, both directions. With e a little above the approximate answer, the certified epsilon of
    delta / s_k(e) is checked to be at most e. Infinite where delta_1 would be below 1e-300, or where the check fails.
    """
    positive("slack", slack)
    if loss.direction != "both":
        raise ValueError(f"loss must be of both directions, got {loss.direction!r}")
    near = group_epsilon_from_profile(example_profile(loss.phases), k, delta, factor, cap=cap)
    if k == 1 and near.above is None:
        one = loss.epsilon(delta, width=min(slack, 0.5))
        return GroupEpsilon(1, one.upper, math.log(delta))
    epsilon = near.epsilon / k * (1.0 + slack) + 1e-12
    if math.isfinite(epsilon):
        log_delta = (math.log(delta) - log_factor(k, epsilon, factor)) * (1.0 + 16.0 * EPS)
        reached = log_delta > _LEAST_LOG_DELTA
        if reached and loss.epsilon(math.exp(log_delta), width=min(0.1 * slack, 0.5)).upper <= epsilon:
            return GroupEpsilon(k, k * epsilon * (1.0 + 4.0 * EPS), log_delta)
    return GroupEpsilon(k, math.inf, -math.inf, above=near.above)


def rdp_group_epsilon(curve: Curve, k: int, delta: float) -> BestEpsilon:
    """Epsilon of groups of ``k`` by the group-privacy property of RDP, the best order: a *theorem* (``group_rdp``)."""
    whole("k", k, 1)
    return optimal_epsilon(lambda orders: group_rdp(curve, orders, k), delta)


def linear_reference(epsilon: float, k: int) -> float:
    """k times the epsilon of one record at the same delta: a line to compare with, and **no bound** on either side.

    Composed over many steps the epsilon of groups lies above it. Over one step it can lie below: rate 0.001, sigma 0.2,
    delta 1e-4 has epsilon 11.12 for one record and 13.67, not 22.23, for two.
    """
    return whole("k", k, 1) * epsilon


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function falls through zero, from ``low`` (above zero) to ``high`` (at most zero): the safe end."""
    from scipy.optimize import brentq

    while function(high) == -math.inf and high - low > _DIGITS * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) > 0.0 else (low, middle)
    if function(high) == -math.inf:
        return high
    found = float(brentq(function, low, high, xtol=_DIGITS * high, rtol=_DIGITS))
    step = _DIGITS * found
    while found < high and function(found) > 0.0:
        found, step = min(found + step, high), 2.0 * step
    return found
