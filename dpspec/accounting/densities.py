"""Densities and probabilities of a mixture of Gaussians, in log space, with bounds on their rounding errors.

In units of sigma, with shifts a_j = c_j / sigma >= 0 and weights p_j, the log-likelihood ratio

    l(z) = ln sum_j p_j exp(a_j z - a_j^2 / 2)

is increasing and convex, from ln p(c = 0) to infinity. Newton's method on l is slow near its lower end, so it runs on
l+(z) = ln sum_{a_j > 0} ...: l(z) = x is the same as l+(z) = ln(e^x - p_0). Differences of probabilities are taken
between the smaller tails.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, logsumexp, ndtri_exp

from dpspec.accounting.numerics import EPS, LOG_ROOT_TWO_PI, Floats, crossing, gauss_rule

#: Above this ln p_0 the weights are anchored at p_0, below it they are normalized from their mode.
_ANCHOR = -30.0

#: Components times points per block: small enough for the cache.
_BLOCK = 1 << 15

#: From this number of components on, a block omits components whose posterior mass in it is below e^``_NEGLIGIBLE``.
_MANY = 24
_NEGLIGIBLE = math.log(1e-20)

#: Relative bounds of the part that underflows in a sum of components, and of irrelevant components.
_LOST, _OMITTED = 1e-300, 1e-19

#: Elements of a component-by-interval table in memory.
_CHUNK = 1 << 19

#: Points of a table of losses, from which Newton's method starts.
_TABLE = 4096

#: The width in loss of cells that are always integrated: differences of tails are off by a part of their mass.
_FINE = 1e-8

#: Cells per block of quadrature.
_CELLS = 1 << 15

#: Gauss-Legendre with four points: the error relative to a Gaussian factor is below 5.6e-10 (h Z)^8 <= 1e-16
#: for cells of width h and Z >= 2 that bounds the distance to the mean of each component.
_GAUSS_REACH = 0.143

#: The largest number of parts of a cell by quadrature, and minus ln of a mass below the smallest double.
_PIECES, _NO_MASS = 1 << 20, 750.0
_NODES, _WEIGHTS = gauss_rule(4)


#: The distance of ln of a weight from the largest one beyond which no answer depends on it.
_NEVER = 4000.0


def log_binomial(k: int, q: float) -> Floats:
    """ln P[Binomial(k, q) = j] for j = 0..k; shape (k + 1,). Rate 0 < q < 1.

    A relative error of 1e-10 in a weight moves epsilon by T times as much after T steps, which rules out log-gamma
    functions. Ratios of neighboring weights are exact to rounding.
    """
    j = np.arange(k, dtype=np.float64)
    ratios = np.log((k - j) / (j + 1.0)) + (math.log(q) - math.log1p(-q))
    return _from_ratios(ratios, k * math.log1p(-q))


def log_hypergeometric(k: int, n: int, batch_size: int) -> Floats:
    """ln P[Hypergeometric = j], j = 0..min(k, batch_size): ``batch_size`` <= n balls from k black and n white ones."""
    i = np.arange(1, k + 1, dtype=np.float64)
    few = 2 * batch_size < n + i  # otherwise 1 - batch_size / (n + i) would lose digits
    factors = np.where(few, np.log1p(-np.where(few, batch_size / (n + i), 0.0)), np.log((n - batch_size + i) / (n + i)))
    log_zero = float(np.sum(factors))
    j = np.arange(min(k, batch_size), dtype=np.float64)
    ratios = np.log((k - j) / (j + 1.0)) + np.log((batch_size - j) / (n - batch_size + j + 1.0))
    return _from_ratios(ratios, log_zero)


def _from_ratios(ratios: Floats, log_zero: float) -> Floats:
    if log_zero > _ANCHOR:
        return log_zero + np.concatenate(([0.0], _running(ratios)))
    mode = int(np.sum(ratios > 0.0))  # ratios fall with j: the weights rise, then fall
    down = -_running(ratios[:mode][::-1])[::-1]
    logs = np.concatenate((down, [0.0], _running(ratios[mode:])))
    return np.asarray(logs - logsumexp(logs), dtype=np.float64)


def _running(values: Floats) -> Floats:
    """Cumulative sums that carry the rounding error of each addition (Neumaier), (n,) for (n,).

    Beyond ``_NEVER``, weights are too small for their errors to matter, and a million additions take seconds.
    """
    total = carry = 0.0
    sums: list[float] = []
    for value in values.tolist():
        if abs(total) > _NEVER:
            return np.concatenate((sums, total + np.cumsum(values[len(sums) :])))
        grown = total + value
        carry += (total - grown) + value if abs(total) >= abs(value) else (value - grown) + total
        total = grown
        sums.append(total + carry)
    return np.array(sums, dtype=np.float64)


#: ln of an x from which on asinh(x) is ln(2 x), up to rounding.
_LARGE_ARGUMENT = 40.0


@dataclass(frozen=True, eq=False)
class LogRatio:
    """l and its inverse for ``shifts`` (m,), ascending, and ``log_weights`` (m,); in units of sigma."""

    shifts: Floats
    log_weights: Floats

    @property
    def log_zero(self) -> float:
        """ln p(c = 0), the infimum of l; -inf without a zero component."""
        return float(self.log_weights[0]) if self.shifts[0] == 0.0 else -math.inf

    def __call__(self, z: Floats) -> Floats:
        return self.evaluate(z)[0]

    def evaluate(self, z: Floats, *, slope: bool = False, noise: bool = False) -> tuple[Floats, Floats, Floats]:
        """l(z), and if requested l'(z) (the posterior mean of the shift) and a bound on the rounding error of l(z)."""
        shape = np.shape(z)
        flat = np.ravel(np.asarray(z, dtype=np.float64))
        order: slice | npt.NDArray[np.intp] = slice(None)
        if len(self.shifts) >= _MANY and not bool(np.all(flat[1:] >= flat[:-1])):
            order = np.argsort(flat)
        points = flat[order]
        in_order = np.empty((3, len(flat)))
        rows = max(256, _BLOCK // len(self.shifts))
        for start in range(0, len(points), rows):
            block = points[start : start + rows]
            part = self.relevant(block, block)
            in_order[:, start : start + rows] = part._block(block, slope=slope or noise, noise=noise)
            in_order[2, start : start + rows] += _OMITTED if len(part.shifts) < len(self.shifts) else 0.0
        result = np.empty_like(in_order)
        result[:, order] = in_order
        return result[0].reshape(shape), result[1].reshape(shape), result[2].reshape(shape)

    def _block(self, z: Floats, *, slope: bool, noise: bool) -> tuple[Floats, Floats, Floats]:
        if self.shifts[0] == 0.0 and len(self.shifts) > 1:
            # the other components are added to the zero component: no digit of a small addition is lost
            zero = float(self.log_weights[0])
            shifted, slopes, errors = LogRatio(self.shifts[1:], self.log_weights[1:])._block(
                z, slope=slope, noise=noise
            )
            log_addition = np.logaddexp(0.0, shifted - zero)
            share = -np.expm1(-log_addition) if slope else log_addition
            if noise:
                errors = 8.0 * EPS * (abs(zero) + log_addition) + share * (
                    errors + 8.0 * EPS * (abs(zero) + np.abs(shifted))
                )
            return zero + log_addition, slopes * share, errors
        exponents = (z[None, :] - 0.5 * self.shifts[:, None]) * self.shifts[:, None] + self.log_weights[:, None]
        sizes = np.abs(self.log_weights) + 0.5 * np.square(self.shifts)
        if len(self.shifts) == 1:
            slopes = np.full(z.shape, self.shifts[0])
            return exponents[0], slopes, EPS * (4.0 + 4.0 * (sizes[0] + self.shifts[0] * np.abs(z)))
        top = exponents.max(axis=0)
        np.subtract(exponents, top, out=exponents)
        np.exp(exponents, out=exponents)
        total = exponents.sum(axis=0)
        slopes = (self.shifts @ exponents) / total if slope else total
        errors = total
        if noise:  # the error of each term with its weight in the sum
            errors = EPS * (32.0 + 4.0 * ((sizes @ exponents) / total + slopes * np.abs(z)))
        return top + np.log(total), slopes, errors

    def relevant(self, low: Floats, high: Floats) -> "LogRatio":
        """The components that matter for each z, or interval, from ``low[0]`` to ``high[-1]``; both ascending.

        The posterior of the shift given z has monotone likelihood ratio in z: its lower tail is heaviest at the first
        point, its upper tail at the last. In an unbounded interval, a component on its inside has half of its weight
        there, and any other at most all. The omitted part is below 1e-19 of the whole everywhere.
        """
        count = len(self.shifts)
        if count < _MANY:
            return self
        first, last = float(low[0]), float(high[-1])
        log_negligible = _NEGLIGIBLE - math.log(count)
        begin, end = 0, count
        if math.isfinite(first):
            logs = (first - 0.5 * self.shifts) * self.shifts + self.log_weights
            begin = int(np.argmax(logs > logs.max() + log_negligible))
        elif math.isfinite(high[0]) and (inside := int(np.searchsorted(self.shifts, high[0], side="right"))):
            floor = float(self.log_weights[:inside].max()) - 0.7
            begin = int(np.argmax(self.log_weights > floor + log_negligible))
        if math.isfinite(last):
            if last != first:
                logs = (last - 0.5 * self.shifts) * self.shifts + self.log_weights
            end -= int(np.argmax(logs[::-1] > logs.max() + log_negligible))
        elif math.isfinite(low[-1]) and (inside := int(np.searchsorted(self.shifts, low[-1]))) < count:
            floor = float(self.log_weights[inside:].max()) - 0.7
            end -= int(np.argmax(self.log_weights[::-1] > floor + log_negligible))
        return LogRatio(self.shifts[begin:end], self.log_weights[begin:end])

    def inverse(self, loss: Floats) -> Floats:
        """The z with l(z) = ``loss``; -inf if ``loss`` is at or below ln P[c = 0]."""
        target = np.ravel(loss)
        if self.shifts[-1] == 0.0:  # without a shift the ratio is one everywhere
            return np.where(np.asarray(loss) > 0.0, np.inf, -np.inf)
        positive = self
        if self.shifts[0] == 0.0:  # ln(e^loss - p_0) and the other components
            gap = target - self.log_zero
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                small = np.log(np.expm1(np.clip(gap, 0.0, 30.0)))
                large = gap + np.log1p(-np.exp(-np.maximum(gap, 1.0)))
            target = self.log_zero + np.where(gap > 30.0, large, small)
            positive = LogRatio(self.shifts[1:], self.log_weights[1:])
        result = np.full(target.shape, -np.inf)
        inner = np.isfinite(target)
        if inner.any():
            result[inner] = positive._newton(target[inner])
        result[target == np.inf] = np.inf
        return result.reshape(np.shape(loss))

    def _newton(self, target: Floats) -> Floats:
        """The z with l(z) = ``target``, (n,), from the right of the root."""
        # each component alone is a lower bound of the sum, and a single one the sum
        z = np.empty_like(target)
        rows = max(1, _BLOCK // len(self.shifts))
        offsets = 0.5 * self.shifts - self.log_weights / self.shifts
        for start in range(0, len(target), rows):
            z[start : start + rows] = (target[start : start + rows, None] / self.shifts + offsets).min(axis=1)
        for _ in range(100 if len(self.shifts) > 1 else 0):
            value, slope, _ = self.evaluate(z, slope=True)
            step = (value - target) / slope
            z = z - step
            if np.all(np.abs(step) <= 1e-8 * (1.0 + np.abs(z))):  # quadratic convergence: no further step is needed
                break
        return z

    def log_tail(self, z: float, *, upper: bool) -> float:
        distances = self.shifts - z if upper else z - self.shifts
        return float(np.logaddexp.reduce(self.log_weights + log_ndtr(distances)))

    def range_of_outputs(self, log_edge: float, log_far: float) -> tuple[float, float]:
        """Outputs under which the mixture has a mass of about e^``log_far``, and over which e^``log_edge``."""
        top = float(self.shifts[-1])
        start, end = float(ndtri_exp(log_far)), top - float(ndtri_exp(log_edge))
        visible = self.log_weights > min(log_edge, log_far) - math.log(len(self.shifts)) + _NEGLIGIBLE
        heaviest = LogRatio(self.shifts[visible], self.log_weights[visible])
        low, _ = crossing(lambda z: log_far - heaviest.log_tail(z, upper=False), start, top, within=1e-3)
        high, _ = crossing(lambda z: heaviest.log_tail(z, upper=True) - log_edge, -10.0, end + 1.0, within=1e-3)
        return low, high

    def with_first(self, z: Floats) -> tuple[Floats, Floats]:
        """l(z), and ln of the density with the group over the one of N(0, 1), which is the same."""
        losses = self(z)
        return losses, losses

    def masses(self, low: Floats, high: Floats) -> "Masses":
        """The masses of [low, high] (n,), ascending, by differences of tails, component by component."""
        group, group_error = np.empty(low.shape), np.empty(low.shape)
        none, none_error = normal_mass(low, high)
        none_error = none_error + 8.0 * EPS
        log_ratio, ratio_error = np.empty(low.shape), np.empty(low.shape)
        rows = max(1, _CHUNK // len(self.shifts))
        for start in range(0, len(low), rows):
            block = slice(start, start + rows)
            part = self.relevant(low[block], high[block])
            shifts = part.shifts[:, None]
            terms, error = normal_mass(low[None, block] - shifts, high[None, block] - shifts)
            terms += part.log_weights[:, None]
            top = terms.max(axis=0)
            top[np.isneginf(top)] = 0.0
            np.exp(np.subtract(terms, top, out=terms), out=terms)
            total = terms.sum(axis=0)
            with np.errstate(divide="ignore", invalid="ignore"):
                group[block] = top + np.log(total)
                shares = np.sum(terms * error, axis=0) / total
                log_ratio[block] = group[block] - none[block]
            group_error[block] = np.where(total > 0.0, shares, 0.0) + 8.0 * EPS
            sizes = np.abs(group[block]) + np.abs(none[block])
            ratio_error[block] = group_error[block] + none_error[block] + 4.0 * EPS * (2.0 + sizes)
            if part.shifts[0] == 0.0 and len(part.shifts) > 1:
                # the other components are added to the zero component, as in ``LogRatio``
                zero, largest_weight = float(part.log_weights[0]), float(np.abs(part.log_weights).max())
                is_visible = terms[0] > _LOST
                log_addition = np.log1p(terms[1:].sum(axis=0) / np.where(is_visible, terms[0], 1.0))
                with np.errstate(divide="ignore", invalid="ignore"):
                    digits = error[1:] + error[0] + 8.0 * EPS * (4.0 + largest_weight + sizes)
                    added_error = np.sum(terms[1:] * digits, axis=0) / total + 8.0 * EPS * (abs(zero) + log_addition)
                added_error += _LOST if len(part.shifts) == len(self.shifts) else _OMITTED
                log_ratio[block] = np.where(is_visible, zero + log_addition, log_ratio[block])
                ratio_error[block] = np.where(is_visible, added_error, ratio_error[block])
        is_empty = ~(np.isfinite(group) & np.isfinite(none))
        log_ratio[is_empty] = ratio_error[is_empty] = 0.0
        return Masses(group, none, group_error, none_error, log_ratio, ratio_error)


@dataclass(frozen=True, eq=False)
class OpposedRatio:
    """ln of a mixture with shifts to the right over a mixture with shifts to the left, increasing in the output.

    Attributes:
        first: the ratio of the first mixture to N(0, 1), as a function of z.
        second: the ratio of the second one, mirrored: as a function of -z.
    """

    first: LogRatio
    second: LogRatio

    @property
    def shifts(self) -> Floats:
        """The shifts of both mixtures, ascending."""
        return np.concatenate((-self.second.shifts[::-1], self.first.shifts))

    @property
    def log_zero(self) -> float:
        """The value that many outputs share if no shift is probable; 0 if unknown."""
        value = self.first.log_zero - self.second.log_zero
        return value if math.isfinite(value) else 0.0

    def __call__(self, z: Floats) -> Floats:
        return self.first(z) - self.second(-z)

    def with_first(self, z: Floats) -> tuple[Floats, Floats]:
        """The ratio, and ln of the first density over the one of N(0, 1)."""
        log_first = self.first(z)
        return log_first - self.second(-z), log_first

    def evaluate(self, z: Floats, *, noise: bool = True) -> tuple[Floats, Floats, Floats]:
        """The ratio, its slope and a bound on its rounding error, for ``z`` (n,)."""
        value, slope, error = self.first.evaluate(z, slope=True, noise=noise)
        other_value, other_slope, other_error = self.second.evaluate(-z, slope=True, noise=noise)
        return (
            value - other_value,
            slope + other_slope,
            error + other_error + 4.0 * EPS * (np.abs(value) + np.abs(other_value)),
        )

    def relevant(self, low: Floats, high: Floats) -> "OpposedRatio":
        """As for ``LogRatio``."""
        return OpposedRatio(self.first.relevant(low, high), self.second.relevant(-high[::-1], -low[::-1]))

    def masses(self, low: Floats, high: Floats) -> "Masses":
        """The masses of [low, high] (n,), ascending: first as ``group``, second as ``none``."""
        first, second = self.first.masses(low, high), self.second.masses(-high[::-1], -low[::-1])
        ratio, error = first.ratio - second.ratio[::-1], first.ratio_error + second.ratio_error[::-1]
        error = error + 4.0 * EPS * (np.abs(first.ratio) + np.abs(second.ratio[::-1]))
        return Masses(first.group, second.group[::-1], first.group_error, second.group_error[::-1], ratio, error)

    def inverse(self, values: Floats) -> Floats:
        """The outputs with these ``values`` (n,) of the ratio, by Newton's method between bounds, or in closed form."""
        if self._is_symmetric_pair:
            return self._symmetric_inverse(values)
        low, high, reach = np.full(values.shape, -1.0), np.full(values.shape, 1.0), 1.0
        below, above = self(low) > values, self(high) < values
        while bool(below.any() or above.any()) and reach < 1e100:
            reach *= 4.0
            low, high = np.where(below, low - reach, low), np.where(above, high + reach, high)
            below, above = self(low) > values, self(high) < values
        table = np.linspace(float(low.min(initial=-1.0)), float(high.max(initial=1.0)), _TABLE)
        z = np.clip(np.interp(values, self(table), table), low, high)
        for _ in range(200):
            value, slope, noise = self.evaluate(z)
            low, high = np.where(value <= values, z, low), np.where(value >= values, z, high)
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                step = z + (values - value) / slope
            is_inside = (step > low) & (step < high)
            middle = 0.5 * (low + high)
            done = (np.abs(value - values) <= noise) | (high - low <= 4.0 * EPS * np.abs(z))
            z = np.where(done, z, np.where(is_inside, step, middle))
            if done.all():
                break
        return np.asarray(z, dtype=np.float64)

    @property
    def _is_symmetric_pair(self) -> bool:
        """Whether both mixtures are the same one of no shift and one shift."""
        first, second = self.first, self.second
        return (
            len(first.shifts) == len(second.shifts) == 2
            and first.shifts[0] == 0.0 < first.shifts[1]
            and bool(np.all(first.shifts == second.shifts) and np.all(first.log_weights == second.log_weights))
        )

    def _symmetric_inverse(self, values: Floats) -> Floats:
        """With the weights p and q of no shift and of the shift a, the value v is the loss of the output

            z = (v / 2 + asinh(p / q e^(a^2 / 2) sinh(v / 2))) / a:

        with u = e^(a z - v / 2) the equation of z is q e^(-a^2 / 2) (u - 1 / u) = 2 p sinh(v / 2).
        """
        shift, log_weights = float(self.first.shifts[1]), self.first.log_weights
        log_factor = float(log_weights[0] - log_weights[1]) + 0.5 * shift * shift
        half = 0.5 * np.abs(values)
        with np.errstate(divide="ignore"):
            log_sinh = half + np.log(-0.5 * np.expm1(-2.0 * half))
        log_argument = log_factor + log_sinh
        small = np.arcsinh(np.exp(np.minimum(log_argument, _LARGE_ARGUMENT)))
        solution = np.where(log_argument > _LARGE_ARGUMENT, log_argument + math.log(2.0), small)
        return np.asarray(np.copysign((half + solution) / shift, values), dtype=np.float64)


def normal_mass(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """ln(Phi(high) - Phi(low)) for low <= high, and a bound on its absolute error.

    The error of log_ndtr, 2 (8 + z^2) units in the last place, divided by 1 - (smaller tail / larger).
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        flip = low + high > 0.0
        nearer_end, farther_end = np.where(flip, -low, high), np.where(flip, -high, low)
        tail = log_ndtr(nearer_end)
        share = -np.expm1(np.minimum(log_ndtr(farther_end) - tail, 0.0))
        blur = 2.0 * EPS * (8.0 + np.square(np.minimum(nearer_end, 0.0)))
        unresolved = share <= blur
        mass = tail + np.log(np.where(unresolved, 2.0 * blur, share))
        error = np.where(unresolved, 1.0, blur / share)
        # empty intervals, and unbounded ones
        empty = nearer_end <= farther_end
    return np.where(empty, -np.inf, mass), np.where(empty | np.isnan(error), 0.0, error)


@dataclass(frozen=True, eq=False)
class Masses:
    """ln of the masses of intervals with the group and without, with bounds on the errors of the logarithms.

    ``ratio`` is ``group`` less ``none``. It keeps its digits if a group is rarely drawn and both are almost equal.
    """

    group: Floats
    none: Floats
    group_error: Floats
    none_error: Floats
    ratio: Floats
    ratio_error: Floats

    def first(self, *, present: bool, up: bool) -> float:
        log, error = (self.group, self.group_error) if present else (self.none, self.none_error)
        value, slack = math.exp(float(log[0])), min(1.0, 4.0 * float(error[0]))
        return value * (1.0 + slack if up else 1.0 - slack)

    def cells(self, base: Floats, widths: Floats, noise: Floats, *, present: bool) -> Floats:
        """As cells whose l is in [base, base + widths]; see ``cell_masses``."""
        first, second = (self.group, self.none) if present else (self.none, self.group)
        node = base if present else -base - widths
        rounding = 4.0 * EPS * (2.0 + np.abs(first) + np.abs(second) + np.abs(node))
        rounding[~np.isfinite(rounding)] = 0.0
        error = 2.0 * ((self.group_error if present else self.none_error) + noise + rounding)
        slip = 2.0 * (self.ratio_error + noise + 4.0 * EPS * (np.abs(self.ratio) + np.abs(node)))
        mass = np.exp(first)
        gap = np.where(np.isneginf(second), -np.inf, node - self.ratio if present else node + self.ratio)
        return np.array([mass, -mass * np.expm1(np.minimum(gap, 700.0)), error, slip])


def _fine_cell(
    ratio: LogRatio | OpposedRatio, low: float, high: float, base: float, width: float, noise: float, *, present: bool
) -> Floats:
    """One row of ``cell_masses`` for a cell of many outputs and little loss: narrow parts by quadrature."""
    reach = max(2.0, abs(low), abs(high), float(ratio.shifts[-1]) - low, high - float(ratio.shifts[0]))
    ends = np.linspace(low, high, 2 + math.floor((high - low) * reach / _GAUSS_REACH * (1.0 + 1e-9)))
    count = len(ends) - 1
    bases, offset = np.full(count, base), np.full(count, width)
    pieces = cell_masses(ratio, ends, bases, offset, np.full(count, noise), present=present)
    mass, excess = pieces[:2].sum(axis=1)
    return np.array([mass, excess, pieces[2].max() + EPS * count, pieces[3].max()])


def cell_masses(
    ratio: LogRatio | OpposedRatio, z: Floats, base: Floats, widths: Floats, noise: Floats, *, present: bool
) -> Floats:
    """The cells between consecutive ``z`` (n + 1,), whose l is in [base, base + widths] (n,) up to ``noise``.

    Narrow cells by quadrature of the densities, whose errors cancel in the difference; wide ones by differences of
    tails. Returns the rows mass, excess, error and slip of ``grid.Cells``, (4, n).
    """
    result = np.empty((4, len(z) - 1))
    for start in range(0, result.shape[1], _CELLS):
        block = np.arange(start, min(start + _CELLS, result.shape[1]))
        low, high = z[block], z[block + 1]
        part = ratio.relevant(low, high)
        reach = np.maximum(2.0, np.maximum(np.abs(low), np.abs(high)))
        reach = np.maximum(reach, np.maximum(part.shifts[-1] - low, high - part.shifts[0]))
        narrow = (high - low) * reach <= _GAUSS_REACH
        # outputs beyond ``far`` have no mass in float64, with the group or without
        far = np.sqrt(2.0 * (_NO_MASS + np.maximum(base[block] + widths[block], 0.0)))
        low, high = np.clip(low, -far, far), np.clip(high, -far, far)
        fine = ~narrow & (widths[block] < _FINE) & ((high - low) * reach <= _GAUSS_REACH * _PIECES)
        for i, first, last in zip(block[fine].tolist(), low[fine].tolist(), high[fine].tolist(), strict=True):
            result[:, i] = _fine_cell(
                part, first, last, float(base[i]), float(widths[i]), float(noise[i]), present=present
            )
        if (wide := block[~narrow & ~fine]).size:
            masses = ratio.masses(z[wide], z[wide + 1])
            result[:, wide] = masses.cells(base[wide], widths[wide], noise[wide], present=present)
        if (narrow_cells := block[narrow]).size:
            low, high = z[narrow_cells], z[narrow_cells + 1]
            points = low[:, None] + (high - low)[:, None] * _NODES
            losses, log_first = ratio.with_first(points)
            exponent = -0.5 * np.square(points) - LOG_ROOT_TWO_PI
            if present:
                exponent += log_first
                gap = base[narrow_cells, None] - losses
            else:
                gap = losses - (base + widths)[narrow_cells, None]
            density = np.exp(exponent)
            density *= (high - low)[:, None] * _WEIGHTS
            error = 2.0 * noise[narrow_cells] + EPS * (40.0 + 2.0 * np.square(np.maximum(np.abs(low), np.abs(high))))
            excess = -(density * np.expm1(gap)).sum(axis=1)
            result[:, narrow_cells] = [density.sum(axis=1), excess, error, 2.0 * noise[narrow_cells]]
    return result
