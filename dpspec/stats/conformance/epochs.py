"""Tests of epochs: shuffled batches and random allocation.

Shuffled batches: given all earlier epochs, a batch is a uniformly random set of its size, so the number of records in
common with one of their batches is hypergeometric. An order that returns after more than four epochs is not detected.

Random allocation: the sizes of an epoch's t batches are multinomial. Batches of a shuffled loader are too even.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

from dpspec.accounting import bisect
from dpspec.json_records import Amount, Count, Positive, Record, Row
from dpspec.stats.binomial import chernoff_log_tail, cumulant_of
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement

Array: TypeAlias = npt.NDArray[Any]

#: Number of remembered epochs.
_REMEMBERED = 4


@dataclass(frozen=True)
class Closest(Row):
    """Two batches ``lag`` steps apart, with ``common`` records in both, of ``size`` and ``before`` in the earlier."""

    lag: Positive
    common: Count
    size: Positive
    before: Positive

    def problem(self) -> str | None:
        most = min(self.size, self.before)
        return f"common must be at most {most}, got {self.common}" if self.common > most else None


@dataclass(frozen=True, kw_only=True)
class TogetherSums(Record):
    """Batches of different epochs of shuffled batches: the number of compared pairs, and the worst pair."""

    pairs: Count
    closest: Closest | None = None

    def problem(self) -> str | None:
        if (self.closest is None) != (self.pairs == 0):
            return f"closest must be one of {self.pairs} pairs"
        return None


@dataclass(frozen=True, kw_only=True)
class EpochSums(Record):
    """Completed epochs of random allocation.

    ``astray``: the number of records, over all ``whole`` epochs, that were not in the declared number of batches.
    ``spread``: the sum over batches of the squared difference between size and mean size.
    """

    whole: Count
    astray: Count
    spread: Amount

    def problem(self) -> str | None:
        if not self.whole and (self.astray or self.spread):
            return f"astray and spread must be 0 of no epoch, got {self.astray} and {self.spread}"
        return None


def pairs_of(records: int, batch_size: int, steps: int) -> int:
    """Return the number of compared pairs of batches of different epochs; 0 if a batch has all records."""
    batches = math.ceil(records / batch_size)
    if batches == 1:
        return 0
    epochs, extra_batches = divmod(steps, batches)
    full = sum(min(number, _REMEMBERED) for number in range(min(epochs, _REMEMBERED)))
    full += max(0, epochs - _REMEMBERED) * _REMEMBERED
    return batches * (batches * full + extra_batches * min(epochs, _REMEMBERED))


class EpochLog:
    """Compare the batches of a phase of shuffled batches.

    ``early``: the number of records that were drawn again before their epoch ended. ``closest`` of ``pairs`` compared
    batches of different epochs has the worst number of records in common.
    """

    closest: Closest | None

    def __init__(self, records: int, batch_size: int) -> None:
        self._records, self._batches = records, math.ceil(records / batch_size)
        self.restore({})

    def add(self, members: Array) -> None:
        self.early += int((self._place[members] >= 0).sum())
        if 0 < len(members) < self._records:
            for back, (batch_of, sizes) in enumerate(reversed(self._earlier), start=1):
                self._compare(members, batch_of, sizes, back)
        self._place[members] = self._step
        self._step += 1
        if self._step == self._batches:
            self._earlier.append(self._with_sizes(self._place))
            self._begin()

    def sums(self) -> TogetherSums:
        return TogetherSums(pairs=self.pairs, closest=self.closest)

    def _begin(self) -> None:
        self._place, self._step = np.full(self._records, -1, dtype=np.int64), 0

    def _with_sizes(self, batch_of: Array) -> tuple[Array, Array]:
        """Return each record's batch in an epoch, -1 for none, and the sizes of the batches."""
        return batch_of, np.bincount(batch_of + 1, minlength=self._batches + 1)[1:]

    def _compare(self, members: Array, batch_of: Array, sizes: Array, back: int) -> None:
        """Compare with each batch of the epoch ``back`` epochs before; the largest overlap per size is enough."""
        common = np.bincount(batch_of[members] + 1, minlength=self._batches + 1)[1:]
        compared = (sizes > 0) & (sizes < self._records)
        self.pairs += int(compared.sum())
        for size in np.unique(sizes[compared]).tolist():
            batch = int(np.argmax(np.where(sizes == size, common, -1)))
            lag = back * self._batches + self._step - batch
            candidate = Closest(lag, int(common[batch]), len(members), size)
            if self.closest is None or self._surprise(candidate) < self._surprise(self.closest):
                self.closest = candidate

    def _surprise(self, candidate: Closest) -> float:
        if candidate.common * self._records <= candidate.size * candidate.before:
            return 0.0
        return log_tail(candidate.common, candidate.size, candidate.before, self._records)

    def state(self) -> Mapping[str, Array]:
        return {
            "place": self._place.copy(),
            "earlier": np.array([batch_of for batch_of, _ in self._earlier], dtype=np.int64).reshape(-1, self._records),
            "counts": np.array([self._step, self.early, self.pairs], dtype=np.int64),
            "closest": np.array(astuple(self.closest) if self.closest else (), dtype=np.int64),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        self._begin()
        remembered = (self._with_sizes(batch_of) for batch_of in state.get("earlier", ()))
        self._earlier: deque[tuple[Array, Array]] = deque(remembered, maxlen=_REMEMBERED)
        self.early, self.pairs, self.closest = 0, 0, None
        if state:
            numbers = [int(n) for n in state["closest"]]
            self.closest = Closest(*numbers) if numbers else None
            self._place = np.array(state["place"], dtype=np.int64)
            self._step, self.early, self.pairs = (int(n) for n in state["counts"])


def closest(pair: Closest, records: int, pairs: int) -> Measurement:
    """Test the records in common of two batches of different epochs, the worst of ``pairs`` pairs.

    p = 2 pairs times :func:`log_tail`'s bound. ``detectable`` is the value of an identical batch.
    """
    size, before, common = pair.size, pair.before, pair.common
    log_pairs = math.log(2.0 * pairs)
    again = log_pairs + log_tail(size, size, size, records)
    test = f"records in common of two batches, {pair.lag} step{'s' if pair.lag > 1 else ''} apart"
    p_value = min(1.0, math.exp(min(0.0, log_pairs + log_tail(common, size, before, records))))
    detectable = records / size - 1.0 if again <= math.log(LEVEL) and size < records else None
    return Measurement(test, size / records, common / before, p_value, detectable)


@lru_cache(maxsize=4096)
def log_tail(common: int, size: int, before: int, records: int) -> float:
    """Return ln of a bound on the hypergeometric tail from ``common`` away from the mean; 0 at the mean.

    The ratio r of successive probabilities falls along the tail (the distribution is log-concave), so the tail is at
    most its first probability over 1 - r, plus the rounding error of the logarithms of factorials.
    """
    outside = records - size - before  # below 0 if two such batches must have records in common
    if common * records >= size * before:
        ratio = (size - common) * (before - common) / ((common + 1) * (outside + common + 1))
    else:
        ratio = common * (outside + common) / ((size - common + 1) * (before - common + 1))
    if ratio >= 1.0:
        return 0.0

    def log_choose(total: int, chosen: int) -> float:
        return float(special.gammaln(total + 1) - special.gammaln(chosen + 1) - special.gammaln(total - chosen + 1))

    log_mass = log_choose(before, common) + log_choose(records - before, size - common) - log_choose(records, size)
    rounding = 1e-14 * (1.0 + float(special.gammaln(records + 1)))
    return min(0.0, log_mass - math.log1p(-ratio) + rounding)


def evenness(epochs: int, spread: float, records: int, epoch_steps: int) -> Measurement:
    """Test that the sizes of batches of random allocation vary: ``spread`` is S, the sum of (size - records / t)^2.

    An epoch's sizes are t = ``epoch_steps`` independent Poisson(records / t) numbers X given that their sum is
    ``records``, so for u > 0

        E[e^(-u S_1)] <= E[e^(-u (X - records / t)^2)]^t / P[Poisson(records) = records],

    and p is Chernoff's bound on the lower tail over ``epochs`` independent epochs. ``measured`` is S over its mean.
    """
    mean = epochs * records * (1.0 - 1.0 / epoch_steps)

    def rejects(ratio: float) -> bool:
        return _lower_tail(epochs, ratio * mean, records, epoch_steps) <= LEVEL

    share = records / epoch_steps
    even = epochs * epoch_steps * (share - round(share)) ** 2 / mean
    half, detectable = 0.5 * epochs * (epoch_steps - 1), None
    if rejects(even):
        ratio = bisect(rejects, even, 1.0, within=1e-3)[0]
        detectable = max(0.0, 1.0 - ratio * half / float(special.gammaincinv(half, POWER)))
    p_value = _lower_tail(epochs, spread, records, epoch_steps)
    test = "spread of batch sizes within epochs"
    return Measurement(test, 1.0, spread / mean, p_value, detectable, details="lower tail")


@lru_cache(maxsize=1024)
def _lower_tail(epochs: int, spread: float, records: int, epoch_steps: int) -> float:
    share = records / epoch_steps
    reach = math.ceil(40.0 * (1.0 + math.sqrt(share)))
    sizes = np.arange(max(0, math.floor(share) - reach), math.ceil(share) + reach + 1, dtype=np.float64)
    logs = sizes * math.log(share) - share - special.gammaln(sizes + 1.0)
    squares = np.square(sizes - share)
    # Sizes outside of the window have a probability below 1e-26 (Bernstein) and the smallest exponentials: negligible.
    cumulant = cumulant_of(logs, spread / (epochs * epoch_steps) - squares)
    log_all = records * math.log(records) - records - float(special.gammaln(records + 1))
    log_tail = chernoff_log_tail(cumulant, epochs * epoch_steps, 1e-6 / max(1.0, share), 1e2)
    return min(1.0, math.exp(min(0.0, log_tail - epochs * log_all)))
