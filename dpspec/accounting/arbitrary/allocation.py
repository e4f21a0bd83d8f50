"""Random allocation: each record is in exactly one of t steps, chosen uniformly and independently of all others.

One epoch of balls-in-bins batches (Chua et al. 2025, "Balls-and-Bins Sampling for DP-SGD"), or 1-out-of-t random
allocation (Feldman and Shenfeld 2025, "Privacy amplification by random allocation"). A record that is added or removed
changes the sum of one step, which is the i-th with probability 1/t, and no other record's step. With Gaussian noise the
t sums together are dominated, adaptive choices included, by the pair (both papers; in units of the clip norm)

    Q = N(0, sigma^2 I_t)    and    P = (1/t) sum_i N(e_i, sigma^2 I_t),

and gradients of one direction attain it. Its ratio is the mean of t independent log-normal numbers,

    dP/dQ (x) = (1/t) sum_i W_i,    W_i = exp((2 x_i - 1) / (2 sigma^2)),

so that its law under Q is that of a sum, and under P the same times the ratio itself. ``convex_sums`` has the law of
the sum from above and from below in convex order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from dpspec.accounting.arbitrary.convex_sums import Law, sum_of
from dpspec.accounting.grid.cells import Bins, Cells
from dpspec.accounting.grid.discretise import place_nodes_densely, span_grid
from dpspec.accounting.mixture.log_ratio import LogRatio
from dpspec.accounting.mixture.masses import Masses
from dpspec.accounting.numerics.floats import EPS, Direction, Floats, one_direction, positive, whole
from dpspec.accounting.pair import Pair, TruncatedPair

#: Points of each law of sums, and slices of one log-normal number.
_POINTS, _SLICES = 1200, 1600

#: Tails are cut at so many e-foldings at least, and then in steps of as many, so that laws can be kept.
_DEPTH = 60.0

#: And at so many at most, nor further than so many standard deviations: masses below 1e-300 are not told apart, and
#: with the least noise no number leaves float64.
_DEEPEST, _FARTHEST = 720.0, 37.0

#: More steps than this, or less noise, take too many points.
_MOST_STEPS, _LEAST_NOISE = 10**7, 0.1


class RandomAllocation(Pair):
    """All ``steps`` t of one epoch together, as one pair: a record is in one of them. sigma: in clip norms, >= 0.1.

    Adjacency add-remove, and zero-out as well: who stays and counts for nothing is in a step and adds nothing to it.
    Epochs compose. Raises ``ValueError`` naming the argument.
    """

    def __init__(self, steps: int, sigma: float) -> None:
        self.steps, self.sigma = whole("steps", steps, 1), positive("sigma", sigma)
        if self.steps > _MOST_STEPS:
            raise ValueError(f"steps must be at most {_MOST_STEPS}, got {steps!r}")
        if self.sigma < _LEAST_NOISE:
            raise ValueError(f"sigma must be at least {_LEAST_NOISE}, got {sigma!r}")

    def __repr__(self) -> str:
        return f"RandomAllocation(one of {self.steps} steps, sigma {self.sigma:g})"

    @property
    def key(self) -> Hashable:
        """The two numbers."""
        return ("allocation", self.steps, self.sigma)

    @property
    def effect(self) -> float | None:
        """1 / sigma of a single step, which is a plain Gaussian one."""
        return 1.0 / self.sigma if self.steps == 1 else None

    @property
    def dominating_effect(self) -> float:
        """1 / sigma: whoever is told the step sees the Gaussian mechanism there and nothing elsewhere."""
        return 1.0 / self.sigma

    def largest_loss(self, direction: Direction) -> float:
        """Losses have no end."""
        return math.inf

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """The law of the sum whose cut tails have less than these masses, under either distribution."""
        depth = min(_DEPTH * math.ceil(-min(log_edge, log_far, -1.0) / _DEPTH), _DEEPEST)
        return _AllocationPart(*_laws(self.steps, self.sigma, depth), self.steps, one_direction(direction))


@dataclass(frozen=True, eq=False)
class _AllocationPart(TruncatedPair):
    above: Law
    below: Law
    steps: int
    direction: Direction

    def table(self) -> tuple[Floats, Floats]:
        bins = self._bins(self.below)
        return bins.loss, np.asarray(np.log(bins.mass), dtype=np.float64)

    def cells(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Cells, Cells]:
        above, below = self._bins(self.above), self._bins(self.below)
        ends = np.concatenate((above.loss, below.loss))
        lowest, steps = span_grid(float(ends.min()) - spacing, float(ends.max()) + spacing, spacing)
        index = place_nodes_densely(*self.table(), lowest, spacing, steps, tilts, widest, limit)
        return above.cells(lowest, spacing, index)[0], below.cells(lowest, spacing, index)[1]

    def _bins(self, law: Law) -> Bins:
        """The points of a law as outcomes of one loss each."""
        used = (law.values > 0.0) & (law.masses > 1e-300)
        if self.direction == "present-first":
            used &= law.masses * law.values / self.steps > 1e-300
        values, masses = law.values[used], law.masses[used]
        loss = np.log(values) - math.log(self.steps)
        present = self.direction == "present-first"
        shift = law.off + 8.0 * EPS * (1.0 + float(np.max(np.abs(loss))) + math.log(self.steps))
        without = float(law.masses[law.values == 0.0].sum())
        rest = law.lost / self.steps if present else without
        small = float(np.sum(1e-300 * (1.0 + law.values[(law.values > 0.0) & ~used])))
        return Bins(
            mass=masses * values / self.steps if present else masses,
            loss=loss if present else -loss,
            low=(loss if present else -loss) - shift,
            high=(loss if present else -loss) + shift,
            error=np.full(len(loss), 16.0 * EPS + law.off),
            loss_error=np.full(len(loss), shift),
            above=(rest + small) * (1.0 + 1e-12) if law.upper else 0.0,
        )


@functools.lru_cache(maxsize=64)
def _laws(steps: int, sigma: float, depth: float) -> tuple[Law, Law]:
    """Laws of W_1 + ... + W_t under Q from above and from below, tails cut at e^-depth in all."""
    log_little = -depth - math.log(64.0 * (1.0 + math.log2(steps)))
    each = log_little - math.log(steps)
    above, below = _one(1.0 / sigma, each)
    return sum_of(above, steps, _POINTS, log_little), sum_of(below, steps, _POINTS, log_little)


def _one(a: float, log_tail: float) -> tuple[Law, Law]:
    """Laws of exp(a z - a^2 / 2), z standard normal, from above and from below, cut where tails have e^log_tail."""
    edge = math.sqrt(-2.0 * log_tail)
    z = np.linspace(max(-edge, -_FARTHEST), min(a + edge, _FARTHEST), _SLICES + 1)
    ratio = LogRatio(np.array([a]), np.zeros(1))
    ends = np.concatenate(([-np.inf], z, [np.inf]))
    masses = Masses.of(ratio, ends[:-1], ends[1:])
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
