"""What follows from a record's divergence or epsilon: what an attack can reach, memorisation, and unlearning.

For an ordered pair of data sets, D_a(P || Q) <= d gives P(S) <= (e^d Q(S))^((a - 1) / a) for every S. With (epsilon,
delta) in both directions the two probabilities differ by at most (e^epsilon - 1 + 2 delta) / (e^epsilon + 1): a bound
on a membership advantage, on how much likelier the model is right about the record for having seen it (memorisation),
and on every test of whether it was unlearned.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dpspec.accounting.checks import Floats
from dpspec.accounting.rdp import checked_orders
from dpspec.contract import Printed

#: The constant of algorithm NPIU as printed: undefined at order 2, negative below, needlessly large above.
NPIU_PRINTED = Printed(refuted=True, reason="the proof has (a - 1/2) / (a - 1), the algorithm another constant")


def true_positive_rate(fpr: npt.ArrayLike, order: npt.ArrayLike, divergence: npt.ArrayLike) -> Floats:
    """The most that an attack on one record reaches: (e^d fpr)^((a - 1) / a), at most 1; arrays broadcast."""
    a = checked_orders(order)
    with np.errstate(divide="ignore"):
        log_rate = (a - 1.0) / a * (np.log(np.asarray(fpr, dtype=np.float64)) + np.asarray(divergence))
    return np.asarray(np.exp(np.minimum(log_rate, 0.0)), dtype=np.float64)


def advantage(epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> Floats:
    """(e^epsilon - 1 + 2 delta) / (e^epsilon + 1), at most 1: memorisation and membership; arrays broadcast."""
    eps = np.asarray(epsilon, dtype=np.float64)
    small = np.exp(-np.minimum(eps, 700.0))
    found = (-np.expm1(-eps) + 2.0 * np.asarray(delta, dtype=np.float64) * small) / (1.0 + small)
    return np.asarray(np.minimum(found, 1.0), dtype=np.float64)


def triangle_constant(order: float) -> float:
    """(a - 1/2) / (a - 1): D_a(P || Q) <= it D_2a(P || S) + D_(2a - 1)(S || Q) (Mironov 2017, Corollary 4)."""
    a = float(checked_orders(order))
    return (a - 0.5) / (a - 1.0)


def printed_constant(order: float) -> float:
    """(a - 1) / (a - 2) as algorithm NPIU prints it, see ``NPIU_PRINTED``; infinite at 2."""
    a = float(checked_orders(order))
    return math.inf if a == 2.0 else (a - 1.0) / (a - 2.0)


def unlearning_step(order: float, doubled: float, deletion: float) -> float:
    """What NPIU holds against its limit before a retraining is skipped (Thudi et al., section 5, repaired).

    doubled: the divergence at 2a from what is held now to a model trained without the records deleted so far.
    deletion: the divergence at 2a - 1 of one more deletion, D(with || without): present-first.
    """
    return triangle_constant(order) * doubled + deletion


def deletion_orders(order: float, deletions: int) -> Floats:
    """The orders 2 b - 1, b = a, 2a, 4a, ..., (deletions,) at which ``unlearned`` asks for divergences."""
    return np.asarray(2.0 * float(checked_orders(order)) * 2.0 ** np.arange(deletions) - 1.0, dtype=np.float64)


def unlearned(
    order: float,
    deletions: int,
    divergence: npt.ArrayLike,
    constant: Callable[[float], float] = triangle_constant,
) -> Floats:
    """The divergence at ``order`` after so many ``deletions`` without retraining, from the last to the first.

    d_s(a) = c(a) d_{s-1}(2a) + D_{2a - 1}, d_0 = 0 (Fact 5.2). divergence: (deletions, ...) at ``deletion_orders``: the
    last deletion's first. constant: c.
    """
    terms = np.asarray(divergence, dtype=np.float64)
    if terms.shape[:1] != (deletions,):
        raise ValueError(f"need one divergence for each of {deletions} deletions, got shape {terms.shape}")
    found = np.zeros(terms.shape[1:])
    for turn in range(deletions - 1, -1, -1):
        with np.errstate(invalid="ignore"):
            found = np.where(found > 0.0, constant(2.0**turn * order) * found, 0.0) + terms[turn]
    return np.asarray(found, dtype=np.float64)
