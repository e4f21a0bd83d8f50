"""The scalar mixture-of-Gaussians pair: what one step of DP-SGD leaks about a group, at worst.

Without the group a step shows N(0, sigma^2), with it sum_j p_j N(c_j, sigma^2), where c is the random number of group
members in the batch (Ganesh 2024, Definition 2.8, Theorems 3.1 and 3.3). Everything is in units of the clip norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpspec.accounting.mixture import masses
from dpspec.accounting.mixture.log_ratio import LogRatio
from dpspec.accounting.mixture.masses import Masses, mixture_mass, normal_mass
from dpspec.accounting.mixture.truncated_mixture import TruncatedMixture, truncate_outputs
from dpspec.accounting.numerics.floats import (
    EPS,
    Direction,
    Floats,
    inside,
    log_or_minus_infinity,
    one_direction,
    positive,
    whole,
)
from dpspec.accounting.pair import Pair

#: How far given probabilities may sum from one (they are then divided by their sum).
_SUM_TOLERANCE = 1e-9

#: What rounding can have changed of ln P[c = 0], relatively.
_ROUNDED = 1e-12


class Mixture(Pair):
    """The pair N(0, sigma^2) and sum_j p_j N(c_j, sigma^2), immutable.

    sensitivities: c_j >= 0, shape (m,), ascending after construction, equal ones merged.
    probabilities: p_j > 0, shape (m,), summing to one; ``log_probabilities`` are their exact logarithms.
    sigma: the noise's standard deviation, above 0.

    Scaling all sensitivities and sigma by one factor changes nothing. Raises ``ValueError`` naming the argument.
    """

    def __init__(self, sensitivities: npt.ArrayLike, probabilities: npt.ArrayLike, sigma: float) -> None:
        c = _vector("sensitivities", sensitivities)
        p = _vector("probabilities", probabilities)
        if len(c) != len(p):
            raise ValueError(f"probabilities must match sensitivities: {len(p)} values for {len(c)}")
        total = math.fsum(p)
        if abs(total - 1.0) > _SUM_TOLERANCE:
            raise ValueError(f"probabilities must sum to 1, got {total!r}")
        positive_mass = p > 0.0
        self._set(c[positive_mass], np.log(p[positive_mass] / total), positive("sigma", sigma))

    @classmethod
    def poisson(cls, k: int, q: float, sigma: float) -> Mixture:
        """Poisson sampling at rate ``q`` in (0, 1], groups of up to ``k``: c ~ Binomial(k, q) (Theorem 3.1)."""
        k, q = whole("k", k, 1), inside("q", q, one=True)
        if q == 1.0:
            return cls.full(k, sigma)
        return cls._from_logs(np.arange(k + 1.0), masses.log_binomial(k, q), sigma)

    @classmethod
    def fixed(cls, k: int, n: int, batch_size: int, sigma: float) -> Mixture:
        """Batches of ``batch_size``, at least ``n`` records without the group: c ~ 2 Hypergeometric (Theorem 3.3).

        A group member that enters the batch displaces a record, so it moves the sum by up to two clip norms; sigma
        stays relative to one. ``n`` bounds the smaller data set of the pair from below, and batch_size <= n.
        """
        k, n = whole("k", k, 1), whole("n", n, 1)
        batch_size = whole("batch_size", batch_size, 1)
        if batch_size > n:
            raise ValueError(f"batch_size must be at most n, the records without the group: {batch_size} > {n}")
        logs = masses.log_hypergeometric(k, n, batch_size)
        return cls._from_logs(2.0 * np.arange(float(len(logs))), logs, sigma)

    @classmethod
    def full(cls, k: int, sigma: float) -> Mixture:
        """Every record in every batch: the Gaussian mechanism of sensitivity ``k``."""
        return cls._from_logs(np.array([float(whole("k", k, 1))]), np.zeros(1), sigma)

    @classmethod
    def _from_logs(cls, sensitivities: Floats, log_probabilities: Floats, sigma: float) -> Mixture:
        mixture = cls.__new__(cls)
        mixture._set(sensitivities, log_probabilities, positive("sigma", sigma))
        return mixture

    def _set(self, sensitivities: Floats, log_probabilities: Floats, sigma: float) -> None:
        unique, where = np.unique(sensitivities, return_inverse=True)
        logs = np.full(len(unique), -np.inf)
        np.logaddexp.at(logs, where, log_probabilities)
        self.sigma = sigma
        self.sensitivities = _frozen(unique)
        self.log_probabilities = _frozen(logs)
        self.probabilities = _frozen(np.exp(logs))
        self.ratio = LogRatio(_frozen(unique / sigma), self.log_probabilities)

    def __repr__(self) -> str:
        top = float(self.sensitivities[-1])
        return f"Mixture({len(self.sensitivities)} components, sensitivities up to {top:g}, sigma {self.sigma:g})"

    @property
    def key(self) -> tuple[bytes, bytes]:
        """Equal for pairs that are the same up to scale."""
        return (self.ratio.shifts.tobytes(), self.log_probabilities.tobytes())

    @property
    def effect(self) -> float | None:
        """c / sigma when c is not random, so that the pair is a plain Gaussian one; else None."""
        return float(self.ratio.shifts[0]) if len(self.sensitivities) == 1 else None

    @property
    def dominating_effect(self) -> float:
        """That of the largest sensitivity, without sampling (Ganesh 2024, Lemma 2.9)."""
        return float(self.ratio.shifts[-1])

    def largest_loss(self, direction: Direction) -> float:
        """-ln P[c = 0] absent-first, up to rounding; present-first losses have no end."""
        return math.inf if direction == "present-first" else -self.ratio.log_zero * (1.0 + _ROUNDED)

    def log_delta_bounds(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """By the closed form, with its rounding error on both sides."""
        return _log_delta_bounds(self.ratio, direction, epsilon)

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedMixture:
        """A range of outputs; see ``truncate_outputs``."""
        return TruncatedMixture(truncate_outputs(self.ratio, direction, log_edge, log_far), direction)

    def log_ratio(self, x: npt.ArrayLike) -> Floats:
        """ln of the density with the group over the density without it, at outputs ``x`` (any shape)."""
        return self.ratio(np.asarray(x, dtype=np.float64) / self.sigma)

    def inverse(self, loss: npt.ArrayLike) -> Floats:
        """The output x with ``log_ratio(x) = loss``; -inf at or below ln P[c = 0]."""
        return self.sigma * self.ratio.inverse(np.asarray(loss, dtype=np.float64))

    def log_mass(self, low: npt.ArrayLike, high: npt.ArrayLike) -> tuple[Floats, Floats]:
        """ln of the probabilities of [low, high] with and without the group; arrays of outputs, low < high."""
        z_low, z_high = np.broadcast_arrays(
            np.asarray(low, dtype=np.float64) / self.sigma, np.asarray(high, dtype=np.float64) / self.sigma
        )
        return _mixture(self.ratio, z_low, z_high), normal_mass(z_low, z_high)[0]

    def log_delta(self, epsilon: npt.ArrayLike, direction: Direction) -> Floats:
        """ln delta(epsilon) of one step, any real epsilon; -inf where delta is 0.

        present-first: sum_j p_j Phi((c_j - x)/sigma) - e^epsilon Phi(-x/sigma) with l(x) = epsilon, and
        1 - e^epsilon at or below ln P[c = 0]. absent-first: Phi(x/sigma) - e^epsilon sum_j p_j Phi((x - c_j)/sigma)
        with l(x) = -epsilon, and 0 at or above -ln P[c = 0].
        """
        eps = np.asarray(epsilon, dtype=np.float64)
        present = one_direction(direction) == "present-first"
        z = self.ratio.inverse(eps if present else -eps)
        ends = (z, np.full(z.shape, np.inf)) if present else (np.full(z.shape, -np.inf), z)
        with np.errstate(divide="ignore", invalid="ignore"):
            group, none = _mixture(self.ratio, *ends), normal_mass(*ends)[0]
            first, second = (group, none) if present else (none, group)
            inner = first + np.log(-np.expm1(np.minimum(eps + second - first, 0.0)))
            # 1 - e^epsilon only matters at negative epsilon; elsewhere its logarithm is not taken
            edge = np.log(-np.expm1(np.minimum(eps, -0.0))) if present else np.full(eps.shape, -np.inf)
        return np.asarray(np.where(np.isneginf(z), edge, inner), dtype=np.float64)

    def delta(self, epsilon: npt.ArrayLike, direction: Direction) -> Floats:
        """Evaluate the privacy curve of one step; see ``log_delta``."""
        return np.asarray(np.exp(self.log_delta(epsilon, direction)), dtype=np.float64)


def _mixture(ratio: LogRatio, low: Floats, high: Floats) -> Floats:
    """``mixture_mass`` for intervals of any shape and order."""
    if low.size == 0:
        return np.empty(low.shape)
    flat_low, flat_high = np.ravel(low), np.ravel(high)
    order = np.lexsort((flat_low, flat_high))
    wide = np.minimum.accumulate(flat_low[order][::-1])[::-1]
    result = np.empty(flat_low.shape)
    if np.all(wide == flat_low[order]):
        result[order] = mixture_mass(ratio, flat_low[order], flat_high[order])[0]
    else:  # nested intervals cannot be put in order: one at a time
        for i in range(len(result)):
            result[i] = mixture_mass(ratio, flat_low[i : i + 1], flat_high[i : i + 1])[0][0]
    return result.reshape(np.shape(low))


def _vector(name: str, values: npt.ArrayLike | Sequence[float]) -> Floats:
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a non-empty list of numbers")
    if not np.all(np.isfinite(array)) or np.any(array < 0.0):
        raise ValueError(f"{name} must be finite and not negative")
    return array


def _frozen(array: Floats) -> Floats:
    array = np.array(array, dtype=np.float64)
    array.flags.writeable = False
    return array


def _log_delta_bounds(ratio: LogRatio, direction: Direction, epsilon: float) -> tuple[float, float]:
    """Lower and upper bound of ln delta(epsilon).

    Any set bounds delta from below by its first mass less e^epsilon times its second. The outcomes of loss over
    epsilon, cut off at l(z) = epsilon, attain it, and a cut whose loss is off by w misses at most 2 w times the first
    mass.
    """
    present = direction == "present-first"
    z = ratio.inverse(np.array([epsilon if present else -epsilon]))
    below = epsilon * (1.0 - 2.0 * _ROUNDED)
    if np.isneginf(z[0]) and not present and below < epsilon < -ratio.log_zero * (1.0 + _ROUNDED):
        # By rounding alone none exceeds epsilon: no more do than exceed a little less.
        return -math.inf, _log_delta_bounds(ratio, direction, below)[1]
    if np.isneginf(z[0]):  # every outcome exceeds epsilon present-first, none absent-first
        exact = math.log(-math.expm1(epsilon)) if present and epsilon < 0.0 else -math.inf
        return exact - 4.0 * EPS, exact + 4.0 * EPS
    far = np.array([np.inf])
    masses = Masses.of(ratio, z, far) if present else Masses.of(ratio, -far, z)
    logs, errors = (masses.group, masses.none), (masses.group_error, masses.none_error)
    first, second = (float(x[0]) for x in (logs if present else logs[::-1]))
    if first == -math.inf:
        return -math.inf, -math.inf
    excess = max(0.0, -math.expm1(min(0.0, epsilon + second - first)))
    miss = abs(float(ratio(z)[0]) - (epsilon if present else -epsilon))
    near = ratio.relevant(z, z)
    noise = EPS * (32.0 + 8.0 * float(np.max(np.abs(near.log_weights) + near.shifts * (abs(z[0]) + near.shifts))))
    error = 2.0 * (float(errors[0][0]) + float(errors[1][0]) + miss + noise)
    error += 4.0 * EPS * (abs(epsilon) + abs(first) + abs(second))
    return first + log_or_minus_infinity(excess - error), first + log_or_minus_infinity(excess + error)
