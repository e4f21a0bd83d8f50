"""T-fold composition of measures on a grid: delta at any epsilon near a reference, every error bounded.

The masses m_i of a step are tilted to t_i = m_i e^(s i d) / M. With C their T-fold convolution, on nodes e_n,

    delta(eps) = M^T e^(-s (eps - origin)) * sum over e_n > eps of C_n e^(-s (e_n - eps)) (1 - e^(eps - e_n)).

The tilt puts the losses that matter for delta in the middle of C, where they keep full relative precision however small
delta is. Charged: mass that wraps around the circle or lies outside the window, times the largest weight; the error
of C, times the weights; the rounding of the sums and of the scale; the distance of true losses from the nodes.

C is computed by the FFT on a circle of N nodes, whose number follows from Chernoff's bound. The transform is assumed to
obey the standard bound of a product of log2(N) sparse stages: as the masses sum to one, no output is off by more than a
small multiple of EPS log2(N).

Roughly where an answer lies, which chooses grids, cuts and tilts: a saddle-point estimate.

With K(s) the cumulant generating function of the composed loss under the first distribution,

    ln delta(epsilon) ~ K(s) - s epsilon - ln s - ln(1 + s) - ln(2 pi v) / 2,  v = K''(s) + s^-2 + (1 + s)^-2,

at the s > 0 with K'(s) - epsilon - 1/s - 1/(1 + s) = 0. Nothing that is reported depends on its accuracy: it decides
only how wide the certified interval comes out at first try.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft

from dpspec.accounting.grid import Atoms, TooLongError, TruncatedPair
from dpspec.accounting.numerics import EPS, Floats, Index, bisect, crossing, log_or_minus_infinity

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


#: Nodes whose weight would exceed e^this are not needed by any epsilon near the reference.
_REACH = 500.0


#: Relative error charged to the mass of infinite losses.
_INFINITE = 1e-12


#: Terms that are summed one after the other.
_BLOCK = 1024


#: Exponentials of an arithmetic progression are multiplied from so many.
_ROW = 256


#: Over this distance e^-x is below any rounding error.
_FADE = 45.0


@dataclass(frozen=True, eq=False)
class Composition:
    """A composed measure near ``reference``: ln delta as a sum over nodes, with bounds on its error.

    first, spacing: the loss of the lowest node kept, and the grid; log_scale: ln M^T e^(-tilt (reference - origin)).
    absolute: a bound on the error of the sum at ``reference``; relative: on that of the logarithm; infinity: the mass
        of infinite loss; shift: how far the composed losses may lie from the nodes.
    least: the least epsilon (less the shift) that may be asked for.
    weights: (n,) C e^(-tilt (e - reference)) on the nodes first + i * spacing.
    sums, excess: (n + 1,) over the nodes from i on, of the weights and of weight times 1 - e^(reference - e), which is
        what they add at ``reference``; ``excess`` is None where the nodes span too much for one exponent range.
    """

    first: float
    least: float
    spacing: float
    reference: float
    tilt: float
    log_scale: float
    weights: Floats
    sums: Floats
    excess: Floats | None
    absolute: float
    relative: float
    infinity: float
    shift: float

    def log_upper(self, epsilon: float) -> float:
        """ln of an upper bound of the measure's delta; for a measure from above, of the true delta."""
        finite = self.log_finite(epsilon)
        if self.infinity == 0.0:
            return min(0.0, finite)
        return min(0.0, float(np.logaddexp(finite, math.log(self.infinity) + _INFINITE)))

    def log_finite(self, epsilon: float) -> float:
        """The part of ``log_upper`` that finite losses make."""
        if epsilon - self.shift < self.least:
            return 0.0
        value, error = self._sum(epsilon - self.shift)
        return self.log_scale + self.relative + log_or_minus_infinity(value + error)

    def log_lower(self, epsilon: float) -> float:
        """ln of a lower bound of the measure's delta; for a measure from below, of the true delta."""
        # far below the reference its error is beyond any double: what holds of a larger epsilon holds there as well
        value, error = self._sum(max(epsilon + self.shift, self.reference - _REACH / self.tilt))
        finite = self.log_scale - self.relative + log_or_minus_infinity(value - error)
        if self.infinity == 0.0:
            return finite
        return float(np.logaddexp(finite, math.log(self.infinity) - _INFINITE))

    def relative_error(self, epsilon: float) -> float:
        """The error of the sum at ``epsilon`` relative to it; infinite where there is no sum."""
        value, error = self._sum(epsilon)
        return error / value if value > 0.0 else math.inf

    @functools.cached_property
    def _upper(self) -> int:
        """The first node above ``reference``: from there on all terms of ``excess`` are positive."""
        node = math.floor((self.reference - self.first) / self.spacing) + 1
        return min(max(node, 0), len(self.weights))

    def _sum(self, epsilon: float) -> tuple[float, float]:
        """The sum over nodes above ``epsilon``, and a bound on its error."""
        i = math.floor((epsilon - self.first) / self.spacing) + 1
        i = min(max(i, 0), len(self.weights))
        total = float(self.sums[i])
        if self.excess is not None:
            # 1 - e^(epsilon - e) = (1 - e^(reference - e)) e^x - (e^x - 1) with x = epsilon - reference
            x = min(epsilon - self.reference, _REACH)
            excess = float(self.excess[i])
            size = excess if i >= self._upper else 2.0 * float(self.excess[self._upper]) - excess
            value = excess * math.exp(x) - total * math.expm1(x)
            size = size * math.exp(x) + total * abs(math.expm1(x))
        else:
            j = min(len(self.weights), i + math.ceil(_FADE / self.spacing))
            gaps = epsilon - (self.first + self.spacing * np.arange(i, j))
            value = float(self.sums[j]) - float(self.weights[i:j] @ np.expm1(np.minimum(gaps, 0.0)))
            size = total
        rounding = EPS * (_BLOCK + (len(self.weights) - i) / _BLOCK + 16.0) * size
        outside = self.absolute * math.exp(min(self.tilt * (self.reference - epsilon), _REACH))
        return max(value, 0.0), rounding + outside


def compose(
    phases: Sequence[tuple[Atoms, int]], tilt: float, reference: float, floor: float, limit: int
) -> Composition:
    """Compose phases of (atoms, steps), all on grids of one spacing, tilted for epsilons near ``reference``.

    floor: the least epsilon that will be asked for; limit: the most nodes of the transform. Raises ``TooLongError``
    when the window needs more.
    """
    spacing = phases[0][0].spacing
    infinity = chance_of_any([(atoms.infinity, steps) for atoms, steps in phases])
    if any(not atoms.masses.any() for atoms, _ in phases):
        nothing = np.zeros(0)
        return Composition(
            reference, -math.inf, spacing, reference, tilt, -math.inf, nothing, np.zeros(1), None, 0, 0, infinity, 0
        )
    tilted = [TiltedMeasure.of(atoms, steps, tilt) for atoms, steps in phases]
    low, high = find_window(tilted, spacing)
    length = math.ceil(high - low) + 4
    if length > limit:
        raise TooLongError(length, limit)
    length = next_fast_len(max(length, 16), real=True)
    start = math.floor(low) - 1
    total, noise = convolve(tilted, length)

    # Only nodes over the lowest epsilon that will be asked for are kept, in order.
    origin = math.fsum(atoms.lowest * steps for atoms, steps in phases)
    narrow = spacing * length <= _REACH
    floor = max(floor, reference - _REACH / (1.0 + tilt if narrow else tilt))
    skip = min(max(0, math.ceil((floor - origin) / spacing) - start), length)
    total = np.roll(total, -((start + skip) % length))[: length - skip]
    np.maximum(total, 0.0, out=total)
    gaps = np.arange(float(start + skip), float(start + length))
    gaps *= spacing
    gaps += origin - reference
    narrow = narrow and (len(gaps) == 0 or float(gaps[-1]) <= _REACH)
    with np.errstate(under="ignore"):
        weights = _exponentials(-tilt * gaps[::_ROW], -tilt * spacing, len(gaps))
        weights *= total
        excess = _from_above(weights * -np.expm1(-gaps)) if narrow else None
    largest = math.exp(tilt * math.log(tilt) - (1.0 + tilt) * math.log1p(tilt))
    # The sum of all weights; that of their squares is at most ``largest`` times as much.
    room = 1.0 / (spacing * tilt * (1.0 + tilt)) + largest
    log_mass = math.fsum(steps * part.log_mass for part, (_, steps) in zip(tilted, phases, strict=True))
    log_scale = log_mass - tilt * (reference - origin)
    magnitude = abs(log_mass) + tilt * (abs(reference) + abs(origin)) + 4.0 * _REACH
    steps = sum(steps for _, steps in phases)
    return Composition(
        first=origin + spacing * (start + skip),
        least=origin + spacing * (start + skip) if skip > 0 else reference - _REACH / tilt,
        spacing=spacing,
        reference=reference,
        tilt=tilt,
        log_scale=log_scale,
        weights=weights,
        sums=_from_above(weights),
        excess=excess,
        absolute=min(noise[0] * room, noise[1] * math.sqrt(room * largest)) + 2.02 * OUTSIDE * largest,
        relative=EPS * (16.0 + 4.0 * magnitude) + 8.0 * EPS * steps,
        infinity=infinity,
        shift=math.fsum(atoms.shift * steps for atoms, steps in phases)
        + 8.0 * EPS * (abs(origin) + abs(reference) + abs(spacing * (start + length))),
    )


def chance_of_any(chances: Sequence[tuple[float, int]]) -> float:
    """The probability that something of chance p per step happens, over phases of (p, steps)."""
    if any(p >= 1.0 for p, _ in chances):
        return 1.0
    return -math.expm1(math.fsum(steps * math.log1p(-p) for p, steps in chances))


def _exponentials(logs: Floats, rate: float, count: int) -> Floats:
    """e^(x + ``rate`` i) for i = 0, 1, ... ``_ROW`` - 1 and every x of ``logs`` in turn, the first ``count`` of them.

    rate: between -1 and 0, so that no factor is below the range of doubles unless the product is. Each is a product of
    two exponentials: relative errors of a few hundred EPS, of the 4 EPS ``_REACH`` and more that ``relative`` charges.
    An array as long takes ten times as long by ``exp``.
    """
    table = np.exp(logs)[:, None] * np.exp(rate * np.arange(float(_ROW)))
    return table.ravel()[:count]


def _from_above(values: Floats) -> Floats:
    """Sums over i..end for every i, with a final zero; in blocks, so that few roundings add up."""
    rows = -(-len(values) // _BLOCK)
    padded = np.zeros(rows * _BLOCK + 1)
    padded[1 : len(values) + 1] = values[::-1]
    table = padded[1:].reshape(rows, _BLOCK)
    np.cumsum(table, axis=1, out=table)
    table[1:] += np.cumsum(table[:-1, -1])[:, None]
    return padded[len(values) :: -1]


#: ln of the tilts searched.
_TILTS = (math.log(1e-9), math.log(1e9))


#: So often is that range halved before the slope of what is looked for is followed.
_HALVINGS = 6


#: Tilts of several saddle points are read between so many at a time, and the range narrowed so often.
_LADDER, _LADDERS = 40, 2


#: A tilt is looked for up to this, relative to itself: every tilt gives true bounds, and near the best as good ones.
_NEAR = 1e-4


@dataclass(frozen=True)
class SaddlePoint:
    """A point of the privacy profile: ``tilt`` is -d ln delta / d epsilon, ``spread`` the tilted loss's deviation."""

    tilt: float
    epsilon: float
    log_delta: float
    spread: float


@dataclass(frozen=True, eq=False)
class Cumulants:
    """K and its derivatives for a composition, from a table of losses and log masses per phase."""

    phases: tuple[tuple[Floats, Floats, int], ...]
    _found: dict[float, tuple[float, float, float]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, parts: Sequence[tuple[TruncatedPair, int]]) -> Cumulants:
        """From phases of (part, steps)."""
        return cls(tuple((*part.table(), steps) for part, steps in parts))

    def at(self, tilt: float) -> tuple[float, float, float]:
        """K, K' and K'' at ``tilt``; kept, as searches for several answers begin with the same tilts."""
        if tilt not in self._found:
            self._found[tilt] = self._at(tilt)
        return self._found[tilt]

    def _at(self, tilt: float) -> tuple[float, float, float]:
        value = first = second = 0.0
        for losses, logs, steps in self.phases:
            exponents = logs + tilt * losses
            top = float(exponents.max())
            weights = np.exp(exponents - top)
            mass = float(weights.sum())
            mean = float(weights @ losses) / mass
            variance = float(weights @ np.square(losses - mean)) / mass
            value += steps * (top + math.log(mass))
            first += steps * mean
            second += steps * variance
        return value, first, second

    def for_epsilon(self, epsilon: float) -> SaddlePoint:
        """The saddle point at ``epsilon``."""
        return self._cross(lambda s: self._point(s).epsilon - epsilon, epsilon)

    def for_delta(self, log_delta: float) -> SaddlePoint:
        """The saddle point at which delta is about e^``log_delta``, at epsilon >= 0."""
        saddle = self._cross(lambda s: log_delta - self._point(s).log_delta, None)
        return saddle if saddle.epsilon > 0.0 else self.for_epsilon(0.0)

    def for_deltas(self, log_deltas: Sequence[float]) -> list[SaddlePoint]:
        """``for_delta`` of several: of two and more by interpolation, whose tilts are within a few percent."""
        if len(log_deltas) == 1:
            return [self.for_delta(log_deltas[0])]
        asked = np.array(log_deltas, dtype=np.float64)
        tilts = np.exp(np.linspace(*_TILTS, _LADDER))
        for _ in range(_LADDERS):
            values = self._along(tilts)[2]
            over, under = np.flatnonzero(values > asked.max()), np.flatnonzero(values < asked.min())
            first = over[-1] if len(over) else 0
            last = under[0] if len(under) and under[0] > first else len(tilts) - 1
            ladder = tilts
            tilts = np.geomspace(tilts[first], tilts[last], _LADDER)
        order = np.argsort(values)
        chosen = np.exp(np.interp(asked, values[order], np.log(ladder)[order]))
        epsilons, spreads, found = self._along(chosen)
        return [
            SaddlePoint(float(tilt), float(epsilon), float(log_delta), float(spread))
            if epsilon > 0.0
            else self.for_epsilon(0.0)
            for tilt, epsilon, spread, log_delta in zip(chosen, epsilons, spreads, found, strict=True)
        ]

    def _along(self, tilts: Floats) -> tuple[Floats, Floats, Floats]:
        """Epsilon, spread and ln delta of the saddle points at ``tilts``, (n,) each."""
        value, mean, variance = (np.zeros(len(tilts)) for _ in range(3))
        for losses, logs, steps in self.phases:
            weights = logs + tilts[:, None] * losses
            top = weights.max(axis=1)
            weights = np.exp(weights - top[:, None])
            mass = weights.sum(axis=1)
            mean_of_one = weights @ losses / mass
            value += steps * (top + np.log(mass))
            mean += steps * mean_of_one
            variance += steps * np.einsum("ij,ij->i", weights, np.square(losses - mean_of_one[:, None])) / mass
        epsilons = mean - 1.0 / tilts - 1.0 / (1.0 + tilts)
        around = 2.0 * math.pi * (variance + tilts**-2 + (1.0 + tilts) ** -2)
        log_deltas = value - tilts * epsilons - np.log(tilts) - np.log1p(tilts) - 0.5 * np.log(around)
        return epsilons, np.sqrt(variance), log_deltas

    def for_level(self, log_level: float) -> SaddlePoint:
        """The saddle point whose line, delta plus level times e^epsilon, decides the power at e^``log_level``.

        There the level is -d delta / d epsilon over e^epsilon.
        """
        return self._cross(lambda s: log_level - self._level(self._point(s)), None)

    def for_power(self, log_power: float) -> SaddlePoint:
        """The saddle point whose line reaches the power e^``log_power`` at its level: delta (1 + tilt)."""
        return self._cross(lambda s: log_power - self._point(s).log_delta - math.log1p(s), None)

    @staticmethod
    def _level(point: SaddlePoint) -> float:
        return math.log(point.tilt) + point.log_delta - point.epsilon

    def _point(self, tilt: float) -> SaddlePoint:
        value, mean, variance = self.at(tilt)
        epsilon = mean - 1.0 / tilt - 1.0 / (1.0 + tilt)
        return self._read(tilt, value, variance, epsilon)

    @staticmethod
    def _read(tilt: float, value: float, variance: float, epsilon: float) -> SaddlePoint:
        spread = variance + tilt**-2 + (1.0 + tilt) ** -2
        log_delta = value - tilt * epsilon - math.log(tilt) - math.log1p(tilt) - 0.5 * math.log(2 * math.pi * spread)
        return SaddlePoint(tilt, epsilon, log_delta, math.sqrt(variance))

    def _cross(self, excess: Callable[[float], float], epsilon: float | None) -> SaddlePoint:
        """The saddle point at the tilt where ``excess``, which rises with it, is zero."""
        low, high = bisect(lambda log_tilt: excess(math.exp(log_tilt)) < 0.0, *_TILTS, halvings=_HALVINGS)
        high, low = crossing(lambda log_tilt: excess(math.exp(log_tilt)), high, low, within=_NEAR)
        tilt = math.exp(0.5 * (low + high))
        value, mean, variance = self.at(tilt)
        centre = mean - 1.0 / tilt - 1.0 / (1.0 + tilt) if epsilon is None else epsilon
        return self._read(tilt, value, variance, centre)


def pick_worst(saddles: Sequence[SaddlePoint]) -> SaddlePoint:
    """The saddle point of the largest delta."""
    return max(saddles, key=lambda saddle: saddle.log_delta)
