"""One step of a mixture of Gaussians as cells: its outputs z cut where l(z) is a node's loss.

Where the loss piles up at ln P[c = 0] (most steps do not see the group at all), an interval of outputs with nearly
equal losses is merged into one atom for the lower bound, and the grid is shifted so that the atom lies on a node.

Which outputs of a step matter, and where to cut them, an output range says, with nodes as dense as the mass asks for.

The scalar mixture-of-Gaussians pair: what one step of DP-SGD leaks about a group, at worst.

Without the group a step shows N(0, sigma^2), with it sum_j p_j N(c_j, sigma^2), where c is the random number of group
members in the batch (Ganesh 2024, Definition 2.8, Theorems 3.1 and 3.3). Everything is in units of the clip norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri_exp

from dpspec.accounting.densities import (
    CellMasses,
    LogRatio,
    Masses,
    cell_masses,
    log_binomial,
    log_hypergeometric,
    lower_tail,
    mixture_mass,
    normal_mass,
    upper_tail,
)
from dpspec.accounting.grid import WIDE, WIDEST, Cells, Pair, TooLongError, TruncatedPair, split_wide_cells
from dpspec.accounting.numerics import (
    EPS,
    Direction,
    Floats,
    Index,
    bisect,
    inside,
    log_or_minus_infinity,
    one_direction,
    positive,
    whole,
)

#: Points of the table from which nodes are placed.
_TABLE = 2001


@dataclass(frozen=True)
class OutputRange:
    """Where the outputs are cut off, in units of sigma, and the components that are left out as negligible.

    dropped: the weight of the components left out; pull: how much that may change a loss for the lower bound.
    """

    low: float
    high: float
    ratio: LogRatio
    dropped: float
    pull: float

    def losses(self) -> tuple[float, float]:
        """The span of l over the range."""
        values = self.ratio(np.array([self.low, self.high]))
        return float(values[0]), float(values[1])


def truncate_outputs(ratio: LogRatio, direction: Direction, log_edge: float, log_far: float) -> OutputRange:
    """The range of outputs outside which the first distribution has little mass.

    log_edge: ln of the mass that may be lost at the end of large losses, where it counts as infinite.
    log_far: ln of the mass that may be lost at the other end.

    Components may be dropped whose whole weight is far below that. Present-first, their mass is added to what is
    infinite for the upper bound, and missing mass only lowers a lower bound. Absent-first, a smaller second
    distribution only raises the upper bound; for the lower bound the weight moves to c = 0 (a dominated pair by
    Lemma 2.9), which changes losses by at most ``pull``.
    """
    top = float(ratio.shifts[-1])
    if direction == "present-first":
        low = _last(lambda z: lower_tail(ratio, z) <= log_far, float(ndtri_exp(log_far)), top)
        high = _last(lambda z: upper_tail(ratio, z) > log_edge, -10.0, top - float(ndtri_exp(log_edge)))
        trimmed, dropped = _trim(ratio, log_edge - math.log(1e3))
        return OutputRange(low, high, trimmed, dropped, 0.0)
    low, high = float(ndtri_exp(log_edge)), -float(ndtri_exp(log_far))
    largest = -float(ratio(np.array([low]))[0])
    trimmed, dropped = _trim(ratio, -42.0 - largest)
    return OutputRange(low, high, trimmed, dropped, dropped * math.exp(min(largest + 1.0, 700.0)))


def place_output_nodes(
    area: OutputRange,
    direction: Direction,
    origin: float,
    spacing: float,
    tilts: Sequence[float],
    widest: float,
    limit: int,
) -> Index:
    """Grid positions of nodes over the losses from ``origin`` on, starting 0, 1, 2: dense where mass is.

    A cell of width w and tilted mass t adds an error in proportion to t w^2; for a given number of cells the sum is
    least where w^3 is inversely proportional to the density of t. ``tilts`` are those at which answers are wanted;
    ``widest`` limits a cell's width, in grid steps. Raises ``TooLongError`` for more than about ``limit`` nodes.
    """
    z = np.linspace(area.low, area.high, _TABLE)
    losses, slopes = area.ratio.with_slope(z)
    slopes = np.maximum(slopes, 1e-200)
    signed = losses if direction == "present-first" else -losses
    logs = -0.5 * np.square(z) + (losses if direction == "present-first" else 0.0)
    density = np.zeros(_TABLE)
    for tilt in tilts:
        exponents = logs + tilt * signed
        weights = np.exp(exponents - exponents.max())
        density += weights / (_area(weights, z) * slopes)
    root = np.cbrt(density)
    total = _area(root * slopes, z)
    cap = max(1.0, min(widest, 0.5 / ((1.0 + max(tilts)) * spacing)))
    with np.errstate(divide="ignore", over="ignore"):
        widths = np.clip(math.sqrt(WIDE / total) / root, 1.0, cap)
    steps = slopes / (spacing * widths)
    count = np.concatenate(([0.0], np.cumsum(0.5 * (steps[1:] + steps[:-1]) * np.diff(z))))
    if count[-1] > limit:
        raise TooLongError(math.ceil(count[-1]), limit)
    grid = (losses - origin) / spacing
    wanted = np.rint(np.interp(np.arange(0.0, math.ceil(count[-1]) + 1.0), count, grid)).astype(np.int64)
    end = max(4, math.ceil(float(grid[-1])))
    inner = np.concatenate(([0, 1, 2], wanted[wanted > 2]))
    inner = inner[np.concatenate(([True], np.diff(inner) > 0))]
    # The last cell is not much narrower than the one before it.
    inner = inner[inner < end - 0.7 * float(inner[-1] - inner[-2])] if len(inner) > 3 else inner[inner < end]
    return split_wide_cells(np.concatenate((inner, [end])), max(1, int(WIDEST / spacing)), limit)


def _trim(ratio: LogRatio, log_budget: float) -> tuple[LogRatio, float]:
    """The components without those, at either end, whose weights add up to at most e^log_budget; and that sum."""
    half = log_budget - math.log(2.0)
    begin = int(np.searchsorted(np.logaddexp.accumulate(ratio.log_weights), half))
    end = len(ratio.shifts) - int(np.searchsorted(np.logaddexp.accumulate(ratio.log_weights[::-1]), half))
    if end - begin < 1 or ratio.shifts[end - 1] == 0.0:  # what remains must still be able to lose something
        return ratio, 0.0
    dropped_logs: Floats = np.concatenate((ratio.log_weights[:begin], ratio.log_weights[end:]))
    trimmed = LogRatio(ratio.shifts[begin:end], ratio.log_weights[begin:end])
    return trimmed, float(np.exp(dropped_logs).sum() * (1.0 + 1e-9)) if dropped_logs.size else 0.0


def _area(values: Floats, z: Floats) -> float:
    return float(0.5 * (values[1:] + values[:-1]) @ np.diff(z))


def _last(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The last point, up to 1e-3, for which ``holds`` is true: true at ``low``, perhaps false at ``high``."""
    return bisect(holds, low, high, enough=lambda a, b: b - a <= 1e-3)[0]


#: Outputs under this, in units of sigma, have no mass that a double could hold.
_FAR_LEFT = -39.0


#: A mixture piles up at ln P[c = 0] if its least loss is within so many grid steps of it.
_PILED = 64.0


#: Quadrature step of the table in units of sigma, and its most points.
_STEP, _POINTS = 0.05, 20_000


@dataclass(frozen=True, eq=False)
class TruncatedMixture(TruncatedPair):
    """A range of outputs of one step, seen in one direction."""

    area: OutputRange
    direction: Direction

    def table(self) -> tuple[Floats, Floats]:
        """By quadrature over the outputs in the range."""
        area = self.area
        count = int(min(max((area.high - area.low) / _STEP, 100.0), _POINTS)) + 1
        z = np.linspace(area.low, area.high, count)
        losses = area.ratio(z)
        logs = -0.5 * np.square(z) + math.log((z[1] - z[0]) / math.sqrt(2.0 * math.pi))
        return (losses, logs + losses) if self.direction == "present-first" else (-losses, logs)

    def cells(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Cells, Cells]:
        """See ``build``."""
        return build_cells(self.area, self.direction, spacing, tilts, widest, limit)


def build_cells(
    area: OutputRange,
    direction: Direction,
    spacing: float,
    tilts: Sequence[float],
    widest: float,
    limit: int,
    align: float | None = None,
) -> tuple[Cells, Cells]:
    """The cells for an upper and for a lower bound; they differ where the loss piles up.

    Args:
        area: the outputs.
        direction: which of the two distributions is the first.
        spacing: of the grid.
        tilts: at which answers are wanted.
        widest: the most grid steps in a cell.
        limit: the most cells.
        align: a log ratio that is on the grid, if the grid is that of another mixture too; the pile then is in a cell.

    Raises:
        TooLongError: more cells are needed.
    """
    ratio, present = area.ratio, direction == "present-first"
    bottom, step = np.array([-np.inf]), np.array([spacing])
    pile = _Pile.of(area, spacing) if align is None else None
    origin = area.losses()[0] if pile is None else pile.loss
    piled = pile is not None or (align is not None and origin - ratio.log_zero < _PILED * spacing)
    if align is not None:
        origin = align + spacing * math.ceil((origin - align) / spacing)
    index = place_output_nodes(area, direction, origin, spacing, tilts, widest, limit)
    # The upper bound has nodes inside the pile as well, down to ln P[c = 0] or as far as there are outputs.
    lead = max(0, math.ceil((origin - ratio.log_zero) / spacing) - 1) if piled else 0
    before = ratio.inverse(origin - spacing * np.arange(lead, 0, -1.0))
    complete = piled and bool(np.all(before > _FAR_LEFT))
    lead = int(np.sum(before > _FAR_LEFT))
    if lead + len(index) > limit:
        raise TooLongError(lead + len(index), limit)
    longer = np.concatenate((np.arange(-lead, 0), index))
    nodes = np.asarray(origin + spacing * longer, dtype=np.float64)
    z = np.concatenate((before[len(before) - lead :], ratio.inverse(nodes[lead:])))
    z[lead] = area.low if not piled else max(z[lead], _FAR_LEFT)
    losses, noise = ratio.with_noise(z)
    shift = float(np.max(np.abs(losses - nodes) + noise)) + 4.0 * EPS * float(np.max(np.abs(nodes)))
    inner = cell_masses(ratio, z, nodes[:-1], np.diff(nodes), np.maximum(noise[1:], noise[:-1]), present=present)
    head, tail = Masses.of(ratio, bottom, z[:1]), Masses.of(ratio, z[-1:], -bottom)
    if complete:  # upper: one more cell, for what lies beyond the first node
        above = head.cells(nodes[:1] - spacing, step, noise[:1], present=present).joined(inner)
        wider = np.concatenate(([0], longer + lead + 1))
        upper = _Oriented(origin - spacing * (lead + 1), spacing, wider, above, present, None, tail, area.dropped)
    else:
        upper = _Oriented(float(nodes[0]), spacing, longer + lead, inner, present, head, tail, area.dropped)
    if pile is None:
        return upper.cells(shift), upper.cells(shift + area.pull, lower=True)
    # Lower: the pile is an atom, and what it leaves of its cell a shorter cell.
    ends = (pile.end, z[lead + 1 : lead + 2])
    remainder = Masses.of(ratio, *ends).cells(nodes[lead : lead + 1], step, noise[lead + 1 : lead + 2], present=present)
    lower = _Oriented(origin, spacing, index, remainder.joined(inner, lead + 1), present, None, tail, 0.0)
    return upper.cells(shift), lower.cells(shift + pile.error + area.pull, pile.masses, lower=True)


@dataclass(frozen=True, eq=False)
class _Oriented:
    """Cells by increasing l, to be read by increasing loss: l present-first, -l absent-first.

    head, tail: the outcomes with l under the first node (None where none is left) and over the last.
    """

    origin: float
    spacing: float
    index: Index
    values: CellMasses
    present: bool
    head: Masses | None
    tail: Masses
    dropped: float

    def cells(self, shift: float, pile: Masses | None = None, lower: bool = False) -> Cells:
        """For an upper or a lower bound; ``pile`` holds the outcomes that lie on the first node exactly."""
        side = 0 if lower else 1
        head = 0.0 if self.head is None else self.head.first(self.present)[side]
        tail = self.tail.first(self.present)[side]
        atoms: tuple[list[int], list[float]] = ([], [])
        if pile is not None:
            atoms = ([0 if self.present else len(self.index) - 1], [pile.first(self.present)[0]])
        on = (np.array(atoms[0], dtype=np.int64), np.array(atoms[1]))
        extra = 0.0 if lower or not self.present else self.dropped
        if self.present:
            return Cells(self.origin, self.spacing, self.index, *self.values, shift, head, tail + extra, on)
        lowest = -(self.origin + self.spacing * float(self.index[-1]))
        index = self.index[-1] - self.index[::-1]
        values = CellMasses(*(array[::-1] for array in self.values))
        return Cells(lowest, self.spacing, index, *values, shift, tail, head, on)


@dataclass(frozen=True, eq=False)
class _Pile:
    """The outputs up to ``end``, (1,), whose losses are close to ln P[c = 0]; merged, they have the loss ``loss``."""

    end: Floats
    masses: Masses
    loss: float
    error: float

    @classmethod
    def of(cls, area: OutputRange, spacing: float) -> _Pile | None:
        """The pile of a range of outputs; None if hardly any outcome lies there.

        It is taken as far as the next node, one spacing over its own loss ln(P / Q): then no outcome is left between
        the two, which the lower bound could only merge with heavier losses.
        """
        ratio = area.ratio
        if ratio.log_zero == -math.inf:
            return None
        ends = ratio.inverse(ratio.log_zero + spacing * np.geomspace(1.0, 64.0, 97))
        losses, _ = _merged(ratio, ends)
        with np.errstate(invalid="ignore"):
            inside = ratio(ends) - losses <= spacing * (1.0 - 1e-9)
        fits = int(np.argmin(inside)) if not inside.all() else len(ends)
        end = ends[max(0, fits - 1) : max(1, fits)]
        if float(end[0]) <= area.low:
            return None
        loss, error = (float(x[0]) for x in _merged(ratio, end))
        start = np.maximum(ratio.inverse(np.array([loss])), _FAR_LEFT)
        if float(ratio(start)[0]) - loss > 1e-14 * (1.0 + abs(loss)):
            return None  # its own loss is that of outputs too far away to be told apart
        return cls(end, Masses.of(ratio, np.array([-np.inf]), end), loss, error)


def _merged(ratio: LogRatio, ends: Floats) -> tuple[Floats, Floats]:
    """The losses ln(P / Q) of the outputs up to each of ``ends``, taken together, and bounds on their errors.

    ln p(c = 0) and what the other components add to it, so that no digit of a small addition is lost.
    """
    zero = ratio.log_zero
    shifted = Masses.of(LogRatio(ratio.shifts[1:], ratio.log_weights[1:]), np.full(len(ends), -np.inf), ends)
    with np.errstate(invalid="ignore"):
        beside = np.where(np.isneginf(shifted.group), -np.inf, shifted.group - shifted.none - zero)
    more = np.logaddexp(0.0, beside)
    rounding = 4.0 * EPS * (np.abs(shifted.group) + np.abs(shifted.none) + abs(zero))
    share = -np.expm1(-more)
    off = np.where(share > 0.0, share * (shifted.group_error + shifted.none_error + rounding), 0.0)
    return zero + more, np.asarray(8.0 * EPS * (abs(zero) + more) + off, dtype=np.float64)


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
        return cls._from_logs(np.arange(k + 1.0), log_binomial(k, q), sigma)

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
        logs = log_hypergeometric(k, n, batch_size)
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
        """delta(epsilon) of one step; see ``log_delta``."""
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
