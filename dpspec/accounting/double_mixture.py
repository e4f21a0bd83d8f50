"""Two mixtures of Gaussians with opposite shifts: the dominating pair of one step of DP-SGD if records are replaced.

With the removed records a step shows sum_j p_j N(c_j, sigma^2), with the inserted ones sum_i q_i N(-d_i, sigma^2), in
units of the clip norm: Theorem 51 of ``docs/explanation/proofs/replaced.md`` (Schuchardt et al. 2024 have the Poisson
case). The likelihood ratio increases with the output, and an exchange of the two distributions mirrors the pair, so
every method treats the direction present-first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpspec.accounting.densities import LogRatio, Masses, OpposedRatio, cell_masses
from dpspec.accounting.grid import (
    Atoms,
    Cells,
    Pair,
    TruncatedPair,
    ascending,
    discretize_from_above,
    discretize_from_below,
    place_nodes_densely,
)
from dpspec.accounting.mixture import POOR, Mixture, outputs_between
from dpspec.accounting.numerics import (
    EPS,
    Direction,
    Floats,
    Index,
    log_difference,
    log_or_minus_infinity,
    one_direction,
    whole,
)
from dpspec.renames import old_arguments

#: Relative rounding error of a weight, and ln of the largest tail of one case that may be cut off.
_ROUNDED, _HEAVIEST_TAIL = 1e-12, -0.7

#: Outputs are merged if their losses are within this number of grid steps of the loss without a draw.
_PILE = 0.49

#: Losses this far above epsilon decide a lower bound of delta if the closed form has no digits.
_MARGIN = 40.0


class DoubleMixture(Pair):
    """The pair sum_j p_j N(c_j, sigma^2) and sum_i q_i N(-d_i, sigma^2), immutable.

    Args:
        present: p and c, with the removed records.
        absent: q and d, with the inserted records; of the same sigma.
    """

    def __init__(self, present: Mixture, absent: Mixture) -> None:
        if present.noise_multiplier != absent.noise_multiplier:
            values = f"{present.noise_multiplier!r} and {absent.noise_multiplier!r}"
            raise ValueError(f"both mixtures must have the same noise_multiplier, got {values}")
        self.present, self.absent = present, absent
        self.key = ("double", present.key, absent.key)
        self.is_symmetric = present.key == absent.key
        if present.effect is not None and absent.effect is not None:
            self.effect = present.effect + absent.effect
        self.dominating_effect = present.dominating_effect + absent.dominating_effect

    @classmethod
    @old_arguments("dpspec.accounting.DoubleMixture.poisson")
    def poisson(cls, removed: int, inserted: int, rate: float, noise_multiplier: float) -> "DoubleMixture":
        """Poisson batches at ``rate`` in (0, 1]: up to ``removed`` records are removed and ``inserted`` inserted."""
        for name, count in (("removed", removed), ("inserted", inserted)):
            whole(name, count, 0)
        noise = noise_multiplier
        return cls(*(Mixture.poisson(count, rate, noise) if count else nothing(noise) for count in (removed, inserted)))

    def __repr__(self) -> str:
        return f"DoubleMixture({self.present!r}, {self.absent!r})"

    def largest_loss(self, direction: Direction) -> float:
        """Infinite, unless both distributions are equal."""
        return math.inf if self.dominating_effect > 0.0 else 0.0

    def log_delta_bounds(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """The first mass of outputs z with l(z) > epsilon, less e^epsilon times the second: bounds of its logarithm.

        If rounding spoils the difference, outputs whose loss exceeds epsilon by 1/2 less or 40 more decide.
        """
        ((lower, upper),) = self.all_log_delta_bounds([epsilon], direction)
        return lower, upper

    def all_log_delta_bounds(self, epsilons: Sequence[float], direction: Direction) -> list[tuple[float, float]]:
        """``log_delta_bounds`` at several ``epsilons``, ascending."""
        if self.dominating_effect == 0.0:
            logs = [math.log(-math.expm1(epsilon)) if epsilon < 0.0 else -math.inf for epsilon in epsilons]
            return [(exact - 4.0 * EPS, min(0.0, exact + 4.0 * EPS)) for exact in logs]
        ratio, middle, count = self._ratio(direction), np.array(epsilons, dtype=np.float64), len(epsilons)
        thresholds = np.concatenate((middle - 0.5, middle, middle + _MARGIN))
        order = np.argsort(thresholds, kind="stable")
        z = np.sort(ratio.inverse(thresholds[order]))  # equal up to the errors that are charged
        losses, _, noise = ratio.evaluate(z)
        masses = ratio.masses(z, np.full(z.shape, np.inf))
        positions = np.argsort(order).reshape(3, count).T.tolist()
        return [
            self._bounds_at(ratio, epsilon, z, losses, noise, masses, position)
            for epsilon, position in zip(epsilons, positions, strict=True)
        ]

    def _bounds_at(
        self,
        ratio: OpposedRatio,
        epsilon: float,
        z: Floats,
        losses: Floats,
        noise: Floats,
        masses: Masses,
        position: Sequence[int],
    ) -> tuple[float, float]:
        """The bounds at ``epsilon`` from outputs ``z`` (n,), those at the three ``position``s with losses near it."""
        below, nearest, above = position
        # both distributions are N(0, sigma^2) unless a member is drawn, from one or the other
        most = self._log_drawn if epsilon >= 0.0 else 0.0
        first = float(masses.group[nearest])
        relevant = ratio.relevant(z[nearest : nearest + 1], z[nearest : nearest + 1])
        sizes = [
            float(np.max(np.abs(part.log_weights) + part.shifts * (abs(z[nearest]) + part.shifts)))
            for part in (relevant.first, relevant.second)
        ]
        error = 2.0 * float(
            masses.ratio_error[nearest] + abs(losses[nearest] - epsilon) + noise[nearest]
        ) + 8.0 * EPS * abs(epsilon)
        first_error = 2.0 * float(masses.group_error[nearest]) + EPS * (64.0 + 16.0 * sum(sizes) + 4.0 * abs(first))
        if error + first_error < POOR:
            excess = max(0.0, -math.expm1(min(0.0, epsilon - float(masses.ratio[nearest]))))
            low, high = (log_or_minus_infinity(excess + side) for side in (-error, error))
            return min(first - first_error + low, most), min(most, first + first_error + high)
        upper = min(
            (
                float(masses.group[i] + 4.0 * masses.group_error[i])
                for i in (below, nearest)
                if losses[i] + noise[i] < epsilon
            ),
            default=0.0,
        )
        power = float(masses.group[above] - 4.0 * masses.group_error[above])
        lower = log_difference(power, epsilon + float(masses.none[above] + 4.0 * masses.none_error[above]))
        return min(lower, most), min(most, max(lower, upper))

    @property
    def _log_drawn(self) -> float:
        """ln of the larger probability of a shift, rounded up."""
        logs = [
            float(np.logaddexp.reduce(side.log_probabilities[side.sensitivities > 0.0], initial=-np.inf))
            for side in (self.present, self.absent)
        ]
        return min(0.0, max(logs) + 1e-12)

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """The range of outputs outside which the first distribution has little mass; see ``Pair.truncate``."""
        ratio = self._ratio(direction)
        return _DoublePart(ratio, *ratio.first.range_of_outputs(log_edge, log_far))

    def _ratio(self, direction: Direction) -> OpposedRatio:
        first, second = self.present.ratio, self.absent.ratio
        return (
            OpposedRatio(first, second) if one_direction(direction) == "present-first" else OpposedRatio(second, first)
        )


def nothing(sigma: float) -> Mixture:
    """No record: N(0, sigma^2) alone."""
    return Mixture([0.0], [1.0], sigma)


@dataclass(frozen=True, eq=False)
class _DoublePart(TruncatedPair):
    """The outputs ``low`` to ``high`` of one step, in units of sigma."""

    ratio: OpposedRatio
    low: float
    high: float

    def table(self) -> tuple[Floats, Floats]:
        z = outputs_between(self.low, self.high)
        losses, log_first = self.ratio.with_first(z)
        return losses, log_first - 0.5 * np.square(z) + math.log((z[1] - z[0]) / math.sqrt(2.0 * math.pi))

    def cells(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Cells, Cells]:
        """Cells with a node at the loss of outputs without any member, where losses pile up.

        For the lower bound these outputs are merged into an atom. Between two nodes, their rounded masses would exceed
        the masses of all larger losses if draws are rare.
        """
        ratio = self.ratio
        pile = ratio.inverse(ratio.log_zero + spacing * np.array([-_PILE, _PILE]))
        merged = ratio.masses(pile[:1], pile[1:])
        node = float(merged.ratio[0])
        is_merged = abs(node - ratio.log_zero) <= 0.5 * spacing  # unless no output is between
        node = node if is_merged else ratio.log_zero
        bottom, top = ratio(np.array([self.low, self.high])).tolist()
        below = math.ceil((node - bottom) / spacing)
        lowest = node - spacing * below
        steps = max(4, math.ceil((top - lowest) / spacing))
        index = place_nodes_densely(*self.table(), lowest, spacing, steps, tilts, widest, limit)
        if not (is_merged and 0 < below < steps):
            return _cells(ratio, lowest, spacing, index)
        index = ascending(index, np.arange(below - 1, below + 2, dtype=np.int64))
        up, down = _cells(ratio, lowest, spacing, index)
        middle = int(np.searchsorted(index, below))
        nodes = np.asarray(lowest + spacing * index[middle - 1 : middle + 2], dtype=np.float64)
        ends = np.array([*ratio.inverse(nodes[:1]), *pile, *ratio.inverse(nodes[2:])])
        _, _, noise = ratio.evaluate(ends, noise=True)
        noises, widths = np.maximum(noise[1:], noise[:-1]), np.diff(nodes)
        rows = [down.mass.copy(), down.excess.copy(), down.error.copy(), down.slip.copy()]
        for cell, first in ((0, 0), (1, 2)):
            part = cell_masses(
                ratio,
                ends[first : first + 2],
                nodes[cell : cell + 1],
                widths[cell : cell + 1],
                noises[first : first + 1],
                present=True,
            )
            for row, value in zip(rows, part[:, 0].tolist(), strict=True):
                row[middle - 1 + cell] = value
        mass, excess, error, slip = rows
        atoms = (np.array([middle]), np.array([merged.first(present=True, up=False)]))
        shift = down.shift + 2.0 * float(merged.ratio_error[0])
        return up, replace(down, mass=mass, excess=excess, error=error, slip=slip, shift=shift, atoms=atoms)


def _cells(ratio: LogRatio | OpposedRatio, lowest: float, spacing: float, index: Index) -> tuple[Cells, Cells]:
    """Cells present-first for an upper and for a lower bound, between the nodes lowest + spacing * index."""
    nodes, far = np.asarray(lowest + spacing * index, dtype=np.float64), np.array([np.inf])
    z = np.maximum.accumulate(ratio.inverse(nodes))
    losses, _, noise = ratio.evaluate(z, noise=True)
    shift = float(np.max(np.abs(losses - nodes) + noise)) + 4.0 * EPS * float(np.max(np.abs(nodes)))
    noises = np.maximum(noise[1:], noise[:-1])
    mass, excess, error, slip = cell_masses(ratio, z, nodes[:-1], np.diff(nodes), noises, present=True)
    under, over = ratio.masses(-far, z[:1]), ratio.masses(z[-1:], far)
    up = Cells(lowest, spacing, index, mass, excess, error, slip, shift, 0.0, 0.0)
    below, above = ([ends.first(present=True, up=side) for side in (True, False)] for ends in (under, over))
    return replace(up, below=below[0], above=above[0]), replace(up, below=below[1], above=above[1])


class SymmetricMixture(Pair):
    """The pair that is equal after an exchange, with a mean of present-first profiles of mixtures at epsilon >= 0.

    One mixture dominates a step with batches of a fixed size if one record is replaced: Theorem 52 of
    ``proofs/replaced.md``. Weights below 1 in total leave outputs of loss 0.

    Args:
        cases: (weight, mixture) each, weights above 0 and at most 1 in total; each of one sensitivity or 0 and
            another one.
    """

    is_symmetric = True

    def __init__(self, *cases: tuple[float, Mixture]) -> None:
        weights = [weight for weight, _ in cases]
        if not cases or not all(weight > 0.0 for weight in weights) or sum(weights) > 1.0 + 1e-9:
            raise ValueError("cases must have weights above 0, at most 1 in total")
        for _, mixture in cases:
            if len(mixture.sensitivities) > 2 or (len(mixture.sensitivities) == 2 and mixture.sensitivities[0] > 0.0):
                raise ValueError(f"a mixture must have one sensitivity, or 0 and another one, got {mixture!r}")
        self.cases = cases
        self.key = ("symmetric", *((weight, mixture.key) for weight, mixture in cases))
        self.effect = cases[0][1].effect if cases[0][0] == 1.0 else None
        self.dominating_effect = max(mixture.dominating_effect for _, mixture in cases)

    def __repr__(self) -> str:
        return f"SymmetricMixture({', '.join(f'{weight:.3g}: {mixture!r}' for weight, mixture in self.cases)})"

    def largest_loss(self, direction: Direction) -> float:
        """Infinite, unless both distributions are equal."""
        return math.inf if self.dominating_effect > 0.0 else 0.0

    def log_delta_bounds(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """The weighted sum of profiles; delta(-epsilon) is 1 - e^-epsilon (1 - delta(epsilon))."""
        one_direction(direction)
        weighted_bounds = [
            (math.log(w), mixture.log_delta_bounds(abs(epsilon), "present-first")) for w, mixture in self.cases
        ]
        low, high = (float(np.logaddexp.reduce([log + bounds[i] for log, bounds in weighted_bounds])) for i in (0, 1))
        low, high = low - _ROUNDED, min(0.0, high + _ROUNDED)
        if epsilon >= 0.0:
            return low, high
        values = [-math.expm1(epsilon) + math.exp(epsilon + log) for log in (low, high)]
        return math.log(values[0]) - 8.0 * EPS, min(0.0, math.log(values[1]) + 8.0 * EPS)

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """Losses up to the one beyond which little mass is, and their negatives."""
        cases = []
        for weight, mixture in self.cases:
            zero = float(mixture.ratio.inverse(np.zeros(1))[0])
            edge = min(log_edge - math.log(weight), _HEAVIEST_TAIL)
            _, high = mixture.ratio.range_of_outputs(edge, log_far)
            cases.append((weight, mixture.ratio, zero, max(high, zero + 1.0)))
        return _SymmetricPart(tuple(cases))


@dataclass(frozen=True, eq=False)
class _SymmetricPart(TruncatedPair):
    """For each weight and mixture the outputs from loss 0 to the highest one, in units of sigma."""

    cases: tuple[tuple[float, LogRatio, float, float], ...]

    def table(self) -> tuple[Floats, Floats]:
        losses, logs = self._positive_table()
        both = np.concatenate((logs, logs - losses))
        zero_loss_mass = max(1e-300, 1.0 - float(np.exp(both).sum()))
        return np.concatenate((losses, -losses, [0.0])), np.append(both, math.log(zero_loss_mass))

    def _positive_table(self) -> tuple[Floats, Floats]:
        tables = []
        for weight, ratio, zero, high in self.cases:
            z = outputs_between(zero, high)
            losses = np.maximum(ratio(z), 0.0)
            unit = math.log(weight * (z[1] - z[0]) / math.sqrt(2.0 * math.pi))
            tables.append(np.array([losses, losses - 0.5 * np.square(z) + unit]))
        losses, logs = np.concatenate(tables, axis=1)
        return losses, logs

    def atoms(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Atoms, Atoms]:
        """Measures of the positive losses, with their mirror images and the rest of the mass at loss 0."""
        highest = max(float(ratio(np.array([high]))[0]) for _, ratio, _, high in self.cases)
        steps = max(4, math.ceil(highest / spacing))
        index = place_nodes_densely(*self._positive_table(), 0.0, spacing, steps, tilts, widest, limit // 2)
        halves = [(weight, *_cells(ratio, 0.0, spacing, index)) for weight, ratio, _, _ in self.cases]
        rounding = EPS * (64.0 + 4.0 * len(index)) + 4.0 * _ROUNDED
        above = _mirrored([(w * (1.0 + _ROUNDED), discretize_from_above(up)) for w, up, _ in halves])
        below = _mirrored([(w * (1.0 - _ROUNDED), discretize_from_below(down)) for w, _, down in halves])
        return above.closed(rounding), below.at_most_one(rounding)


def _mirrored(halves: Sequence[tuple[float, Atoms]]) -> Atoms:
    """The symmetric measure with the weighted masses of positive losses of ``halves``, on the same nodes from 0."""
    _, half = halves[0]
    masses = np.sum([weight * atoms.masses[1:] for weight, atoms in halves], axis=0)
    infinity = math.fsum(weight * atoms.infinity for weight, atoms in halves)
    index = half.index[1:]
    negative_masses = masses * np.exp(-half.spacing * index)
    zero_loss_mass = max(0.0, 1.0 - infinity - math.fsum(masses) - math.fsum(negative_masses))
    last = int(index[-1])
    positions = np.concatenate((last - index[::-1], [last], last + index))
    all_masses = np.concatenate((negative_masses[::-1], [zero_loss_mass], masses))
    shift = max(atoms.shift for _, atoms in halves)
    return Atoms(-half.spacing * last, half.spacing, positions, all_masses, min(1.0, infinity), shift)
