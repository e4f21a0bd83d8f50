"""The tilted measure of a step, where its composition lies, and the composition itself with an error bound.

The masses m_i are tilted to t_i = m_i e^(s i d) / M. Their T-fold convolution is computed by the FFT on a circle of N
nodes, of which Chernoff's bound says how many are needed. The transform is taken to obey the standard bound of a
product of log2(N) sparse stages: since the masses sum to one, no output is off by more than a small multiple of
EPS log2(N).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, rfft

from dpspec.accounting.grid.discretise import Atoms
from dpspec.accounting.numerics.floats import EPS, Floats, Index

#: The mass of the tilted composition that may fall outside the window on either side.
OUTSIDE = 1e-15

#: Rounding of a transform per output, in units of EPS log2(N).
_FFT = 8.0


@dataclass(frozen=True, eq=False)
class TiltedMeasure:
    """Tilted masses of one phase, (n,) each.

    offsets: their losses over the lowest; index: the same in grid steps; log_mass: ln M; logs: ln of
    the tilted masses; rounding: a bound on the summed errors of ``masses``.
    """

    index: Index
    offsets: Floats
    masses: Floats
    logs: Floats
    log_mass: float
    rounding: float
    steps: int

    @classmethod
    def of(cls, atoms: Atoms, steps: int, tilt: float) -> TiltedMeasure:
        """The atoms of one step, tilted, to be composed ``steps`` times."""
        used = atoms.masses > 0.0
        index, logs = atoms.index[used], np.log(atoms.masses[used])
        offsets = atoms.spacing * index
        exponents = logs + tilt * offsets
        top = float(exponents.max())
        log_mass = top + math.log(float(np.exp(exponents - top).sum()))
        masses = np.exp(exponents - log_mass)
        size = float(masses @ (np.abs(logs) + tilt * offsets))
        rounding = EPS * (8.0 + 2.0 * abs(log_mass) + 2.0 * size)
        return cls(
            index, np.asarray(offsets, dtype=np.float64), masses, exponents - log_mass, log_mass, rounding, steps
        )

    def cumulant(self, tilt: float) -> float:
        """steps * ln of the moment generating function at a further tilt, losses counted from the lowest node."""
        exponents = self.logs + tilt * self.offsets
        top = float(exponents.max())
        return self.steps * (top + math.log(float(np.exp(exponents - top).sum())))

    def variance(self) -> float:
        """steps * variance of the loss."""
        mean = float(self.masses @ self.offsets)
        return self.steps * float(self.masses @ np.square(self.offsets - mean))

    def folded(self, length: int) -> Floats:
        """The masses on a circle of ``length`` nodes."""
        return np.asarray(np.bincount(self.index % length, weights=self.masses, minlength=length), dtype=np.float64)


def find_window(tilted: Sequence[TiltedMeasure], spacing: float) -> tuple[float, float]:
    """Node numbers between which the composed tilted loss lies but for ``OUTSIDE`` on either side (Chernoff)."""
    deviation = math.sqrt(sum(part.variance() for part in tilted))
    longest = float(sum(part.steps * int(part.index[-1]) for part in tilted))
    if deviation == 0.0:
        return 0.0, longest
    log_inverse = -math.log(OUTSIDE) + 1e-6
    best = math.sqrt(2.0 * log_inverse) / deviation
    ends = []
    for side in (-1.0, 1.0):

        def bound(log_lambda: float, side: float = side) -> float:
            rate = math.exp(log_lambda)
            return (sum(part.cumulant(side * rate) for part in tilted) + log_inverse) / rate

        ends.append(_least(bound, math.log(best)) / spacing)
    return max(0.0, -ends[0]), min(longest, ends[1])


def _least(function: Callable[[float], float], start: float) -> float:
    """A value near the least of a unimodal function, found in few evaluations: downhill, then one parabola."""
    step, best = 0.5, start
    value = function(best)
    for _ in range(6):
        left, right = function(best - step), function(best + step)
        if min(left, right) >= value:
            curve = left - 2.0 * value + right
            if curve > 0.0:
                value = min(value, function(best + 0.5 * step * (left - right) / curve))
            break
        best, value = (best - step, left) if left < right else (best + step, right)
        step *= 1.5
    return float(value)


def convolve(tilted: Sequence[TiltedMeasure], length: int) -> tuple[Floats, tuple[float, float]]:
    """The circular convolution of all steps, and two bounds on its error: of each value, and of all in square.

    Each value of a transform is off by at most b, all being at most one in modulus; a power by b T |F|^(T-1) to first
    order; an output by the average of that over all frequencies, plus the rounding of products and of the inverse. The
    second bound is on the root of the outputs' summed squared errors (Parseval), which is less where the tilted loss
    is close to a few atoms.
    """
    if sum(part.steps for part in tilted) == 1:
        return tilted[0].folded(length), (tilted[0].rounding, tilted[0].rounding)
    stage = _FFT * EPS * max(1.0, math.log2(length))
    product: npt.NDArray[np.complex128] | None = None
    noise, growth = np.zeros(2), 0.0
    for part in tilted:
        spectrum = rfft(part.folded(length))
        power = _power(spectrum, part.steps)
        noise += part.steps * (stage + part.rounding) * _slopes(spectrum, power, part.steps, length)
        growth += part.steps * (stage + part.rounding)
        product = power if product is None else np.multiply(product, power, out=product)
    assert product is not None
    noise += (stage + 4.0 * EPS * sum(part.steps for part in tilted)) * _averages(np.abs(product), length)
    noise *= math.exp(min(growth, 50.0))
    return irfft(product, length, overwrite_x=True), (float(noise[0]), float(noise[1]))


def _averages(modulus: Floats, length: int) -> Floats:
    """The average over all frequencies of a modulus given for half of them, and the root of its average square."""
    return np.array([2.0 * float(modulus.sum()) / length, math.sqrt(2.0 * float(modulus @ modulus) / length)])


def _slopes(spectrum: npt.NDArray[np.complex128], power: npt.NDArray[np.complex128], steps: int, length: int) -> Floats:
    """Bounds on ``_averages`` of |F|^(steps - 1)."""
    if steps == 1:
        return np.ones(2)
    modulus = np.abs(power)
    modulus /= np.maximum(np.abs(spectrum), 1e-3)
    return _averages(modulus, length) + 1e-3 ** (steps - 1)


def _power(values: npt.NDArray[np.complex128], times: int) -> npt.NDArray[np.complex128]:
    """values ** times by squaring: relative error at most 3 EPS per factor."""
    result: npt.NDArray[np.complex128] | None = None
    base = values.copy()
    while True:
        if times & 1:
            result = base.copy() if result is None else np.multiply(result, base, out=result)
        times >>= 1
        if times == 0:
            break
        np.multiply(base, base, out=base)
    assert result is not None
    return result
