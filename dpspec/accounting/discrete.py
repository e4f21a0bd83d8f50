"""A step with finitely many outcomes, such as randomized response."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpspec.accounting.grid import Bins, Cells, Pair, TruncatedPair, between_ends, span_grid
from dpspec.accounting.numerics import EPS, SUM_TOLERANCE, Direction, Floats, log_or_minus_infinity, one_direction

#: Losses count as multiples of a distance if they are off by at most ``_CLOSE``, relative to their range, and if the
#: distance is at least ``_FINE`` of the range; for at most ``_MANY`` losses.
_CLOSE, _FINE, _MANY = 1e-11, 1e-5, 256


class Discrete(Pair):
    """Finitely many outcomes. An outcome that only one of the two distributions produces has infinite loss.

    Args:
        present: probabilities with the record, (n,), summing to 1 within 1e-9.
        absent: probabilities without it, (n,), summing to 1 within 1e-9.
        rounding: bound on the relative error of each probability.
    """

    def __init__(self, present: npt.ArrayLike, absent: npt.ArrayLike, rounding: float = 0.0) -> None:
        self.present, self.absent = _probabilities("present", present), _probabilities("absent", absent)
        if len(self.present) != len(self.absent):
            raise ValueError(f"absent must match present: {len(self.absent)} values for {len(self.present)}")
        self.rounding = rounding
        self._outcomes: dict[Direction, tuple[Floats, Floats, Floats]] = {}
        self._infinite: dict[Direction, float] = {}
        self.key = ("discrete", rounding, self.present.tobytes(), self.absent.tobytes())
        if rounding == 0.0 and np.array_equal(self.present, self.absent):
            self.effect = 0.0

    def __repr__(self) -> str:
        return f"Discrete({len(self.present)} outcomes)"

    def largest_loss(self, direction: Direction) -> float:
        """The largest finite loss, at least 0."""
        losses, _, _ = self.outcomes(direction)
        largest = float(np.max(losses, initial=0.0))
        is_zero = largest == 0.0 and self.rounding == 0.0  # rounded probabilities may hide a loss
        return 0.0 if is_zero else largest * (1.0 + 1e-13) + 16.0 * EPS + 2.0 * self.rounding

    def infinite_mass(self, direction: Direction) -> float:
        """The first distribution's probability of outcomes of probability 0 under the second."""
        if direction not in self._infinite:
            first, second = self._oriented(direction)
            self._infinite[direction] = math.fsum(first[second == 0.0])
        return self._infinite[direction]

    def outcomes(self, direction: Direction) -> tuple[Floats, Floats, Floats]:
        """Finite losses, their probabilities under the first distribution, and bounds on the losses' rounding errors.

        Each is an array of shape (m,).
        """
        if direction in self._outcomes:
            return self._outcomes[direction]
        first, second = self._oriented(direction)
        used = (first > 0.0) & (second > 0.0)
        p, q = first[used], second[used]
        similar = np.abs(p - q) <= 0.5 * q
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            losses = np.where(similar, np.log1p(np.where(similar, (p - q) / q, 0.0)), np.log(p) - np.log(q))
        # the vectors may have been divided by their sums
        loss_error = EPS * (8.0 + np.where(similar, 0.0, 4.0 * (np.abs(np.log(p)) + np.abs(np.log(q)))))
        loss_error += 2.0 * self.rounding
        self._outcomes[direction] = losses, p, np.asarray(loss_error, dtype=np.float64)
        return self._outcomes[direction]

    def log_delta_bounds(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """The sum of max(first - e^epsilon second, 0)."""
        losses, p, loss_error = self.outcomes(one_direction(direction))
        exceeding = losses > epsilon - 2.0 * loss_error
        losses, p, loss_error = losses[exceeding], p[exceeding], loss_error[exceeding]
        excess = -np.expm1(np.minimum(epsilon - losses, 0.0))
        finite, certain = math.fsum(p * excess), self.infinite_mass(direction)
        error = float(p @ (2.0 * loss_error + 8.0 * EPS)) * (1.0 + EPS * len(p))
        error += (8.0 * EPS + self.rounding) * (finite + certain)
        return log_or_minus_infinity(finite + certain - error), min(
            0.0, log_or_minus_infinity(finite + certain + error)
        )

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """All outcomes."""
        outcomes = self.outcomes(one_direction(direction))
        return _DiscretePart(*outcomes, self.infinite_mass(direction), 8.0 * EPS + self.rounding)

    def _oriented(self, direction: Direction) -> tuple[Floats, Floats]:
        pair = (self.present, self.absent)
        return pair if one_direction(direction) == "present-first" else pair[::-1]


@dataclass(frozen=True, eq=False)
class _DiscretePart(TruncatedPair):
    losses: Floats
    masses: Floats
    loss_error: Floats
    infinite: float
    mass_error: float

    def table(self) -> tuple[Floats, Floats]:
        if self.losses.size == 0:
            return np.zeros(1), np.array([-700.0])
        return self.losses, np.asarray(np.log(self.masses), dtype=np.float64)

    @property
    def period(self) -> float | None:
        """The common divisor of all differences of losses, or the distance of the two most probable losses."""
        losses = np.unique(self.losses)
        if len(losses) < 2 or self.mass_error > 8.0 * EPS:  # rounded outcomes miss nodes
            return None
        step = _common(losses) if len(losses) <= _MANY else None
        if step is None:
            first_loss, second_loss = self.losses[np.argsort(self.masses)[-2:]]
            step = abs(float(first_loss - second_loss))
        return step if step > 0.0 else None

    def cells(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Cells, Cells]:
        losses = self.losses if self.losses.size else np.zeros(1)
        lowest, steps = span_grid(float(losses.min()), float(losses.max()), spacing)
        if self.losses.size:  # a node at the loss of highest probability
            back = (float(self.losses[np.argmax(self.masses)]) - lowest) / spacing
            lowest, steps = lowest - spacing * (math.ceil(back - 1e-6) - back), steps + 1
        # nodes on both sides of each loss
        below = np.unique(np.clip(np.floor((losses - lowest) / spacing).astype(np.int64), 0, steps - 1))
        index = between_ends(np.concatenate((below, below + 1)), steps, spacing, limit)
        mass_error = np.full(len(self.masses), self.mass_error)
        bins = Bins(
            self.masses, self.losses, self.losses, self.losses, mass_error, self.loss_error, infinite=self.infinite
        )
        return bins.cells(lowest, spacing, index)


def _common(losses: Floats) -> float | None:
    """The largest common divisor of all differences of ascending ``losses``, up to rounding."""
    reach = float(losses[-1] - losses[0])
    step = reach
    for gap in np.diff(losses):
        remainder, part = step, float(gap)
        while part > _CLOSE * reach:
            remainder, part = part, math.remainder(remainder, part)
            part = abs(part)
        step = remainder
        if step < _FINE * reach:
            return None
    step = reach / round(reach / step)
    misfit = (losses - losses[0]) / step
    return step if np.all(np.abs(misfit - np.rint(misfit)) * step <= 1e3 * _CLOSE * reach) else None


def _probabilities(name: str, values: npt.ArrayLike) -> Floats:
    array = np.atleast_1d(np.array(values, dtype=np.float64))
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a non-empty list of probabilities")
    if not np.all((array >= 0.0) & (array <= 1.0 + SUM_TOLERANCE)):
        raise ValueError(f"{name} must hold probabilities, at least 0 and at most 1")
    total = math.fsum(array)
    if abs(total - 1.0) > SUM_TOLERANCE:
        raise ValueError(f"{name} must sum to 1, got {total!r}")
    if total != 1.0:
        array /= total
    array.flags.writeable = False
    return array
