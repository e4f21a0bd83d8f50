"""Distribution of the size of a truncated Poisson batch, min(Binomial(records, rate), cap), and tails of its sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from dpspec.accounting import bisect
from dpspec.stats import binomial, chernoff

Array = npt.NDArray[np.float64]


#: Power of ``detectable``, as in ``conformance.measurement``.
_POWER = 0.99

#: Half-width of the window of sizes around the mean, in standard deviations plus records.
_WINDOW = 40.0

#: Bound on the probability of a size outside the window: 2 exp(-1600 / 29) by Bernstein's inequality.
_OUTSIDE = 1e-23


@dataclass(frozen=True)
class TruncatedSize:
    """Distribution of min(Binomial(records, rate), cap), 0 < rate < 1."""

    records: int
    rate: float
    cap: int

    both = True
    test = "truncated binomial"

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Sizes in the window, ascending, and the logs of their probabilities, (n,) each."""
        deviation = math.sqrt(self.records * self.rate * (1.0 - self.rate))
        low = max(0, math.floor(self.records * self.rate - _WINDOW * (deviation + 1.0)))
        high = min(self.records, self.cap, math.ceil(self.records * self.rate + _WINDOW * (deviation + 1.0)))
        low = min(low, high)
        sizes = np.arange(low, high + 1, dtype=np.float64)
        ways = special.gammaln(self.records + 1) - special.gammaln(sizes + 1)
        ways -= special.gammaln(self.records - sizes + 1)
        logs = ways + special.xlogy(sizes, self.rate) + special.xlog1py(self.records - sizes, -self.rate)
        if high == self.cap <= self.records:
            logs[-1] = math.log(max(binomial.at_least(self.cap, self.records, self.rate), 1e-300))
        return sizes, logs

    @property
    def declared(self) -> float:
        return self.mean

    @cached_property
    def mean(self) -> float:
        sizes, logs = self._table
        return float(np.exp(logs) @ sizes)

    @cached_property
    def variance(self) -> float:
        sizes, logs = self._table
        return float(np.exp(logs) @ np.square(sizes - self.mean))

    def below(self, total: float, steps: int = 1) -> float:
        """Bound on P[a sum of ``steps`` sizes <= ``total``]; exact for one step."""
        if steps == 1:
            most = min(self.cap, self.records)
            return 1.0 if total >= most else binomial.at_most(max(0, int(total)), self.records, self.rate)
        return self._tail(self._table[0], total, steps, -1.0)

    def above(self, total: float, steps: int = 1) -> float:
        """Bound on P[a sum of ``steps`` sizes >= ``total``]; exact for one step."""
        if total > min(self.cap, self.records) * steps:  # impossible unless records are drawn twice
            return 0.0
        if steps == 1:
            return binomial.at_least(max(0, int(total)), self.records, self.rate)
        return self._tail(self._table[0], total, steps, 1.0)

    def spread(self, squares: float, steps: int, sign: float) -> float:
        """Bound on P[a sum of squared distances from the mean <= (``sign`` -1) or >= (+1) ``squares``]."""
        return self._tail(np.square(self._table[0] - self.mean), squares, steps, sign)

    def excess(self, total: float, steps: int) -> float:
        """Bound on P[a sum of max(0, size - mean)^2 >= total]."""
        return self._tail(self._excess, total, steps, 1.0)

    def moments_of_excess(self) -> tuple[float, float]:
        logs = self._table[1]
        mean = float(np.exp(logs) @ self._excess)
        return mean, math.sqrt(max(0.0, float(np.exp(logs) @ np.square(self._excess - mean))))

    @cached_property
    def _excess(self) -> Array:
        return np.square(np.maximum(self._table[0] - self.mean, 0.0))

    def size(self, value: float) -> float:
        return value

    def detectable(self, most: float, level: float, steps: int = 1) -> float | None:
        return _detectable(self.records, self.rate, self.cap, steps, level)

    def _tail(self, terms: Array, total: float, steps: int, sign: float) -> float:
        """Chernoff bound on P[sign * (a sum of ``terms`` of ``steps`` batches) >= sign * ``total``]."""
        logs = self._table[1]
        mean = float(np.exp(logs) @ terms)
        if sign * (total - steps * mean) <= 0.0:
            return 1.0
        scale = max(float(np.exp(logs) @ np.square(terms - mean)), 1e-12) ** 0.5
        one = chernoff.discrete(logs, sign * (terms - total / steps))
        return min(1.0, math.exp(chernoff.log_tail(one, steps, 1e-6 / scale, 1e4 / scale)) + steps * _OUTSIDE)


@lru_cache(maxsize=1024)
def _detectable(records: int, rate: float, cap: int, steps: int, level: float) -> float | None:
    """Larger relative distance, up or down, to a mean size that is rejected with power 0.99; None if there is none.

    If most batches are full, no rate above the declared one can be detected.
    """
    law = TruncatedSize(records, rate, cap)

    def tilted(shift: float) -> TruncatedSize:
        odds = math.log(rate) - math.log1p(-rate) + shift
        return TruncatedSize(records, min(max(float(special.expit(odds)), 1e-300), 1.0 - 1e-16), cap)

    def rejects(other: TruncatedSize, sign: float) -> bool:
        surely = steps * other.mean - sign * float(special.ndtri(_POWER)) * math.sqrt(steps * other.variance)
        if sign > 0.0:
            return surely > steps * law.mean and law.above(surely, steps) <= level
        return surely < steps * law.mean and law.below(max(0.0, surely), steps) <= level

    found = []
    for sign in (-1.0, 1.0):

        def seen(shift: float, sign: float = sign) -> bool:
            return rejects(tilted(sign * shift), sign)

        if not seen(40.0):
            return None
        found.append(abs(tilted(sign * bisect(seen, 40.0, 0.0, halvings=20)[0]).mean / law.mean - 1.0))
    return max(found)
