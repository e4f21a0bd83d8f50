"""Were records allocated at random? The sizes of the batches of whole epochs, in each of which every record is once.

The sizes of an epoch's t batches are multinomial: n records, each in one of them with probability 1 / t, independently.
Different epochs are independent. Batches of one size, as of a shuffled loader, are too even, and a first batch that is
twice as large too uneven.

Of records that are in r of the t batches each, sizes are less spread out than multinomial ones of n r records: drawing
without replacement gives convex functions no larger a mean than drawing with it (Hoeffding 1963, Theorem 4, of one
record after the other), and exp(u S) is convex for u >= 0. So too uneven sizes are told by the same bound; of too even
ones nothing is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from dpspec.stats import binomial, chernoff
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement
from dpspec.stats.conformance.sampling.sizes import detectable_more, tails

#: Probability of ever leaving the window of batch sizes that is summed over; it is added to the p-value.
_OUTSIDE = 1e-16

#: Lengths of the transforms by which sums of an epoch's sizes are told, at most; and what rounding can do to one.
_LONGEST, _ROUNDING = 2**17, 1e-14

#: Chernoff's bound exceeds the tail by about this factor near the level.
_LOOSE = 20.0


def size_spread(epochs: int, spread: float, records: int, epoch_steps: int, times: int = 1) -> Measurement:
    """Test the sizes of whole epochs: ``spread`` is S, the sum of (size - records r / t)^2 over all their batches.

    times: r, in how many batches of an epoch each record is, below t. Of one, in both directions:

    p is twice Chernoff's bound, min over u of exp(epochs ln E[e^(u S_1)] - u S), S_1 of one epoch. A multinomial law is
    that of t independent Poisson numbers given their sum, so that with X one of mean records / t

        E[e^(u S_1)] = E[e^(u (X - records / t)^2)]^t P'[sum = records] / P[sum = records],

    P' the law of t numbers weighted by that factor: its probabilities come of a discrete Fourier transform, around a
    circle, which can only add to them. ``measured`` is S over its mean; ``detectable`` the larger deviation from 1 that
    is seen, up- and downwards, of a chi-square with t - 1 degrees of freedom an epoch. Of several, upwards alone, as
    the module says.
    """
    if epochs < 1 or records < 1 or not 1 <= times < epoch_steps or not spread >= 0.0:
        raise ValueError(
            f"need epochs, records >= 1, epoch_steps >= 2, times below it and spread >= 0, got {epochs}, {records}, "
            f"{epoch_steps}, {times}, {spread}"
        )
    if times > 1:
        return _unevenness(epochs, spread, records, epoch_steps, times)
    mean = epochs * records * (1.0 - 1.0 / epoch_steps)
    return Measurement(
        test="spread of batch sizes within epochs, two-sided",
        declared=1.0,
        measured=spread / mean,
        p_value=min(1.0, 2.0 * _chernoff(epochs, spread, records, epoch_steps)),
        detectable=_detectable(epochs, records, epoch_steps),
    )


def _unevenness(epochs: int, spread: float, records: int, epoch_steps: int, times: int) -> Measurement:
    """Too large a spread alone, by the law of ``records * times`` records that are in one batch each."""
    alone = records * times
    above = spread > epochs * alone * (1.0 - 1.0 / epoch_steps)
    half = 0.5 * epochs * (epoch_steps - 1)
    high, seldom = float(special.gammainccinv(half, LEVEL / _LOOSE)), float(special.gammaincinv(half, 1.0 - POWER))
    return Measurement(
        test="spread of batch sizes within epochs, one-sided",
        declared=1.0,
        measured=spread / (epochs * alone * (1.0 - times / epoch_steps)),
        p_value=_chernoff(epochs, spread, alone, epoch_steps) if above else 1.0,
        detectable=high / seldom * (epoch_steps - 1) / (epoch_steps - times) - 1.0,
    )


def most_stays(records: int, stays: int, epochs: int, epoch_steps: int) -> Measurement:
    """Test that no single record keeps its step from epoch to epoch: ``stays`` is the largest number of times one did.

    Of each record it is Binomial(epochs - 1, 1 / t): p = records P[Bin >= stays], at most 1. ``measured`` is that
    record's share. A record that is moved by as many steps each time is not seen.
    """
    if not (epochs >= 2 and 0 <= stays < epochs and records >= 1 and epoch_steps >= 2):
        raise ValueError(
            f"need records >= 1, epoch_steps >= 2 and 0 <= stays < epochs >= 2, got {records}, {epoch_steps}, {stays}, "
            f"{epochs}"
        )
    times, rate = epochs - 1, 1.0 / epoch_steps
    return Measurement(
        test="the record that kept its step most often, binomial, Bonferroni",
        declared=rate,
        measured=stays / times,
        p_value=min(1.0, records * binomial.at_least(stays, times, rate)),
        detectable=detectable_more(times, rate, LEVEL / records),
    )


@dataclass(frozen=True)
class _Epoch:
    """squares: (sizes,) of the distance from the mean of each size in a window. logs: ln of Poisson probabilities.

    first: the least of these sizes. length: of the transforms.
    """

    records: int
    epoch_steps: int
    first: int
    squares: npt.NDArray[np.float64]
    logs: npt.NDArray[np.float64]
    length: int

    def log_moment(self, u: float) -> tuple[float, float]:
        """ln of a bound on E[e^(u S_1)], sizes outside the window left out, and about its derivative."""
        steps, places = self.epoch_steps, np.arange(len(self.squares)) % self.length
        weighted = self.logs + u * self.squares
        total = float(special.logsumexp(weighted))
        masses = np.exp(weighted - total)
        mean = float(masses @ self.squares)
        law = np.fft.rfft(np.bincount(places, masses, self.length))
        others = law ** (steps - 1)
        rises = np.fft.rfft(np.bincount(places, masses * (self.squares - mean), self.length))
        target = (self.records - steps * self.first) % self.length
        at = max(0.0, float(np.fft.irfft(others * law, self.length)[target])) + _ROUNDING * steps
        rise = steps * float(np.fft.irfft(others * rises, self.length)[target])
        of_all = self.records * math.log(self.records) - self.records - float(special.gammaln(self.records + 1))
        return steps * total + math.log(min(1.0, at)) - of_all, steps * mean + rise / at


@lru_cache(maxsize=64)
def _epoch(epochs: int, records: int, epoch_steps: int) -> _Epoch:
    mean = records / epoch_steps
    low, high = tails(records, 1.0 / epoch_steps, 0.5 * _OUTSIDE / (epochs * epoch_steps))
    sizes = np.arange(low + 1, high, dtype=np.float64)
    least = max(len(sizes), 64.0 * math.sqrt(records), 64.0)
    return _Epoch(
        records=records,
        epoch_steps=epoch_steps,
        first=low + 1,
        squares=np.square(sizes - mean),
        logs=sizes * math.log(mean) - mean - special.gammaln(sizes + 1.0),
        length=min(_LONGEST, 2 ** math.ceil(math.log2(least))),
    )


@lru_cache(maxsize=1024)  # a plan asks the same of every run
def _chernoff(epochs: int, spread: float, records: int, epoch_steps: int) -> float:
    """A bound on the probability that S lies as far from its mean, on the same side.

    What lies outside the window counts as 1 of either tail.
    """
    mean = epochs * records * (1.0 - 1.0 / epoch_steps)
    epoch, sign = _epoch(epochs, records, epoch_steps), -1.0 if spread < mean else 1.0

    def beyond(u: float) -> tuple[float, float]:
        """The cumulant of sign (S_1 - spread / epochs)."""
        value, slope = epoch.log_moment(sign * u)
        return value - sign * u * spread / epochs, sign * (slope - spread / epochs)

    return min(1.0, math.exp(chernoff.log_tail(beyond, epochs, 1e-6 * epoch_steps / records, 1e2)) + _OUTSIDE)


@lru_cache(maxsize=1024)
def _detectable(epochs: int, records: int, epoch_steps: int) -> float | None:
    """From a scaled chi-square; None where even equal sizes would not be seen."""
    half = 0.5 * epochs * (epoch_steps - 1)
    even = epoch_steps * (records / epoch_steps - round(records / epoch_steps)) ** 2 * epochs
    if 2.0 * _chernoff(epochs, even, records, epoch_steps) > LEVEL:
        return None
    level = 0.5 * LEVEL / _LOOSE
    low, high = float(special.gammaincinv(half, level)), float(special.gammainccinv(half, level))
    likely, seldom = float(special.gammaincinv(half, POWER)), float(special.gammaincinv(half, 1.0 - POWER))
    return max(1.0 - low / likely, high / seldom - 1.0)
