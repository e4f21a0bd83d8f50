"""The scalar mixture of Gaussians: the dominating pair of one step of DP-SGD for a group.

Without the group a step shows N(0, sigma^2), with it sum_j p_j N(c_j, sigma^2) for the random number c of group members
in the batch (Ganesh 2024, Definition 2.8, Theorems 3.1 and 3.3), in units of the clip norm.

As cells, the outputs z (in units of sigma) are cut at l(z) = a node's loss. Most steps contain no group member, so that
the loss piles up at ln P[c = 0]: the lower bound merges these outputs into one atom and shifts the grid to have a node
there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtri_exp

from dpspec.accounting import gaussian
from dpspec.accounting.densities import (
    LogRatio,
    Masses,
    cell_masses,
    log_binomial,
    log_hypergeometric,
)
from dpspec.accounting.grid import Cells, Pair, TooLongError, TruncatedPair, place_nodes_densely
from dpspec.accounting.numerics import (
    EPS,
    SUM_TOLERANCE,
    Direction,
    Floats,
    Index,
    bounded_effect,
    inside,
    log_difference,
    log_or_minus_infinity,
    one_direction,
    positive,
    whole,
)
from dpspec.renames import old_arguments

#: Relative rounding error of ln P[c = 0].
_ROUNDED = 1e-12

#: Quadrature step of the table of losses in units of sigma, and its maximum number of points.
_STEP, POINTS = 0.05, 20_000

#: A closed form of a larger relative error is replaced by tails, at losses this far above epsilon.
POOR, _MARGIN = 1e-3, 40.0

#: Outputs under this, in units of sigma, have no mass in float64.
_FAR_LEFT = -39.0

#: Of moments: minus ln of the error of a sum, the largest half width of the strip, the largest ln of an integrand.
_SUM_ERROR, _STRIP, _HIGHEST_MOMENT = 40.0, 6.0, 200.0

#: The loss piles up at ln P[c = 0] if the smallest loss is within this number of grid steps of it.
_PILED = 64.0


@old_arguments("dpspec.accounting.Mixture")
class Mixture(Pair):
    """The pair N(0, sigma^2) and sum_j p_j N(c_j, sigma^2), immutable; sigma is ``noise_multiplier``.

    Scaling all sensitivities and sigma by one factor changes nothing.

    Args:
        sensitivities: c_j >= 0, (m,); sorted, with equal ones merged.
        probabilities: p_j > 0, (m,), summing to one. ``log_probabilities`` are their exact logarithms.
        noise_multiplier: the noise's standard deviation in the unit of the sensitivities, above 0.
    """

    is_gaussian_mixture = True

    def __init__(self, sensitivities: npt.ArrayLike, probabilities: npt.ArrayLike, noise_multiplier: float) -> None:
        c = _vector("sensitivities", sensitivities)
        p = _vector("probabilities", probabilities)
        if len(c) != len(p):
            raise ValueError(f"probabilities must match sensitivities: {len(p)} values for {len(c)}")
        total = math.fsum(p)
        if abs(total - 1.0) > SUM_TOLERANCE:
            raise ValueError(f"probabilities must sum to 1, got {total!r}")
        positive_mass = p > 0.0
        c, p = c[positive_mass], p[positive_mass] / total
        logs, largest = np.log(p), int(np.argmax(p))
        if p[largest] > 0.5:  # one minus rare others
            logs[largest] = math.log1p(-math.fsum(np.delete(p, largest)))
        self._set(c, logs, noise_multiplier)

    @classmethod
    @old_arguments("dpspec.accounting.Mixture.poisson")
    def poisson(cls, group_size: int, rate: float, noise_multiplier: float) -> Mixture:
        """Poisson sampling at ``rate`` in (0, 1], groups of up to ``group_size``: c is binomial (Theorem 3.1)."""
        k, q = whole("group_size", group_size, 1), inside("rate", rate, one=True)
        if q == 1.0:
            return cls.full(k, noise_multiplier)
        return cls.__new__(cls)._set(np.arange(k + 1.0), log_binomial(k, q), noise_multiplier)

    @classmethod
    @old_arguments("dpspec.accounting.Mixture.fixed")
    def fixed(cls, group_size: int, n: int, batch_size: int, noise_multiplier: float) -> Mixture:
        """Batches of ``batch_size``, at least ``n`` records without the group: c ~ 2 Hypergeometric (Theorem 3.3).

        A group member displaces a record, so it moves the sum by up to two clip norms; the noise is relative to one.
        """
        k, n = whole("group_size", group_size, 1), whole("n", n, 1)
        batch_size = whole("batch_size", batch_size, 1)
        if batch_size > n:
            raise ValueError(f"batch_size must be at most n, the records without the group: {batch_size} > {n}")
        logs = log_hypergeometric(k, n, batch_size)
        return cls.__new__(cls)._set(2.0 * np.arange(float(len(logs))), logs, noise_multiplier)

    @classmethod
    @old_arguments("dpspec.accounting.Mixture.full")
    def full(cls, group_size: int, noise_multiplier: float) -> Mixture:
        """Every record in every batch: the Gaussian mechanism of sensitivity ``group_size``."""
        moved = np.array([float(whole("group_size", group_size, 1))])
        return cls.__new__(cls)._set(moved, np.zeros(1), noise_multiplier)

    @classmethod
    def of_logs(cls, shifts: Floats, log_probabilities: Floats) -> Mixture:
        """A sigma of 1, sensitivities ``shifts`` (m,), and logarithms of probabilities (m,), which sum to one."""
        return cls.__new__(cls)._set(shifts, log_probabilities, 1.0, is_checked=True)

    def _set(
        self, sensitivities: Floats, log_probabilities: Floats, noise_multiplier: float, *, is_checked: bool = False
    ) -> Mixture:
        self.noise_multiplier = positive("noise_multiplier", noise_multiplier)
        self.sensitivities, where = np.unique(sensitivities, return_inverse=True)
        if not is_checked:
            effective = self.sensitivities[self.sensitivities > 0.0]
            for extreme in [float(effective[0]), float(effective[-1])] if len(effective) else []:
                bounded_effect("noise_multiplier", extreme, self.noise_multiplier)
        self.log_probabilities = np.full(len(self.sensitivities), -np.inf)
        np.logaddexp.at(self.log_probabilities, where, log_probabilities)
        self.probabilities = np.exp(self.log_probabilities)
        self.ratio = LogRatio(self.sensitivities / noise_multiplier, self.log_probabilities)
        shifts = self.ratio.shifts
        for array in (self.sensitivities, self.log_probabilities, self.probabilities, shifts):
            array.flags.writeable = False
        self.key = (shifts.tobytes(), self.log_probabilities.tobytes())
        if len(shifts) == 1:  # c is not random: a plain Gaussian pair
            self.effect = float(shifts[0])
        # the largest sensitivity without sampling (Ganesh 2024, Lemma 2.9)
        self.dominating_effect = float(shifts[-1])
        return self

    def __repr__(self) -> str:
        top = float(self.sensitivities[-1])
        count, noise = len(self.sensitivities), self.noise_multiplier
        return f"Mixture({count} components, sensitivities up to {top:g}, noise {noise:g})"

    def largest_loss(self, direction: Direction) -> float:
        """-ln P[c = 0] absent-first, up to rounding; infinite present-first."""
        return math.inf if one_direction(direction) == "present-first" else -self.ratio.log_zero * (1.0 + _ROUNDED)

    def log_moments(self, tilts: Floats, direction: Direction) -> Floats | None:
        """E[e^(-s l(z))] under N(0, 1) as a sum over a grid: Theorem 60 of ``proofs/grids.md``, absent-first."""
        highest = float(tilts.max()) * -self.ratio.log_zero
        if one_direction(direction) == "present-first" or not highest <= _HIGHEST_MOMENT:
            return None
        largest_shift = float(self.ratio.shifts[-1])
        strip = min(_STRIP, 0.5 * math.pi / largest_shift)
        h = 2.0 * math.pi * strip / (0.5 * strip * strip + _SUM_ERROR + highest)
        last = math.ceil(math.sqrt(2.0 * (_SUM_ERROR + highest)) / h) + 1
        if last > POINTS:
            return None
        z = h * np.arange(-last, last + 1.0)
        losses, _, noise = self.ratio.evaluate(z, noise=True)
        exponents = -tilts[:, None] * (losses - noise) - 0.5 * np.square(z)
        sums = np.exp(exponents).sum(axis=1) * (h / math.sqrt(2.0 * math.pi))
        rounding = EPS * (256.0 + 2.0 * last + 8.0 * highest + 4.0 * largest_shift * h * last * tilts)
        return np.asarray(np.log(sums) + rounding + 4.0 * math.exp(-_SUM_ERROR), dtype=np.float64)

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedMixture:
        """The range of outputs outside which the first distribution has little mass; see ``Pair.truncate``.

        Components of negligible weight are dropped. Present-first, the upper bound counts their mass as infinite.
        Absent-first, a smaller second distribution raises the upper bound; for the lower bound the weight moves to
        c = 0 (a dominated pair by Lemma 2.9), which changes losses by at most ``pull``.
        """
        ratio, direction = self.ratio, one_direction(direction)
        if direction == "present-first":
            low, high = ratio.range_of_outputs(log_edge, log_far)
            trimmed, dropped = _trim(ratio, log_edge - math.log(1e3))
            return TruncatedMixture(direction, low, high, trimmed, dropped, 0.0)
        low, high = float(ndtri_exp(log_edge)), -float(ndtri_exp(log_far))
        largest = -float(ratio(np.array([low]))[0])
        trimmed, dropped = _trim(ratio, -42.0 - largest)
        pull = dropped * math.exp(min(largest + 1.0, 700.0))
        return TruncatedMixture(direction, low, high, trimmed, dropped, pull)

    def log_ratio(self, x: npt.ArrayLike) -> Floats:
        """Log-likelihood ratio of outputs ``x`` (any shape): ln of the density with the group over that without it."""
        return self.ratio(np.asarray(x, dtype=np.float64) / self.noise_multiplier)

    def log_delta(self, epsilon: npt.ArrayLike, direction: Direction) -> Floats:
        """ln delta(epsilon) of one step, any real epsilon; -inf if delta is 0.

        present-first: sum_j p_j Phi((c_j - x)/sigma) - e^epsilon Phi(-x/sigma) with l(x) = epsilon.
        absent-first: Phi(x/sigma) - e^epsilon sum_j p_j Phi((x - c_j)/sigma) with l(x) = -epsilon.
        """
        present = one_direction(direction) == "present-first"
        shape = np.shape(epsilon)
        eps = np.ravel(np.asarray(epsilon, dtype=np.float64))
        order = np.argsort(eps if present else -eps)
        z = self.ratio.inverse((eps if present else -eps)[order])
        ends = (z, np.full(z.shape, np.inf)) if present else (np.full(z.shape, -np.inf), z)
        with np.errstate(divide="ignore", invalid="ignore"):
            masses = self.ratio.masses(*ends)
            first, second = (masses.group, masses.none) if present else (masses.none, masses.group)
            inner = first + np.log(-np.expm1(np.minimum(eps[order] + second - first, 0.0)))
            # 1 - e^epsilon matters at negative epsilon only
            edge = np.log(-np.expm1(np.minimum(eps[order], -0.0))) if present else np.full(eps.shape, -np.inf)
        result = np.empty(eps.shape)
        result[order] = np.where(np.isneginf(z), edge, inner)
        return result.reshape(shape)

    def delta(self, epsilon: npt.ArrayLike, direction: Direction) -> Floats:
        """delta(epsilon) of one step; see ``log_delta``."""
        return np.asarray(np.exp(self.log_delta(epsilon, direction)), dtype=np.float64)

    def log_delta_bounds(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """Lower and upper bound of ln delta(epsilon): the closed form with its rounding error on both sides."""
        ((lower, upper),) = self.all_log_delta_bounds([epsilon], direction)
        return lower, upper

    def all_log_delta_bounds(self, epsilons: Sequence[float], direction: Direction) -> list[tuple[float, float]]:
        """``log_delta_bounds`` at several ``epsilons``, ascending.

        A cut at l(z) = epsilon whose loss is off by w misses at most 2 w times the first mass.
        """
        present = one_direction(direction) == "present-first"
        losses = np.array(epsilons if present else [-epsilon for epsilon in reversed(epsilons)], dtype=np.float64)
        z = self.ratio.inverse(losses)
        edges = int(np.count_nonzero(np.isneginf(z)))  # the first ones, as z ascends with the loss
        bounds = [self._edge_bounds(loss if present else -loss, present=present) for loss in losses[:edges].tolist()]
        bounds += self._inner_bounds(z[edges:], losses[edges:], present=present) if edges < len(z) else []
        return bounds if present else bounds[::-1]

    def _inner_bounds(self, z: Floats, losses: Floats, *, present: bool) -> list[tuple[float, float]]:
        """Bounds of ln delta for finite outputs ``z`` (n,), ascending, where the log ratio is ``losses`` (n,)."""
        far = np.full(z.shape, np.inf)
        masses = self.ratio.masses(z, far) if present else self.ratio.masses(-far, z)
        relevant = self.ratio.relevant(z, z)
        sizes = np.abs(relevant.log_weights) + relevant.shifts * (np.abs(z)[:, None] + relevant.shifts)
        firsts, first_errors = (masses.group, masses.group_error) if present else (masses.none, masses.none_error)
        first_errors = 2.0 * first_errors + EPS * (64.0 + 16.0 * sizes.max(axis=1) + 4.0 * np.abs(firsts))
        values, _, noise = self.ratio.evaluate(z, noise=True)
        errors = 2.0 * (masses.ratio_error + np.abs(values - losses) + noise) + 8.0 * EPS * np.abs(losses)
        epsilons, gaps = (losses, losses - masses.ratio) if present else (-losses, masses.ratio - losses)
        bounds = []
        for epsilon, gap, first, first_error, error in np.column_stack(
            (epsilons, gaps, firsts, first_errors, errors)
        ).tolist():
            if first == -math.inf:
                bounds.append((-math.inf, -math.inf))
                continue
            excess = max(0.0, -math.expm1(min(0.0, gap)))
            if not error + first_error < POOR:
                bounds.append(self._steep_bounds(epsilon, present=present))
                continue
            lower = first - first_error + log_or_minus_infinity(excess - error)
            bounds.append((lower, first + first_error + log_or_minus_infinity(excess + error)))
        return bounds

    def _edge_bounds(self, epsilon: float, *, present: bool) -> tuple[float, float]:
        """Bounds of ln delta where every outcome exceeds ``epsilon`` present-first, or no outcome absent-first."""
        below = epsilon * (1.0 - 2.0 * _ROUNDED)
        if not present and below < epsilon < -self.ratio.log_zero * (1.0 + _ROUNDED):
            # By rounding only, no outcome exceeds epsilon: at most as many do as exceed a slightly smaller epsilon.
            return -math.inf, self.log_delta_bounds(below, "absent-first")[1]
        exact = math.log(-math.expm1(epsilon)) if present and epsilon < 0.0 else -math.inf
        return exact - 4.0 * EPS, exact + 4.0 * EPS

    def _steep_bounds(self, epsilon: float, *, present: bool) -> tuple[float, float]:
        """Bounds of ln delta for effects at which the closed form loses its digits.

        delta is convex in the distribution with the group: at most the mean of the components' profiles. From below,
        present-first, the test of component j has the power P[c >= c_j] delta_j(t) and at most the level e^-t;
        absent-first, the smallest shift alone is dominated, and outputs below half of the next one almost never come
        from a group.
        """
        shifts, logs = self.ratio.shifts, self.log_probabilities
        upper = float(np.logaddexp.reduce(logs + gaussian.log_delta_bounds(epsilon, shifts)[1])) + _ROUNDED
        if present:
            tails = np.logaddexp.accumulate(logs[::-1])[::-1] - _ROUNDED
            powers = tails + gaussian.log_delta_bounds(epsilon + _MARGIN - tails + 8.0 * EPS * abs(epsilon), shifts)[0]
            lower = max(map(log_difference, powers.tolist(), (tails - _MARGIN).tolist()))
        else:
            lower = float(gaussian.log_delta_bounds(epsilon, float(shifts[0]))[0][0])
            if shifts[0] == 0.0:
                zero, missed = float(logs[0]), float(log_ndtr(-0.5 * shifts[1])) * (1.0 - _ROUNDED)
                upper = min(
                    upper, math.log(-math.expm1(epsilon + zero)) + _ROUNDED if epsilon + zero < 0.0 else -math.inf
                )
                below = float(np.logaddexp(zero + _ROUNDED, missed))
                lower = max(lower, log_difference(log_difference(0.0, missed), below + epsilon))
        return lower, min(0.0, max(lower, upper))


def _vector(name: str, values: npt.ArrayLike) -> Floats:
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a non-empty list of numbers")
    if not np.all(np.isfinite(array)) or np.any(array < 0.0):
        raise ValueError(f"{name} must be finite and not negative")
    return array


def _trim(ratio: LogRatio, log_budget: float) -> tuple[LogRatio, float]:
    """The ratio without outermost components of total weight up to e^log_budget, and that weight."""
    half = log_budget - math.log(2.0)
    begin = int(np.searchsorted(np.logaddexp.accumulate(ratio.log_weights), half))
    end = len(ratio.shifts) - int(np.searchsorted(np.logaddexp.accumulate(ratio.log_weights[::-1]), half))
    if end - begin < 1 or ratio.shifts[end - 1] == 0.0:  # the rest must be able to leak
        return ratio, 0.0
    dropped_logs: Floats = np.concatenate((ratio.log_weights[:begin], ratio.log_weights[end:]))
    trimmed = LogRatio(ratio.shifts[begin:end], ratio.log_weights[begin:end])
    return trimmed, float(np.exp(dropped_logs).sum() * (1.0 + 1e-9)) if dropped_logs.size else 0.0


def outputs_between(low: float, high: float) -> Floats:
    """Nodes of a quadrature over outputs, in units of sigma."""
    return np.linspace(low, high, int(min(max((high - low) / _STEP, 100.0), POINTS)) + 1)


@dataclass(frozen=True)
class TruncatedMixture(TruncatedPair):
    """The outputs ``low`` to ``high`` of one step in one direction, in units of sigma.

    ``dropped`` is the weight of the components that ``ratio`` omits, ``pull`` bounds their effect on losses.
    """

    direction: Direction
    low: float
    high: float
    ratio: LogRatio
    dropped: float
    pull: float

    def table(self) -> tuple[Floats, Floats]:
        """Losses and ln of their masses, by quadrature over the outputs in the range."""
        z = outputs_between(self.low, self.high)
        losses = self.ratio(z)
        logs = -0.5 * np.square(z) + math.log((z[1] - z[0]) / math.sqrt(2.0 * math.pi))
        return (losses, logs + losses) if self.direction == "present-first" else (-losses, logs)

    def cells(
        self, spacing: float, tilts: Sequence[float], widest: float, limit: int, align: float | None = None
    ) -> tuple[Cells, Cells]:
        """The cells for an upper and for a lower bound, which differ if the loss piles up; see ``TruncatedPair.cells``.

        ``align``: a log ratio on the grid, if the grid belongs to another mixture too; the pile is a cell then.
        """
        ratio, present = self.ratio, self.direction == "present-first"
        bottom, step = np.array([-np.inf]), np.array([spacing])
        pile = _find_pile(ratio, self.low, spacing) if align is None else None
        origin = float(ratio(np.array([self.low]))[0]) if pile is None else pile[2]
        piled = pile is not None or (align is not None and origin - ratio.log_zero < _PILED * spacing)
        if align is not None:
            origin = align + spacing * math.ceil((origin - align) / spacing)
        top = float(ratio(np.array([self.high]))[0])
        steps = max(4, math.ceil((top - origin) / spacing))
        lowest = origin if present else -(origin + spacing * steps)
        index = place_nodes_densely(*self.table(), lowest, spacing, steps, tilts, widest, limit)
        index = index if present else steps - index[::-1]
        # The upper bound has nodes inside the pile as well, down to ln P[c = 0] or to the lowest output.
        lead = max(0, math.ceil((origin - ratio.log_zero) / spacing) - 1) if piled else 0
        before = ratio.inverse(origin - spacing * np.arange(lead, 0, -1.0))
        complete = piled and bool(np.all(before > _FAR_LEFT))
        lead = int(np.sum(before > _FAR_LEFT))
        if lead + len(index) > limit:
            raise TooLongError(lead + len(index), limit)
        longer = np.concatenate((np.arange(-lead, 0), index))
        nodes = np.asarray(origin + spacing * longer, dtype=np.float64)
        z = np.concatenate((before[len(before) - lead :], ratio.inverse(nodes[lead:])))
        if piled:
            z[lead] = max(z[lead], _FAR_LEFT)
        elif align is None:  # on another grid the first node is above the loss of ``low``, by up to a step
            z[lead] = self.low
        losses, _, noise = ratio.evaluate(z, noise=True)
        shift = float(np.max(np.abs(losses - nodes) + noise)) + 4.0 * EPS * float(np.max(np.abs(nodes)))
        inner = cell_masses(ratio, z, nodes[:-1], np.diff(nodes), np.maximum(noise[1:], noise[:-1]), present=present)
        head, tail = ratio.masses(bottom, z[:1]), ratio.masses(z[-1:], -bottom)
        start, values = float(nodes[0]), inner
        under = (head.first(present=present, up=True), head.first(present=present, up=False))
        over = (
            tail.first(present=present, up=True) + (self.dropped if present else 0.0),
            tail.first(present=present, up=False),
        )
        positions = longer + lead
        if complete:  # upper: one more cell for the losses under the first node
            first = head.cells(nodes[:1] - spacing, step, noise[:1], present=present)
            start, values, under = origin - spacing * (lead + 1), np.concatenate((first, inner), axis=1), (0.0, 0.0)
            positions = np.concatenate(([0], longer + lead + 1))
        upper = self._orient(start, spacing, positions, values, shift, under[0], over[0])
        if pile is None:
            return upper, self._orient(start, spacing, positions, values, shift + self.pull, under[1], over[1])
        # Lower: the pile is an atom, and the rest of its cell a shorter cell.
        end, masses, _, error = pile
        remainder = ratio.masses(end, z[lead + 1 : lead + 2])
        shorter = remainder.cells(nodes[lead : lead + 1], step, noise[lead + 1 : lead + 2], present=present)
        below = np.concatenate((shorter, inner[:, lead + 1 :]), axis=1)
        atom = masses.first(present=present, up=False)
        shift += error + self.pull
        return upper, self._orient(origin, spacing, index, below, shift, 0.0, over[1], atom)

    def _orient(
        self,
        origin: float,
        spacing: float,
        index: Index,
        values: Floats,
        shift: float,
        under: float,
        over: float,
        atom: float = 0.0,
    ) -> Cells:
        """Cells by increasing l, (4, n), as cells by increasing loss: l present-first, -l absent-first.

        under, over: the first distribution's mass of outputs with l under the first node and over the last; atom: of
        outputs exactly on the first node.
        """
        present = self.direction == "present-first"
        atom_index = np.array([0 if present else len(index) - 1] if atom else [], dtype=np.int64)
        atoms = (atom_index, np.array([atom] if atom else [], dtype=np.float64))
        if not present:
            origin, index, values = -(origin + spacing * float(index[-1])), index[-1] - index[::-1], values[:, ::-1]
            under, over = over, under
        mass, excess, error, slip = values
        return Cells(origin, spacing, index, mass, excess, error, slip, shift, under, over, atoms)


def _find_pile(ratio: LogRatio, low: float, spacing: float) -> tuple[Floats, Masses, float, float] | None:
    """The outputs with losses close to ln P[c = 0], up to one spacing over their merged loss; None if without mass.

    Returns their end, (1,), their masses, the merged loss and its error.
    """
    if ratio.log_zero == -math.inf:
        return None
    zero = ratio.log_zero
    ends = ratio.inverse(zero + spacing * np.geomspace(1.0, 64.0, 97))
    # Merged losses as ln p(c = 0) plus the addition of the other components: no digit of a small addition is lost.
    nonzero = LogRatio(ratio.shifts[1:], ratio.log_weights[1:])
    nonzero_masses = nonzero.masses(np.full(len(ends), -np.inf), ends)
    with np.errstate(invalid="ignore"):
        log_addition = np.logaddexp(
            0.0, np.where(np.isneginf(nonzero_masses.group), -np.inf, nonzero_masses.group - nonzero_masses.none - zero)
        )
        inside = ratio(ends) - (zero + log_addition) <= spacing * (1.0 - 1e-9)
    end_index = max(0, (int(np.argmin(inside)) if not inside.all() else len(ends)) - 1)
    end = ends[end_index : end_index + 1]
    if float(end[0]) <= low:
        return None
    loss = zero + float(log_addition[end_index])
    start = np.maximum(ratio.inverse(np.array([loss])), _FAR_LEFT)
    if float(ratio(start)[0]) - loss > 1e-14 * (1.0 + abs(loss)):
        return None  # its merged loss is the loss of outputs too far away to be resolved
    error, share = (
        8.0 * EPS * (abs(zero) + float(log_addition[end_index])),
        -math.expm1(-float(log_addition[end_index])),
    )
    if share > 0.0:
        rounding = (
            4.0
            * EPS
            * (abs(float(nonzero_masses.group[end_index])) + abs(float(nonzero_masses.none[end_index])) + abs(zero))
        )
        error += share * (
            float(nonzero_masses.group_error[end_index]) + float(nonzero_masses.none_error[end_index]) + rounding
        )
    return end, ratio.masses(np.array([-np.inf]), end), loss, error
