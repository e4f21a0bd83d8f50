"""One step as (epsilon, delta) by the moments of what a record changes (Thudi et al., Lemma A.1 and Corollary 3.1).

For a batch B drawn from the data without the record, Delta(B) is how much the record would change the update, and
epsilon(B) what the Gaussian mechanism loses at that distance and ``delta``. With q the record's probability of being
drawn and N_p = (E exp(p epsilon(B)))^(1/p), 1 < p < inf, for every set S of outputs

    P[with in S] <= q N_p P[without in S]^(1 - 1/p) + q delta + (1 - q) P[without in S]          (Lemma A.1)
    P[with in S] <= e^epsilon' P[without in S] + q delta + delta',
    epsilon' = ln((q N_p)^(p / (p - 1)) delta'^(-1 / (p - 1)) + 1 - q)                            (Corollary 3.1)

One direction only: the reverse inequality is not given. The paper takes epsilon(B) = Delta sqrt(2 ln(1.25 / delta)) /
sigma, a theorem only where that is at most 1; the exact profile of the Gaussian mechanism always holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from dpspec.accounting import gaussian
from dpspec.accounting.checks import Floats, inside, positive, whole
from dpspec.contract import Printed
from dpspec_per_instance.composition import checked_exponent, entropic_mean

SOURCE = "Thudi et al. 2024, Corollary 3.1, with the exact profile of the Gaussian mechanism"

#: Where the classical constant does not hold, numbers made with it back nothing.
CLASSICAL = Printed(refuted=True, reason="the classical Gaussian constant does not hold at this distance")

#: Batch sizes with a smaller logarithm of their probability: no p within reach makes them count.
_NEVER = -1e4

#: Exponents among which the best is looked for.
_EXPONENTS = tuple(np.geomspace(1.5, 1e4, 60).tolist())


class OneSided(NamedTuple):
    """P[with in S] <= e^epsilon P[without in S] + delta for every S; not the reverse."""

    epsilon: float
    delta: float


def classical_constant(delta: float, sigma: float) -> float:
    """sqrt(2 ln(1.25 / delta)) / sigma, which times the distance is the epsilon of the textbook."""
    return math.sqrt(2.0 * math.log(1.25 / inside("delta", delta))) / positive("sigma", sigma)


def classical_holds(delta: float, sigma: float, distance: float) -> bool:
    """Whether the textbook's epsilon is enough at ``distance``: held against the exact profile, not a range of use."""
    epsilon = classical_constant(delta, sigma) * distance
    return distance == 0.0 or float(gaussian.delta(epsilon, distance / sigma)) <= delta


def epsilons(distances: npt.ArrayLike, delta: float, sigma: float) -> Floats:
    """The least epsilon of the Gaussian mechanism at ``delta`` for each distance >= 0, by its exact profile."""
    far = np.asarray(distances, dtype=np.float64)
    found = np.zeros(far.shape)
    found[far > 0] = gaussian.epsilon(inside("delta", delta), far[far > 0] / positive("sigma", sigma))
    return found


def log_moment(epsilon: npt.ArrayLike, p: float, log_masses: npt.ArrayLike | None = None) -> float:
    """ln N_p from the epsilon (k,) of each batch and the logarithms of their probabilities (k,), uniform if left out.

    Over sampled batches it is an estimate, and at large p a bad one: the rarest batches weigh most.
    """
    return float(entropic_mean(epsilon, checked_exponent(p), log_masses))


def lemma(rate: float, log_norm: float, delta: float, p: float, fpr: npt.ArrayLike) -> Floats:
    """The largest true-positive rate at false-positive rates ``fpr`` (Lemma A.1), at most 1; log_norm is ln N_p."""
    at = np.asarray(fpr, dtype=np.float64)
    with np.errstate(divide="ignore"):
        log_drawn = math.log(rate) + log_norm + (1.0 - 1.0 / checked_exponent(p)) * np.log(at)
    drawn = np.exp(np.minimum(log_drawn, 1.0))  # beyond one nothing is said
    return np.asarray(np.minimum(1.0, drawn + rate * delta + (1.0 - rate) * at), dtype=np.float64)


def best_lemma(rate: float, sigma: float, norm: float, delta: float, fpr: npt.ArrayLike) -> Floats:
    """The least of Lemma A.1's rates over exponents, at ``fpr`` (k,), for a sum that the record changes by ``norm``."""
    inner, _ = split(rate, delta)
    log_norm = float(epsilons(norm, inner, sigma))
    return np.asarray(np.min([lemma(rate, log_norm, inner, p, fpr) for p in _EXPONENTS], axis=0), dtype=np.float64)


def split(rate: float, delta: float, *, whole: bool = False) -> tuple[float, float]:
    """Half of ``delta`` for the step, as the delta of a batch that has the record, and the other half for slack.

    whole: all of it for the step. The delta of a batch is below one, whatever the rate.
    """
    inner = min(delta * (1.0 if whole else 0.5) / inside("rate", rate, one=True), 0.5)
    return inner, delta - rate * inner


def corollary(rate: float, log_norm: float, delta: float, slack: float, p: float) -> OneSided:
    """Corollary 3.1 with delta' = ``slack``; log_norm is ln N_p. Raises ``ValueError`` where it does not apply."""
    q = inside("rate", rate, one=True)
    total = q * inside("delta", delta) + inside("slack", slack)
    if total >= 1.0:
        raise ValueError(f"rate * delta + slack must be below 1, got {total!r}")
    power = checked_exponent(p)
    log_drawn = (power * (math.log(q) + log_norm) - math.log(slack)) / (power - 1.0)
    rest = math.log1p(-q) if q < 1.0 else -math.inf
    return OneSided(max(0.0, float(np.logaddexp(log_drawn, rest))), total)


def amplified(rate: float, epsilon: float, delta: float) -> OneSided:
    """What sampling leaves of (epsilon, delta) where the distance is constant: ln(1 + q (e^epsilon - 1)), q delta.

    The limit of the corollary for p -> inf, and never larger.
    """
    q = inside("rate", rate, one=True)
    rest = math.log1p(-q) if q < 1.0 else -math.inf
    return OneSided(float(np.logaddexp(math.log(q) + epsilon, rest)), q * delta)


def stratified_distances(
    records: int, rate: float, norm: float, clip_norm: float, sampled: Mapping[int, npt.ArrayLike] | None = None
) -> tuple[Floats, Floats]:
    """Distances of the mean rule and the logarithms of their probabilities (k,), batch size by batch size.

    Batch sizes are Binomial(records, rate), exactly. A size b in ``sampled`` has distances of batches of that size; any
    other the bound (norm + clip_norm) / (b + 1), and the empty batch ``norm``. The rare small batches that decide large
    p are so never left to chance.
    """
    n, given = whole("records", records, 0), dict(sampled or {})
    sizes = np.arange(n + 1)
    log_sizes = binom.logpmf(sizes, n, rate)
    rest = log_sizes > _NEVER
    rest[list(given)] = False
    bounds = np.where(sizes == 0, norm, (norm + clip_norm) / (sizes + 1.0))
    distances, logs = [bounds[rest]], [log_sizes[rest]]
    for size, some in given.items():
        drawn = np.atleast_1d(np.asarray(some, dtype=np.float64))
        distances.append(drawn)
        logs.append(np.full(len(drawn), log_sizes[size] - math.log(len(drawn))))
    return np.concatenate(distances), np.concatenate(logs)


def best_corollary(
    rate: float,
    epsilon: npt.ArrayLike,
    log_masses: npt.ArrayLike,
    delta: float,
    slack: float,
    ps: npt.ArrayLike = _EXPONENTS,
) -> tuple[OneSided, float]:
    """The least epsilon' over exponents, each of which is valid, and the exponent; arguments as for ``log_moment``."""
    found = [(corollary(rate, log_moment(epsilon, p, log_masses), delta, slack, p), p) for p in np.asarray(ps).tolist()]
    return min(found, key=lambda pair: pair[0].epsilon)
