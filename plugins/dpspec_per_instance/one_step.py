"""Epsilon of one step by Corollary 3.1: of a known distance, and over batch sizes with noise on the mean.

Formulas: ``docs/explanation/proofs/per-instance.md``.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from dpspec.accounting import Floats, gaussian
from dpspec_per_instance.bounds import entropic_mean

COROLLARY_SOURCE = "Thudi et al. 2024, Corollary 3.1, with the exact profile of the Gaussian mechanism"

#: Log-probability below which a batch size is negligible for every tried p.
_NEVER = -1e4

#: Exponents of the search.
EXPONENTS = tuple(np.geomspace(1.5, 1e4, 60).tolist())


def classical_constant(delta: float, sigma: float) -> float:
    """sqrt(2 ln(1.25 / delta)) / sigma: times the distance, the textbook epsilon."""
    return math.sqrt(2.0 * math.log(1.25 / delta)) / sigma


def epsilons(distances: npt.ArrayLike, delta: float, sigma: float) -> Floats:
    """Epsilon of the Gaussian mechanism at ``delta`` for each distance >= 0, by its exact profile."""
    far = np.asarray(distances, dtype=np.float64)
    least = np.zeros(far.shape)
    # half of the smallest number is 0
    least[far > 0] = gaussian.epsilon(delta, far[far > 0] / sigma) if delta > 0.0 else math.inf
    return least


def split(rate: float, delta: float, *, whole: bool = False) -> tuple[float, float]:
    """Split ``delta`` into the delta of a batch with the record, below 1, and slack: half each; ``whole``: no slack."""
    inner = min(delta * (1.0 if whole else 0.5) / rate, 0.5)
    return inner, delta - rate * inner


def corollary(rate: float, log_norm: float, slack: float, p: float) -> float:
    """Corollary 3.1 with delta' = ``slack``; ``log_norm`` is ln N_p.

    With delta the one of N_p, P[with in S] <= e^epsilon P[without in S] + rate delta + slack for every S, without the
    reverse inequality.
    """
    log_drawn = (p * (math.log(rate) + log_norm) - math.log(slack)) / (p - 1.0)
    log_absent = math.log1p(-rate) if rate < 1.0 else -math.inf
    return max(0.0, float(np.logaddexp(log_drawn, log_absent)))


def amplified(rate: float, epsilon: float) -> float:
    """ln(1 + q (e^epsilon - 1)), at q delta: the limit of the corollary for p -> inf, and never larger than it."""
    log_absent = math.log1p(-rate) if rate < 1.0 else -math.inf
    return float(np.logaddexp(math.log(rate) + epsilon, log_absent))


def stratified_distances(
    records: int, rate: float, norm: float, sampled: Mapping[int, npt.ArrayLike] | None = None
) -> tuple[Floats, Floats]:
    """Distances of the mean rule and their log-probabilities, shape (k,) each, for sizes ~ Binomial(records, rate).

    In clip norms. A size b in ``sampled`` uses distances of sampled batches; others the bound (norm + 1) / (b + 1), the
    empty batch ``norm``. Rare small batches, which dominate for large p, thus never depend on sampling.
    """
    sampled_sizes, sizes = dict(sampled or {}), np.arange(records + 1)
    log_sizes = binom.logpmf(sizes, records, rate)
    bounded = log_sizes > _NEVER
    bounded[list(sampled_sizes)] = False
    bounds = np.where(sizes == 0, norm, (norm + 1.0) / (sizes + 1.0))
    distances, logs = [bounds[bounded]], [log_sizes[bounded]]
    for size, sampled_distances in sampled_sizes.items():
        drawn = np.atleast_1d(np.asarray(sampled_distances, dtype=np.float64))
        distances.append(drawn)
        logs.append(np.full(len(drawn), log_sizes[size] - math.log(len(drawn))))
    return np.concatenate(distances), np.concatenate(logs)


def best_corollary(
    rate: float, epsilon: npt.ArrayLike, log_masses: npt.ArrayLike, slack: float, ps: Sequence[float] = EXPONENTS
) -> float:
    """Minimum epsilon' over exponents, from the epsilon (k,) of each batch and log-probabilities (k,)."""
    return min(corollary(rate, float(entropic_mean(epsilon, p, log_masses)), slack, p) for p in ps)


class OneStep(NamedTuple):
    """Present-first epsilon of one step. ``amplified``: the limit for large p. ``printed``: by the paper's constant."""

    corollary: float
    amplified: float
    printed: float
    holds: bool


@lru_cache(maxsize=256)  # a run and its verification repeat the question
def one_step(rate: float, sigma: float, norm: float, delta: float) -> OneStep:
    """One step of a sum of clipped gradients; ``norm`` of the record and noise ``sigma`` are in clip norms."""
    inner, slack = split(rate, delta)
    whole, _ = split(rate, delta, whole=True)
    if not min(inner, whole, slack) > 0.0:  # a share of the smallest number is 0
        return OneStep(math.inf, math.inf, math.inf, holds=True)
    exact, classical = float(epsilons(norm, inner, sigma)), classical_constant(inner, sigma) * norm
    repaired, printed = (best_corollary(rate, [e], [0.0], slack) for e in (exact, classical))
    return OneStep(
        corollary=repaired,
        amplified=amplified(rate, float(epsilons(norm, whole, sigma))),
        printed=printed,
        holds=norm == 0.0 or float(gaussian.delta(classical, norm / sigma)) <= inner,
    )
