"""T-fold composition of measures on a grid, by a tilted FFT whose every error is bounded.

The masses m_i are tilted to t_i = m_i e^(s i d) / M, so that the composed losses that matter for delta sit in the
middle of the distribution and keep full relative precision however small delta is. Their T-fold convolution is
computed on a circle of N nodes, N d covering all but 2w of it (Chernoff), and

    delta(eps) = M^T e^(-s (eps - origin)) * sum over e_n > eps of C_n e^(-s (e_n - eps)) (1 - e^(eps - e_n)).

Charged: mass that wraps around or lies outside the window (at most 2w, times the largest weight); rounding of the
tilted masses and of the transform, at most b per output since the masses sum to one; its growth to T b |F|^(T-1) in the
power; rounding of the power, of the inverse transform and of the sums. The transform is taken to obey the standard
bound of a product of log2(N) sparse stages with a generous constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft

from dpspec.accounting.cells import Index, TooLongError
from dpspec.accounting.checks import EPS, Floats
from dpspec.accounting.discretise import Atoms

#: The mass of the tilted composition that may fall outside the window on either side.
_OUTSIDE = 1e-15

#: Rounding of a transform per output, in units of EPS log2(N).
_FFT = 8.0

#: Nodes whose weight would exceed e^this are not needed by any epsilon near the reference.
_REACH = 500.0

#: Over this distance e^-x is below any rounding error.
_FADE = 45.0


@dataclass(frozen=True, eq=False)
class Composed:
    """A composed measure near ``reference``: ln delta as a sum over nodes, with bounds on its error.

    least: the least epsilon (less the shift) that may be asked for.
    weights: (n,) C e^(-tilt (e - reference)) on the nodes first + i * spacing.
    zero, one: (n + 1,) sums of the weights over the nodes from i on, and the same with tilt + 1; ``one`` is None where
        the nodes span too much for one exponent range.
    """

    first: float
    least: float
    spacing: float
    reference: float
    tilt: float
    log_scale: float
    weights: Floats
    zero: Floats
    one: Floats | None
    absolute: float
    relative: float
    infinity: float
    shift: float

    def log_upper(self, epsilon: float) -> float:
        """ln of an upper bound of the measure's delta; for a measure from above, of the true delta."""
        if epsilon - self.shift < self.least:
            return 0.0
        value, error = self._sum(epsilon - self.shift)
        finite = self.log_scale + self.relative + _log(value + error)
        return min(0.0, float(np.logaddexp(finite, _log(self.infinity))))

    def log_lower(self, epsilon: float) -> float:
        """ln of a lower bound of the measure's delta; for a measure from below, of the true delta."""
        value, error = self._sum(epsilon + self.shift)
        return self.log_scale - self.relative + _log(value - error)

    def _sum(self, epsilon: float) -> tuple[float, float]:
        """The sum over nodes above ``epsilon``, and a bound on its error."""
        i = math.floor((epsilon - self.first) / self.spacing) + 1
        i = min(max(i, 0), len(self.weights))
        zero = float(self.zero[i])
        if self.one is not None:
            one = float(self.one[i]) * math.exp(min(epsilon - self.reference, _REACH))
            value = zero - one
        else:
            one, j = 0.0, min(len(self.weights), i + math.ceil(_FADE / self.spacing))
            gaps = epsilon - (self.first + self.spacing * np.arange(i, j))
            value = float(self.zero[j]) - float(self.weights[i:j] @ np.expm1(np.minimum(gaps, 0.0)))
        rounding = EPS * (len(self.weights) - i + 16.0) * (zero + one)
        outside = self.absolute * math.exp(min(self.tilt * (self.reference - epsilon), _REACH))
        return max(value, 0.0), rounding + outside


def compose(
    phases: Sequence[tuple[Atoms, int]], tilt: float, reference: float, floor: float, limit: int
) -> Composed:
    """Compose phases of (atoms, steps), all on grids of one spacing, tilted for epsilons near ``reference``.

    floor: the least epsilon that will be asked for; limit: the most nodes of the transform. Raises ``TooLongError`` when the window needs more.
    """
    spacing = phases[0][0].spacing
    tilted = [_Tilted.of(atoms, steps, tilt) for atoms, steps in phases]
    low, high = _window(tilted, spacing)
    length = math.ceil(high - low) + 4
    if length > limit:
        raise TooLongError(length, limit)
    length = next_fast_len(max(length, 16), real=True)
    start = math.floor(low) - 1
    total, noise = _convolve(tilted, length)

    # Only nodes over the lowest epsilon that will be asked for are kept, in order.
    origin = math.fsum(atoms.lowest * steps for atoms, steps in phases)
    narrow = spacing * length <= _REACH
    floor = max(floor, reference - _REACH / (1.0 + tilt if narrow else tilt))
    skip = min(max(0, math.ceil((floor - origin) / spacing) - start), length)
    total = np.roll(total, -((start + skip) % length))[: length - skip]
    np.maximum(total, 0.0, out=total)
    gaps = origin - reference + spacing * np.arange(start + skip, start + length)
    narrow = narrow and (len(gaps) == 0 or float(gaps[-1]) <= _REACH)
    with np.errstate(under="ignore"):
        weights = np.exp(-tilt * gaps)
        weights *= total
        one = _from_above(weights * np.exp(-gaps)) if narrow else None
    largest = math.exp(tilt * math.log(tilt) - (1.0 + tilt) * math.log1p(tilt))
    room = 1.0 / (spacing * tilt * (1.0 + tilt)) + largest  # the sum of all weights; of their squares at most times largest
    log_mass = math.fsum(steps * part.log_mass for part, (_, steps) in zip(tilted, phases, strict=True))
    log_scale = log_mass - tilt * (reference - origin)
    magnitude = abs(log_mass) + tilt * (abs(reference) + abs(origin)) + 4.0 * _REACH
    steps = sum(steps for _, steps in phases)
    return Composed(
        first=origin + spacing * (start + skip),
        least=floor + spacing if skip > 0 else -math.inf,
        spacing=spacing,
        reference=reference,
        tilt=tilt,
        log_scale=log_scale,
        weights=weights,
        zero=_from_above(weights),
        one=one,
        absolute=min(noise[0] * room, noise[1] * math.sqrt(room * largest)) + 2.02 * _OUTSIDE * largest,
        relative=EPS * (16.0 + 4.0 * magnitude) + 8.0 * EPS * steps,
        infinity=min(1.0, math.fsum(atoms.infinity * steps for atoms, steps in phases) * (1.0 + 1e-12)),
        shift=math.fsum(atoms.shift * steps for atoms, steps in phases)
        + 8.0 * EPS * (abs(origin) + abs(reference) + abs(spacing * (start + length))),
    )


@dataclass(frozen=True, eq=False)
class _Tilted:
    """Tilted masses of one phase, with what is needed to move the tilt; ``at`` is the losses over the lowest."""

    index: Index
    at: Floats
    masses: Floats
    logs: Floats
    log_mass: float
    rounding: float
    steps: int

    @classmethod
    def of(cls, atoms: Atoms, steps: int, tilt: float) -> _Tilted:
        used = atoms.masses > 0.0
        index, logs = atoms.index[used], np.log(atoms.masses[used])
        at = atoms.spacing * index
        exponents = logs + tilt * at
        top = float(exponents.max())
        log_mass = top + math.log(float(np.exp(exponents - top).sum()))
        masses = np.exp(exponents - log_mass)
        size = float(masses @ (np.abs(logs) + tilt * at))
        rounding = EPS * (8.0 + 2.0 * abs(log_mass) + 2.0 * size)
        return cls(index, at, masses, exponents - log_mass, log_mass, rounding, steps)

    def cumulant(self, tilt: float) -> float:
        """steps * ln of the moment generating function at a further tilt, losses counted from the lowest node."""
        exponents = self.logs + tilt * self.at
        top = float(exponents.max())
        return self.steps * (top + math.log(float(np.exp(exponents - top).sum())))

    def variance(self) -> float:
        """steps * variance of the loss."""
        mean = float(self.masses @ self.at)
        return self.steps * float(self.masses @ np.square(self.at - mean))

    def folded(self, length: int) -> Floats:
        """The masses on a circle of ``length`` nodes."""
        return np.bincount(self.index % length, weights=self.masses, minlength=length)


def _window(tilted: Sequence[_Tilted], spacing: float) -> tuple[float, float]:
    """Node numbers between which the composed tilted loss lies but for ``_OUTSIDE`` on either side (Chernoff)."""
    deviation = math.sqrt(sum(part.variance() for part in tilted))
    longest = float(sum(part.steps * int(part.index[-1]) for part in tilted))
    if deviation == 0.0:
        return 0.0, longest
    log_inverse = -math.log(_OUTSIDE) + 1e-6
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
    step, at = 0.5, start
    value = function(at)
    for _ in range(6):
        left, right = function(at - step), function(at + step)
        if min(left, right) >= value:
            curve = left - 2.0 * value + right
            if curve > 0.0:
                value = min(value, function(at + 0.5 * step * (left - right) / curve))
            break
        at, value = (at - step, left) if left < right else (at + step, right)
        step *= 1.5
    return float(value)


def _convolve(tilted: Sequence[_Tilted], length: int) -> tuple[Floats, tuple[float, float]]:
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


def _slopes(
    spectrum: npt.NDArray[np.complex128], power: npt.NDArray[np.complex128], steps: int, length: int
) -> Floats:
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


def _from_above(values: Floats) -> Floats:
    """Sums over i..end for every i, with a final zero."""
    return np.concatenate((np.cumsum(values[::-1])[::-1], [0.0]))


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf
