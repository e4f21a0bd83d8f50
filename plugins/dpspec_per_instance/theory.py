"""The formulas: one step, all steps, and what R runs say of an expectation. Thudi et al. 2024, repaired.

**One step** (Theorem 3.2). With q the probability that the record is drawn and nu = (what it changes of the update) /
(noise), both directions of

    D_a <= ln E[(1 - q + q e^(nu z - nu^2 / 2))^a] / (a - 1),   z standard normal,

hold for every update rule if nu is the largest change over batches; for sums of clipped gradients nu is the record's
clipped norm / (noise_multiplier * clip_norm), whatever the batch. The paper expands the power, which needs whole
orders; every other step of its proof holds for real ones. Absent-first has the first link of the proof's chain,

    D_a <= ln E[(1 - q + q e^(nu z - nu^2 / 2))^(1 - a)] / (a - 1),

which is far smaller where q is small and nu large. All bounds grow with q, nu and a.

**All steps** (Theorem 3.3, with the recursion of its proof; the statement prints another constant). For p > 1,
rho = p / (p - 1), steps 1..n and theta_{t-1} the model before step t,

    D_a <= D_{a_1}(theta_0) + sum_{t=2}^n (1 / l_t) ln E exp(l_t D_{a_t}(theta_{t-1})),
    a_t = 1 + rho^(n - t) (a - 1),   l_t = p (a_t - 1).

The expectation is over training on the *first* argument's data set: D(with || without) needs runs with the record,
D(without || with) needs runs without it. The other expectation can fall below the truth, and so can the orders taken
in the reverse direction of time. Each term lies between the mean and the largest divergence of its step: p -> inf is
ordinary composition, p = 3n keeps every order below 1 + e^(1/3) (a - 1) (Fact 3.4, for every n).

**Runs.** The plug-in of a term (1 / l) ln E exp(l D) is the entropic mean over R runs. It lies within ln(R) / l of the
largest of them, and where kappa = l D_max is far above ln R it cannot represent a rare bad model even once: it rises
with R. By Hoeffding's inequality for exp(l D) in [1, e^kappa], with probability at least 1 - J over the runs and all s
terms

    E exp(l D) <= mean exp(l D) + (e^kappa - 1) sqrt(ln(s / J) / (2 R)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpspec.accounting import (
    Direction,
    Directions,
    Floats,
    checked_orders,
    inside,
    positive,
    sampled_gaussian_rdp,
    whole,
)

STEP_SOURCE = "Thudi et al. 2024, Theorem 3.2"
RUN_SOURCE = "Thudi et al. 2024, Theorem 3.3"
CONFIDENCE_SOURCE = "Hoeffding 1963, for the expectations of Thudi et al. 2024, Theorem 3.3"

#: Below this nu the divergence, at most a nu^2 / 2, is nothing that a float would tell from 0.
_TINY = 1e-150

#: Neighbouring orders differ by this factor in a - 1, and neighbouring values of r by a factor of _LEAST^(-1 / nodes).
_GROWTH = 1.04
_LEAST, _COARSE, _FINE = 1e-3, 2048, 16384

#: The quadrature: half width in standard deviations, and its step.
_REACH, _STEP = 14.0, 0.25

#: Moments below this are computed without the one that they exceed.
_SMALL = 1e-2

#: What rounding can have taken from a tabulated value, relatively.
_SLACK = 1e-9

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def step_divergence(
    orders: npt.ArrayLike, rate: npt.ArrayLike, ratio: npt.ArrayLike, direction: Directions = "both"
) -> Floats:
    """The bound on one step at real ``orders`` > 1, ``rate`` q in [0, 1] and ``ratio`` nu >= 0; arrays broadcast.

    direction: ``both`` and ``present-first`` are Theorem 3.2; ``absent-first`` the sharper one.
    """
    a, q, nu = np.broadcast_arrays(checked_orders(orders), _checked_rates(rate), _checked_ratios(ratio))
    divergences = np.zeros(a.shape)
    some = (nu > _TINY) & (q > 0.0)
    if np.any(some):
        divergences[some] = sampled_gaussian_rdp(a[some], q[some], 1.0 / nu[some], direction)
    return divergences


def _checked_rates(values: npt.ArrayLike) -> Floats:
    rates = np.asarray(values, dtype=np.float64)
    if not np.all((rates >= 0.0) & (rates <= 1.0)):
        raise ValueError("rate must be between 0 and 1")
    return rates


def _checked_ratios(values: npt.ArrayLike) -> Floats:
    ratios = np.asarray(values, dtype=np.float64)
    if not np.all((ratios >= 0.0) & np.isfinite(ratios)):
        raise ValueError("ratio must be finite and not negative")
    return ratios


class StepTable:
    """(a - 1) D_a of one sampled Gaussian step in one direction, tabulated once and looked up upwards.

    It is tabulated over orders and over r = (clipped norm) / clip_norm. It is convex in the order, so that a line
    between two orders lies above it; it grows with r, so that the next larger tabulated r gives more. Present-first,
    exp((a - 1) D_a) is convex in r^2 too, so that more values of r are filled in by chords: along
    Y_s = e^(B_s - s / 2), d/ds E f(Y_s) = E[Y_s^2 f''(Y_s)] / 2, and y^2 f''(y) is convex for f(y) = (1 - q + q y)^a.
    All errors are upwards: a percent at most, but where D is about to jump or r is below a thousandth.
    """

    def __init__(
        self, rate: float, noise_multiplier: float, lowest: float, highest: float, direction: Direction
    ) -> None:
        """For orders from ``lowest`` > 1 to ``highest``; ``noise_multiplier`` > 0 in units of the clip norm."""
        self.highest = highest
        q, sigma = inside("rate", rate, one=True), positive("noise_multiplier", noise_multiplier)
        nodes = 2 + math.ceil(math.log((highest - 1.0) / (lowest - 1.0)) / math.log(_GROWTH))
        self._orders: Floats = 1.0 + np.geomspace(lowest - 1.0, highest - 1.0, nodes)
        self._orders[[0, -1]] = lowest, highest
        coarse = np.geomspace(_LEAST, 1.0, _COARSE)
        moments = np.stack([log_moments(self._orders, q, r / sigma, direction) for r in coarse], axis=1)
        sizes = np.concatenate([[0.0], coarse])
        values = np.concatenate([np.zeros((nodes, 1)), moments], axis=1) * (1.0 + _SLACK)
        if direction == "present-first":
            sizes, values = _chords(sizes, values)
        self.sizes: Floats = sizes
        self._values: Floats = values

    def places(self, sizes: npt.ArrayLike) -> npt.NDArray[np.uint16]:
        """Where each r in [0, 1] stands in the table: the first tabulated value that is not smaller."""
        after = np.searchsorted(self.sizes, np.asarray(sizes, dtype=np.float64), side="left")
        return np.minimum(after, len(self.sizes) - 1).astype(np.uint16)

    def row(self, order: float) -> Floats:
        """(a - 1) D_a at ``order`` for every tabulated r, from above."""
        after = int(np.clip(np.searchsorted(self._orders, order), 1, len(self._orders) - 1))
        low, high = self._orders[after - 1], self._orders[after]
        share = min(1.0, max(0.0, (order - low) / (high - low))) if high > low else 1.0
        return np.asarray((1.0 - share) * self._values[after - 1] + share * self._values[after], dtype=np.float64)

    def saturated(self, orders: npt.ArrayLike) -> Floats:
        """D_a of a gradient at the clip norm, at ``orders``, from above."""
        a = np.asarray(orders, dtype=np.float64)
        return np.asarray(np.interp(a, self._orders, self._values[:, -1]) / (a - 1.0), dtype=np.float64)


@lru_cache(maxsize=32)
def step_table(rate: float, noise_multiplier: float, lowest: float, highest: float, direction: Direction) -> StepTable:
    """A :class:`StepTable` as it is made; several stages of an audit ask for the same ones."""
    return StepTable(rate, noise_multiplier, lowest, highest, direction)


def log_moments(orders: Floats, rate: float, ratio: float, direction: Direction) -> Floats:
    """(a - 1) D_a = ln E[(1 - q + q e^(nu z - nu^2 / 2))^b], b = a or 1 - a, at ``orders`` (k,).

    By the trapezoidal rule: the integrand is analytic in a strip of half width pi / nu, so that its error falls
    exponentially.
    """
    if rate == 1.0:
        return np.asarray(0.5 * orders * (orders - 1.0) * ratio**2, dtype=np.float64)
    powers = (orders if direction == "present-first" else 1.0 - orders)[:, None]
    top = max(float(np.max(orders)) if direction == "present-first" else 1.0, 1.0) * ratio + _REACH
    step = min(_STEP, 0.5 / ratio)
    z = np.arange(-_REACH, top + step, step)
    shift = ratio * z - 0.5 * ratio**2
    logs = np.logaddexp(math.log1p(-rate), math.log(rate) + shift)
    weights = math.log(step) - _LOG_ROOT_TWO_PI - 0.5 * z**2
    integrand = powers * logs + weights
    most = integrand.max(axis=1)
    moments = most + np.log(np.exp(integrand - most[:, None]).sum(axis=1))
    small = moments < _SMALL
    if np.any(small):
        excess = rate * np.expm1(np.minimum(shift, 600.0))
        b = powers[small]
        high = b * logs > 30.0
        terms = np.where(high, np.exp(integrand[small]), np.expm1(np.where(high, 0.0, b * logs)) * np.exp(weights))
        moments[small] = np.log1p(np.maximum(0.0, (terms - b * excess * np.exp(weights)).sum(axis=1)))
    return np.asarray(moments, dtype=np.float64)


def _chords(sizes: Floats, values: Floats) -> tuple[Floats, Floats]:
    """More values of r between those given, on chords of exp((a - 1) D_a) over r^2."""
    fine = np.concatenate([[0.0], np.geomspace(_LEAST, 1.0, _FINE)])
    fine[-1] = 1.0
    after = np.clip(np.searchsorted(sizes, fine), 1, len(sizes) - 1)
    low, high = np.square(sizes[after - 1]), np.square(sizes[after])
    share = np.clip((np.square(fine) - low) / (high - low), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        rise = values[:, after] - values[:, after - 1]
        # ln(e^u + s (e^v - e^u)) = u + ln(1 + s (e^(v - u) - 1)), and without overflow where v - u is large
        steep = np.logaddexp(np.log1p(-share), np.log(share) + rise)
        gentle = np.log1p(share * np.expm1(np.minimum(rise, 30.0)))
    return fine, values[:, after - 1] + np.where(rise < 30.0, gentle, steep)


@dataclass(frozen=True)
class Exponents:
    """orders: (n,) a_t. weights: (n,) l_t. Both by step, from the first to the last."""

    orders: Floats
    weights: Floats


def exponents(order: float, steps: int, p: float) -> Exponents:
    """a_t and l_t for the divergence at ``order`` > 1 of ``steps`` >= 1 steps, by the exponent ``p`` > 1."""
    n, a, growth = whole("steps", steps, 1), float(checked_orders(order)), -math.log1p(-1.0 / checked_exponent(p))
    above = (a - 1.0) * np.exp(growth * np.arange(n - 1, -1, -1, dtype=np.float64))
    return Exponents(orders=1.0 + above, weights=p * above)


def exponent_schedule(order: float, ps: Sequence[float]) -> Exponents:
    """The same with an exponent for every step but the first: ``ps`` (n - 1,), the last step's first.

    Hoelder's inequality may use another exponent at each turn: 1 / (a_{t-1} - 1) = 1 / (a_t - 1) - 1 / l_t.
    """
    above = [float(checked_orders(order)) - 1.0]
    for p in ps:
        above.append(above[-1] * checked_exponent(p) / (p - 1.0))
    weights = [p * a for p, a in zip(ps, above, strict=False)]
    orders: Floats = 1.0 + np.array(above[::-1])
    return Exponents(orders=orders, weights=np.array([math.inf, *weights[::-1]]))


def recursion(order: float, steps: int, p: float | Sequence[float]) -> Exponents:
    """``exponents`` for one p, or ``exponent_schedule`` for several: spread evenly over the turns, the last step's
    first. Between them p changes geometrically.
    """
    if isinstance(p, int | float):
        return exponents(order, steps, p)
    turns = whole("steps", steps, 1) - 1
    logs = np.log([checked_exponent(one) for one in p])
    ps = np.exp(np.interp(np.linspace(0.0, 1.0, turns), np.linspace(0.0, 1.0, len(p)), logs))
    return exponent_schedule(order, ps.tolist())


def checked_exponent(p: float) -> float:
    """``p``, which must be finite and above 1. Raises ``ValueError`` otherwise."""
    value = float(p)
    if not 1.0 < value < math.inf:
        raise ValueError(f"the exponent p must be finite and above 1, got {p!r}")
    return value


def entropic_mean(values: npt.ArrayLike, weight: float, log_masses: npt.ArrayLike | None = None) -> Floats:
    """(1 / l) ln E exp(l v) over the first axis of ``values``; uniform where ``log_masses`` (k,) are left out.

    Between the mean (l -> 0) and the largest value with a mass (l -> inf), which an infinite ``weight`` gives. Over
    runs it is the plug-in: an estimate, and no bound.
    """
    v = np.asarray(values, dtype=np.float64)
    logs = np.full(len(v), -math.log(len(v))) if log_masses is None else np.asarray(log_masses, dtype=np.float64)
    logs = logs.reshape(-1, *[1] * (v.ndim - 1))
    if not weight > 0.0:
        raise ValueError(f"weight must be above 0, got {weight!r}")
    possible = np.where(np.isneginf(logs), -np.inf, v)
    top = np.max(possible, axis=0)
    if weight == math.inf:
        return np.asarray(top, dtype=np.float64)
    with np.errstate(over="ignore"):
        rest = np.log(np.sum(np.exp(weight * (possible - top) + logs), axis=0))
    return np.asarray(top + rest / weight, dtype=np.float64)


def confidence_upper_mean(mean: npt.ArrayLike, weight: float, largest: float, runs: float, log_terms: float) -> Floats:
    """The upper confidence bound of one term from its plug-in ``mean`` (...), never above ``largest``.

    weight: l. largest: the divergence of a saturated gradient. log_terms: ln(s / J), s the number of terms that must
    hold together and J the probability that one of them may fail.
    """
    kappa = float(weight * largest)
    if kappa == 0.0:
        return np.zeros_like(np.asarray(mean, dtype=np.float64))
    gap = kappa + math.log(-math.expm1(-kappa)) + 0.5 * (math.log(log_terms) - math.log(2.0 * runs))
    bound = np.logaddexp(weight * np.asarray(mean, dtype=np.float64), gap) / weight
    return np.asarray(np.minimum(bound, largest), dtype=np.float64)


def log_terms(terms: int, failure: float) -> float:
    """ln(s / J) for ``terms`` s >= 1 bounds that must hold together but with probability ``failure`` J."""
    return math.log(whole("terms", terms, 1)) - math.log(inside("failure", failure))
