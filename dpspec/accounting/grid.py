"""One step of a mechanism as masses on a grid of privacy losses, from above and from below.

A step is a ``Pair`` of output distributions. It provides ``Cells``, the probabilities of losses between neighboring
nodes under both distributions. Cells become ``Atoms``, measures on the nodes above and below the step. Nodes are
positions of a uniform grid and may skip ranges of little mass. Theorems 13 and 14 of
``docs/explanation/proofs/grids.md``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dpspec.accounting.numerics import EPS, ContradictionError, Direction, Floats, Index

_Number = TypeVar("_Number", np.float64, np.int64)

_NO_NODES: Index = np.zeros(0, dtype=np.int64)
_NO_MASSES: Floats = np.zeros(0)

#: Share of the discretization error that wide cells may add to the error of the grid's spacing.
WIDE = 0.5

#: The widest cell in loss: its exponential is a double.
WIDEST = 300.0

#: A mass that many roundings may lose. It is charged; more is a fault.
BOOKS = 1e-9

#: The smallest double, and ln of the smallest mass that keeps all its digits.
SMALLEST, _LOG_EXACT = 5e-324, -707.0

#: The minimum number of steps of a grid.
_FEWEST = 4

#: From this loss over the first node on, a sum of masses times e^-loss has no digits.
_UNRESOLVED = 30.0


class TooLongError(Exception):
    """A grid would need ``needed`` points, more than the ``limit``."""

    def __init__(self, needed: int, limit: int) -> None:
        super().__init__(f"a grid would need {needed} points, {limit} are allowed")
        self.factor = needed / limit


@dataclass(frozen=True, eq=False)
class Cells:
    """The outcomes of one step by their privacy loss ln(first / second), between nodes lowest + index * spacing.

    Attributes:
        index: (n + 1,) grid positions of the nodes, ascending from 0.
        mass: (n,) probability under the first distribution of losses between node i and node i + 1.
        excess: (n,) ``mass`` less the second distribution's probability times e^(loss of node i).
        error: (n,) bound on the relative error of ``mass``.
        slip: (n,) bound on the error of ``excess`` relative to ``mass``, beyond ``error`` times ``excess`` itself.
        shift: bound on the error of the nodes' losses.
        below: the first distribution's probability of losses under the lowest node, rounded to the safe side.
        above: the same over the highest node. It counts as infinite for an upper bound, as the highest node for a
            lower one.
        atoms: nodes with outcomes exactly on them, and the probabilities of these, (k,) each.
        infinite: for a lower bound only, the probability of losses that certainly are infinite, not part of ``above``.
    """

    lowest: float
    spacing: float
    index: Index
    mass: Floats
    excess: Floats
    error: Floats
    slip: Floats
    shift: float
    below: float
    above: float
    atoms: tuple[Index, Floats] = (_NO_NODES, _NO_MASSES)
    infinite: float = 0.0

    def __post_init__(self) -> None:
        numbers = (self.lowest, self.spacing, self.shift, self.below, self.above, self.infinite)
        require_finite("cells", numbers, self.mass, self.excess, self.error, self.slip, self.atoms[1])

    @property
    def widths(self) -> Floats:
        """The cells' widths in loss, (n,)."""
        return np.asarray(self.spacing * np.diff(self.index), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Bins:
    """Bins of outcomes in one direction, (n,) each, in any order; ``cells`` puts them on a grid.

    Attributes:
        mass: the first distribution's probability of each bin.
        loss: ln of ``mass`` over the second distribution's probability, finite.
        low: a lower bound of the losses in the bin, up to ``shift``; -inf if unknown.
        high: an upper bound, up to ``shift``; an upper bound of the profile counts a bin without it as infinite loss.
        error: bounds on the relative error of ``mass``.
        loss_error: bounds on the absolute error of ``loss``.
        shift: bound on the rounding error of ``low`` and ``high``.
        above: mass of outcomes with no known upper bound of their losses, for an upper bound.
        infinite: mass of outcomes whose loss certainly is infinite.
    """

    mass: Floats
    loss: Floats
    low: Floats
    high: Floats
    error: Floats
    loss_error: Floats
    shift: float = 0.0
    above: float = 0.0
    infinite: float = 0.0

    def cells(self, lowest: float, spacing: float, index: Index) -> tuple[Cells, Cells]:
        """Cells for an upper and for a lower bound between the nodes lowest + index * spacing."""
        return self.cells_above(lowest, spacing, index), self.cells_below(lowest, spacing, index)

    def cells_above(self, lowest: float, spacing: float, index: Index) -> Cells:
        """Cells for an upper bound, as for ``cells``.

        Lower outcomes than the first node move up to it. Higher ones than the last node move down to it: their distance
        is part of ``shift``.
        """
        nodes, on, fits, misses, shift = self._on_nodes(lowest, spacing, index)
        mass, error, low, high = self.mass[misses], self.error[misses], self.low[misses], self.high[misses]
        maximum, bounded = mass * (1.0 + error), high < np.inf
        top = self.loss[misses] + self.loss_error[misses]
        upper = _gathered(nodes, *_split(nodes, low, high, top, mass, error, bounded))
        overshoot = max(0.0, float(np.max(high[bounded], initial=-np.inf)) - float(nodes[-1]))
        above = min(1.0, (self.above + self.infinite + float(maximum[~bounded].sum())) * (1.0 + 1e-12))
        atoms = (on, self.mass[fits] * (1.0 + (self.error[fits] + 4.0 * EPS)))
        return Cells(lowest, spacing, index, *upper, shift + overshoot, 0.0, above, atoms)

    def cells_below(self, lowest: float, spacing: float, index: Index) -> Cells:
        """Cells for a lower bound, as for ``cells``.

        Lower outcomes than the first node are omitted. Higher ones than the last node move down to it.
        """
        nodes, on, fits, misses, shift = self._on_nodes(lowest, spacing, index)
        bottom = np.minimum(self.loss[misses] - self.loss_error[misses], nodes[-1])
        on_grid = bottom >= nodes[0]
        lower = _gathered(nodes, bottom[on_grid], self.mass[misses][on_grid], self.error[misses][on_grid])
        atoms = (on, self.mass[fits] * np.maximum(1.0 - (self.error[fits] + 4.0 * EPS), 0.0))
        return Cells(lowest, spacing, index, *lower, shift, 0.0, 0.0, atoms, self.infinite)

    def _on_nodes(
        self, lowest: float, spacing: float, index: Index
    ) -> tuple[Floats, Index, npt.NDArray[np.bool_], npt.NDArray[np.bool_], float]:
        """The nodes, the node of each bin of one loss on a node, masks of these and of other bins, and ``shift``."""
        nodes = np.asarray(lowest + spacing * index, dtype=np.float64)
        blur = 32.0 * EPS * float(np.max(np.abs(nodes)))
        nearest = np.minimum(np.searchsorted(nodes, self.loss - 0.5 * spacing), len(nodes) - 1)
        fits = (np.abs(nodes[nearest] - self.loss) <= blur) & (self.high - self.low <= blur) & (self.mass > 0.0)
        shift = self.shift + 2.0 * blur + float(np.max(self.loss_error[fits], initial=0.0))
        return nodes, nearest[fits], fits, ~fits & (self.mass > 0.0), shift


def positive_masses(logs: Floats, error: Floats) -> tuple[Floats, Floats]:
    """e^``logs`` for a ``Bins``, with bounds on the relative errors.

    A mass that would underflow is the smallest double. Near that, an upper bound doubles masses, and a lower bound
    omits them.
    """
    return np.maximum(np.exp(logs), SMALLEST), np.where(logs > _LOG_EXACT, np.minimum(error, 1.0), 1.0)


def _split(
    nodes: Floats, low: Floats, high: Floats, top: Floats, mass: Floats, error: Floats, bounded: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats, Floats]:
    """Losses, masses and errors of outcomes for the upper bound: a bin over several nodes becomes its two ends."""
    low, mass, error = low[bounded], mass[bounded], error[bounded]
    high = np.minimum(np.maximum(high[bounded], nodes[0]), nodes[-1])
    top = np.minimum(np.maximum(top[bounded], nodes[0]), high)
    cell = _cell(nodes, top)
    inside = (low >= nodes[cell]) & (high <= nodes[cell + 1])
    split = ~inside & (low >= nodes[0])
    share = np.ones(len(mass))
    bottom, end = low[split], high[split]
    with np.errstate(invalid="ignore", divide="ignore"):  # the share of ``high`` that keeps the second mass
        upper = np.expm1(bottom - top[split]) / np.expm1(bottom - end)
    share[split] = np.clip(np.where(end > bottom, upper, 1.0) * (1.0 + 16.0 * EPS), 0.0, 1.0)
    return (
        np.concatenate((np.where(inside, top, high), bottom)),
        np.concatenate((mass * share, mass[split] * (1.0 - share[split]))),
        np.concatenate((error, error[split])),
    )


def _cell(nodes: Floats, losses: Floats) -> Index:
    """The number of each loss's cell; a node belongs to the cell above it, the last to the last."""
    return np.minimum(np.maximum(np.searchsorted(nodes, losses, side="right") - 1, 0), len(nodes) - 2)


def _gathered(nodes: Floats, losses: Floats, mass: Floats, error: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """The fields mass, excess, error and slip of ``Cells`` for outcomes of exact ``losses``."""
    cell, count = _cell(nodes, losses), len(nodes) - 1
    total = np.asarray(np.bincount(cell, weights=mass, minlength=count), dtype=np.float64)
    excesses = -mass * np.expm1(nodes[cell] - losses)
    excess = np.asarray(np.bincount(cell, weights=excesses, minlength=count), dtype=np.float64)
    count_in_cell = np.bincount(cell, minlength=count)
    lost_mass = np.bincount(cell, weights=mass * error, minlength=count)
    relative = np.where(total > 0.0, lost_mass / np.where(total > 0.0, total, 1.0), 0.0)
    return total, excess, relative + EPS * (16.0 + 2.0 * count_in_cell), -relative * np.expm1(-np.diff(nodes))


def span_grid(lowest: float, highest: float, spacing: float, *, from_top: bool = False) -> tuple[float, int]:
    """The first node and the number of steps of a grid over all losses, with a node at ``lowest`` or at ``highest``."""
    steps = max(_FEWEST, math.ceil((highest - lowest) / spacing - 1e-9))
    return (highest - spacing * steps if from_top else lowest), steps


def place_nodes_densely(
    losses: Floats,
    logs: Floats,
    lowest: float,
    spacing: float,
    steps: int,
    tilts: Sequence[float],
    widest: float,
    limit: int,
) -> Index:
    """Positions of nodes, from 0 to ``steps``, dense at large mass.

    A cell of width w and tilted mass t adds an error in proportion to t w^2. For a given number of cells the sum is
    smallest if w^3 is inversely proportional to the density of t. ``losses`` and ``logs``, (m,), are a table of losses
    and of ln of their masses; ``widest`` is in grid steps.
    """
    order = np.argsort(losses)
    sorted_losses, logs = losses[order], logs[order]
    tilted = np.zeros(len(sorted_losses))
    for tilt in tilts:
        exponents = logs + tilt * sorted_losses
        weights = np.exp(exponents - exponents.max())
        tilted += weights / weights.sum()
    ends = np.concatenate(([lowest], 0.5 * (sorted_losses[1:] + sorted_losses[:-1]), [lowest + spacing * steps]))
    gaps = np.maximum(np.diff(ends), spacing)
    root = np.cbrt(tilted / gaps)
    cap = max(1.0, min(widest, 0.5 / ((1.0 + max(tilts)) * spacing)))
    with np.errstate(divide="ignore"):
        widths = np.clip(math.sqrt(WIDE / float(root @ gaps)) / root, 1.0, cap)
    count = np.concatenate(([0.0], np.cumsum(np.diff(ends) / (spacing * widths))))
    if count[-1] > limit:
        raise TooLongError(math.ceil(count[-1]), limit)
    positions = (np.interp(np.arange(0.0, math.ceil(count[-1]) + 1.0), count, ends) - lowest) / spacing
    inner = np.rint(positions).astype(np.int64)
    return between_ends(inner[(inner > 0) & (inner < steps)], steps, spacing, limit)


def ascending(*values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """All distinct values in order, (n,); faster than ``np.unique``, which hashes."""
    ordered = np.sort(np.concatenate(values))
    return ordered[np.concatenate(([True], ordered[1:] > ordered[:-1]))]


def between_ends(inner: Index, steps: int, spacing: float, limit: int) -> Index:
    """``inner`` with two nodes at each end of the grid, and with additional nodes in too wide cells."""
    index = ascending(np.array([0, 1, steps - 1, steps], dtype=np.int64), inner)
    widest = int(min(max(WIDEST / spacing, 1.0), 1e12))
    pieces = -(-np.diff(index) // widest)
    if pieces.sum() >= limit:
        raise TooLongError(int(pieces.sum()) + 1, limit)
    if pieces.max() == 1:
        return index
    within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.append(np.repeat(index[:-1], pieces) + within * widest, index[-1])


@dataclass(frozen=True, eq=False)
class Atoms:
    """A measure on the losses lowest + index * spacing, index (n + 1,) ascending from 0, and a mass at infinity.

    ``shift`` bounds the distance of the exact losses from the grid's.
    """

    lowest: float
    spacing: float
    index: Index
    masses: Floats
    infinity: float
    shift: float

    def __post_init__(self) -> None:
        require_finite("a measure", (self.lowest, self.spacing, self.infinity, self.shift), self.masses)
        if not (0.0 <= self.infinity <= 1.0 and bool(np.all(self.masses >= 0.0))):
            raise ContradictionError("a measure has a negative mass, or a probability above 1")

    def delta(self, epsilon: float) -> float:
        """The measure's curve at ``epsilon``."""
        losses = self.lowest + self.spacing * self.index
        return self.infinity + float(self.masses @ -np.expm1(np.minimum(epsilon - losses, 0.0)))

    def closed(self, rounding: float) -> "Atoms":
        """The same measure, which must dominate a step, with missing mass at infinity, which charges it in full.

        Its total mass is at least 1, and its delta at any epsilon below 0 at least 1 - e^epsilon. More missing mass
        than ``rounding`` and :data:`BOOKS` explain raises ``ContradictionError``: it shows a fault of the construction.
        """
        rounding = max(rounding, BOOKS)
        missing = 0.0
        if float(self.masses.sum()) + self.infinity < 1.0:  # or the sum was rounded down
            missing = max(0.0, 1.0 - math.fsum((*self.masses.tolist(), self.infinity)))
        if missing > rounding:
            raise ContradictionError(
                f"a dominating measure lacks a mass of {missing:.3g}, {rounding:.3g} may be rounded"
            )
        reach = max(0.0, -self.lowest)
        for epsilon in (-0.5 * reach, -reach):
            least = -math.expm1(epsilon + self.shift)
            lacking = least - self.delta(epsilon) - missing
            if lacking > rounding + 64.0 * EPS:
                raise ContradictionError(
                    f"a dominating measure has a delta below 1 - e^epsilon at epsilon {epsilon:.6g}"
                )
            missing += max(0.0, lacking - 64.0 * EPS)
        return replace(self, infinity=min(1.0, self.infinity + missing)) if missing > 0.0 else self

    def at_most_one(self, rounding: float) -> "Atoms":
        """The same measure, which must be dominated by a step: its total mass is at most 1."""
        total = float(self.masses.sum()) + self.infinity
        if total > 1.0 + max(rounding, BOOKS):
            raise ContradictionError(f"a dominated measure has a mass of 1 + {total - 1.0:.3g}")
        if total > 1.0 + rounding + 64.0 * EPS:
            return replace(self, masses=self.masses / total, infinity=self.infinity / total)
        return self


def require_finite(name: str, numbers: Sequence[float], *arrays: Floats) -> None:
    """Raise ``ContradictionError`` if a number is infinite or not a number."""
    if not np.isfinite(np.concatenate((numbers, *arrays))).all():
        raise ContradictionError(f"{name} must have finite numbers only")


def _rounding_of(cells: Cells) -> float:
    """The largest mass that the roundings of ``cells`` may lose or add."""
    count = len(cells.mass) + len(cells.atoms[1])
    return float(cells.mass @ np.minimum(cells.error + cells.slip, 1.0)) + EPS * (64.0 + 4.0 * math.sqrt(count))


def discretize_from_above(cells: Cells) -> Atoms:
    """A measure whose curve is above the pair's: masses rounded up, losses under the grid moved onto it."""
    nodes = _chords(cells, sign=1.0)
    nodes[0] += cells.below
    np.add.at(nodes, *cells.atoms)
    nodes *= 1.0 + 4.0 * EPS
    above = Atoms(cells.lowest, cells.spacing, cells.index, nodes, min(1.0, cells.above), cells.shift)
    return above.closed(_rounding_of(cells))


def discretize_from_below(cells: Cells) -> Atoms:
    """A measure whose curve is below the pair's: merged outcomes, losses over the grid moved down onto it."""
    nodes = _chords(cells, sign=-1.0)
    np.add.at(nodes, *cells.atoms)
    nodes[-1] += cells.above
    pulls = _pulls(cells, nodes)
    # a pull of one at a node takes ``up`` from the node below it and ``down`` from the node above it
    up = 1.0 / np.expm1(cells.widths)
    down = 1.0 + up
    removed, added = np.zeros_like(nodes), np.zeros_like(nodes)
    removed[1:] += down * pulls[:-1]
    removed[:-1] += up * pulls[1:]
    added[1:] += down * pulls[1:]
    added[:-1] += up * pulls[:-1]
    nodes = nodes + added - removed - 8.0 * EPS * (nodes + added + removed)
    masses = remove_kinks(nodes, cells.index, cells.spacing)
    below = Atoms(cells.lowest, cells.spacing, cells.index, masses, cells.infinite, cells.shift)
    return below.at_most_one(_rounding_of(cells))


def _chords(cells: Cells, sign: float) -> Floats:
    """Masses on the nodes that keep each cell's two masses, rounded up (+1) or down (-1)."""
    total = np.maximum(cells.mass * (1.0 + sign * (cells.error + 4.0 * EPS)), 0.0)
    excess = cells.excess * (1.0 + sign * (cells.error + 16.0 * EPS)) + sign * cells.slip * cells.mass
    high = np.clip(excess / -np.expm1(-cells.widths), 0.0, total)
    nodes = np.zeros(len(total) + 1)
    nodes[:-1] += total - high
    nodes[1:] += high
    return nodes


def _pulls(cells: Cells, nodes: Floats) -> Floats:
    """The distance by which the chords' curve is pulled down at each node, (n + 1,); 0 at either end of the grid."""
    step = np.expm1(cells.widths)
    top = np.maximum(cells.mass - cells.excess, 0.0) * step
    low = np.clip(cells.excess, 0.0, top)
    charge = (cells.slip + (cells.error + 16.0 * EPS) * np.minimum(step, 1.0)) * cells.mass
    safe = np.where(top > 0.0, top, 1.0)
    share = np.where(top > 0.0, (top - low) / safe, 0.0)
    doubt = np.where(top > 0.0, np.minimum(1.0, charge / safe), 1.0)  # a bound on the error of the share
    sag = low * share + charge
    largest_pulls = np.minimum(-np.expm1(-cells.widths[1:]) * nodes[2:], step[:-1] * nodes[:-2])
    shape = np.zeros(len(sag) + 1)
    shape[1:-1] = np.maximum(largest_pulls, 1e-9 * np.maximum(sag[1:], sag[:-1]))
    smallest, largest = np.clip(share - doubt, 0.0, 1.0), np.clip(share + doubt, 0.0, 1.0)
    reached = np.minimum(
        smallest * shape[:-1] + (1.0 - smallest) * shape[1:], largest * shape[:-1] + (1.0 - largest) * shape[1:]
    )
    scale = np.where(reached > 0.0, sag / np.where(reached > 0.0, reached, 1.0), 0.0)
    scale[0] = scale[-1] = 0.0
    pulls = np.zeros(len(sag) + 1)
    pulls[1:-1] = np.maximum(scale[1:], scale[:-1]) * shape[1:-1]
    pulls[1] = max(pulls[1], (top - low)[0] + 2.0 * charge[0])
    pulls[-2] = max(pulls[-2], low[-1] + 2.0 * charge[-1])
    return pulls


def remove_kinks(nodes: Floats, index: Index, spacing: float) -> Floats:
    """Non-negative masses on the same losses spacing * index, whose curve is below the curve of ``nodes``; (n,) each.

    Each sum is rounded down by a bound on its error, so that sums that cancel stay below the exact ones.
    """
    if not np.any(nodes < 0.0):
        return nodes
    used = np.flatnonzero(nodes)  # a share moves past nodes without mass, as most of a fine grid are
    masses, positions = nodes[used].tolist(), index[used].tolist()  # numbers of lists are read faster than of arrays
    left: dict[int, int] = {}
    right: dict[int, int] = {}
    last = len(masses) - 1
    end = _first_negative_value(nodes[used], spacing * (index[used] - index[used[0]]))
    if end <= last:  # no share of the masses from there on can remain
        last = _end_earlier(masses, positions, spacing, last, end)
    queue = [j for j in np.flatnonzero(nodes[used[: last + 1]] < 0.0).tolist() if masses[j] < 0.0]
    while queue:
        i = queue.pop()
        mass = masses[i]
        if mass >= 0.0:
            continue
        below, above = left.get(i, i - 1), right.get(i, i + 1)
        if above > last:
            last = _end_earlier(masses, positions, spacing, last, last + 1)
            queue = sorted({j for j in queue if masses[j] < 0.0})  # the queue has every negative mass
            continue
        masses[i] = 0.0
        if below < 0:  # a negative mass may move up: the curve only falls
            masses[above] = _sum_from_below(masses[above], mass, 2.0)
        else:
            # the share p of the lower neighbor: p e^rise + (1 - p) e^-width = 1; 0 errs on the low side
            width, rise = spacing * (positions[above] - positions[i]), spacing * (positions[i] - positions[below])
            up, down = (math.expm1(rise), -math.expm1(-width)) if rise <= 700.0 else (1.0, 0.0)
            # both shares are within (16 + 2 rise) EPS of their values
            share, error = mass / (up + down), 20.0 + 2.0 * rise
            masses[below] = _sum_from_below(masses[below], share * down, error)
            masses[above] = _sum_from_below(masses[above], share * up, error)
        left[above], right[below] = below, above
        if below >= 0 and masses[below] < 0.0:
            queue.append(below)
        if masses[above] < 0.0:
            queue.append(above)
    result = np.zeros(len(nodes))
    result[used] = masses
    return result


def _sum_from_below(value: float, moved: float, error: float) -> float:
    """A lower bound of the sum, where ``moved`` < 0 has a relative error of at most ``error`` EPS."""
    size = value if value >= 0.0 else -value
    return value + moved - EPS * (2.0 * size - (error + 2.0) * moved)


def _first_negative_value(masses: Floats, losses: Floats) -> int:
    """The first node at which the curve of ``masses`` (n,) is certainly negative, n if it is unknown.

    ``losses``: (n,) ascending from 0.
    """
    decay = np.exp(-np.minimum(losses, _UNRESOLVED))
    sums = np.cumsum(np.array([masses, masses * decay, np.abs(masses)])[:, ::-1], axis=1)
    over, over_faded, size = sums[:, ::-1]
    errors = EPS * (256.0 + 32.0 * len(masses)) * size
    is_negative = (losses < _UNRESOLVED) & (over - over_faded / decay < -errors)
    return int(np.argmax(is_negative)) if is_negative.any() else len(masses)


def _end_earlier(masses: list[float], positions: list[int], spacing: float, last: int, end: int) -> int:
    """End the grid, in place, at the highest node that leaves no negative value of the curve; returns that node.

    Args:
        masses: of the nodes.
        positions: of the nodes, in grid steps.
        spacing: the grid's step.
        last: the node at which the grid ends now, and above which all masses are zero.
        end: the grid ends before this node.
    """
    # Masses over node i: the first distribution's, the second's times e^(node i), absolute. Their rounding errors are
    # below 2 EPS per node, as the relative error of e^-gap is gap EPS, and gap e^-gap is below 1.
    i = max(0, min(last, end - 1))
    over = np.array(masses[i + 1 : last + 1])
    gaps = spacing * (np.array(positions[i + 1 : last + 1], dtype=np.float64) - positions[i])
    first, second, size = float(over.sum()), float(over @ np.exp(-gaps)), float(np.abs(over).sum())
    masses[i + 1 : last + 1] = [0.0] * (last - i)
    while i >= 0:
        value = masses[i]
        error = 8.0 * EPS * (len(masses) - i) * (size + abs(value))
        masses[i] = 0.0
        if first - second >= error and value + second - error >= 0.0:
            masses[i] = value + second - error
            return i
        first += value
        size += abs(value)
        if i > 0:
            second = (second + value) * math.exp(-spacing * (positions[i] - positions[i - 1]))
        i -= 1
    return 0


class TruncatedPair(ABC):
    """One step in one direction without outcomes of little mass, for one question."""

    @property
    def period(self) -> float | None:
        """A distance in loss that should be a multiple of the grid's step, so that outcomes fall on nodes."""
        return None

    def aligned(self, widest_spacing: float) -> float:
        """A grid's step of at most ``widest_spacing`` with which these outcomes fall on nodes."""
        return self.period / math.ceil(self.period / widest_spacing) if self.period else widest_spacing

    @abstractmethod
    def table(self) -> tuple[Floats, Floats]:
        """Losses and ln of their probabilities under the first distribution, (n,) each; an estimate is enough."""

    def cells(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Cells, Cells]:
        """Cells of outcomes by their loss, for an upper and for a lower bound of the profile.

        Args:
            spacing: the grid's step.
            tilts: the tilts of the answers.
            widest: the largest number of grid steps in a cell.
            limit: the largest number of cells.

        Raises:
            TooLongError: more cells are needed.
            NotImplementedError: the pair implements ``atoms`` instead.
        """
        raise NotImplementedError

    def atoms(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Atoms, Atoms]:
        """Measures on the grid whose curves are above and below the pair's; see ``cells``."""
        above, below = self.cells(spacing, tilts, widest, limit)
        return discretize_from_above(above), discretize_from_below(below)


class Pair(ABC):
    """The two output distributions of one step, immutable.

    The privacy loss is ln(first / second) of an output drawn from the first distribution: the one with the record if
    present-first, the one without it if absent-first. A subclass gets composition and every question of
    ``PrivacyLoss``. Its certificates are as good as its masses.

    Attributes:
        key: equal only for pairs with the same privacy loss, whose steps are counted together.
        effect: mu if the pair has the privacy loss of N(0, 1) against N(mu, 1), whose steps compose in closed form.
        dominating_effect: a mu whose Gaussian pair dominates this one; infinite if none is known.
        has_estimated_upper_end: whether only the lower ends of intervals are bounds.
        has_smallest_width: whether outcomes are merged before any grid, so that finer grids stop narrowing intervals.
        is_symmetric: whether an exchange of the two distributions leaves the privacy loss unchanged.
        is_gaussian_mixture: whether outputs are N(0, I) without the record, and N(c, I) with it, for a random vector c
            of any distribution, independent of the noise and of other steps.
    """

    key: Hashable
    is_symmetric: bool = False
    is_gaussian_mixture: bool = False
    effect: float | None = None
    dominating_effect: float = math.inf
    has_estimated_upper_end: bool = False
    has_smallest_width: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @abstractmethod
    def largest_loss(self, direction: Direction) -> float:
        """An upper bound of the finite losses of one step; may be infinite."""

    def infinite_mass(self, direction: Direction) -> float:
        """The first distribution's probability of outcomes that the second never produces, up to 1e-15 of itself."""
        return 0.0

    def log_delta_bounds(self, epsilon: float, direction: Direction) -> tuple[float, float] | None:
        """Lower and upper bound of ln delta(epsilon) of one step; None without a closed form (a grid is used then)."""
        return None

    def all_log_delta_bounds(self, epsilons: Sequence[float], direction: Direction) -> list[tuple[float, float]]:
        """``log_delta_bounds`` at several ``epsilons``, ascending, of a pair with a closed form."""
        return [bounds for epsilon in epsilons if (bounds := self.log_delta_bounds(epsilon, direction)) is not None]

    def log_moments(self, tilts: Floats, direction: Direction) -> Floats | None:
        """Upper bounds of ln E[e^(s loss)] of one step per s > 0 of ``tilts`` (n,); None if none is fast."""
        return None

    @abstractmethod
    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """The step without outcomes of little mass.

        Args:
            direction: the order of the two distributions.
            log_edge: ln of the first distribution's mass that may be cut off at large losses, and counts as infinite.
            log_far: ln of the mass that may be cut off at the other end.
        """
