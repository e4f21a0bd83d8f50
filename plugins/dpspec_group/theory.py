"""Group privacy of DP-SGD: epsilon, rates, advantage and mu of phases, by the theorems of their sampling schemes.

``docs/explanation/proofs/groups.md`` has Theorems 19 and 20, ``proofs/replaced.md`` Theorems 51 to 53.
Sensitivities are in units of the clip norm. In the direction remove a test detects the presence of the group, in the
direction add its absence. Functions take phases as accounted: see :func:`accounted`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from dpspec import accounting  # loads numpy at the first use
from dpspec.contract import Phase, Sampling
from dpspec.contract.phase import DISCRETE
from dpspec.sampling import Theory, scheme_of
from dpspec.sampling.poisson import REVEALING
from dpspec.sampling.random_allocation import is_alike
from dpspec.training.adaptive_clipping import with_count

if TYPE_CHECKING:
    from dpspec.accounting import Direction, Interval, PrivacyLoss
    from dpspec.contract import Spec
    from dpspec.sampling import Composed

#: Values of a loss in a direction, of all indices without a second argument, whose relative widths may be as large as
#: the third one. The last argument may have a number for each value: one that is certainly not above it may be wide.
Question: TypeAlias = "Callable[[PrivacyLoss, Sequence[int] | None, float, Sequence[float] | None], list[Interval]]"

#: The same of the loss of pairs.
_Answers: TypeAlias = "Callable[[Composed, Sequence[int] | None, float, Sequence[float] | None], list[Interval]]"


def accounted(spec: Spec) -> tuple[Phase, ...]:
    """The phases of a spec as theorems need them, with the key ``replaced`` under replace-one adjacency.

    With adaptive clipping the noise multiplier is the one of gradients and count together (Theorem 54), with discrete
    Gaussian noise the one of Gaussian noise that dominates it (``proofs/floating-point.md``, Theorem F3).
    """
    phases = tuple(map(_as_gaussian, map(_with_count, spec.phases)))
    if spec.threat_model.adjacency == "replace-one":
        return tuple(phase.replace(replaced=True) for phase in phases)
    return phases


def _with_count(phase: Phase) -> Phase:
    return phase if phase.noise_multiplier < NO_NOISE else with_count(phase)


def _as_gaussian(phase: Phase) -> Phase:
    if phase.noise != DISCRETE or phase.noise_multiplier < NO_NOISE:
        return phase
    from dpspec.accounting import dominating_noise_multiplier  # loads numpy

    return phase.replace(noise_multiplier=dominating_noise_multiplier(phase.noise_multiplier))


def is_discrete(phases: Sequence[Phase]) -> bool:
    """Whether noise is discrete: then no data is known to attain the bound of the Gaussian that dominates it."""
    return any(phase.noise == DISCRETE for phase in phases)


#: Shares of batches that are compared with batches of as many others (Theorem 4a); each gives an upper bound.
_SHARES = (0.02, 0.08, 0.2, 0.35, 0.5, 0.7, 0.87, 0.95, 0.98, 0.992, 0.999)

#: The largest numbers of claimed and of other values at which the best share is searched, and their relative width.
_SEARCHED, _SEARCH_WIDTH = 6, 1e-2

#: Bounds of truncated batches this close to each other, relatively, are not refined.
_CLOSE = 2e-3


def theory_of(phase: Phase) -> Theory:
    """The theorems of a phase's sampling scheme.

    Raises:
        LookupError: None is known.
    """
    scheme = scheme_of(phase)
    theory = scheme.replaced if phase.get("replaced") else scheme.theory
    if theory is None:
        raise LookupError(f"no theorem is known for {phase.sampling.scheme} batches")
    return theory


def is_replaced(phases: Sequence[Phase]) -> bool:
    return bool(phases[0].get("replaced"))


def drawn(phases: Sequence[Phase]) -> set[str]:
    """Names of the sampling schemes of the phases."""
    return {phase.sampling.scheme for phase in phases}


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
    source_by_scheme = {phase.sampling.scheme: theory_of(phase).source for phase in phases}
    sources = [source_by_scheme[scheme] for scheme in sorted(source_by_scheme)]
    several = any(phase.sampling.batches_per_epoch > 1 for phase in phases)
    return "; ".join([*sources, "several batches per epoch: one block of steps each"] if several else sources)


def composed(phases: Sequence[Phase], group_size: int, records: int) -> Composed:
    """Pairs that dominate the phases, with the number of compositions of each."""
    return tuple(pair for phase in phases for pair in theory_of(phase).composed(phase, group_size, records))


def _from_below(phases: Sequence[Phase], group_size: int, records: int, direction: str) -> list[Composed]:
    """Alternative pairs that all steps attain on some data; empty if unknown or if the dominating ones are attained."""
    alternatives = (
        tuple(pair for phase in phases for pair in theory_of(phase).attained(phase, group_size, records, choice))
        for choice in _choices(phases, group_size, direction)
    )
    return [pairs for pairs in alternatives if pairs]


def _choices(phases: Sequence[Phase], group_size: int, direction: str) -> Sequence[int]:
    schemes, noise = drawn(phases), min(phase.noise_multiplier for phase in phases)
    alone = any(theory_of(phase).alone for phase in phases)
    if is_replaced(phases) and not alone and ((noise < _STEEP and schemes != {"full"}) or schemes == {"fixed"}):
        return (0, 1)
    # Worst cases of schemes that need other gradients of the other records do not combine.
    if (alone and len(schemes) > 1) or _attain(phases, group_size):
        return ()
    if is_truncated(phases):
        return range(0, -len(REVEALING) - 1, -1)
    if alone:  # shuffled
        natural = 0 if direction == "remove" else 1
        return (0, 1, 2) if noise >= _BOTH_SUMS else (natural, 2)
    if "random-allocation" not in schemes:
        return (0,)
    equal_members = all(is_alike(phase, group_size) for phase in phases)
    return (group_size,) if equal_members and group_size <= accounting.RandomAllocation.most_members else (1, 0)


def _attain(phases: Sequence[Phase], group_size: int) -> bool:
    """Whether some data attains the dominating pairs of all phases."""
    return all(theory_of(phase).attains(phase, group_size) for phase in phases)


def uncovered(phases: Sequence[Phase], adjacencies: Collection[str]) -> str:
    """Reason why no theorem bounds these phases under one of the adjacencies; empty if a theorem does."""
    if "add-remove" not in adjacencies:
        return ""
    return next((theory_of(phase).uncovered for phase in phases if theory_of(phase).uncovered), "")


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

    def answers(
        pairs: Composed,
        indices: Sequence[int] | None = None,
        width: float = 0.0,
        enough: Sequence[float] | None = None,
    ) -> list[Interval]:
        return question(accounting.PrivacyLoss(pairs, DIRECTIONS[direction]), indices, width, enough)

    def between(alternatives: Sequence[Composed], earlier: Sequence[Interval] = ()) -> list[Interval]:
        """From the largest lower end of ``earlier`` and of the ``alternatives`` to the upper ends of ``highs``."""
        lows = list(earlier)
        for pairs in alternatives:
            intervals = answers(pairs, enough=list(map(_lower, lows)) or None)
            lows = [max(ends, key=_lower) for ends in zip(lows or intervals, intervals, strict=True)]
        return [
            accounting.Interval(min(low.lower, high.upper), high.upper, high.method, low.lower_method)
            for low, high in zip(lows, highs, strict=True)
        ]

    separate = composed(phases, group_size, records)
    joint = _joint(phases, group_size, records)
    highs = answers(joint or separate)
    if joint:
        lower = _may_lower(highs, separate, range(len(highs)), answers)
        for i, interval in zip(lower, answers(separate, lower, 0.0, None) if lower else (), strict=True):
            highs[i] = min(highs[i], interval, key=_upper)
    attained_pairs = _from_below(phases, group_size, records, direction)
    if attained_pairs and is_truncated(phases):
        intervals = between(attained_pairs[:2])
        wide = _far_apart(intervals, least)
        if wide:
            _route(phases, group_size, records, answers, highs, wide, leading)
            intervals = between((), intervals)
        return between(attained_pairs[2:], intervals) if _far_apart(intervals, least) else intervals
    if not attained_pairs and not _attain(phases, group_size):
        return [accounting.Interval(0.0, high.upper, high.method, "no lower bound is known") for high in highs]
    if not attained_pairs:
        return highs
    return between(attained_pairs)


def _joint(phases: Sequence[Phase], group_size: int, records: int) -> Composed:
    """Pairs of random allocation with all members in one, which dominate the phases; none if a phase has none."""
    if group_size == 1 or "random-allocation" not in drawn(phases):
        return ()
    pairs = [theory_of(phase).joint(phase, group_size, records) for phase in phases]
    return tuple(pair for part in pairs for pair in part) if all(pairs) else ()


def _may_lower(highs: Sequence[Interval], pairs: Composed, indices: Sequence[int], answers: _Answers) -> list[int]:
    """The ``indices`` at which a coarse answer about ``pairs`` has a lower end below the upper end of ``highs``."""
    coarse = answers(pairs, indices, _SEARCH_WIDTH, None)
    return [i for i, interval in zip(indices, coarse, strict=True) if interval.lower < highs[i].upper]


def _far_apart(intervals: Sequence[Interval], least: Sequence[float]) -> list[int]:
    """Indices of the intervals that need refinement."""
    pairs = enumerate(zip(intervals, least, strict=True))
    return [i for i, (interval, smallest) in pairs if interval.width > _CLOSE * max(interval.upper, smallest)]


def is_truncated(phases: Sequence[Phase]) -> bool:
    """Whether a phase has batches with a cap, and no phase has random allocation, fixed or shuffled batches."""
    schemes = drawn(phases)
    return "truncated-poisson" in schemes and schemes <= {"truncated-poisson", *Sampling.INDEPENDENT}


def _route(
    phases: Sequence[Phase],
    group_size: int,
    records: int,
    answers: _Answers,
    highs: list[Interval],
    wide: Sequence[int],
    leading: Sequence[int],
) -> None:
    """Replace the ``wide`` values of ``highs`` by smaller ones of Theorems 4a to 4d, for neighbors of ``records``.

    A neighbor has j more or j fewer records, j = 1, ..., ``group_size``, and the smaller dataset ``records`` or
    ``records`` - j. Theorem 4 for a smaller group covers all groups of up to its size. Every share gives a bound; the
    best one is searched at the ``leading`` values, and used at the values next to them. Theorems 4b and 4c
    have no share.
    """

    def worst(
        alternatives: Iterable[Composed], indices: Sequence[int], enough: Sequence[float] | None = None
    ) -> dict[int, Interval]:
        """The answers with the largest upper ends, by index, or none without ``alternatives``.

        Those that are not above ``enough`` may be wide.
        """
        largest: list[Interval] = []
        for pairs in alternatives if indices else ():
            intervals = answers(pairs, indices, 0.0, enough)
            largest = [max(ends, key=_upper) for ends in zip(largest or intervals, intervals, strict=True)]
            enough = [max(ends) for ends in zip(map(_upper, largest), enough or map(_upper, largest), strict=True)]
        return dict(zip(indices, largest, strict=bool(largest)))

    def displaced(size: int) -> list[Composed]:
        """The pairs of Theorem 4b or 4c for both smaller datasets, if these theorems hold."""
        pairs = [_displaced(phases, size, smaller) for smaller in dict.fromkeys((records, max(0, records - size)))]
        return pairs if all(pairs) else []

    def routed(size: int, share: float, smaller: int) -> Composed:
        pairs = [theory_of(phase).routed(phase, size, smaller, share) for phase in phases]
        return tuple(pair for part in pairs for pair in part)

    searched = tuple(i for i in leading if i in wide) or (wide[len(wide) // 2],)

    @functools.cache
    def rough(share: float) -> dict[int, Interval]:
        intervals = answers(routed(group_size, share, records), searched, _SEARCH_WIDTH, None)
        return dict(zip(searched, intervals, strict=True))

    def best_share(i: int) -> float:
        def upper(share_index: int) -> float:
            return rough(_SHARES[share_index])[i].upper

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

    def worst_routed(
        size: int, indices: Collection[int], *, narrow_above_highs: bool
    ) -> Iterator[tuple[int, Interval]]:
        """The largest answers of both smaller datasets; if ``narrow_above_highs``, others may be wide."""
        for share, all_indices in indices_by_share.items():
            chosen = [i for i in all_indices if i in indices]
            if chosen:
                datasets = dict.fromkeys((records, max(0, records - size)))
                alternatives = (routed(size, share, smaller) for smaller in datasets)
                enough = [highs[i].upper for i in chosen] if narrow_above_highs else None
                yield from worst(alternatives, chosen, enough).items()

    for i, interval in worst(displaced(group_size), wide).items():
        highs[i] = min(highs[i], interval, key=_upper)
    lower = [
        i
        for share, indices in indices_by_share.items()
        for i in _may_lower(highs, routed(group_size, share, records), indices, answers)
    ]
    for i, interval in worst_routed(group_size, lower, narrow_above_highs=False):
        highs[i] = min(highs[i], interval, key=_upper)
    for size in range(group_size - 1, 0, -1):
        fewer = worst([composed(phases, size, records)], wide, [highs[i].upper for i in wide])
        larger = {i: interval for i, interval in fewer.items() if interval.upper > highs[i].upper}
        if not larger:
            break
        for i, interval in worst(displaced(size), [*larger], [highs[i].upper for i in larger]).items():
            larger[i] = min(larger[i], interval, key=_upper)
        undecided = [i for i, interval in larger.items() if interval.upper > highs[i].upper]
        for i, interval in worst_routed(size, undecided, narrow_above_highs=True):
            larger[i] = min(larger[i], interval, key=_upper)
        for i, interval in larger.items():
            highs[i] = max(highs[i], interval, key=_upper)


def _displaced(phases: Sequence[Phase], group_size: int, smaller: int) -> Composed:
    """Pairs of all phases by Theorem 4b or 4c, where the smaller dataset has ``smaller`` records, or none."""
    pairs = [theory_of(phase).displaced(phase, smaller, group_size) for phase in phases]
    return tuple(pair for part in pairs for pair in part) if all(pairs) else ()


def _upper(interval: Interval) -> float:
    return interval.upper


def _lower(interval: Interval) -> float:
    return interval.lower


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
        log_hidden = math.fsum(theory_of(phase).log_hidden(phase, group_size, records) for phase in quiet)
        reveal_probability = 0.0 if direction == "add" else -math.expm1(log_hidden) * (1.0 - 1e-9)
        reveal_probability = 1.0 if log_hidden == -math.inf else reveal_probability
        ends = (math.inf if delta < reveal_probability else 0.0 for delta in deltas)
        return tuple(accounting.Interval(end, math.inf).by("without noise") for end in ends)
    if _from_below(phases, group_size, records, direction):  # two pairs: refine fully
        other_direction = None

    is_coarse = is_truncated(phases)
    least = [CURVE_LEAST if is_coarse and width >= CURVE_WIDTH else LEAST for width in widths]

    def epsilons(
        loss: PrivacyLoss, indices: Sequence[int] | None, width: float, enough: Sequence[float] | None
    ) -> list[Interval]:
        chosen = range(len(deltas)) if indices is None else indices
        opposite = other_direction and [other_direction[i] for i in chosen]
        if enough is not None:
            opposite = rivals(enough)
        return loss.epsilons(
            [deltas[i] for i in chosen],
            width=[max(widths[i], width) for i in chosen],
            least=[least[i] for i in chosen],
            other_direction=opposite,
        )

    finest = [i for i, width in enumerate(widths) if width == min(widths)]
    leading = sorted({*finest[:: -(-len(finest) // _SEARCHED)], *range(0, len(deltas), -(-len(deltas) // _SEARCHED))})
    return tuple(loss_intervals(phases, group_size, records, direction, epsilons, leading, least))


def rivals(epsilons: Sequence[float]) -> list[Interval | None]:
    """The ``other_direction`` of another loss whose epsilons matter only if they are above these.

    None for 0: an epsilon of 0 in one direction of a loss proves 0 in the other one, but not for another loss.
    """
    return [accounting.Interval(value, value) if 0.0 < value < math.inf else None for value in epsilons]


def tpr_interval(phases: Sequence[Phase], group_size: int, records: int, fpr: float, direction: str) -> Interval:
    """The maximum true-positive rate at a false-positive rate in (0, 1], in a direction of the spec."""

    def powers(loss: PrivacyLoss, _: object, width: float, enough: Sequence[float] | None) -> list[Interval]:
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
    return not all(theory_of(phase).tight for phase in phases)


def mu_of_all_steps(phases: Sequence[Phase], group_size: int, records: int) -> float:
    """The mu of Theorem 19, rounded up. It is inversely proportional to the noise."""
    squares = (count * pair.dominating_effect**2 for pair, count in composed(phases, group_size, records))
    return math.sqrt(math.fsum(squares)) * (1.0 + _ROUNDING)
