"""What runs say of an expectation: the plug-in, which is no bound, and what R runs make certain.

The plug-in of a term (1 / l) ln E exp(l D) is the entropic mean over R runs. It lies within ln(R) / l of the largest of
them, and where kappa = l D_max is far above ln R it cannot represent a rare bad model even once: it rises with R. By
Hoeffding's inequality for exp(l D) in [1, e^kappa], with probability at least 1 - J over the runs and all s terms

    E exp(l D) <= mean exp(l D) + (e^kappa - 1) sqrt(ln(s / J) / (2 R)).

Fact 3.5 of Thudi et al. counts the samples of a two-sided version; as printed it has the wrong sign, forgets to
square the range and the factor two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpspec.accounting.checks import Floats, inside, whole
from dpspec.contract import Printed
from dpspec_per_instance.composition import entropic_mean

SOURCE = "Hoeffding 1963, for the expectations of Thudi et al. 2024, Theorem 3.3"

#: Why Fact 3.5 backs nothing.
FACT_PRINTED = Printed(refuted=True, reason="wrong sign in the exponent, the range not squared, one side only")

#: Where the number of runs is given up on.
MOST_RUNS = 1e300


def plug_in(divergences: npt.ArrayLike, weight: float) -> Floats:
    """The entropic mean over runs: ``divergences`` (R, ...) to (...). An estimate, and no bound."""
    return entropic_mean(divergences, weight)


def estimability(weight: npt.ArrayLike, largest: npt.ArrayLike) -> Floats:
    """kappa = weight * (largest divergence of the step): above ln(runs) rare bad models go unseen; arrays broadcast."""
    return np.asarray(np.multiply(weight, largest), dtype=np.float64)


def certified(mean: npt.ArrayLike, weight: float, largest: float, runs: float, log_terms: float) -> Floats:
    """The upper confidence bound of one term from its plug-in ``mean`` (...), never above ``largest``.

    weight: l. largest: the divergence of a saturated gradient. log_terms: ln(s / J), s the number of terms that must
    hold together and J the probability that one of them may fail.
    """
    kappa = float(estimability(weight, largest))
    if kappa == 0.0:
        return np.zeros_like(np.asarray(mean, dtype=np.float64))
    gap = kappa + math.log(-math.expm1(-kappa)) + 0.5 * (math.log(log_terms) - math.log(2.0 * runs))
    found = np.logaddexp(weight * np.asarray(mean, dtype=np.float64), gap) / weight
    return np.asarray(np.minimum(found, largest), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many runs Fact 3.5 asks for: as printed, with its sign repaired, and by Hoeffding's inequality."""

    printed: float
    sign_repaired: float
    hoeffding: float


def fact_3_5(order: float, epsilon: float, epsilon_doubled: float, accuracy: float, failure: float) -> Counts:
    """Runs for P[|estimate - truth| >= c e^(3 (a - 1) epsilon)] <= J at order a; p = 3n.

    epsilon, epsilon_doubled: the classical divergences of the whole run at orders a and 2a. accuracy: c. failure: J.
    """
    low, high = 3.0 * (order - 1.0) * epsilon, 3.0 * (2.0 * order - 1.0) * epsilon_doubled
    log_one_sided = math.log(-math.log(inside("failure", failure))) - 2.0 * math.log(accuracy)
    log_two_sided = math.log(math.log(2.0 / failure)) - math.log(2.0) - 2.0 * math.log(accuracy)
    log_range = high + math.log(-math.expm1(-high)) if high > 0.0 else -math.inf
    return Counts(
        printed=_count(log_one_sided + 2.0 * low - high),
        sign_repaired=_count(log_one_sided + high - 2.0 * low),
        hoeffding=_count(log_two_sided + 2.0 * log_range - 2.0 * low),
    )


def _count(log_count: float) -> float:
    """A number of runs from its logarithm, infinite where no float holds it."""
    return math.exp(log_count) if log_count < 700.0 else math.inf


def runs_needed(
    means: npt.ArrayLike, weights: npt.ArrayLike, largest: npt.ArrayLike, fixed: float, goal: float, log_terms: float
) -> float:
    """How many runs would certify a total of at most ``goal``, if their means came out like these; inf if none would.

    means, weights, largest: (s,) per random term. fixed: what the other steps add for certain.
    """
    terms = list(zip(*(np.asarray(v, dtype=np.float64).tolist() for v in (means, weights, largest)), strict=True))

    def total(log_runs: float) -> float:
        return fixed + sum(float(_at(mean, w, d, log_runs, log_terms)) for mean, w, d in terms)

    low, high = 0.0, math.log(MOST_RUNS)
    if total(high) > goal:
        return math.inf
    if total(low) <= goal:
        return 1.0
    while high - low > 1e-6 * max(1.0, high):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if total(middle) > goal else (low, middle)
    return math.ceil(math.exp(high)) if high < 30.0 else math.exp(high)


def _at(mean: float, weight: float, largest: float, log_runs: float, log_terms: float) -> Floats:
    return certified(mean, weight, largest, math.exp(log_runs), log_terms)


def log_terms(terms: int, failure: float) -> float:
    """ln(s / J) for ``terms`` s >= 1 bounds that must hold together but with probability ``failure`` J."""
    return math.log(whole("terms", terms, 1)) - math.log(inside("failure", failure))
