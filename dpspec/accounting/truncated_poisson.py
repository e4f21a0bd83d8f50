"""Truncated Poisson batches: if more than ``cap`` records enter, a uniformly random subset of ``cap`` is kept.

``docs/explanation/proofs/truncated-poisson.md`` has a pair that dominates a step (Theorem 4) and one that is attained
(Theorem 5). If at most cap - k others enter, no record is displaced, and the sum moves by the j ~ Binomial(k, rate)
members drawn; if cap or more enter, by at most 2 i for i kept members; between these by at most 2 j.
Theorem 4a compares displaced records with smaller batches in part; in Theorem 5a others reveal the size of a batch.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import betainc

from dpspec.accounting.densities import log_binomial, log_hypergeometric
from dpspec.accounting.discrete import Discrete
from dpspec.accounting.gaussian import normal_masses
from dpspec.accounting.grid import Atoms, Pair, TruncatedPair, discretize_from_above, discretize_from_below
from dpspec.accounting.mixture import Mixture, TruncatedMixture
from dpspec.accounting.numerics import EPS, SUM_TOLERANCE, Direction, Floats, inside, one_direction, positive, whole
from dpspec.renames import old_arguments

#: ln of the largest tail of one case that may be cut off.
_HEAVIEST_TAIL = -0.7

#: Relative rounding error of a case's weight or profile.
_ROUNDED = 1e-12


#: The largest mass that weights and sums of cases may lose or add.
_BOOKS = 4.0 * _ROUNDED


class Revealed(Pair):
    """A step that first reveals one of several mixtures of Gaussians, and then its output.

    A case has the weight v_i without the group and w_i with it, so that, present-first,

        delta(epsilon) = sum_i w_i delta_i(epsilon - ln(w_i / v_i)).

    Revealing a case that an adversary does not see gives an upper bound: forgetting it is a post-processing.

    Args:
        cases: (weight, mixture) each, of one sigma, weights above 0 and summing to one: v_i.
        present: w_i, above 0 and summing to one; equal to v_i if omitted.
        rounding: bound on the relative error of each weight.
    """

    def __init__(
        self,
        cases: Sequence[tuple[float, Mixture]],
        present: Sequence[float] | None = None,
        rounding: float = _ROUNDED,
    ) -> None:
        absent = [weight for weight, _ in cases]
        present = absent if present is None else [*present]
        if not cases or any(not 0.0 < weight <= 1.0 for weight in (*absent, *present)):
            raise ValueError("cases must have weights above 0 and at most 1")
        if len(present) != len(absent):
            raise ValueError(f"present must match cases: {len(present)} weights for {len(absent)}")
        totals = math.fsum(absent), math.fsum(present)
        for total in totals:
            if abs(total - 1.0) > SUM_TOLERANCE:
                raise ValueError(f"weights of cases must sum to 1, got {total!r}")
        if len({pair.noise_multiplier for _, pair in cases}) != 1:
            raise ValueError("all cases must have the same noise_multiplier")
        self.cases = tuple((weight / totals[0], pair) for weight, pair in cases)
        self.present = tuple(weight / totals[1] for weight in present)
        self.rounding = rounding
        self.log_ratios = tuple(math.log(w / v) if w != v else 0.0 for w, v in zip(present, absent, strict=True))
        weights = zip(self.present, self.cases, strict=True)
        self.key = ("revealed", rounding, *((case[0], weight, case[1].key) for weight, case in weights))
        if not any(self.log_ratios):
            self.dominating_effect = max(pair.dominating_effect for _, pair in self.cases)

    def __repr__(self) -> str:
        return f"Revealed({', '.join(f'{weight:.3g}: {pair!r}' for weight, pair in self.cases)})"

    def _oriented(self, direction: Direction) -> list[tuple[float, float, Mixture]]:
        """Of each case: its weight under the first distribution, the loss of its weight, and its mixture."""
        if one_direction(direction) == "present-first":
            return [(w, log, pair) for w, log, (_, pair) in zip(self.present, self.log_ratios, self.cases, strict=True)]
        return [(v, -log, pair) for log, (v, pair) in zip(self.log_ratios, self.cases, strict=True)]

    def largest_loss(self, direction: Direction) -> float:
        """The largest loss of any case."""
        errors = 2.0 * self.rounding if any(self.log_ratios) else 0.0
        return max(pair.largest_loss(direction) + loss for _, loss, pair in self._oriented(direction)) + errors

    def log_delta_bounds(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """The weighted sum of the cases' profiles."""
        ((lower, upper),) = self.all_log_delta_bounds([epsilon], direction)
        return lower, upper

    def all_log_delta_bounds(self, epsilons: Sequence[float], direction: Direction) -> list[tuple[float, float]]:
        """``log_delta_bounds`` at several ``epsilons``, ascending."""
        low: list[list[float]] = []
        high: list[list[float]] = []
        for weight, loss, pair in self._oriented(direction):
            error = 2.0 * self.rounding if loss != 0.0 else 0.0
            for ends, end, sign in ((low, 0, 1.0), (high, 1, -1.0)):
                bounds = pair.all_log_delta_bounds([epsilon - loss + sign * error for epsilon in epsilons], direction)
                ends.append([math.log(weight) + bound[end] for bound in bounds])
        lower = np.logaddexp.reduce(low) - self.rounding
        upper = np.minimum(0.0, np.logaddexp.reduce(high) + self.rounding)
        return list(zip(lower.tolist(), upper.tolist(), strict=True))

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """Each case without the outcomes of little mass, by its weight."""
        truncated_cases = []
        for weight, loss, pair in self._oriented(direction):
            edge, far = (min(log - math.log(weight), _HEAVIEST_TAIL) for log in (log_edge, log_far))
            truncated_cases.append((weight, loss, pair.truncate(one_direction(direction), edge, far)))
        return _RevealedPart(tuple(truncated_cases), self.rounding)


@dataclass(frozen=True, eq=False)
class _RevealedPart(TruncatedPair):
    """Truncated cases with their weights and the losses of these, on one grid."""

    cases: tuple[tuple[float, float, TruncatedMixture], ...]
    rounding: float

    def table(self) -> tuple[Floats, Floats]:
        tables = [(math.log(weight), loss, *part.table()) for weight, loss, part in self.cases]
        losses = np.concatenate([losses + loss for _, loss, losses, _ in tables])
        return losses, np.concatenate([logs + log for log, _, _, logs in tables])

    def atoms(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Atoms, Atoms]:
        """The weighted measures of all cases, on the grid of the heaviest."""
        above: list[tuple[float, Atoms]] = []
        below: list[tuple[float, Atoms]] = []
        align = None  # a loss on the grid
        for weight, loss, part in sorted(self.cases, key=lambda case: -case[0]):
            sign = 1.0 if part.direction == "present-first" else -1.0
            log_ratio = None if align is None else sign * (align - loss)
            cells = part.cells(spacing, tilts, widest, limit // len(self.cases), log_ratio)
            if align is None:
                align = cells[0].lowest + loss
            above.append((weight * (1.0 + self.rounding), self._move(discretize_from_above(cells[0]), loss)))
            below.append((weight * (1.0 - self.rounding), self._move(discretize_from_below(cells[1]), loss)))
        return _weighted(above).closed(_BOOKS), _weighted(below).at_most_one(_BOOKS)

    def _move(self, atoms: Atoms, loss: float) -> Atoms:
        """The measure with ``loss`` added to all losses; the error of the weights' ratio is part of its shift."""
        if loss == 0.0:
            return atoms
        error = 2.0 * self.rounding + 4.0 * EPS * (abs(atoms.lowest) + abs(loss))
        return replace(atoms, lowest=atoms.lowest + loss, shift=atoms.shift + error)


def _weighted(measures: Sequence[tuple[float, Atoms]]) -> Atoms:
    """The weighted sum of measures on grids that differ by whole steps."""
    spacing = measures[0][1].spacing
    first = min((atoms for _, atoms in measures), key=lambda atoms: atoms.lowest)
    gaps = np.array([atoms.lowest - first.lowest for _, atoms in measures])
    offsets = np.rint(gaps / spacing).astype(np.int64)
    index = np.concatenate([atoms.index + offset for offset, (_, atoms) in zip(offsets, measures, strict=True)])
    nodes, node_index = np.unique(index, return_inverse=True)
    masses = np.bincount(node_index, weights=np.concatenate([weight * atoms.masses for weight, atoms in measures]))
    misfit = float(np.max(np.abs(gaps - spacing * offsets)))
    return Atoms(
        lowest=first.lowest,
        spacing=spacing,
        index=nodes,
        masses=np.asarray(masses, dtype=np.float64),
        infinity=min(1.0, math.fsum(weight * atoms.infinity for weight, atoms in measures)),
        shift=max(atoms.shift for _, atoms in measures)
        + misfit
        + 8.0 * EPS * (abs(first.lowest) + spacing * nodes[-1]),
    )


#: Relative error charged for the incomplete beta function, whose accuracy is 1e-12 (tested with mpmath).
_BETA = 1e-9

#: Full batches rarer than this are not a separate case.
_RARELY = 1e-9

#: A smaller probability counts as this, as underflow may have reduced it.
_SMALLEST = 1e-290


@old_arguments("dpspec.accounting.TruncatedPoisson")
@dataclass(frozen=True)
class TruncatedPoisson:
    """One step with batches of at most ``cap`` records, each entering at ``rate``, for groups of up to k records.

    For add-remove adjacency only: replaced or null records displace other records.

    Attributes:
        group_size: k, the largest group.
        rate: the Poisson sampling rate.
        cap: the largest batch.
        n: the largest number of records of the smaller dataset of a pair.
        noise_multiplier: the noise's standard deviation in clip norms, > 0.
        fewest: the smallest such number, 0 if omitted: the bound is the tighter the closer it is to ``n``.
    """

    group_size: int
    rate: float
    cap: int
    n: int
    noise_multiplier: float
    fewest: int = 0

    def __post_init__(self) -> None:
        for name, smallest in (("group_size", 1), ("cap", 1), ("n", 0), ("fewest", 0)):
            whole(name, getattr(self, name), smallest)
        if self.fewest > self.n:
            raise ValueError(f"fewest must be at most n, got {self.fewest!r} and {self.n!r}")
        inside("rate", self.rate, one=True)
        positive("noise_multiplier", self.noise_multiplier)

    @property
    def displacing(self) -> float:
        """P[Binomial(n, rate) > cap - k], rounded up: the probability that the group may displace others."""
        if self.n <= self.cap - self.group_size:
            return 0.0
        return min(
            1.0, max(_SMALLEST, binomial_tail(self.n, self.rate, self.cap - self.group_size + 1) * (1.0 + _BETA))
        )

    def above(self) -> Mixture | Revealed:
        """A pair that dominates the step, for datasets whose smaller one has ``fewest`` to ``n`` records."""
        roomy, chance = Mixture.poisson(self.group_size, self.rate, self.noise_multiplier), self.displacing
        if chance == 0.0:
            return roomy
        # P[Binomial(fewest, rate) >= cap], rounded down: the probability that others fill a batch
        full = binomial_tail(self.fewest, self.rate, self.cap) * (1.0 - _BETA)
        full = min(full, chance) if full > _RARELY else 0.0
        j = np.arange(self.group_size + 1, dtype=np.float64)
        cases = [(1.0 - chance, roomy)]
        if full > 0.0:
            ends = np.concatenate(([1.0], np.minimum.accumulate(self.tails_when_full()), [0.0]))
            cases.append((full, Mixture(2.0 * j, ends[:-1] - ends[1:], self.noise_multiplier)))
        drawn = Mixture.poisson(self.group_size, self.rate, 0.5 * self.noise_multiplier)
        cases.append((chance - full, Mixture(2.0 * drawn.sensitivities, drawn.probabilities, self.noise_multiplier)))
        cases = [(weight, pair) for weight, pair in cases if weight > 0.0]
        return cases[0][1] if len(cases) == 1 else Revealed(cases)

    def tails_when_full(self) -> Floats:
        """Upper bounds of P[i >= a given that others fill the batch], (k,) for a = 1..k, of i members kept.

        P[B' >= cap + a] P[Hypergeometric(cap of fewest + k, k) >= a] / P[B >= cap], with B ~ Binomial(fewest, rate) and
        B' ~ Binomial(fewest + k, rate), and never more than P[Binomial(k, rate) >= a].
        """
        alike = np.exp(log_hypergeometric(self.group_size, self.fewest, self.cap))
        tails = []
        for a in range(1, self.group_size + 1):
            entered = binomial_tail(self.fewest + self.group_size, self.rate, self.cap + a)
            tail_when_full = math.fsum(alike[a:]) * entered / binomial_tail(self.fewest, self.rate, self.cap)
            tails.append(
                min(
                    1.0,
                    tail_when_full * (1.0 + 4.0 * _BETA),
                    binomial_tail(self.group_size, self.rate, a) * (1.0 + _BETA),
                )
            )
        return np.array(tails)

    def routed(self, share: float) -> Revealed | None:
        """A pair that dominates the step if the smaller dataset has n records and the group k: Theorem 4a.

        Args:
            share: the share in (0, 1) of the batches with displaced records that are compared with the batches of as
                many others; the rest is compared with the batches that the group changes.

        Returns:
            The pair; None if full batches have a probability below e^-690, or out of the range of Theorem 4a.
        """
        inside("share", share)
        batches = Batches.of(self)
        if batches is None:
            return None
        sources: list[dict[int, float]] = [
            {} for _ in range(self.group_size + 1)
        ]  # by cap - b, the weights of the distances
        for other_count, member_count, source, weight in batches.with_group():
            compared_weight = weight if other_count == source else share * weight
            if batches.without_group(other_count) == 0.0:
                compared_weight = 0.0
            for b, distance, mass in (
                (other_count, member_count, compared_weight),
                (source, member_count + source - other_count, weight - compared_weight),
            ):
                weights = sources[self.cap - b]
                weights[distance] = weights.get(distance, 0.0) + mass
        few = batches.fewer(self.cap - self.group_size)
        cases, present = [], []
        if few > 0.0:
            cases, present = [(few, Mixture.poisson(self.group_size, self.rate, self.noise_multiplier))], [few]
        for gap, weights in enumerate(sources):
            without, total = batches.without_group(self.cap - gap), math.fsum(weights.values())
            if without > 0.0:
                distances = [distance for distance, mass in weights.items() if mass > 0.0]
                shares = [weights[distance] / total for distance in distances]
                cases.append((min(1.0, without), Mixture(distances, shares, self.noise_multiplier)))
                present.append(min(1.0, total))
        return Revealed(cases, present, 4.0 * _BETA)

    def attained(self) -> Mixture:
        """The pair of the step for some data of n and n + k records, with probabilities of members rounded down."""
        chances = self.kept()
        chances[1:] *= 1.0 - _BETA
        chances[0] = 1.0 - math.fsum(chances[1:])
        return Mixture(np.arange(len(chances), dtype=np.float64), chances, self.noise_multiplier)

    def revealing(self, angle: float) -> Discrete | None:
        """What some data of n and n + k records show in two dimensions, in cells: Theorem 5a, a lower bound.

        All others have the gradient (1, 0), all members (-sin(``angle``), cos(``angle``)). The first coordinate reveals
        the number of others in a batch, the second one the group.

        Args:
            angle: from 0 to pi / 2.

        Returns:
            The pair; None as for ``routed``.
        """
        batches = Batches.of(self)
        if batches is None:
            return None
        along, across = -math.sin(angle), max(0.0, math.cos(angle))
        low, high = (
            self.cap - 10.0 * self.noise_multiplier - 2.0 * self.group_size,
            self.cap + 8.0 * self.noise_multiplier,
        )
        columns = _edges(low, high, 0.25 * self.noise_multiplier, _COLUMNS)
        rows = _edges(
            -8.0 * self.noise_multiplier,
            8.0 * self.noise_multiplier + self.group_size * across,
            0.125 * self.noise_multiplier,
            _COLUMNS,
        )
        if across < 1e-9:
            columns = _edges(low, high, 0.03 * self.noise_multiplier, 8 * _COLUMNS)
            rows = np.array([-np.inf, np.inf])
        # batches of fewer others than ``least`` are in the first column, up to 1e-300
        least = min(
            max(batches.first, math.floor(columns[1] - 40.0 * self.noise_multiplier)), self.cap - self.group_size
        )
        few, drawn = batches.fewer(least), batches.members
        absent = np.zeros((len(columns) - 1, 1))
        present = np.zeros((self.group_size + 1, len(columns) - 1))
        absent[0], present[:, 0] = few, few * drawn
        for b in range(least, self.cap + 1):
            chance = batches.without_group(b)
            absent[:, 0] += chance * self._masses(columns, b)
            for i in range(self.group_size + 1) if b < self.cap - self.group_size else ():
                present[i] += chance * drawn[i] * self._masses(columns, b + along * i)
        for b, i, _, weight in batches.with_group():
            present[i] += weight * self._masses(columns, b + along * i)
        heights = np.array([self._masses(rows, across * i) for i in range(self.group_size + 1)])
        with_group, without = (present.T @ heights).ravel(), (absent * heights[0]).ravel()
        with_group, without = np.maximum(with_group, _LEAST_CELL), np.maximum(without, _LEAST_CELL)
        return Discrete(with_group, without, 4.0 * _BETA)

    def _masses(self, edges: Floats, mean: float) -> Floats:
        """Masses of N(``mean``, sigma^2) between the ``edges``, (n,)."""
        return normal_masses((edges - mean) / self.noise_multiplier)

    def kept(self) -> Floats:
        """P[i = a] that a members of the group are in the batch, (k + 1,) for a = 0..k."""
        drawn = (
            np.append(np.zeros(self.group_size), 1.0)
            if self.rate == 1.0
            else np.exp(log_binomial(self.group_size, self.rate))
        )
        chances_to_enter = np.array(
            [1.0 - binomial_tail(self.n, self.rate, self.cap - a + 1) for a in range(self.group_size + 1)]
        )
        chances: Floats = drawn * chances_to_enter
        full = binomial_tail(self.n + self.group_size, self.rate, self.cap + 1)
        if full > 0.0 and self.cap <= self.n:
            alike = np.exp(log_hypergeometric(self.group_size, self.n, self.cap))
            chances[: len(alike)] += full * alike
        # a full batch larger than n certainly holds some members; this bound ignores them
        chances[0] = max(0.0, 1.0 - math.fsum(chances[1:]))
        return chances


#: Smaller probabilities of cells count as this.
_LEAST_CELL = 1e-290

#: The largest number of columns or of rows of cells.
_COLUMNS = 160


def _edges(low: float, high: float, width: float, most: int) -> Floats:
    """Edges of ``most`` cells or of cells of ``width`` from ``low`` to ``high`` and beyond, (n,)."""
    count = min(most, math.ceil((high - low) / width))
    return np.concatenate(([-np.inf], np.linspace(low, high, count + 1), [np.inf]))


#: The largest group, and number of sizes of batches, of Theorem 4a.
_MEMBERS, _SIZES = 32, 40_000

#: The range of ln of probabilities that keep their digits.
_LOG_LEAST = -690.0


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches with the group and without, by their numbers of others and members; weights to a relative 4e-9.

    Attributes:
        step: the step.
        first: the smallest number of others with a probability that counts.
        others: probabilities that ``first``, ``first`` + 1, ... others are drawn, (m,).
        members: probabilities that 0, 1, ..., k members are drawn, (k + 1,).
    """

    step: TruncatedPoisson
    first: int
    others: Floats
    members: Floats

    @classmethod
    def of(cls, step: TruncatedPoisson) -> "Batches | None":
        """None if a batch has cap others with a probability below e^-690, or out of range."""
        n, rate, cap, k = step.n, step.rate, step.cap, step.group_size
        if k > min(_MEMBERS, cap) or n < cap:
            return None
        if rate == 1.0:
            return cls(step, n, np.ones(1), np.append(np.zeros(k), 1.0))
        mode, spread = min(n, int((n + 1) * rate)), math.sqrt(n * rate * (1.0 - rate)) + 1.0
        reach = math.ceil(40.0 * spread + 800.0)
        first, last = max(0, mode - reach), min(n, mode + reach)
        if last - first > _SIZES:
            return None
        m = np.arange(first, last, dtype=np.float64)
        ratios = np.log((n - m) / (m + 1.0)) + (math.log(rate) - math.log1p(-rate))
        mode_index = mode - first
        logs = np.concatenate((-np.cumsum(ratios[:mode_index][::-1])[::-1], [0.0], np.cumsum(ratios[mode_index:])))
        logs -= math.log(math.fsum(np.exp(logs)))
        usual = logs > _LOG_LEAST
        first, logs = first + int(np.argmax(usual)), logs[usual]
        return cls(step, first, np.exp(logs), np.exp(log_binomial(k, rate))) if cap < first + len(logs) else None

    def without_group(self, b: int) -> float:
        """The probability of batches of ``b`` others without the group."""
        drawn = self.others[max(0, b - self.first) :]
        if b == self.step.cap:
            return math.fsum(drawn)
        return float(drawn[0]) if b >= self.first else 0.0

    def fewer(self, b: int) -> float:
        """The probability that fewer than ``b`` others are drawn."""
        return math.fsum(self.others[: max(0, b - self.first)])

    def with_group(self) -> Iterator[tuple[int, int, int, float]]:
        """Numbers of others and of members in the batch, min(others drawn, cap), and the probability of these.

        For at least cap - k others drawn.
        """
        k, cap = self.step.group_size, self.step.cap
        end = self.first + len(self.others)
        for source in range(max(cap - k, 0, min(self.first, cap)), cap + 1):
            drawn = np.arange(max(source, self.first), end if source == cap else source + 1)
            weights = self.others[drawn - self.first]
            for j in range(k + 1):
                if source + j <= cap and source < cap:
                    yield source, j, source, float(weights[0] * self.members[j])
                    continue
                for member_count in range(max(0, cap - source), j + 1):
                    # P[Hypergeometric(cap of drawn + j, j) = member_count]
                    chosen = np.full(len(drawn), float(math.comb(j, member_count)))
                    for t in range(j):
                        factor = cap - t if t < member_count else drawn + j - cap - (t - member_count)
                        chosen *= np.maximum(factor, 0.0) / (drawn + j - t)
                    weight = float(self.members[j] * (weights @ chosen))
                    if weight > 0.0:
                        yield cap - member_count, member_count, source, weight


def binomial_tail(n: int, rate: float, count: int) -> float:
    """P[Binomial(n, rate) >= count], by the incomplete beta function, to a relative 1e-12."""
    if count <= 0:
        return 1.0
    return 0.0 if count > n else float(betainc(count, n - count + 1, rate))
