"""All steps: the divergence of a whole run from the divergences of its steps at the models it passes through.

Theorem 3.3 of Thudi et al. with the recursion of its proof (the statement prints another constant, see
``printed_order``): for p > 1, rho = p / (p - 1), steps 1..n and theta_{t-1} the model before step t,

    D_a <= D_{a_1}(theta_0) + sum_{t=2}^n (1 / l_t) ln E exp(l_t D_{a_t}(theta_{t-1})),
    a_t = 1 + rho^(n - t) (a - 1),   l_t = p (a_t - 1).

The expectation is over training on the *first* argument's data set: D(with || without) needs runs with the record,
D(without || with) needs runs without it. The other expectation can fall below the truth, and so can the orders taken
in the reverse direction of time. Each term lies between the mean and the largest divergence of its step: p -> inf is
ordinary composition, p = 3n keeps every order below 1 + e^(1/3) (a - 1) (Fact 3.4, for every n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpspec.accounting.checks import Floats, whole
from dpspec.accounting.rdp import checked_orders
from dpspec.contract import Printed

SOURCE = "Thudi et al. 2024, Theorem 3.3"

#: What is wrong with the statement that the paper prints.
MISPRINT = Printed(
    refuted=False,
    reason="the statement's recursion subtracts 1 / p where its proof subtracts 1 / (p - 1): valid, and looser",
)

#: Orders by number of steps from the start: as some code computes them. They can undercut the truth.
REVERSED = Printed(refuted=True, reason="orders grow towards the start of training, not towards its end")


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


def recursion(order: float, steps: int, p: float | Sequence[float]) -> Exponents:
    """``exponents`` for one p, or ``schedule`` for several: spread evenly over the turns, the last step's first.

    Between them p changes geometrically.
    """
    if isinstance(p, int | float):
        return exponents(order, steps, p)
    turns = whole("steps", steps, 1) - 1
    logs = np.log([checked_exponent(some) for some in p])
    return schedule(
        order, np.exp(np.interp(np.linspace(0.0, 1.0, turns), np.linspace(0.0, 1.0, len(p)), logs)).tolist()
    )


def schedule(order: float, ps: Sequence[float]) -> Exponents:
    """The same with an exponent for every step but the first: ``ps`` (n - 1,), the last step's first.

    Hoelder's inequality may use another exponent at each turn: 1 / (a_{t-1} - 1) = 1 / (a_t - 1) - 1 / l_t.
    """
    above = [float(checked_orders(order)) - 1.0]
    for p in ps:
        above.append(above[-1] * checked_exponent(p) / (p - 1.0))
    weights = [p * a for p, a in zip(ps, above, strict=False)]
    orders: Floats = 1.0 + np.array(above[::-1])
    return Exponents(orders=orders, weights=np.array([math.inf, *weights[::-1]]))


def printed_order(order: float, p: float, turns: int) -> float:
    """The order after ``turns`` turns of the recursion as the statement prints it: g(a) = p / (p - 1) a - 1 / p."""
    a = float(checked_orders(order))
    for _ in range(turns):
        a = checked_exponent(p) / (p - 1.0) * a - 1.0 / p
    return a


def entropic_mean(values: npt.ArrayLike, weight: float, log_masses: npt.ArrayLike | None = None) -> Floats:
    """(1 / l) ln E exp(l v) over the first axis of ``values``; uniform where ``log_masses`` (k,) are left out.

    Between the mean (l -> 0) and the largest value with a mass (l -> inf), which an infinite ``weight`` gives.
    """
    v = np.asarray(values, dtype=np.float64)
    logs = np.full(len(v), -math.log(len(v))) if log_masses is None else np.asarray(log_masses, dtype=np.float64)
    logs = logs.reshape(-1, *[1] * (v.ndim - 1))
    if not weight > 0.0:
        raise ValueError(f"weight must be above 0, got {weight!r}")
    held = np.where(np.isneginf(logs), -np.inf, v)
    top = np.max(held, axis=0)
    if weight == math.inf:
        return np.asarray(top, dtype=np.float64)
    with np.errstate(over="ignore"):
        rest = np.log(np.sum(np.exp(weight * (held - top) + logs), axis=0))
    return np.asarray(top + rest / weight, dtype=np.float64)


def composed(
    divergences: Sequence[npt.ArrayLike], weights: npt.ArrayLike, log_masses: Sequence[npt.ArrayLike] | None = None
) -> float:
    """Theorem 3.3: the sum over steps of entropic means of the divergences over the models before each step.

    divergences: per step t the values D_{a_t} (k_t,) over models; one value for a first step from a fixed model.
    log_masses: per step the logarithms of the models' probabilities (k_t,).
    """
    masses: Sequence[npt.ArrayLike | None] = [None] * len(divergences) if log_masses is None else log_masses
    found = zip(divergences, np.asarray(weights, dtype=np.float64), masses, strict=True)
    return float(sum(float(entropic_mean(d, float(w), logs)) for d, w, logs in found))


def largest_order(order: float, steps: int, p: float) -> float:
    """a_1, the order at the first step; below 1 + e^(1/3) (order - 1) for p = 3 steps (Fact 3.4)."""
    return float(exponents(order, steps, p).orders[0])


def checked_exponent(p: float) -> float:
    """``p``, which must be finite and above 1. Raises ``ValueError`` otherwise."""
    value = float(p)
    if not 1.0 < value < math.inf:
        raise ValueError(f"the exponent p must be finite and above 1, got {p!r}")
    return value
