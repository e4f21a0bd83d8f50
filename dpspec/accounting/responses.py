"""Pairs that dominate declared guarantees: randomized responses whose loss is drawn first and revealed.

A :class:`ResponseMixture` reveals a loss l >= 0 of probability w(l), the same on both datasets, and then one of two
answers, the right one with probability 1 / (1 + e^-l). Its profile is sum_l w(l) delta_l, where delta_l belongs to
randomized response at l. Pairs that are equal after an exchange of the two distributions have this form, and so has a
bound of the profile that holds for all pairs of a symmetric class: :meth:`ResponseMixture.from_profile`. The proofs are
in ``docs/explanation/proofs/composition.md``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dpspec.accounting.discrete import Discrete
from dpspec.accounting.grid import Pair
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.moments import log_excess_power
from dpspec.accounting.numerics import (
    EPS,
    ContradictionError,
    Directions,
    Floats,
    Interval,
    bounded_effect,
    directions,
    inside,
    positive,
    smallest,
    whole,
)
from dpspec.accounting.rdp import checked_orders, composed_rdp, epsilon_at_orders, gaussian_rdp, log_delta_at_orders
from dpspec.renames import old_arguments

#: Upper bounds of Renyi divergences as a function of orders (n,), same shape.
RenyiCurve: TypeAlias = Callable[[Floats], Floats]

#: Losses above this are infinite for an upper bound, and this for a lower one, so that e^-loss is a normal double.
_LARGEST = 650.0

#: ln of the smallest probability in a lower bound.
_LOG_LEAST = -690.0

#: Relative inflation of a profile, above the rounding of its construction.
_INFLATED = 1e-9

#: Levels of a bounded and of an unbounded profile.
_BOUNDED, _UNBOUNDED = 256, 1024

#: The largest order times the effect of a mixture for quadrature.
_FARTHEST = 2e4

#: Relative error of a divergence in closed form, as the conversions charge it.
_SLACK = 4e-12

#: With a larger relative rounding of the divergence, only its bounds in closed form count.
_LOST = 1e-6


@dataclass(frozen=True, eq=False)
class ResponseMixture:
    """Randomized responses at revealed losses.

    Args:
        losses: (n,), ascending, at least 0.
        weights: (n,), their probabilities, which sum to 1 - ``infinite`` up to rounding.
        infinite: the probability of an infinite loss.
    """

    losses: Floats
    weights: Floats
    infinite: float = 0.0

    def above(self) -> Discrete:
        """A pair whose profile is above this one: losses and the probabilities of larger ones are rounded up."""
        tails = np.minimum(self._tails() * (1.0 + self._rounding), 1.0)
        infinite = min(1.0, self.infinite * (1.0 + self._rounding))
        weights = np.maximum(tails - np.append(tails[1:], infinite), 0.0)
        weights[0] += max(0.0, 1.0 - float(tails[0]))
        return _pair(np.where(self.losses > 0.0, self.losses + 16.0 * EPS, 0.0), weights, infinite)

    def below(self) -> Discrete | None:
        """A pair whose profile is below this one; None if no loss is certain."""
        with np.errstate(divide="ignore"):
            certain = np.log(self.weights) - self.losses > _LOG_LEAST
        losses = np.maximum.accumulate(np.where(certain, self.losses, 0.0))
        tails = self._tails() * (1.0 - self._rounding)
        weights = np.maximum(tails - np.append(tails[1:], 0.0), 0.0)
        zero_loss_mass = max(0.0, 1.0 - math.fsum(weights))
        lower = np.append(0.0, np.clip(losses - 16.0 * EPS, 0.0, _LARGEST))
        return _pair(lower, np.append(zero_loss_mass, weights), 0.0) if lower[-1] > 0.0 else None

    def rdp(self, orders: npt.ArrayLike) -> Floats:
        """The Renyi divergence at each of ``orders`` (n,), in either direction; infinite with an infinite loss.

        ln(1 + 4 sum_l w e^(-l / 2) / (1 + e^-l) sinh(a l / 2) sinh((a - 1) l / 2)) / (a - 1), in log space.
        """
        a = np.atleast_1d(checked_orders(orders))
        if self.infinite > 0.0:
            return np.full(a.shape, math.inf)
        moving = (self.losses > 0.0) & (self.weights > 0.0)
        l, w = self.losses[moving], self.weights[moving]  # noqa: E741
        if l.size == 0:
            return np.zeros(a.shape)
        base = np.log(w) - np.log1p(np.exp(-l)) - 0.5 * l + math.log(4.0)
        blocks = []
        for block_orders in np.array_split(a, max(1, a.size * l.size // 2**20)):  # at most 8 MB each
            halves = 0.5 * block_orders[:, None] * l
            logs = base + _log_sinh(halves) + _log_sinh(0.5 * (block_orders[:, None] - 1.0) * l)
            blocks.append(np.logaddexp(0.0, np.logaddexp.reduce(logs, axis=1)) / (block_orders - 1.0))
        return np.asarray(np.concatenate(blocks), dtype=np.float64)

    @classmethod
    def from_profile(cls, log_delta: Callable[[Floats], Floats], losses: Floats) -> "ResponseMixture":
        """A mixture above every pair of a symmetric class whose ln delta(epsilon) is at most ``log_delta(epsilon)``.

        Args:
            log_delta: an upper bound at each epsilon of an array (n,); it need not be convex.
            losses: (n,), ascending from 0 to at most 650: the losses of the mixture.

        The profile is linear in e^epsilon between the losses and constant above the last one.
        """
        bounds = np.minimum(np.exp(np.minimum(log_delta(losses), 0.0)) * (1.0 + _INFLATED), 1.0)
        gaps = np.exp(losses[:-1]) * np.expm1(np.diff(losses))
        masses, slope = np.zeros(len(losses)), 0.0
        value = infinite = float(bounds[-1])
        for i in range(len(losses) - 1, 0, -1):  # from the largest loss, so that all terms are positive
            steeper = max(slope, (float(bounds[i - 1]) - value) / float(gaps[i - 1]))
            masses[i] = math.exp(losses[i]) * (steeper - slope)
            value, slope = value + float(gaps[i - 1]) * steeper, steeper
        _require_above(bounds * (1.0 - 0.5 * _INFLATED), masses, losses, gaps, infinite)
        weights = masses * (1.0 + np.exp(-losses))
        tails = np.minimum(np.cumsum(weights[::-1])[::-1] + infinite, 1.0)
        weights = np.maximum(tails - np.append(tails[1:], infinite), 0.0)
        weights[0] += max(0.0, 1.0 - float(tails[0]))
        return cls(losses, weights, infinite)

    def _tails(self) -> Floats:
        return np.cumsum(self.weights[::-1])[::-1] + self.infinite

    @property
    def _rounding(self) -> float:
        """A bound on the relative rounding error of the probabilities of larger losses."""
        return 16.0 * EPS * (16.0 + len(self.losses))


def _require_above(bounds: Floats, masses: Floats, losses: Floats, gaps: Floats, infinite: float) -> None:
    """Raise ``ContradictionError`` unless the profile of ``masses`` is at least ``bounds`` at every loss."""
    slopes = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]
    profile = infinite + np.append(np.cumsum((gaps * slopes[1:])[::-1])[::-1], 0.0)
    if not bool(np.all(profile >= bounds)):
        raise ContradictionError("a dominating mixture of responses is below the profile that it must dominate")


def _pair(losses: Floats, weights: Floats, infinite: float) -> Discrete:
    used = weights > 0.0
    losses, weights = losses[used], weights[used]
    moving = losses > 0.0
    right = weights[moving] / (1.0 + np.exp(-losses[moving]))
    wrong = right * np.exp(-losses[moving])
    equal = weights[~moving]
    # both vectors hold the same numbers, so that a division by their sums keeps all losses
    return Discrete(
        np.concatenate((right, wrong, equal, [infinite, 0.0])), np.concatenate((wrong, right, equal, [0.0, infinite]))
    )


def _log_sinh(x: Floats) -> Floats:
    return np.asarray(x + np.log(-np.expm1(-2.0 * x)) - math.log(2.0), dtype=np.float64)


def randomized_response(epsilon: float, answers: int = 2) -> ResponseMixture:
    """Randomized response among ``answers``: the right one e^``epsilon`` times as probable as each other one.

    The pair of two different right answers; with more than two answers some outcomes have loss 0.
    """
    loss, count = positive("epsilon", epsilon), whole("answers", answers, 2)
    shrink = math.exp(-loss)
    share = (1.0 + shrink) / (1.0 + (count - 1.0) * shrink)
    zero_loss_share = (count - 2.0) * shrink / (1.0 + (count - 1.0) * shrink)
    return ResponseMixture(np.array([0.0, loss]), np.array([zero_loss_share, share]))


def approximate_dp(epsilon: float, delta: float = 0.0) -> ResponseMixture:
    """The pair that dominates every (``epsilon``, ``delta``)-DP mechanism (Kairouz, Oh and Viswanath 2017, Lemma 3.5).

    With probability delta the outcome reveals the dataset, else it is randomized response.
    """
    chance = 0.0 if delta == 0.0 else inside("delta", delta, one=True)
    if not 0.0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be finite and not negative, got {epsilon!r}")
    return ResponseMixture(np.array([float(epsilon)]), np.array([1.0 - chance]), chance)


def bounded_range(epsilon: float) -> ResponseMixture:
    """A pair that dominates every mechanism of bounded range ``epsilon``, such as the exponential mechanism.

    The supremum of their profiles, delta(x) = (1 - e^((x - epsilon) / 2))^2 / (1 - e^-epsilon) for |x| <= epsilon.
    """
    eps = positive("epsilon", epsilon)

    def log_delta(x: Floats) -> Floats:
        return 2.0 * _log_one_minus_exp(0.5 * (x - eps)) - math.log(-math.expm1(-eps))

    return ResponseMixture.from_profile(log_delta, _levels(eps, _BOUNDED))


def bounded_range_rdp(orders: npt.ArrayLike, epsilon: float) -> Floats:
    """The largest Renyi divergence at each of ``orders`` (n,) of a mechanism of bounded range ``epsilon``.

    The largest of the pairs with two losses, t and t - epsilon: with b = a - 1 at

        e^t = (b / a) (1 - e^(-a epsilon)) / (e^-epsilon - e^(-a epsilon)),

    and at most a epsilon^2 / 8 (Hoeffding's lemma).
    """
    a, eps = np.atleast_1d(checked_orders(orders)), positive("epsilon", epsilon)
    b = a - 1.0
    t = eps - np.log1p(1.0 / b) + _log_one_minus_exp(-a * eps) - _log_one_minus_exp(-b * eps)
    t = np.clip(t, 0.0, eps)
    # probabilities without the record make the mean ratio 1
    first = -t + _log_one_minus_exp(t - eps) - math.log(-math.expm1(-eps))
    second = _log_one_minus_exp(-t) - math.log(-math.expm1(-eps))
    with np.errstate(over="ignore"):
        up = first + log_excess_power(a, t, np.expm1(np.minimum(t, 700.0)))
        down = second + log_excess_power(a, t - eps, np.expm1(t - eps))
    value = np.logaddexp(0.0, np.logaddexp(up, down)) / b
    # the closed form t + ln((1 - e^(-a eps)) / (a (1 - e^-eps))) / b where its terms do not cancel
    plain = t + (_log_one_minus_exp(-a * eps) - math.log(-math.expm1(-eps)) - np.log(a)) / b
    value = np.where((b >= 1.0) & (a * eps > 50.0), plain, value)
    off = (64.0 * EPS / eps) ** 2  # t is at the maximum up to 8 EPS
    value = value * (1.0 + off) if off < _LOST else np.full(a.shape, math.inf)
    return np.asarray(np.minimum(np.minimum(value, 0.125 * a * eps * eps), eps), dtype=np.float64)


def _log_one_minus_exp(x: npt.ArrayLike) -> Floats:
    """ln(1 - e^x) for x <= 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(-np.expm1(np.minimum(x, 0.0))), dtype=np.float64)


def concentrated(rho: float) -> ResponseMixture:
    """A pair that dominates every ``rho``-zCDP mechanism: the conversion to (epsilon, delta) at every epsilon.

    Canonne, Kamath and Steinke 2020, Proposition 12, at the best real order for each epsilon. It is an upper bound.
    """
    strength = positive("rho", rho)

    def log_delta(x: Floats) -> Floats:
        orders = best_order(strength, x)
        return log_delta_at_orders(orders, strength * orders, x)

    # the largest loss has a probability of about e^-exponent, and e^-loss times that is a normal double
    root = math.sqrt(strength)
    exponent = min(600.0, max(0.0, math.sqrt(_LARGEST) - root) ** 2)
    return ResponseMixture.from_profile(log_delta, _levels(strength + 2.0 * root * math.sqrt(exponent), _UNBOUNDED))


def best_order(rho: float, epsilon: npt.ArrayLike) -> Floats:
    """The order a > 1 at which rho-zCDP gives the smallest delta at each ``epsilon``.

    (2 a - 1) rho + ln(1 - 1/a) = epsilon, by bisection of ln(a - 1); every order gives a valid bound.
    """
    x = np.asarray(epsilon, dtype=np.float64)
    low, high = np.full(x.shape, math.log(1e-12)), np.full(x.shape, math.log(1e15))
    for _ in range(60):
        middle = 0.5 * (low + high)
        b = np.exp(middle)
        slope = (2.0 * b + 1.0) * rho + middle - np.log1p(b) - x
        low, high = np.where(slope < 0.0, middle, low), np.where(slope < 0.0, high, middle)
    return np.asarray(1.0 + np.exp(0.5 * (low + high)), dtype=np.float64)


def _levels(largest: float, count: int) -> Floats:
    return np.linspace(0.0, min(largest, _LARGEST), count + 1)


#: A discrete Gaussian of a larger standard deviation is compared with Gaussians of ``_SMOOTH`` less or more variance.
_WIDE, _SMOOTH = 200.0, 4.0

#: Outcomes beyond this number of standard deviations have a probability below 1e-300.
_FAR = 38.6


@old_arguments("dpspec.accounting.discrete_gaussian")
def discrete_gaussian(scale: float, sensitivity: int = 1) -> tuple[Pair, Pair | None]:
    """Discrete Gaussian noise on an integer that one record changes by up to ``sensitivity``: pairs above and below.

    Noise x has a probability in proportion to e^(-x^2 / (2 scale^2)), x an integer (Canonne, Kamath and Steinke 2020).
    Its standard deviation is below ``scale``. Above scale = 200 the pairs are Gaussian, at distances of 4 from scale^2.
    """
    sd, shift = positive("scale", scale), whole("sensitivity", sensitivity, 1)
    bounded_effect("scale", shift, sd)
    if sd > _WIDE:
        return tuple(Mixture([float(shift)], [1.0], math.sqrt(sd * sd + side)) for side in (-_SMOOTH, _SMOOTH))  # type: ignore[return-value]
    responses = discrete_gaussian_responses(sd, shift)
    return responses.above(), responses.below()


def discrete_gaussian_responses(sigma: float, shift: int) -> ResponseMixture:
    """The pair of discrete Gaussians around 0 and ``shift``: outcomes x and shift - x are the two answers."""
    reach = math.ceil(_FAR * sigma) + 1
    noise = np.arange(-reach, reach + 1, dtype=np.float64)
    masses = np.exp(-0.5 * np.square(noise / sigma))
    masses /= math.fsum(masses)
    losses = shift * (2.0 * (noise + shift) - shift) / (2.0 * sigma * sigma)
    used = (losses >= 0.0) & (masses > 0.0)
    weights = masses * (1.0 + np.exp(-np.maximum(losses, 0.0)))
    weights[losses == 0.0] *= 0.5
    return ResponseMixture(losses[used], weights[used], 1e-300)


@old_arguments("dpspec.accounting.discrete_gaussian_rdp")
def discrete_gaussian_rdp(orders: npt.ArrayLike, scale: float, sensitivity: int = 1) -> Floats:
    """The Renyi divergence at each of ``orders`` (n,) of discrete Gaussian noise.

    a s^2 / (2 scale^2) + ln(theta(a s) / theta(0)) / (a - 1) with theta(y) = sum_x e^(-(x - y)^2 / (2 scale^2)), at
    most the Gaussian mechanism's (Canonne, Kamath and Steinke 2020, Proposition 5).
    """
    a, sd, shift = np.atleast_1d(checked_orders(orders)), positive("scale", scale), whole("sensitivity", sensitivity, 1)
    largest = gaussian_rdp(a, shift / sd)
    if sd > 8.0:  # theta is constant to a relative 1e-500
        return largest
    x = np.arange(-math.ceil(_FAR * sd) - 2, math.ceil(_FAR * sd) + 3, dtype=np.float64)
    y = (a - 1.0) * shift  # theta has the period 1
    y = (y - np.rint(y))[:, None]
    logs = [np.logaddexp.reduce(-0.5 * np.square((x - center) / sd), axis=1) for center in (y, np.zeros((1, 1)))]
    log_ratios = logs[0] - logs[1]
    is_small = np.abs(y[:, 0]) <= 0.5 * sd
    if is_small.any():  # theta(y) / theta(0) - 1, from pairs of x and -x, keeps its digits where a is close to 1
        masses = np.exp(-0.5 * np.square(x / sd))
        x, masses = x[masses > 0.0], masses[masses > 0.0]
        t = y[is_small] * x / (sd * sd)
        excess = np.expm1(-0.5 * np.square(y[is_small] / sd)) * np.cosh(t) + 2.0 * np.square(np.sinh(0.5 * t))
        log_ratios[is_small] = np.log1p(excess @ masses / masses.sum())
    return np.asarray(np.clip(largest + log_ratios / (a - 1.0), 0.0, largest), dtype=np.float64)


def mixture_rdp_bounds(
    orders: npt.ArrayLike, mixture: Mixture, direction: Directions = "both"
) -> tuple[Floats, Floats]:
    """Lower and upper bounds of the Renyi divergence of one step at each of ``orders`` (n,).

    Both are ``composed_rdp``, except at orders too large for its quadrature. There they are a m^2 / 2 for the largest
    effect m (the divergence is quasi-convex), and present-first at least a m^2 / 2 + a ln(p) / (a - 1), because this
    effect has a probability p; absent-first 0.
    """
    a = np.atleast_1d(checked_orders(orders))
    largest = mixture.dominating_effect
    above = 0.5 * a * largest * largest
    below = np.maximum(above + a * float(mixture.log_probabilities[-1]) / (a - 1.0), 0.0)
    if "present-first" not in directions(direction):
        below = np.zeros(a.shape)
    usual = np.full(a.shape, True) if mixture.effect is not None else a * max(largest, 1.0) <= _FARTHEST
    if usual.any():
        below[usual] = above[usual] = composed_rdp([(mixture, 1)], a[usual], direction)
    return below, above


#: Orders of the first table, and the strides at which its best one is looked for.
_TABLE, _STRIDES = 257, (64, 8, 1)

#: The precision of ln(order - 1) of the best order.
_ORDER_TOLERANCE = 2e-3


def smallest_epsilon(curve: RenyiCurve, delta: float, least: float = 1e-10, most: float = 1e12) -> Interval:
    """An upper bound of epsilon at ``delta`` from upper bounds of the divergences, over real orders.

    Args:
        curve: the divergences; infinite if unknown.
        delta: in (0, 1).
        least: the smallest order less 1 that is tried.
        most: the largest.
    """
    target = inside("delta", delta)
    logs = np.linspace(math.log(least), math.log(most), _TABLE)
    orders = 1.0 + np.exp(logs)
    divergences, is_computed = np.zeros(_TABLE), np.zeros(_TABLE, dtype=bool)
    best, best_index = math.inf, 0
    for stride in _STRIDES:
        # divergences grow with the order: none is below one of a smaller order; infinite ones are unknown
        least_divergences = np.maximum.accumulate(np.where(divergences < math.inf, divergences, 0.0))
        index = np.arange(0, _TABLE, stride)
        can_be_best = epsilon_at_orders(orders[index], least_divergences[index], target) < best
        index = index[~is_computed[index] & can_be_best]
        if len(index) == 0:
            continue
        divergences[index], is_computed[index] = np.maximum(curve(orders[index]), 0.0), True
        epsilons = epsilon_at_orders(orders[index], divergences[index], target)
        if np.min(epsilons) < best:
            best, best_index = float(np.min(epsilons)), int(index[np.argmin(epsilons)])

    def epsilons_at(log_excess: Floats) -> Floats:
        orders = 1.0 + np.exp(log_excess)
        return epsilon_at_orders(orders, np.maximum(curve(orders), 0.0), target)

    if 0.0 < best < math.inf:
        low, high = logs[max(best_index - 1, 0)], logs[min(best_index + 1, _TABLE - 1)]
        best = min(best, smallest(epsilons_at, float(low), float(high), within=_ORDER_TOLERANCE))
    return Interval(0.0, best).by("Renyi divergences at the best order")


def smallest_rho(
    curve: RenyiCurve, largest_loss: float, gaussian_rho: float = 0.0, *, most: float = 1e6, width: float = 1e-4
) -> Interval:
    """The smallest rho for which divergences D(a) are at most rho a at every order a > 1.

    As (a - 1) D(a) is convex, its chords bound D(a) / a between two orders. Up to the smallest order D(a) / a is at
    most D there. Cells are halved until the largest bound exceeds the largest value by at most ``width``.

    Args:
        curve: the divergences of orders (n,), within a relative 4e-12; (a - 1) D(a) is convex.
        largest_loss: the limit of the divergences without the Gaussian steps.
        gaussian_rho: the limit of D / order that Gaussian steps add; a lower bound as well.
        most: the largest order evaluated; above it gaussian_rho + largest_loss / order bounds D / order.
        width: relative.
    """
    orders = 1.0 + np.geomspace(1e-6, most, 65)
    values = curve(orders)
    while True:
        best = max(gaussian_rho, float(np.max(values / orders)))
        cells = np.minimum(_largest_on_chords(orders, values), gaussian_rho + largest_loss / orders[:-1])
        wide = np.flatnonzero(cells > best * (1.0 + width))
        if len(wide) == 0 or len(orders) > 2**12:
            break
        middle = 1.0 + np.sqrt((orders[wide] - 1.0) * (orders[wide + 1] - 1.0))
        added = middle[(middle > orders[wide]) & (middle < orders[wide + 1])]
        if len(added) == 0:
            break
        orders, values = np.append(orders, added), np.append(values, curve(added))
        rank = np.argsort(orders)
        orders, values = orders[rank], values[rank]
    upper = max(float(values[0]), float(np.max(cells)), gaussian_rho + largest_loss / most)
    return Interval(best * (1.0 - 2.0 * _SLACK), upper * (1.0 + 2.0 * _SLACK)).by("largest divergence per order")


def _largest_on_chords(orders: Floats, values: Floats) -> Floats:
    """The largest (chord of (a - 1) D) / (a (a - 1)) between neighboring orders, (n - 1,).

    With the chord c (a - low) + first the derivative is 0 at a = -p / c +- sqrt((p / c)^2 + p / c), p = first - c low.
    """
    products = (orders - 1.0) * values
    low, high, first = orders[:-1], orders[1:], products[:-1]
    slope = (products[1:] - first) / (high - low)
    largest = np.maximum(values[:-1] / low, values[1:] / high)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        start = np.where(slope > 0.0, (first - slope * low) / np.where(slope > 0.0, slope, 1.0), 0.0)
        root = np.sqrt(np.maximum(start * (start + 1.0), 0.0))
    for a in (np.clip(-start - root, low, high), np.clip(-start + root, low, high)):
        largest = np.maximum(largest, (first + slope * (a - low)) / (a * (a - 1.0)))
    return np.asarray(largest, dtype=np.float64)
