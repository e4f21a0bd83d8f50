"""Group privacy of DP-SGD: the theorem of each sampling scheme, and epsilon, rates, advantage and mu of phases.

``docs/explanation/proofs/groups.md`` has Theorems 19 and 20, ``proofs/replaced.md`` Theorems 51 to 53.
Sensitivities are in units of the clip norm. In the direction remove a test detects the presence of the group, in the
direction add its absence. Functions take phases as accounted: see :func:`accounted`.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from dpspec import accounting  # loads numpy at the first use
from dpspec.contract import Phase

if TYPE_CHECKING:
    from dpspec.accounting import Direction, Interval, Mixture, Pair, PrivacyLoss, TruncatedPoisson
    from dpspec.contract import Spec

#: Pairs with the number of compositions of each.
Composed: TypeAlias = "tuple[tuple[Pair, int], ...]"

#: Values of a loss in a direction, of all indices if None, whose relative widths may be as large as the last argument.
Question: TypeAlias = "Callable[[PrivacyLoss, Sequence[int] | None, float], list[Interval]]"

#: Below this noise, in clip norms, the bound of random allocation assumes that its steps are revealed.
MIN_ALLOCATED_NOISE: Final = 0.1

#: Rounding error of a product of two correctly rounded numbers.
_LAST_PLACE = 4.0 * sys.float_info.epsilon


class SchemeTheory:
    """Poisson and full batches: the dominating pair is attained."""

    #: Source of the bound.
    source = "Ganesh 2024, Theorem 3.1"

    #: Why single records have no profile for black-box conversions; empty if they have one.
    no_profile = ""

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        """Pairs that dominate a phase, for groups of up to ``group_size`` in datasets of ``records``."""
        return ((self.step(phase, group_size, records), phase.steps),)

    def revealed(self, phase: Phase, group_size: int, records: int) -> Composed:
        """Pairs that dominate a phase if shared steps of random allocation are revealed; none out of its range."""
        return self.composed(phase, group_size, records)

    def attained(self, phase: Phase, group_size: int, records: int, choice: int) -> Composed:
        """Pairs that all steps of a phase attain on some data; ``choice`` selects one of several alternatives."""
        return ((self.step(phase, group_size, records), phase.steps),)

    def step(self, phase: Phase, group_size: int, records: int) -> Mixture:
        return accounting.Mixture.poisson(group_size, phase.rate(), phase.noise_multiplier)

    def log_hidden(self, phase: Phase, group_size: int, records: int) -> float:
        """ln of the probability that no member is in a batch of the phase; 0 if unknown."""
        drawn = self.step(phase.replace(noise_multiplier=1.0), group_size, records)
        missed = float(drawn.log_probabilities[0]) if drawn.sensitivities[0] == 0.0 else -math.inf
        return phase.steps * missed


class _Full(SchemeTheory):
    source = "Ganesh 2024, Theorem 3.1 at rate 1"


class _Fixed(SchemeTheory):
    source = "Ganesh 2024, Theorem 3.3"

    def step(self, phase: Phase, group_size: int, records: int) -> Mixture:
        size = int(phase["sampling"]["batch_size"])
        return accounting.Mixture.fixed(group_size, records - group_size, size, phase.noise_multiplier)


class _Truncated(SchemeTheory):
    """The smaller dataset has ``records - group_size`` to ``records`` records."""

    source = "Ganesh 2024, Lemma 2.9, given which batches are full; one record: Ganesh 2025; proofs, Theorems 4a and 4b"
    no_profile = "their profile is an interval"

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        fewest = max(0, records - group_size)
        return ((self._capped(phase, group_size, records, fewest).above(), phase.steps),)

    def step(self, phase: Phase, group_size: int, records: int) -> Mixture:
        return self._capped(phase, group_size, max(0, records - group_size)).attained()

    @staticmethod
    def _capped(phase: Phase, group_size: int, smaller: int, fewest: int = 0) -> TruncatedPoisson:
        cap = int(phase["sampling"]["max_batch"])
        return accounting.TruncatedPoisson(group_size, phase.rate(), cap, smaller, phase.noise_multiplier, fewest)

    def attained(self, phase: Phase, group_size: int, records: int, choice: int) -> Composed:
        """The pair of other records without gradients, or of Theorem 5a: choices -1, -2, ... for ``REVEALING``."""
        step = self._capped(phase, group_size, max(0, records - group_size))
        revealing = step.revealing(REVEALING[-choice - 1]) if choice < 0 else None
        return ((revealing or step.attained(), phase.steps),)

    def routed(self, phase: Phase, group_size: int, smaller: int, share: float) -> Composed:
        """Theorem 4a, for ``smaller`` records and ``group_size`` more, or Theorem 4 out of its range."""
        step = self._capped(phase, group_size, smaller, smaller)
        return ((step.routed(share) or step.above(), phase.steps),)

    def displaced(self, phase: Phase, smaller: int) -> Composed:
        """Theorem 4b, for ``smaller`` records and one more; none out of its range."""
        pair = accounting.displacement_pair(self._capped(phase, 1, smaller, smaller))
        return () if pair is None else ((pair, phase.steps),)


class _Shuffled(SchemeTheory):
    """One Gaussian release of sensitivity k per epoch dominates, under zero-out adjacency.

    Given the orders, every member is in one batch per epoch, and the total shift of an epoch's sums has norm at most k.
    Unknown orders leak at most as much (joint convexity). A phase begins ceil(steps / ceil(records / batch_size))
    epochs, and no more with more records. No theorem bounds add-remove adjacency. Lower bounds for both are in
    ``proofs/shuffle.md``.
    """

    source = "one Gaussian release per epoch, without amplification"

    #: Means of the largest sum of an epoch with a member and without it: see ``proofs/shuffle.md``, Theorem 22.
    means = ((2.0, 1.0), (0.0, 1.0))

    #: Largest distance, in clip norms, of an epoch's sums per member.
    moved = 1

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        batches = self.batches(phase, records)
        release = accounting.Mixture.full(self.moved * group_size, phase.noise_multiplier)
        return ((release, -(-phase.steps // batches)),)

    def attained(self, phase: Phase, group_size: int, records: int, choice: int) -> Composed:
        """The largest sum of each epoch for a member (choice 0 and 1), or all sums added, for all members (2)."""
        batches, sigma = self.batches(phase, records), phase.noise_multiplier
        epochs, extra_steps = divmod(phase.steps, batches)
        share = extra_steps * int(phase["sampling"]["batch_size"]) / records
        pairs: list[tuple[Pair, int]] = []
        if choice < len(self.means):
            present, absent = self.means[choice]
            if epochs:
                pairs.append((accounting.largest_sum_pair(batches, sigma, present, absent), epochs))
            if extra_steps:
                pairs.append((accounting.largest_sum_pair(extra_steps, sigma, present, absent, share), 1))
            return tuple(pairs)
        if epochs:
            shift = self.moved * group_size / math.sqrt(batches) * (1.0 - 2.0 * _LAST_PLACE)
            pairs.append((accounting.Mixture([shift], [1.0], sigma), epochs))
        if extra_steps:
            shift = (1.0 - 2.0 * _LAST_PLACE) / math.sqrt(extra_steps)
            share *= 1.0 - _LAST_PLACE
            pairs.append((accounting.Mixture([0.0, shift], [1.0 - share, share], sigma), 1))
        return tuple(pairs)

    def log_hidden(self, phase: Phase, group_size: int, records: int) -> float:
        return 0.0

    @staticmethod
    def batches(phase: Phase, records: int) -> int:
        """Number of batches of an epoch."""
        return -(-records // int(phase["sampling"]["batch_size"]))


class _Allocated(SchemeTheory):
    """One pair per member with a share of the noise, or Gaussian pairs if that noise is out of range (Theorem 20)."""

    source = "Chua et al. 2025 and Feldman & Shenfeld 2025, one record; groups: proofs, Theorems 1 and 2"
    no_profile = "no mixture of Gaussians has their profile"

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        epochs, steps = self.epochs(phase)
        sigma, times = phase.noise_multiplier, phase.sampling.batches_per_epoch
        # the noise is split among the members, rounded down
        sigma_of_each = sigma if group_size == 1 else sigma / math.sqrt(group_size) * (1.0 - _LAST_PLACE)
        if sigma_of_each < MIN_ALLOCATED_NOISE:
            # No step has more than k members, and all steps have k r: the squared shifts sum to at most k^2 r.
            return ((accounting.Mixture.full(group_size, sigma), epochs * times),)
        short, longer = divmod(steps, times)
        blocks = ((short, times - longer), (short + 1, longer))
        return tuple(
            (accounting.RandomAllocation(length, sigma_of_each), epochs * group_size * count)
            for length, count in blocks
            if count
        )

    def revealed(self, phase: Phase, group_size: int, records: int) -> Composed:
        """Theorem 2."""
        if not is_alike(phase, group_size) or not 1 < group_size <= accounting.RandomAllocation.most_members:
            return ()
        epochs, steps = self.epochs(phase)
        return ((accounting.RandomAllocation(steps, phase.noise_multiplier, group_size), epochs),)

    def attained(self, phase: Phase, group_size: int, records: int, choice: int) -> Composed:
        """The pair of ``choice`` members with one gradient; if 0 or out of range, an epoch's sum with all members."""
        epochs, steps = self.epochs(phase)
        if choice and is_alike(phase, choice):
            kind = accounting.RandomAllocation if choice == 1 else accounting.EqualMembers
            return ((kind(steps, phase.noise_multiplier, choice), epochs),)
        shift = group_size * phase.sampling.batches_per_epoch / math.sqrt(steps) * (1.0 - 2.0 * _LAST_PLACE)
        return ((accounting.Mixture([shift], [1.0], phase.noise_multiplier), epochs),)

    def log_hidden(self, phase: Phase, group_size: int, records: int) -> float:
        return -math.inf  # every member is in every epoch

    @staticmethod
    def epochs(phase: Phase) -> tuple[int, int]:
        """Number of epochs, and of steps in each."""
        steps = int(phase["sampling"]["epoch_steps"])
        epochs, remainder = divmod(phase.steps, steps)
        if remainder:
            raise ValueError(f"steps must be a multiple of {steps}, the steps of an epoch, got {phase.steps}")
        return epochs, steps


SCHEMES: Mapping[str, SchemeTheory] = {
    "poisson": SchemeTheory(),
    "truncated-poisson": _Truncated(),
    "fixed": _Fixed(),
    "full": _Full(),
    "random-allocation": _Allocated(),
    "shuffled": _Shuffled(),
}


class _Replaced(SchemeTheory):
    """Poisson and full batches whose k removed and k inserted records have opposite gradients (Theorem 51)."""

    source = "Schuchardt et al. 2024; proofs, Theorem 51"
    no_profile = "replaced records have a pair of two mixtures"

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        pair = accounting.DoubleMixture.poisson(group_size, group_size, phase.rate(), phase.noise_multiplier)
        return ((pair, phase.steps),)

    def attained(self, phase: Phase, group_size: int, records: int, choice: int) -> Composed:
        """The dominating pair (choice 0), or inserted records of gradient 0 (1)."""
        return (SCHEMES["poisson"] if choice else self).composed(phase, group_size, records)


class _ReplacedInFixed(SchemeTheory):
    """Batches of a fixed size: an inserted record displaces nothing but the removed one (Theorem 52)."""

    source = "proofs, Theorem 52"
    no_profile = _Replaced.no_profile

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        drawn = SCHEMES["fixed"].step(phase, group_size, records)
        pair = accounting.SymmetricMixture((1.0, drawn)) if group_size == 1 else self._double(drawn, 1.0)
        return ((pair, phase.steps),)

    def attained(self, phase: Phase, group_size: int, records: int, choice: int) -> Composed:
        """Other records of gradient 0 (choice 0), or of the inserted records' gradient (1)."""
        drawn = SCHEMES["fixed"].step(phase, group_size, records)
        return ((drawn if choice else self._double(drawn, 0.5), phase.steps),)

    @staticmethod
    def _double(drawn: Mixture, scale: float) -> Pair:
        side = accounting.Mixture(scale * drawn.sensitivities, drawn.probabilities, drawn.sigma)
        return accounting.DoubleMixture(side, side)


class _ReplacedInShuffled(_Shuffled):
    """Both records have the same places, and an epoch's sums are at most 2 k apart (Theorem 53)."""

    means = ((2.0, 0.0), (0.0, 2.0))
    moved = 2


#: The sampling schemes with a theorem for replaced records.
REPLACED: Mapping[str, SchemeTheory] = {
    "poisson": _Replaced(),
    "full": _Replaced(),
    "fixed": _ReplacedInFixed(),
    "shuffled": _ReplacedInShuffled(),
}


def accounted(spec: Spec) -> tuple[Phase, ...]:
    """The phases of a spec as theorems need them, with the key ``replaced`` under replace-one adjacency.

    With adaptive clipping the noise multiplier is the one of gradients and count together (Theorem 54).
    """
    phases = tuple(map(_with_count, spec.phases))
    if spec.threat_model.adjacency == "replace-one":
        return tuple(phase.replace(replaced=True) for phase in phases)
    return phases


def _with_count(phase: Phase) -> Phase:
    if phase.clipping_scheme != "adaptive" or phase.noise_multiplier < NO_NOISE:
        return phase
    count_std, centered = float(phase["clipping"]["count_std"]), bool(phase["clipping"].get("centered", True))
    joint = accounting.joint_noise_multiplier(phase.noise_multiplier, count_std, centered=centered)
    return phase.replace(noise_multiplier=joint)


#: Angles of the members' gradients for lower bounds of truncated batches (Theorem 5a).
REVEALING = (0.5 * math.pi, 0.0, 0.3)

#: Shares of batches that are compared with batches of as many others (Theorem 4a); each gives an upper bound.
_SHARES = (0.02, 0.08, 0.2, 0.35, 0.5, 0.7, 0.87, 0.95, 0.98, 0.992, 0.999)

#: The largest numbers of claimed and of other values at which the best share is searched, and their relative width.
_SEARCHED, _SEARCH_WIDTH = 6, 1e-2

#: Bounds of truncated batches this close to each other, relatively, are not refined.
_CLOSE = 2e-3


def scheme_of(phase: Phase) -> SchemeTheory:
    return (REPLACED if phase.get("replaced") else SCHEMES)[phase.sampling.scheme]


def is_replaced(phases: Sequence[Phase]) -> bool:
    return bool(phases[0].get("replaced"))


def drawn(phases: Sequence[Phase]) -> set[str]:
    """Names of the sampling schemes of the phases."""
    return {phase.sampling.scheme for phase in phases}


def is_alike(phase: Phase, members: int) -> bool:
    """Whether the phase attains the pair of ``members`` with one gradient."""
    if phase.sampling.epoch_steps is None:
        return True
    return phase.noise_multiplier >= MIN_ALLOCATED_NOISE * members and phase.sampling.batches_per_epoch == 1


#: Directions of specs, and of the accountant: present-first compares the dataset with the group to the one without.
DIRECTIONS: dict[str, Direction] = {"remove": "present-first", "add": "absent-first"}

#: Noise multipliers below this count as no noise: epsilon overflows.
NO_NOISE = 1e-100

#: With less noise the largest sum for the other direction has losses on long grids, and bounds less.
_BOTH_SUMS = 0.3

#: With less noise grids for replaced records are too long for a tight lower end.
_STEEP = 0.2

#: Rounding error of a square root of a sum of at most 10^6 products.
_ROUNDING = 1e-9

#: Relative widths of intervals of epsilon: default, and without a claim (one composition per direction gives a curve).
WIDTH, CURVE_WIDTH = 1e-4, 1e-3

#: The widths of smaller epsilons are relative to these; the second is for curves of batches with a cap.
LEAST, CURVE_LEAST = 1e-7, 1.0

MU_SOURCE = "Ganesh 2024, Lemma 2.9; Dong, Roth & Su 2022, Corollary 3.3"


def source_of(phases: Sequence[Phase]) -> str:
    schemes = REPLACED if is_replaced(phases) else SCHEMES
    sources = [schemes[scheme].source for scheme in sorted(drawn(phases))]
    several = any(phase.sampling.batches_per_epoch > 1 for phase in phases)
    return "; ".join([*sources, "several batches per epoch: one block of steps each"] if several else sources)


def composed(phases: Sequence[Phase], group_size: int, records: int) -> Composed:
    """Pairs that dominate the phases, with the number of compositions of each."""
    return tuple(pair for phase in phases for pair in scheme_of(phase).composed(phase, group_size, records))


def _from_below(phases: Sequence[Phase], group_size: int, records: int, direction: str) -> list[Composed]:
    """Alternative pairs that all steps attain on some data; empty if unknown or if the dominating ones are attained."""
    schemes = drawn(phases)
    shuffled = "shuffled" in schemes
    is_steep = min(phase.noise_multiplier for phase in phases) < _STEEP and schemes != {"full"}
    if is_replaced(phases) and not shuffled and (is_steep or schemes == {"fixed"}):
        return [
            tuple(pair for phase in phases for pair in scheme_of(phase).attained(phase, group_size, records, choice))
            for choice in (0, 1)
        ]
    # With other schemes shuffled batches need other gradients of the other records.
    if not schemes & {"truncated-poisson", "random-allocation", "shuffled"} or (shuffled and len(schemes) > 1):
        return []
    choices: tuple[int, ...] = (1, 0) if "random-allocation" in schemes else (0,)
    if is_truncated(phases):
        choices = tuple(range(0, -len(REVEALING) - 1, -1))
    elif shuffled:
        natural = 0 if direction == "remove" else 1
        choices = (0, 1, 2) if min(phase.noise_multiplier for phase in phases) >= _BOTH_SUMS else (natural, 2)
    elif all(is_alike(phase, group_size) for phase in phases):
        if group_size == 1 and "truncated-poisson" not in schemes:
            return []
        choices = (group_size,) if group_size <= accounting.EqualMembers.most_members else choices
    return [
        tuple(pair for phase in phases for pair in scheme_of(phase).attained(phase, group_size, records, choice))
        for choice in choices
    ]


def uncovered(phases: Sequence[Phase], adjacencies: Collection[str]) -> str:
    """Reason why no theorem bounds these phases under one of the adjacencies; empty if a theorem does."""
    if "add-remove" in adjacencies and "shuffled" in drawn(phases):
        return "no theorem covers shuffled batches under add-remove adjacency: all batches of an epoch change"
    return ""


def last_batches(phases: Sequence[Phase], group_size: int, records: int) -> tuple[float, int]:
    """The mu, rounded down, of a group in the last batch of each epoch (``proofs/shuffle.md``, Theorem 23); 0 if none.

    Returns:
        mu, and the number of records of the smaller dataset.
    """
    candidates = [(0.0, records)]
    for smaller in (records, records - 1, records - group_size) if drawn(phases) == {"shuffled"} else ():
        sizes = [int(phase["sampling"]["batch_size"]) for phase in phases]
        if smaller < max(sizes):
            continue
        added = min([group_size, *(size - smaller % size for size in sizes if smaller % size)])
        squares = (
            phase.steps // -(-smaller // size) * (added / phase.noise_multiplier) ** 2
            for phase, size in zip(phases, sizes, strict=True)
            if smaller % size and phase.noise_multiplier >= NO_NOISE
        )
        candidates.append((math.sqrt(math.fsum(squares)) * (1.0 - _ROUNDING), smaller))
    return max(candidates)


def loss_intervals(
    phases: Sequence[Phase],
    group_size: int,
    records: int,
    direction: str,
    question: Question,
    leading: Sequence[int] = (0,),
    least: Sequence[float] = (0.0,),
) -> list[Interval]:
    """Worst-case values, from the attained pairs (0 for shuffled with other batches) to the dominating pairs.

    Args:
        phases: as accounted.
        group_size: number of records of the group.
        records: number of records of the dataset.
        direction: remove or add.
        question: the values of a loss.
        leading: indices of the values at which bounds with a free parameter are optimized.
        least: of each value: smaller ones have the absolute width of this one.
    """

    def answers(pairs: Composed, indices: Sequence[int] | None = None, width: float = 0.0) -> list[Interval]:
        return question(accounting.PrivacyLoss(pairs, DIRECTIONS[direction]), indices, width)

    highs, schemes = answers(composed(phases, group_size, records)), drawn(phases)
    if "random-allocation" in schemes:  # alternative pairs with its shared steps revealed, unless out of range
        revealed_pairs = [scheme_of(phase).revealed(phase, group_size, records) for phase in phases]
        if all(revealed_pairs):
            alternatives = answers(tuple(pair for pairs in revealed_pairs for pair in pairs))
            highs = [min(pair, key=_upper) for pair in zip(highs, alternatives, strict=True)]
    attained_pairs = _from_below(phases, group_size, records, direction)
    if attained_pairs and is_truncated(phases):
        intervals = _between(highs, map(answers, attained_pairs[:2]))
        wide = _far_apart(intervals, least)
        if wide:
            _route(phases, group_size, records, answers, highs, wide, leading)
            intervals = _between(highs, [intervals])
        if not _far_apart(intervals, least):
            return intervals
        return _between(intervals, [intervals, *map(answers, attained_pairs[2:])])
    if "shuffled" in schemes and not attained_pairs:
        return [accounting.Interval(0.0, high.upper, high.method, "no lower bound is known") for high in highs]
    if not attained_pairs:
        return highs
    return _between(highs, map(answers, attained_pairs))


def _between(highs: Sequence[Interval], alternatives: Iterable[Sequence[Interval]]) -> list[Interval]:
    """Intervals from the largest lower end of ``alternatives`` to the upper end of ``highs``."""
    lows = [max(ends, key=lambda low: low.lower) for ends in zip(*alternatives, strict=True)]
    return [
        accounting.Interval(min(low.lower, high.upper), high.upper, high.method, low.lower_method)
        for low, high in zip(lows, highs, strict=True)
    ]


def _far_apart(intervals: Sequence[Interval], least: Sequence[float]) -> list[int]:
    """Indices of the intervals that need refinement."""
    pairs = enumerate(zip(intervals, least, strict=True))
    return [i for i, (interval, smallest) in pairs if interval.width > _CLOSE * max(interval.upper, smallest)]


def is_truncated(phases: Sequence[Phase]) -> bool:
    """Whether a phase has batches with a cap, and no phase has random allocation, fixed or shuffled batches."""
    schemes = drawn(phases)
    return "truncated-poisson" in schemes and schemes <= {"truncated-poisson", "poisson", "full"}


def _route(
    phases: Sequence[Phase],
    group_size: int,
    records: int,
    answers: Callable[[Composed, Sequence[int], float], list[Interval]],
    highs: list[Interval],
    wide: Sequence[int],
    leading: Sequence[int],
) -> None:
    """Replace the ``wide`` values of ``highs`` by Theorem 4a's where these are smaller, for neighbors of ``records``.

    A neighbor has j more or j fewer records, j = 1, ..., ``group_size``, and the smaller dataset ``records`` or
    ``records`` - j. Theorem 4 for a smaller group covers all groups of up to its size. Every share gives a bound; the
    best one is searched at the ``leading`` values, and used at the values next to them. Single records also
    have Theorem 4b.
    """
    if group_size == 1:
        compared = [_displaced(phases, records, smaller) for smaller in {records, max(0, records - 1)}]
        if all(compared):
            for i, *ends in zip(wide, *(answers(pairs, wide, 0.0) for pairs in compared), strict=True):
                highs[i] = min(highs[i], max(ends, key=_upper), key=_upper)

    @functools.cache
    def routed(
        size: int, share: float, smaller: int, indices: tuple[int, ...], width: float = 0.0
    ) -> dict[int, Interval]:
        pairs = [
            scheme.routed(phase, size, smaller, share)
            if isinstance(scheme, _Truncated)
            else scheme.composed(phase, size, records)
            for phase, scheme in ((phase, scheme_of(phase)) for phase in phases)
        ]
        intervals = answers(tuple(pair for part in pairs for pair in part), indices, width)
        return dict(zip(indices, intervals, strict=True))

    searched = tuple(i for i in leading if i in wide) or (wide[len(wide) // 2],)

    def best_share(i: int) -> float:
        def upper(share_index: int) -> float:
            return routed(group_size, _SHARES[share_index], records, searched, _SEARCH_WIDTH)[i].upper

        share_index = len(_SHARES) // 2
        for step in (1, -1):  # the upper end falls and then rises with the share
            while 0 <= share_index + step < len(_SHARES) and upper(share_index + step) < upper(share_index):
                share_index += step
        return _SHARES[share_index]

    share_of = {i: best_share(i) for i in searched}
    indices_by_share: dict[float, list[int]] = {}
    for i in wide:
        nearest = min(searched, key=lambda index: abs(index - i))
        indices_by_share.setdefault(share_of[nearest], []).append(i)

    def worst(size: int, indices: Collection[int]) -> Iterator[tuple[int, Interval]]:
        for share, all_indices in indices_by_share.items():
            chosen = tuple(i for i in all_indices if i in indices)
            for i in chosen:
                yield i, max((routed(size, share, n, chosen)[i] for n in {records, max(0, records - size)}), key=_upper)

    for i, interval in worst(group_size, wide):
        highs[i] = min(highs[i], interval, key=_upper)
    for size in range(group_size - 1, 0, -1):
        fewer = dict(zip(wide, answers(composed(phases, size, records), wide, 0.0), strict=True))
        larger = {i: interval for i, interval in fewer.items() if interval.upper > highs[i].upper}
        if not larger:
            break
        for i, interval in worst(size, larger):
            highs[i] = max(highs[i], min(larger[i], interval, key=_upper), key=_upper)


def _displaced(phases: Sequence[Phase], records: int, smaller: int) -> Composed:
    """Pairs of all phases for single records by Theorem 4b, where the smaller dataset has ``smaller`` ones, or none."""
    pairs = [
        scheme.displaced(phase, smaller) if isinstance(scheme, _Truncated) else scheme.composed(phase, 1, records)
        for phase, scheme in ((phase, scheme_of(phase)) for phase in phases)
    ]
    return tuple(pair for part in pairs for pair in part) if all(pairs) else ()


def _upper(interval: Interval) -> float:
    return interval.upper


def group_epsilons(
    phases: Sequence[Phase],
    group_size: int,
    records: int,
    deltas: Sequence[float],
    direction: str,
    *,
    width: float | Sequence[float] = WIDTH,
    other_direction: Sequence[Interval | None] | None = None,
) -> list[Interval]:
    """Epsilon at each delta, in an interval of relative ``width``; ``both`` is the larger of both directions.

    Without noise it is infinite if delta is below the probability of outcomes that are impossible on the other dataset.
    """
    arguments = tuple(phases), group_size, records, tuple(deltas)
    widths = (width,) * len(deltas) if isinstance(width, float) else tuple(width)
    if direction != "both":
        other_intervals = None if other_direction is None else tuple(other_direction)
        return list(_epsilons(*arguments, direction, widths, other_intervals))
    remove = _epsilons(*arguments, "remove", widths, None)
    add = _epsilons(*arguments, "add", widths, remove)
    return [removed.worse(added) for removed, added in zip(remove, add, strict=True)]


@functools.lru_cache(maxsize=256)  # a run and its verification compute the same values
def _epsilons(
    phases: tuple[Phase, ...],
    group_size: int,
    records: int,
    deltas: tuple[float, ...],
    direction: str,
    widths: tuple[float, ...],
    other_direction: tuple[Interval | None, ...] | None,
) -> tuple[Interval, ...]:
    quiet = [phase for phase in phases if phase.noise_multiplier < NO_NOISE]
    if quiet:
        # A lower bound on the probability that these steps reveal the dataset with certainty: with the group if a
        # member is drawn, without it only if every batch would have a member.
        log_hidden = math.fsum(SCHEMES[phase.sampling.scheme].log_hidden(phase, group_size, records) for phase in quiet)
        reveal_probability = 0.0 if direction == "add" else -math.expm1(log_hidden) * (1.0 - 1e-9)
        reveal_probability = 1.0 if log_hidden == -math.inf else reveal_probability
        ends = (math.inf if delta < reveal_probability else 0.0 for delta in deltas)
        return tuple(accounting.Interval(end, math.inf).by("without noise") for end in ends)
    if _from_below(phases, group_size, records, direction):  # two pairs: refine fully
        other_direction = None

    is_coarse = is_truncated(phases)
    least = [CURVE_LEAST if is_coarse and width >= CURVE_WIDTH else LEAST for width in widths]

    def epsilons(loss: PrivacyLoss, indices: Sequence[int] | None, width: float) -> list[Interval]:
        chosen = range(len(deltas)) if indices is None else indices
        return loss.epsilons(
            [deltas[i] for i in chosen],
            width=[max(widths[i], width) for i in chosen],
            least=[least[i] for i in chosen],
            other_direction=other_direction and [other_direction[i] for i in chosen],
        )

    finest = [i for i, width in enumerate(widths) if width == min(widths)]
    leading = sorted({*finest[:: -(-len(finest) // _SEARCHED)], *range(0, len(deltas), -(-len(deltas) // _SEARCHED))})
    return tuple(loss_intervals(phases, group_size, records, direction, epsilons, leading, least))


def tpr_interval(phases: Sequence[Phase], group_size: int, records: int, fpr: float, direction: str) -> Interval:
    """The maximum true-positive rate at a false-positive rate in (0, 1], in a direction of the spec."""

    def powers(loss: PrivacyLoss, _: Sequence[int] | None, width: float) -> list[Interval]:
        return loss.reros([fpr], direction=loss.direction, width=max(WIDTH, width))

    rates = []
    for side in DIRECTIONS if direction == "both" else (direction,):
        rates += loss_intervals(phases, group_size, records, side, powers)
    return functools.reduce(accounting.Interval.worse, rates)


def mu_interval(phases: Sequence[Phase], group_size: int, records: int, epsilons: Mapping[float, Interval]) -> Interval:
    """The smallest mu for all steps: up to Theorem 19's, from the largest mu below an attained point."""
    upper = mu_of_all_steps(phases, group_size, records)
    lower = 0.0
    for delta, epsilon in epsilons.items():
        if not 0.0 < epsilon.lower < math.inf:
            continue
        low, high = 0.0, upper  # the delta of ``low`` at this epsilon is certainly below the attained one
        while high - low > 1e-6 * upper:
            middle = 0.5 * (low + high)
            below = accounting.PrivacyLoss.gaussian(1.0 / middle).delta(epsilon.lower).upper < delta
            low, high = (middle, high) if below else (low, middle)
        lower = max(lower, low)
    return accounting.Interval(min(lower, upper), upper).by("one mu for all deltas")


def rdp_interval(phases: Sequence[Phase], group_size: int, records: int, order: float, direction: str) -> Interval:
    """The Renyi divergence of all steps at an order above 1; without an upper end unless all pairs are mixtures."""
    all_pairs = composed(phases, group_size, records)
    pairs = [(pair, count) for pair, count in all_pairs if isinstance(pair, accounting.Mixture)]
    if is_replaced(phases):
        mu = mu_of_all_steps(phases, group_size, records)
        return accounting.Interval(0.0, 0.5 * order * mu * mu * (1.0 + _ROUNDING)).by("without amplification")
    if len(pairs) < len(all_pairs):
        return accounting.Interval(0.0, math.inf).by("no mixture of Gaussians has these pairs")
    worst = accounting.Interval(0.0, 0.0)
    for side in DIRECTIONS.values() if direction == "both" else (DIRECTIONS[direction],):
        ends = [(accounting.mixture_rdp_bounds(order, pair, side), count) for pair, count in pairs]
        below, above = (math.fsum(count * float(bounds[i][0]) for bounds, count in ends) for i in (0, 1))
        worst = worst.worse(accounting.Interval(below * (1.0 - _ROUNDING), above * (1.0 + _ROUNDING)))
    if _is_loose(phases):
        worst = accounting.Interval(0.0, worst.upper)
    return worst.by("sum of Renyi divergences")


def rho_interval(phases: Sequence[Phase], group_size: int, records: int, direction: str) -> Interval:
    """The smallest rho of zCDP: mu^2 / 2 without amplification, the limit for large orders if members are removed."""
    rho = 0.5 * mu_of_all_steps(phases, group_size, records) ** 2 * (1.0 + _ROUNDING)
    pairs = composed(phases, group_size, records)
    is_limit = (
        direction != "add"
        or is_replaced(phases)
        or all(isinstance(pair, accounting.Mixture) and pair.effect is not None for pair, _ in pairs)
    )
    lower = rho * (1.0 - 8.0 * _ROUNDING) if is_limit and not _is_loose(phases) else 0.0
    return accounting.Interval(lower, rho).by("limit of divergence per order")


def _is_loose(phases: Sequence[Phase]) -> bool:
    """Whether no data is known to attain the dominating pairs."""
    if is_replaced(phases) and "fixed" in drawn(phases):
        return True
    return bool(drawn(phases) & {"shuffled", "truncated-poisson", "random-allocation"})


def mu_of_all_steps(phases: Sequence[Phase], group_size: int, records: int) -> float:
    """The mu of Theorem 19, rounded up. It is inversely proportional to the noise."""
    squares = (count * pair.dominating_effect**2 for pair, count in composed(phases, group_size, records))
    return math.sqrt(math.fsum(squares)) * (1.0 + _ROUNDING)
