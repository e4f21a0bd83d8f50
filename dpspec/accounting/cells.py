"""One step of a mixture, cut into cells of equal width in the privacy loss, with exact masses.

Every discretisation starts from cells: for each interval of losses [e_i, e_i + d] the probabilities of the outcomes in
it under the first and the second distribution of the pair. ``Cells`` is all that the later stages see, so another
mechanism only has to fill one in. Here the outputs z of a mixture are cut where l(z) = origin + i d.

Where the loss piles up at ln P[c = 0] (most steps do not see the group at all), an interval of outputs with nearly
equal losses is merged into one atom for the lower bound, and the grid is shifted so that the atom lies on a node.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri_exp

from dpspec.accounting.checks import EPS, Direction, Floats
from dpspec.accounting.masses import lower_tail, mixture_mass, normal_mass, upper_tail
from dpspec.accounting.ratio import Ratio

#: Gauss-Legendre with four points: the error relative to a Gaussian factor is below 5.6e-10 (h Z)^8 <= 1e-16
#: where h is the cell's width and Z bounds 2 and the distance to every component's mean.
_GAUSS_REACH = 0.143
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)
_NODES, _WEIGHTS = 0.5 * (_NODES + 1.0), 0.5 * _WEIGHTS
_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)

#: Cells worked on at once by quadrature.
_CHUNK = 1 << 15


@dataclass(frozen=True, eq=False)
class Cells:
    """The outcomes of one step by their privacy loss ln(first / second), on a grid of nodes lowest + i * spacing.

    mass: (n,) probability under the first distribution of losses in [node i, node i + 1].
    scaled: (n,) the second distribution's probability of the same outcomes, times e^(node i); between mass e^-spacing
        and mass up to rounding.
    error: (n,) bound on the relative error of ``mass``.
    slip: (n,) bound on the error of ``mass - scaled`` relative to ``mass``, beyond ``error`` times the difference.
    shift: the nodes' losses are true up to this much.
    below, above: the first distribution's probability of losses under the lowest and over the highest node, rounded
        to the safe side.
    atom: node index and probability of outcomes that lie on a node exactly; index -1 for none.
    """

    lowest: float
    spacing: float
    mass: Floats
    scaled: Floats
    error: Floats
    slip: Floats
    shift: float
    below: float
    above: float
    atom: tuple[int, float] = (-1, 0.0)


@dataclass(frozen=True)
class Range:
    """Where the outputs are cut off, in units of sigma, and the components that are left out as negligible."""

    low: float
    high: float
    ratio: Ratio
    dropped: float
    pull: float

    def losses(self) -> tuple[float, float]:
        """The span of l over the range."""
        values = self.ratio(np.array([self.low, self.high]))
        return float(values[0]), float(values[1])


def cut(ratio: Ratio, direction: Direction, log_edge: float, log_far: float) -> Range:
    """The range of outputs outside which the first distribution has little mass.

    log_edge: ln of the mass that may be lost at the end of large losses, where it counts as infinite.
    log_far: ln of the mass that may be lost at the other end.

    Components may be dropped whose whole weight is far below that. Present-first, their mass is added to what is
    infinite for the upper bound, and missing mass only lowers a lower bound. Absent-first, a smaller second
    distribution only raises the upper bound; for the lower bound the weight moves to c = 0 (a dominated pair by
    Lemma 2.9), which changes losses by at most ``pull``.
    """
    if direction == "present-first":
        low = _search(lambda z: lower_tail(ratio, z) <= log_far, float(ndtri_exp(log_far)), float(ratio.shifts[-1]))
        start = -float(ndtri_exp(log_edge))
        high = _search(lambda z: upper_tail(ratio, z) > log_edge, -10.0, start + float(ratio.shifts[-1]))
        kept, dropped = _trim(ratio, log_edge - math.log(1e3))
        return Range(low, high, kept, dropped, 0.0)
    low, high = float(ndtri_exp(log_edge)), -float(ndtri_exp(log_far))
    largest = -float(ratio(np.array([low]))[0])
    kept, dropped = _trim(ratio, -42.0 - largest)
    return Range(low, high, kept, dropped, dropped * math.exp(min(largest + 1.0, 700.0)))


def build(area: Range, direction: Direction, spacing: float) -> tuple[Cells, Cells]:
    """The cells for an upper and for a lower bound; they differ where the loss piles up."""
    ratio, present = area.ratio, direction == "present-first"
    pile = ratio.log_zero > -math.inf
    merged = float(ratio.inverse(np.array([ratio.log_zero + 0.5 * spacing]))[0]) if pile else -math.inf
    pile = merged > area.low
    bottom = np.array([-np.inf])
    if pile:
        end = np.array([merged])
        heap = _Masses.exact(ratio, bottom, end)
        origin = float(heap.group[0] - heap.none[0])
    else:
        origin = area.losses()[0]
    count = max(4, math.ceil((area.losses()[1] - origin) / spacing))
    nodes = origin + spacing * np.arange(count + 1)
    z = ratio.inverse(nodes)
    if not pile:
        z[0] = area.low
    noise = _noise(ratio, max(abs(z[0]), abs(z[-1])))
    shift = float(np.max(np.abs(ratio(z) - nodes))) + noise + 4.0 * EPS * float(np.max(np.abs(nodes)))
    inner = _quadrature(ratio, z, nodes, spacing, noise, present=present)
    tail = _Masses.exact(ratio, z[-1:], -bottom)
    head = _Masses.exact(ratio, bottom, z[:1])
    outer = (head, tail) if present else (tail, head)
    below, above = (side.first(present) for side in outer)
    dropped = area.dropped if present else 0.0
    if not pile:
        return (
            _oriented(inner, nodes, spacing, shift, present, below[1], above[1] + dropped),
            _oriented(inner, nodes, spacing, shift + area.pull, present, below[0], above[0]),
        )
    # Upper: one more cell, for what lies beyond the first node. Lower: the heap is an atom, its rest a shorter cell.
    extra = head.cells(np.array([origin - spacing]), spacing, noise, present=present)
    rest = _Masses.exact(ratio, end, z[1:2]).cells(nodes[:1], spacing, noise, present=present)
    upper = tuple(np.concatenate((a, b)) for a, b in zip(extra, inner, strict=True))
    lower = tuple(np.concatenate((a, b[1:])) for a, b in zip(rest, inner, strict=True))
    wider = np.concatenate(([origin - spacing], nodes))
    atom = (0 if present else count, heap.first(present)[0])
    off = shift + area.pull + float(heap.group_error[0] + heap.none_error[0])
    far_below, far_above = (below, (0.0, 0.0)) if not present else ((0.0, 0.0), above)
    return (
        _oriented(upper, wider, spacing, shift, present, far_below[1], far_above[1] + dropped),
        _oriented(lower, nodes, spacing, off, present, far_below[0], far_above[0], atom),
    )


@dataclass(frozen=True, eq=False)
class _Masses:
    """ln of the masses of intervals with the group and without, with bounds on the errors of the logarithms."""

    group: Floats
    none: Floats
    group_error: Floats
    none_error: Floats

    @classmethod
    def exact(cls, ratio: Ratio, low: Floats, high: Floats) -> _Masses:
        group, group_error = mixture_mass(ratio, low, high)
        none, none_error = normal_mass(low, high)
        return cls(group, none, group_error, none_error + 8.0 * EPS)

    def first(self, present: bool) -> tuple[float, float]:
        """The first interval's mass under the first distribution, rounded down and rounded up."""
        log, error = (self.group, self.group_error) if present else (self.none, self.none_error)
        value, slack = math.exp(float(log[0])), min(1.0, 4.0 * float(error[0]))
        return value * (1.0 - slack), value * (1.0 + slack)

    def cells(
        self, base: Floats, spacing: float, noise: float, *, present: bool
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """mass, scaled, error and slip of cells whose l lies in [base, base + spacing]."""
        first, second, node = (self.group, self.none, base) if present else (self.none, self.group, -base - spacing)
        error = (self.group_error if present else self.none_error) + noise
        rounding = 4.0 * EPS * (2.0 + np.abs(first) + np.abs(second) + np.abs(node))
        rounding[~np.isfinite(rounding)] = 0.0
        slip = 2.0 * (self.group_error + self.none_error + noise + rounding)
        return np.exp(first), np.exp(second + node), 2.0 * (error + rounding), slip


def _quadrature(
    ratio: Ratio, z: Floats, nodes: Floats, spacing: float, noise: float, *, present: bool
) -> tuple[Floats, Floats, Floats, Floats]:
    """mass, scaled, error and slip of the cells between consecutive z.

    Narrow cells by quadrature of the densities, whose errors are common to both masses and cancel in the difference;
    wide ones by differences of tails.
    """
    count = len(z) - 1
    mass, scaled, error, slip = (np.empty(count) for _ in range(4))
    for start in range(0, count, _CHUNK):
        at = np.arange(start, min(start + _CHUNK, count))
        low, high = z[at], z[at + 1]
        part = ratio.relevant(low, high)
        reach = np.maximum(2.0, np.maximum(np.abs(low), np.abs(high)))
        reach = np.maximum(reach, np.maximum(part.shifts[-1] - low, high - part.shifts[0]))
        narrow = (high - low) * reach <= _GAUSS_REACH
        for use, wide in ((narrow, False), (~narrow, True)):
            if not use.any():
                continue
            here = at[use]
            if wide:
                values = _Masses.exact(ratio, z[here], z[here + 1]).cells(nodes[here], spacing, noise, present=present)
            else:
                values = _narrow(ratio, z[here], z[here + 1], nodes[here], spacing, noise, present=present)
            mass[here], scaled[here], error[here], slip[here] = values
    return mass, scaled, error, slip


def _narrow(
    ratio: Ratio, low: Floats, high: Floats, base: Floats, spacing: float, noise: float, *, present: bool
) -> tuple[Floats, Floats, Floats, Floats]:
    width = high - low
    points = low[:, None] + width[:, None] * _NODES
    losses = ratio(points)
    exponent = -0.5 * np.square(points) - _LOG_ROOT_TWO_PI
    if present:
        exponent += losses
        gap = base[:, None] - losses
    else:
        gap = losses - (base[:, None] + spacing)
    density = np.exp(exponent)
    density *= width[:, None] * _WEIGHTS
    error = 2.0 * noise + EPS * (40.0 + 2.0 * np.square(np.maximum(np.abs(low), np.abs(high))))
    slip = np.full(len(low), 2.0 * noise + 16.0 * EPS)
    return density.sum(axis=1), (density * np.exp(gap)).sum(axis=1), error, slip


def _oriented(
    cells: tuple[Floats, ...],
    nodes: Floats,
    spacing: float,
    shift: float,
    present: bool,
    below: float,
    above: float,
    atom: tuple[int, float] = (-1, 0.0),
) -> Cells:
    """Cells in order of increasing loss, which is l present-first and -l absent-first."""
    mass, scaled, error, slip = cells if present else tuple(a[::-1] for a in cells)
    lowest = float(nodes[0] if present else -nodes[-1])
    return Cells(lowest, spacing, mass, scaled, error, slip, shift, below, above, atom)


def _noise(ratio: Ratio, reach: float) -> float:
    """A bound on the rounding error of l(z) for |z| up to ``reach``, and of its weights."""
    largest = np.max(np.abs(ratio.log_weights) + ratio.shifts * (reach + 0.5 * ratio.shifts))
    return EPS * (32.0 + 4.0 * float(largest))


def _trim(ratio: Ratio, log_budget: float) -> tuple[Ratio, float]:
    """The components without those, at either end, whose weights add up to at most e^log_budget; and that sum."""
    half = log_budget - math.log(2.0)
    begin = int(np.searchsorted(np.logaddexp.accumulate(ratio.log_weights), half))
    end = len(ratio.shifts) - int(np.searchsorted(np.logaddexp.accumulate(ratio.log_weights[::-1]), half))
    if end - begin < 1:
        return ratio, 0.0
    lost = np.concatenate((ratio.log_weights[:begin], ratio.log_weights[end:]))
    kept = Ratio(ratio.shifts[begin:end], ratio.log_weights[begin:end])
    return kept, float(np.exp(lost).sum() * (1.0 + 1e-9)) if lost.size else 0.0


def _search(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The last point, up to 1e-3, for which ``holds`` is true: true at ``low``, perhaps false at ``high``."""
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
