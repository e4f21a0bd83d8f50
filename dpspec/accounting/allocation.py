"""Random allocation: each record is in exactly one of t steps, chosen uniformly and independently of all others.

One epoch of balls-in-bins batches (Chua et al. 2025, "Balls-and-Bins Sampling for DP-SGD"), or 1-out-of-t random
allocation (Feldman and Shenfeld 2025, "Privacy amplification by random allocation"). For one record, with Gaussian
noise and in units of the clip norm, this pair dominates the t sums, adaptive choices included:

    Q = N(0, sigma^2 I_t)    and    P = (1/t) sum_i N(e_i, sigma^2 I_t),    dP/dQ (x) = (1/t) sum_i W_i,

with W_i = exp((2 x_i - 1) / (2 sigma^2)) log-normal and independent under Q, and gradients of one direction attain it.
For groups dP/dQ has the mean over all assignments of the members, and members of one gradient attain it: Theorem 2 of
``docs/explanation/proofs/random-allocation.md``, computed in ``group_allocation``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpspec.accounting.convex_laws import Law, by_doubling, combine
from dpspec.accounting.densities import LogRatio
from dpspec.accounting.grid import Bins, Cells, Pair, TruncatedPair, place_nodes_densely, span_grid
from dpspec.accounting.group_allocation import FARTHEST, group_laws
from dpspec.accounting.numerics import EPS, Direction, Floats, one_direction, positive, whole
from dpspec.renames import old_arguments

#: Points of the distribution of a sum, and slices of one log-normal number.
_POINTS, _SLICES = 1200, 1600

#: Tails are cut at multiples of this number of e-foldings, so that distributions can be reused.
_DEPTH = 60.0

#: The deepest cut in e-foldings: masses are above 1e-300, and with the smallest noise no number leaves float64.
_DEEPEST = 720.0

#: More steps, or less noise, need too many points; with more noise the points are equal.
_MOST_STEPS, _SMALLEST_NOISE, _LARGEST_NOISE = 10**7, 0.1, 1e13


@old_arguments("dpspec.accounting.RandomAllocation")
class RandomAllocation(Pair):
    """All ``steps`` t of one epoch as a single pair, for groups of up to ``group_size`` records, each in one step.

    For add-remove and zero-out adjacency. Members of one gradient, of the clip norm, attain it if all other records
    have none (Theorem 2 of ``docs/explanation/proofs/random-allocation.md``).

    Args:
        steps: t, at most 10^7.
        noise_multiplier: the noise's standard deviation in clip norms, at most 1e13 and at least 0.1 for each member.
        group_size: k, at most 16; above ``exact_members`` only lower ends are bounds.
    """

    is_gaussian_mixture = True
    most_members, exact_members = 16, 8

    @staticmethod
    @old_arguments("dpspec.accounting.RandomAllocation.has_noise")
    def has_noise(noise_multiplier: float, group_size: int) -> bool:
        """Return whether the noise is at least 0.1 for each member, except for rounding: 0.3 for three is enough."""
        return noise_multiplier >= _SMALLEST_NOISE * group_size * (1.0 - 4.0 * EPS)

    def __init__(self, steps: int, noise_multiplier: float, group_size: int = 1) -> None:
        self.steps = whole("steps", steps, 1)
        self.noise_multiplier = positive("noise_multiplier", noise_multiplier)
        self.group_size = whole("group_size", group_size, 1)
        if self.steps > _MOST_STEPS:
            raise ValueError(f"steps must be at most {_MOST_STEPS}, got {steps!r}")
        if not self.has_noise(self.noise_multiplier, self.group_size):
            raise ValueError(
                f"noise_multiplier must be at least {_SMALLEST_NOISE} for each member, got {noise_multiplier!r}"
            )
        if self.noise_multiplier > _LARGEST_NOISE:
            raise ValueError(f"noise_multiplier must be at most {_LARGEST_NOISE:g}, got {noise_multiplier!r}")
        if self.group_size > self.most_members:
            raise ValueError(f"group_size must be at most {self.most_members}, got {group_size!r}")
        self.has_estimated_upper_end = self.group_size > self.exact_members
        self.has_smallest_width = self.steps > 1 < self.group_size
        self.key = (type(self).__name__, self.steps, self.noise_multiplier, self.group_size)
        # An adversary who knows the steps sees at most one Gaussian release of all members.
        self.dominating_effect = self.group_size / self.noise_multiplier
        if self.steps == 1:
            self.effect = self.dominating_effect

    def __repr__(self) -> str:
        group = f", {self.group_size} members" if self.group_size > 1 else ""
        return f"{type(self).__name__}(one of {self.steps} steps, noise {self.noise_multiplier:g}{group})"

    def largest_loss(self, direction: Direction) -> float:
        """Infinite: losses are unbounded."""
        return math.inf

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """The distribution of the ratio, whose cut tails have less than these masses under either distribution."""
        depth = _depth(log_edge, log_far)
        if self.group_size == 1:
            return _RatioPart(*_laws(((self.steps, self.noise_multiplier),), depth), one_direction(direction))
        exact = not self.has_estimated_upper_end
        laws = group_laws(self.steps, self.noise_multiplier, depth, self.group_size, exact=exact)
        return _RatioPart(*laws, one_direction(direction))


class UnevenAllocation(Pair):
    """One epoch of random allocation of a single record whose steps have different noise.

    The record is in one of all steps, uniformly: dP/dQ = (sum_i W_i) / t, with the log-normal W_i of step i.

    Args:
        noise_steps: numbers of steps, and their noise in units of the record's change, from 0.1 to 1e13.
    """

    is_gaussian_mixture = True

    def __init__(self, noise_steps: Sequence[tuple[int, float]]) -> None:
        merged: dict[float, int] = {}
        for steps, noise in noise_steps:
            if not _SMALLEST_NOISE * (1.0 - 4.0 * EPS) <= positive("noise", noise) <= _LARGEST_NOISE:
                raise ValueError(f"noise must be from {_SMALLEST_NOISE} to {_LARGEST_NOISE:g}, got {noise!r}")
            merged[noise] = merged.get(noise, 0) + whole("steps", steps, 1)
        if not 0 < sum(merged.values()) <= _MOST_STEPS:
            raise ValueError(f"there must be 1 to {_MOST_STEPS} steps")
        self.noise_steps = tuple((merged[noise], noise) for noise in sorted(merged))
        self.key = (type(self).__name__, *self.noise_steps)
        # An adversary who knows the step sees one Gaussian release.
        self.dominating_effect = 1.0 / self.noise_steps[0][1]

    def __repr__(self) -> str:
        listed = ", ".join(f"{steps} of noise {noise:g}" for steps, noise in self.noise_steps)
        return f"{type(self).__name__}({listed})"

    def largest_loss(self, direction: Direction) -> float:
        """Infinite: losses are unbounded."""
        return math.inf

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """The distribution of the ratio, whose cut tails have less than these masses under either distribution."""
        return _RatioPart(*_laws(self.noise_steps, _depth(log_edge, log_far)), one_direction(direction))


def _depth(log_edge: float, log_far: float) -> float:
    """The e-foldings at which tails are cut."""
    return min(_DEPTH * math.ceil(-min(log_edge, log_far, -1.0) / _DEPTH), _DEEPEST)


@dataclass(frozen=True, eq=False)
class _RatioPart(TruncatedPair):
    """A pair by its likelihood ratio's distribution under Q, mean 1, from above and from below in convex order."""

    above: Law
    below: Law
    direction: Direction

    def table(self) -> tuple[Floats, Floats]:
        bins = self._bins(self.below)
        return bins.loss, np.asarray(np.log(bins.mass), dtype=np.float64)

    def cells(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Cells, Cells]:
        above, below = self._bins(self.above), self._bins(self.below)
        ends = np.concatenate((above.loss, below.loss))
        lowest, steps = span_grid(float(ends.min()) - spacing, float(ends.max()) + spacing, spacing)
        index = place_nodes_densely(*self.table(), lowest, spacing, steps, tilts, widest, limit)
        return above.cells_above(lowest, spacing, index), below.cells_below(lowest, spacing, index)

    def _bins(self, law: Law) -> Bins:
        """The points of a distribution as outcomes of one loss each."""
        present = self.direction == "present-first"
        used = (law.values > 0.0) & (law.masses > 1e-300)
        if present:
            used &= law.masses * law.values > 1e-300
        values, masses = law.values[used], law.masses[used]
        loss = np.log(values) if present else -np.log(values)
        shift = law.off + 8.0 * EPS * (1.0 + float(np.max(np.abs(loss))))
        infinite_loss_mass = law.lost if present else float(law.masses[law.values == 0.0].sum())
        small = float(np.sum(1e-300 * (1.0 + law.values[(law.values > 0.0) & ~used])))
        return Bins(
            mass=masses * values if present else masses,
            loss=loss,
            low=loss - shift,
            high=loss + shift,
            error=np.full(len(loss), 16.0 * EPS + law.off),
            loss_error=np.full(len(loss), shift),
            above=(infinite_loss_mass + small) * (1.0 + 1e-12) if law.upper else 0.0,
        )


@functools.lru_cache(maxsize=64)
def _laws(noise_steps: tuple[tuple[int, float], ...], depth: float) -> tuple[Law, Law]:
    """The distribution of (W_1 + ... + W_t) / t under Q from above and from below, tails cut at a total e^-depth."""
    total = sum(steps for steps, _ in noise_steps)
    log_little = -depth - math.log(64.0 * (len(noise_steps) + math.log2(total)))

    def add(left: Law, right: Law) -> Law:
        return combine(left, right, _POINTS, log_little)

    ends = [
        [
            by_doubling(law, steps, lambda left, right, _: add(left, right))
            for law in _log_normal(sigma, total, log_little)
        ]
        for steps, sigma in noise_steps
    ]
    sums = [functools.reduce(add, laws) for laws in zip(*ends, strict=True)]
    high, low = (replace(law, values=law.values / total, lost=law.lost / total, off=law.off + EPS) for law in sums)
    return high, low


def _log_normal(sigma: float, steps: int, log_little: float) -> tuple[Law, Law]:
    """The distribution of W = exp(a z - a^2 / 2), a = 1 / sigma, for standard normal z, from above and from below.

    A tail of ``steps`` of these numbers has a mass of at most e^``log_little``.
    """
    a = 1.0 / sigma
    edge = math.sqrt(-2.0 * (log_little - math.log(steps)))
    z = np.linspace(max(-edge, -FARTHEST), min(a + edge, FARTHEST), _SLICES + 1)
    ratio = LogRatio(np.array([a]), np.zeros(1))
    ends = np.concatenate(([-np.inf], z, [np.inf]))
    masses = ratio.masses(ends[:-1], ends[1:])
    mean, mass = np.exp(masses.group), np.exp(masses.none)
    doubt = np.minimum(masses.group_error + masses.none_error + 64.0 * EPS * (1.0 + edge * edge), 1.0)
    points = np.exp(a * z - 0.5 * a * a)
    values = np.concatenate(([0.0], points))
    widths = np.diff(values)
    share = np.clip((mean[:-1] - values[:-1] * mass[:-1]) / widths, 0.0, mass[:-1])
    slack = mass[:-1] * doubt[:-1] * (1.0 + values[1:] / widths)
    upper = np.zeros(len(values))
    upper[:-1] += mass[:-1] - share + slack
    upper[1:] += share + slack
    upper[-1] += mass[-1] * (1.0 + doubt[-1])
    lost = float(mean[-1] * (1.0 + doubt[-1]))
    inner = slice(1, -1)
    below = Law(
        mean[inner] / mass[inner], mass[inner] * (1.0 - doubt[inner]), False, 0.0, float(2.0 * doubt[inner].max())
    )
    return Law(values, upper, True, lost), below
