"""Composition of steps on a grid: delta at any epsilon near a reference, with every error bounded.

Masses are tilted by e^(s loss), convolved by the FFT, and weighted back: Theorem 15 of
``docs/explanation/proofs/grids.md``. Compositions without a rare step, or with exactly one, each with a separate tilt:
Theorem 16, m^T = b^T + T b^(T - 1) j + ..., where m = b + j is a step's measure.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft

from dpspec.accounting.grid import Atoms, TooLongError, require_finite
from dpspec.accounting.numerics import EPS, ContradictionError, Floats, Index, bisect, log_or_minus_infinity

#: The maximum mass of the tilted composition outside the window on either side.
OUTSIDE = 1e-15

#: Rounding of a transform per output, in units of EPS log2(N).
_FFT = 8.0

#: No epsilon near the reference needs nodes whose weight would exceed e^``_REACH``.
_REACH = 500.0

#: Minus ln of an amplitude that no composition shows.
_FADED = 50.0

#: The largest number of frequencies that are summed without an inverse transform.
_FEW = 512

#: The share of the nodes of a transform whose spectrum shows where the one of all nodes fades.
_SAMPLED = 16

#: Relative error charged to the mass of infinite losses.
_INFINITE = 1e-12

#: Rounding of one frequency's term of a sum over nodes, in units of EPS.
_TERM = 128.0

#: The largest number of a node.
_LARGEST_INDEX = 2.0**62

#: Terms of a running sum.
_BLOCK = 1024

#: Values of a spectrum that are compared, or raised to a power, together.
_SQUARED = 1 << 13

#: Over this distance e^-x is below any rounding error.
_FADE = 45.0


@dataclass(frozen=True, eq=False)
class TiltedMeasure:
    """Tilted masses of one phase, (n,) each, which sum to 1 up to ``rounding``; ``log_mass`` is ln M.

    ``index`` and ``offsets`` are the losses over the lowest one, ``variance`` belongs to the composed tilted loss.
    """

    index: Index
    offsets: Floats
    masses: Floats
    logs: Floats
    log_mass: float
    rounding: float
    steps: int
    variance: float

    @classmethod
    def of(cls, atoms: Atoms, steps: int, tilt: float) -> "TiltedMeasure":
        used = atoms.masses > 0.0
        index, logs = atoms.index[used], np.log(atoms.masses[used])
        offsets = np.asarray(atoms.spacing * index, dtype=np.float64)
        exponents = logs + tilt * offsets
        top = float(exponents.max())
        log_mass = top + math.log(float(np.exp(exponents - top).sum()))
        masses = np.exp(exponents - log_mass)
        require_finite("tilted masses", (log_mass,), masses)
        size = float(masses @ (np.abs(logs) + tilt * offsets))
        rounding = EPS * (8.0 + 2.0 * abs(log_mass) + 2.0 * size)
        variance = steps * float(masses @ np.square(offsets - float(masses @ offsets)))
        return cls(index, offsets, masses, exponents - log_mass, log_mass, rounding, steps, variance)


#: ln of the largest first rate of a Chernoff bound; every rate gives a bound.
_HIGHEST_RATE = 600.0


def find_window(tilted: Sequence[TiltedMeasure], spacing: float) -> tuple[float, float]:
    """Node numbers around the composed tilted loss, which is outside with probability ``OUTSIDE`` on either side."""
    variance = longest = 0.0
    for part in tilted:
        variance += part.variance
        longest += float(part.steps * int(part.index[-1]))
    if variance == 0.0:
        return 0.0, longest
    log_inverse = -math.log(OUTSIDE) + 1e-6

    logs = np.concatenate([part.logs for part in tilted])
    offsets = np.concatenate([part.offsets for part in tilted])
    sizes = np.array([len(part.logs) for part in tilted])
    steps = np.array([part.steps for part in tilted], dtype=np.float64)
    starts = np.cumsum(sizes) - sizes

    def chernoff(log_rates: Sequence[float], side: float) -> Iterator[float]:
        """Bounds at several rates, (n,), from losses counted from the lowest node; infinite if a rate is too large."""
        rates = np.exp(log_rates)
        with np.errstate(over="ignore", invalid="ignore"):
            exponents = logs + side * rates[:, None] * offsets
            tops = np.maximum.reduceat(exponents, starts, axis=1)
            exponents -= np.repeat(tops, sizes, axis=1)
            logarithms = tops + np.log(np.add.reduceat(np.exp(exponents), starts, axis=1))
            bounds = (logarithms @ steps + log_inverse) / rates
        return map(float, np.where(np.isfinite(bounds), bounds, math.inf))

    ends = []
    for side in (-1.0, 1.0):  # near the minimum in few evaluations: downhill, then one parabola
        step, best = 0.5, min(_HIGHEST_RATE, math.log(math.sqrt(2.0 * log_inverse / variance)))
        left, value, right = chernoff([best - step, best, best + step], side)
        for _ in range(6):
            if min(left, right) >= value:
                curve = left - 2.0 * value + right
                if curve > 0.0:
                    value = min(value, *chernoff([best + 0.5 * step * (left - right) / curve], side))
                break
            best, value = (best - step, left) if left < right else (best + step, right)
            step *= 1.5
            left, right = chernoff([best - step, best + step], side)
        ends.append(value / spacing)
    return max(0.0, -ends[0]), min(longest, ends[1])


def multiply_spectra(tilted: Sequence[TiltedMeasure], length: int) -> tuple[npt.NDArray[np.complex128], Floats]:
    """The spectrum of all steps on a circle of ``length`` nodes up to the last frequency with a visible amplitude.

    Higher ones count as 0, and as an error. Also bounds on the error of an output, and on the errors' l2 norm.
    """
    product: npt.NDArray[np.complex128] | None = None
    noise, growth, count = np.zeros(2), 0.0, 0
    for part in tilted:
        spectrum, error = _transform(part, length, length // 2 + 1 if product is None else len(product))
        error += part.rounding
        # no later factor exceeds 1, up to the charged rounding
        spectrum = _visible(spectrum, math.exp(-_FADED / part.steps))
        power = _powers(spectrum, part.steps)
        slopes = np.ones(2)
        if part.steps > 1:  # bounds on the averages of |F|^(steps - 1)
            modulus = np.abs(power)
            modulus /= np.maximum(np.abs(spectrum), 1e-3)
            slopes = _averages(modulus, length) + 1e-3 ** (part.steps - 1)
        noise += part.steps * error * slopes
        growth += part.steps * error
        count += part.steps
        product = _visible(power if product is None else product[: len(power)] * power, math.exp(-_FADED))
    assert product is not None
    # the first value is the total of the tilted masses, 1 up to the charged rounding
    if not abs(float(product[0].real) - 1.0) <= math.expm1(min(growth, 50.0)) + 16.0 * EPS * count:
        raise ContradictionError(f"a composition has a tilted mass of {float(product[0].real):.17g}, not 1")
    noise += 4.0 * EPS * count * _averages(np.abs(product), length)
    noise += 2.0 * math.exp(-_FADED) if len(product) <= length // 2 else 0.0
    return product, noise * math.exp(min(growth, 50.0))


def _transform(part: TiltedMeasure, length: int, band: int) -> tuple[npt.NDArray[np.complex128], float]:
    """The first ``band`` frequencies of the masses that may be visible, and a bound of each error.

    By a transform, or if these cost less by sums: frequency k = m i + j by the turns of m i and of j, in sums of about
    the root of the number of masses. A turn is within 21 EPS, a product within 2, a sum within one per addend.
    """
    count, error = len(part.index), _FFT * max(1.0, math.log2(length))
    summed = math.isqrt(count) + 1
    rows = -(-count // summed)
    error_of_sums = 64.0 + summed + rows
    if 32 * count <= length < 2 * _SAMPLED * band and error_of_sums <= error:
        band = min(band, _faded_from(part, length))
    minor = math.ceil(math.sqrt(band))
    if 8 * count * minor > length:
        folded = np.bincount(part.index % length, weights=part.masses, minlength=length)
        return rfft(folded)[:band], EPS * error
    index, masses = np.zeros(rows * summed, dtype=np.int64), np.zeros(rows * summed)
    index[:count], masses[:count] = part.index, part.masses

    def turns(frequencies: Index) -> npt.NDArray[np.complex128]:
        return _turns(frequencies[:, None] * index % length, length).reshape(len(frequencies), rows, summed)

    majors = turns(minor * np.arange(-(-band // minor))) * masses.reshape(rows, summed)
    sums = majors.transpose(1, 0, 2) @ turns(np.arange(minor)).transpose(1, 2, 0)
    return sums.sum(axis=0).ravel()[:band], EPS * error_of_sums


def _faded_from(part: TiltedMeasure, length: int) -> int:
    """A frequency of ``length`` nodes from which on no amplitude F of ``part`` is visible, by a transform of few nodes.

    The second derivative of |F|^2 by the angle is at most twice the variance v of the node in size: between samples at
    a distance h it exceeds the larger one by at most v h^2 / 4.
    """
    samples = int(next_fast_len(length // _SAMPLED, real=True))
    spectrum = rfft(np.bincount(part.index % samples, weights=part.masses, minlength=samples))
    gaps = part.index - float(part.masses @ part.index)
    between = (math.pi / samples) ** 2 * float(part.masses @ np.square(gaps))
    squares = np.square(spectrum.real) + np.square(spectrum.imag) + (between * (1.0 + 1e-9) + 1e-12)
    last = int(np.flatnonzero(squares > math.exp(-2.0 * _FADED / part.steps))[-1])
    return min(-(-(last + 1) * length // samples) + 1, length // 2 + 1)


def _visible(spectrum: npt.NDArray[np.complex128], amplitude: float) -> npt.NDArray[np.complex128]:
    """The frequencies up to the last one whose modulus exceeds ``amplitude``; the first one's is about 1."""
    for end in range(len(spectrum), 0, -_SQUARED):  # in blocks that stay in a processor's cache
        block = spectrum[max(0, end - _SQUARED) : end]
        is_visible = np.square(block.real) + np.square(block.imag) > amplitude * amplitude
        if is_visible.any():
            return spectrum[: end - int(np.argmax(is_visible[::-1]))]
    return spectrum


def invert(product: npt.NDArray[np.complex128], noise: Floats, length: int) -> tuple[Floats, Floats]:
    """The composed tilted masses on ``length`` nodes, and the bounds on their errors; overwrites the ``product``."""
    noise = noise + _FFT * EPS * max(1.0, math.log2(length)) * _averages(np.abs(product), length)
    return irfft(product, length, overwrite_x=True), noise


def _turns(steps: Index, length: int) -> npt.NDArray[np.complex128]:
    """e^(-2 pi i k / length) of ``steps`` k, from 0 to ``length``; 5 EPS for the angle, 16 for the exponential."""
    return np.asarray(np.exp(-2j * math.pi / length * (steps - length * (2 * steps > length))), dtype=np.complex128)


def _powers(spectrum: npt.NDArray[np.complex128], times: int) -> npt.NDArray[np.complex128]:
    """``spectrum ** times`` by squaring, in blocks that stay in a processor's cache: error at most 3 EPS per factor."""
    powers = spectrum.copy()
    for first in range(0, len(powers), _SQUARED):
        power = powers[first : first + _SQUARED]
        base, remaining = power.copy(), times - 1
        while remaining:
            if remaining & 1:
                np.multiply(power, base, out=power)
            remaining >>= 1
            if remaining:
                np.multiply(base, base, out=base)
    return powers


def _averages(modulus: Floats, length: int) -> Floats:
    return np.array([2.0 * float(modulus.sum()) / length, math.sqrt(2.0 * float(modulus @ modulus) / length)])


@dataclass(frozen=True, eq=False)
class NodeSums:
    """Sums of a composed measure over the nodes above an epsilon, near ``reference``.

    Attributes:
        first: the loss of the lowest node kept.
        weights: (n,) C e^(-tilt (e - reference)) on the nodes first + i * spacing.
        sums: (n + 1,) sums of the weights from node i on.
        excess: (n + 1,) sums of weight times 1 - e^(reference - e), the delta at ``reference``; None if the nodes span
            too much for one exponent range.
        above: the first node above ``reference``, from which on all terms of ``excess`` are positive.
    """

    first: float
    spacing: float
    reference: float
    weights: Floats
    sums: Floats
    excess: Floats | None
    above: int
    _blocks: dict[int, tuple[int, Floats]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, total: Floats, first: float, spacing: float, reference: float, tilt: float, *, narrow: bool
    ) -> "NodeSums":
        """From the composed tilted masses ``total`` (n,), on the nodes first + i * spacing."""
        np.maximum(total, 0.0, out=total)
        gaps = np.arange(float(len(total)))  # far from 0 a range of floats may have another length
        gaps *= spacing
        gaps += first - reference
        narrow = narrow and (len(gaps) == 0 or float(gaps[-1]) <= _REACH)
        with np.errstate(under="ignore"):
            weights = np.exp(-tilt * gaps)
            weights *= total
            excess = _from_above(weights * -np.expm1(-gaps)) if narrow else None
        above = min(max(math.floor((reference - first) / spacing) + 1, 0), len(weights))
        return cls(first, spacing, reference, weights, _from_above(weights), excess, above)

    def at(self, epsilon: float) -> tuple[float, float]:
        """The sum of weight times 1 - e^(epsilon - e) over nodes e above ``epsilon``, and a bound on its rounding."""
        i = math.floor((epsilon - self.first) / self.spacing) + 1
        i = min(max(i, 0), len(self.weights))
        total = float(self.sums[i])
        if self.excess is not None:
            # 1 - e^(epsilon - e) = (1 - e^(reference - e)) e^x - (e^x - 1) with x = epsilon - reference
            x = min(epsilon - self.reference, _REACH)
            excess = float(self.excess[i])
            size = excess if i >= self.above else 2.0 * float(self.excess[self.above]) - excess
            value = excess * math.exp(x) - total * math.expm1(x)
            size = size * math.exp(x) + total * abs(math.expm1(x))
        elif i == len(self.weights):
            return 0.0, 0.0
        else:
            number = i // self._block_length
            start, sums = self._block(number)
            value = total - float(sums[i - start]) * math.exp(epsilon - (self.first + self.spacing * start))
            size = total
        return value, EPS * (2.0 * _BLOCK + (len(self.weights) - i) / _BLOCK + 16.0) * size

    @property
    def _block_length(self) -> int:
        return math.ceil(_FADE / self.spacing)

    def _block(self, number: int) -> tuple[int, Floats]:
        """The first node of a block, and from each of its nodes on the sum of weight times e^-(loss over the first).

        Each block also sums the nodes of the next one. Beyond, e^-loss is below any rounding error.
        """
        if number not in self._blocks:
            start, length = number * self._block_length, self._block_length
            weights = self.weights[start : start + 2 * length]
            faded = _from_above(weights * np.exp(-self.spacing * np.arange(len(weights))))
            self._blocks[number] = (start, faded[: length + 1])
        return self._blocks[number]


class FrequencySums:
    """The same sums from the few frequencies of a smooth composition, by geometric series: Theorem 15.

    Args:
        product: (band,) the composed spectrum on a circle of ``length`` nodes.
        length: the number of nodes.
        start: the number of the lowest node in the window.
        origin: the loss of node 0.
        spacing: the grid's step.
        reference: the loss at which the weight is 1.
        tilt: the tilt.
    """

    def __init__(
        self,
        product: npt.NDArray[np.complex128],
        length: int,
        start: int,
        origin: float,
        spacing: float,
        reference: float,
        tilt: float,
    ) -> None:
        self._length, self._start, self._origin, self._spacing = length, start, origin, spacing
        self._reference, self._tilt, self._frequencies = reference, tilt, np.arange(len(product))
        angles = 2.0 * math.pi / length * self._frequencies
        ratios = -tilt * spacing + 1j * angles
        amplitudes = product * (2.0 / length)
        amplitudes[0] *= 0.5
        self._flat = amplitudes / -np.expm1(ratios)
        self._steep = self._flat * np.exp(ratios) * -math.expm1(-spacing) / -np.expm1(ratios - spacing)
        end = _turns(self._frequencies * start % length, length).conj()
        self._end = float((end @ self._flat).real), float((end @ self._steep).real)

    def at(self, epsilon: float) -> tuple[float, float]:
        """See ``NodeSums.at``; the rounding is a part of ``Composition.absolute``."""
        node = max(math.floor((epsilon - self._origin) / self._spacing) + 1, self._start)
        last = self._start + self._length
        if node >= last:
            return 0.0, 0.0
        turns = _turns(self._frequencies * -node % self._length, self._length)
        gap = max(0.0, self._origin - epsilon + self._spacing * node)
        end_gap = max(0.0, self._origin - epsilon + self._spacing * last)
        with np.errstate(under="ignore"):
            head = float((turns @ (self._flat * -math.expm1(-gap) + self._steep * math.exp(-gap))).real)
        tail = self._end[0] * -math.expm1(-end_gap) + self._end[1] * math.exp(-end_gap)
        sums = head * math.exp(-self._tilt * gap) - tail * math.exp(-self._tilt * end_gap)
        return sums * math.exp(min(self._tilt * (self._reference - epsilon), _REACH)), 0.0


@dataclass(frozen=True, eq=False)
class Composition:
    """A composed measure near ``reference``: ln delta as a sum over nodes, with bounds on its error.

    Attributes:
        sums: the sums over nodes; None if all losses are infinite.
        lowest: the smallest epsilon (less the shift) that may be evaluated.
        reference: the epsilon at which ``absolute`` is stated.
        tilt: the tilt.
        log_scale: ln M^T e^(-tilt (reference - origin)).
        absolute: a bound on the error of the sum at ``reference``.
        relative: a bound on the error of the logarithm.
        infinity: the probability of infinite losses.
        shift: a bound on the distance of the composed losses from the nodes.
    """

    sums: NodeSums | FrequencySums | None
    lowest: float
    reference: float
    tilt: float
    log_scale: float
    absolute: float
    relative: float
    infinity: float
    shift: float

    def log_upper(self, epsilon: float) -> float:
        """ln of an upper bound of the measure's delta."""
        finite = self.log_finite(epsilon)
        if self.infinity == 0.0:
            return min(0.0, finite)
        return min(0.0, float(np.logaddexp(finite, math.log(self.infinity) + _INFINITE)))

    def log_finite(self, epsilon: float) -> float:
        if epsilon - self.shift < self.lowest:
            return 0.0
        value, error = self.sum_at(epsilon - self.shift)
        return self.log_scale + self.relative + (math.log(value + error) if value + error > 0.0 else -math.inf)

    def log_lower(self, epsilon: float) -> float:
        """ln of a lower bound of the measure's delta."""
        # far below the reference the error exceeds any double; a bound at a larger epsilon holds there as well
        value, error = self.sum_at(max(epsilon + self.shift, self.reference - _REACH / self.tilt))
        finite = self.log_scale - self.relative + (math.log(value - error) if value > error else -math.inf)
        if self.infinity == 0.0:
            return finite
        return float(np.logaddexp(finite, math.log(self.infinity) - _INFINITE))

    def sum_at(self, epsilon: float) -> tuple[float, float]:
        """The sum over nodes above ``epsilon``, and a bound on its error."""
        if self.sums is None:
            return 0.0, 0.0
        value, rounding = self.sums.at(epsilon)
        outside = self.absolute * math.exp(min(self.tilt * (self.reference - epsilon), _REACH))
        return max(value, 0.0), rounding + outside


#: A composition is split if the relative error of its sum at the reference exceeds this.
UNSURE = 1e-5

#: Compositions that add up to one profile, with ln of their multiplicities, and ln of what its upper bound adds.
Split: TypeAlias = tuple[tuple[tuple[Composition, float], ...], float]


@dataclass(frozen=True, eq=False)
class ComposedProfile:
    """ln of bounds of the largest of several profiles near a reference, one per direction, on one grid."""

    sides: tuple[Split, ...]

    @property
    def is_split(self) -> bool:
        """Whether a composition without rare steps is evaluated by itself, precisely only near the reference."""
        return any(len(members) > 1 for members, _ in self.sides)

    def bound(self, name: Literal["log_upper", "log_finite", "log_lower"], epsilon: float) -> float:
        """The largest over the directions of the sum of one bound of their compositions, a method's ``name``."""
        largest = -math.inf
        for side, log_rest in self.sides:
            total = -math.inf if name == "log_lower" else log_rest
            for composed, log in side:
                total = float(np.logaddexp(total, getattr(composed, name)(epsilon) + log))
            largest = max(largest, total)
        if epsilon < 0.0 and name == "log_upper" and largest < math.log(-math.expm1(epsilon)) - 1e-9:
            raise ContradictionError(f"the upper end of delta is below 1 - e^epsilon at epsilon {epsilon:.6g}")
        return min(0.0, largest) if name == "log_upper" else largest


def compose(
    phases: Sequence[tuple[Atoms, int]], tilt: float, reference: float, floor: float, limit: int
) -> Composition:
    """Compose phases of (atoms, steps), all on grids of one spacing, for epsilons near ``reference``.

    ``floor``: the smallest epsilon that will be evaluated; ``limit``: the largest number of nodes of the transform.
    """
    spacing = phases[0][0].spacing
    tilted: list[TiltedMeasure] = []
    origins, shifts, log_masses, infinite, count = [], [], [], [], 0
    for atoms, steps in phases:
        infinite.append((atoms.infinity, steps))
        if not atoms.masses.any():
            continue
        part = TiltedMeasure.of(atoms, steps, tilt)
        tilted.append(part)
        origins.append(atoms.lowest * steps)
        shifts.append(atoms.shift * steps)
        log_masses.append(steps * part.log_mass)
        count += steps
    origin, log_mass, infinity = math.fsum(origins), math.fsum(log_masses), chance_of_any(infinite)
    if len(tilted) < len(phases):
        return Composition(None, -math.inf, reference, tilt, -math.inf, 0.0, 0.0, infinity, 0.0)
    low, high = find_window(tilted, spacing)
    if high > _LARGEST_INDEX:
        raise TooLongError(math.ceil(limit * high / _LARGEST_INDEX), limit)
    length = math.ceil(high - low) + 4
    if length > limit:
        raise TooLongError(length, limit)
    length = next_fast_len(max(length, 16), real=True)
    start = math.floor(low) - 1
    largest = math.exp(tilt * math.log(tilt) - (1.0 + tilt) * math.log1p(tilt))
    # A bound on the sum of all weights; the sum of their squares is at most ``largest`` times as large.
    weight_sum = 1.0 / (spacing * tilt * (1.0 + tilt)) + largest
    rounding, lowest = 0.0, -math.inf
    sums: NodeSums | FrequencySums | None = None
    if count == 1:
        total = np.zeros(length)
        np.add.at(total, tilted[0].index % length, tilted[0].masses)
        noise = np.full(2, tilted[0].rounding)
    else:
        product, noise = multiply_spectra(tilted, length)
        if len(product) <= _FEW and 2 * len(product) < length:
            sums = FrequencySums(product, length, start, origin, spacing, reference, tilt)
            rounding = 4.0 * EPS * (_TERM + len(product)) * float(_averages(np.abs(product), length)[0])
        else:
            total, noise = invert(product, noise, length)
    if sums is None:
        # Only nodes over the smallest epsilon that will be evaluated are kept, in order.
        narrow = spacing * length <= _REACH
        floor = max(floor, reference - _REACH / (1.0 + tilt if narrow else tilt))
        skip = min(max(0, math.ceil((floor - origin) / spacing) - start), length)
        total = np.roll(total, -((start + skip) % length))[: length - skip]
        first = origin + spacing * (start + skip)
        sums = NodeSums.of(total, first, spacing, reference, tilt, narrow=narrow)
        lowest = max(first, floor) if skip > 0 else -math.inf
    errors = min(float(noise[0]) * weight_sum, float(noise[1]) * math.sqrt(weight_sum * largest))
    log_scale = log_mass - tilt * (reference - origin)
    magnitude = abs(log_mass) + tilt * (abs(reference) + abs(origin)) + 4.0 * _REACH
    return Composition(
        sums=sums,
        lowest=max(lowest, reference - _REACH / tilt),
        reference=reference,
        tilt=tilt,
        log_scale=log_scale,
        absolute=errors + rounding * weight_sum + 2.02 * OUTSIDE * largest,
        relative=EPS * (16.0 + 4.0 * magnitude) + 8.0 * EPS * count,
        infinity=infinity,
        shift=math.fsum(shifts) + 8.0 * EPS * (abs(origin) + abs(reference) + abs(spacing * (start + length))),
    )


def chance_of_any(chances: Sequence[tuple[float, int]]) -> float:
    """The probability that an event of probability p per step happens at least once, over phases of (p, steps)."""
    never = []
    for p, steps in chances:
        if p >= 1.0:
            return 1.0
        never.append(steps * math.log1p(-p))
    return 0.0 - math.expm1(math.fsum(never))


def _from_above(values: Floats) -> Floats:
    """Sums over i..end for each i, with a final zero; in blocks, so that few roundings add up."""
    rows = -(-len(values) // _BLOCK)
    padded = np.zeros(rows * _BLOCK + 1)
    padded[1 : len(values) + 1] = values[::-1]
    table = padded[1:].reshape(rows, _BLOCK)
    np.cumsum(table, axis=1, out=table)
    table[1:] += np.cumsum(table[:-1, -1])[:, None]
    return padded[len(values) :: -1]


#: The maximum probability of such a step, as a share of the root of delta.
_SHARE = 1e-3

#: The maximum number of phases that are split.
_KINDS = 4


def split_rare_steps(
    phases: Sequence[tuple[Atoms, int]], reference: float, floor: float, limit: int, log_delta: float
) -> Split | None:
    """The composition of ``phases``, whose sum at ``reference`` is imprecise, split; None if that is not possible.

    ``log_delta``: ln of the wanted delta at the reference; ``floor`` and ``limit`` as for ``compose``.
    """
    if len(phases) > _KINDS:
        return None
    halves = [_cut(atoms, steps, _SHARE * math.exp(min(0.0, 0.5 * log_delta))) for atoms, steps in phases]
    if not any(jump.masses.any() for _, jump in halves):
        return None
    calm = [(bulk, steps) for (bulk, _), (_, steps) in zip(halves, phases, strict=True)]
    # infinite losses are counted once, with the first term
    finite = [(replace(bulk, infinity=0.0), steps) for bulk, steps in calm]
    chance = 0.0
    members = [(compose(calm, _tilt(calm, reference), reference, floor, limit), 0.0)]
    for i, ((_, jump), (_, steps)) in enumerate(zip(halves, phases, strict=True)):
        if not jump.masses.any():
            continue
        once = [(part, count - (k == i)) for k, (part, count) in enumerate(finite) if count > (k == i)]
        once.append((jump, 1))
        members.append((compose(once, _tilt(once, reference), reference, floor, limit), math.log(steps)))
        chance += steps * float(jump.masses.sum())
    return tuple(members), log_or_minus_infinity(0.5 * chance * chance * (1.0 + 1e-6))


def _cut(atoms: Atoms, steps: int, largest: float) -> tuple[Atoms, Atoms]:
    """The atoms up to a loss, and the atoms above it, of probability up to ``largest`` over all steps."""
    above = np.cumsum(atoms.masses[::-1])[::-1] * steps
    first = int(np.searchsorted(-above, -largest))
    if not 0 < first < len(above):
        first = len(above)
    bulk = replace(atoms, index=atoms.index[:first], masses=atoms.masses[:first])
    start = int(atoms.index[min(first, len(above) - 1)])
    jump = replace(
        atoms,
        lowest=atoms.lowest + atoms.spacing * start,
        index=atoms.index[first:] - start,
        masses=atoms.masses[first:],
        infinity=0.0,
    )
    return bulk, jump


def _tilt(phases: Sequence[tuple[Atoms, int]], epsilon: float) -> float:
    """The tilt s at which the tilted mean of the sum is about epsilon + 1 / s + 1 / (1 + s)."""
    tables = []
    for atoms, steps in phases:
        used = atoms.masses > 0.0
        tables.append((atoms.lowest + atoms.spacing * atoms.index[used], np.log(atoms.masses[used]), steps))

    def is_low(log_tilt: float) -> bool:
        s, mean = math.exp(log_tilt), 0.0
        for losses, logs, steps in tables:
            exponents = logs + s * losses
            weights = np.exp(exponents - exponents.max())
            mean += steps * float(weights @ losses) / float(weights.sum())
        return mean < epsilon + 1.0 / s + 1.0 / (1.0 + s)

    low, high = bisect(is_low, math.log(1e-9), -math.log(phases[0][0].spacing), halvings=50)
    return math.exp(0.5 * (low + high))
