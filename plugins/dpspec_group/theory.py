"""Group privacy of DP-SGD: epsilon, rates, advantage and mu of a spec's phases.

``docs/explanation/proofs/groups.md`` has the theorems (20 and 21). In the direction remove a test detects the presence
of the group, in the direction add its absence.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from dpspec.accounting import Direction, EqualMembers, Interval, Mixture, PrivacyLoss, round_up
from dpspec.contract import Phase
from dpspec_group.schemes import SCHEMES, Composed, allocates, has_lower, scheme_of, truncates

#: Directions of specs, and of the accountant: present-first compares the dataset with the group to the one without.
DIRECTIONS: dict[str, Direction] = {"remove": "present-first", "add": "absent-first"}

#: Noise multipliers below this count as no noise: epsilon overflows.
NO_NOISE = 1e-100

#: Largest noise multiplier, relative to the declared one, that is reported as ruled out. Beyond it sampling dominates.
_MAX_NOISE_RATIO = 10.0

#: Rounding error of a square root of a sum of at most 10^6 products.
_ROUNDING = 1e-9

#: Default relative width of intervals of epsilon.
WIDTH = 1e-4

#: Relative width of epsilon in curves without a claim. One composition per direction computes a curve at this width.
CURVE_WIDTH = 1e-3

#: Source of the bound for records in several batches per epoch.
_SEVERAL = "several batches per epoch: one block of steps each"

#: Source of the bound on mu.
MU_SOURCE = "Ganesh 2024, Lemma 2.9; Dong, Roth & Su 2022, Corollary 3.3"


def source_of(phases: Sequence[Phase]) -> str:
    found = [SCHEMES[scheme].source for scheme in sorted({phase.sampling.scheme for phase in phases})]
    several = any(phase.sampling.batches_per_epoch > 1 for phase in phases)
    return "; ".join([*found, _SEVERAL] if several else found)


def composed(phases: Sequence[Phase], group_size: int, records: int) -> Composed:
    """Pairs that dominate the phases, with the number of compositions of each."""
    return tuple(pair for phase in phases for pair in scheme_of(phase).composed(phase, group_size, records))


def _from_below(phases: Sequence[Phase], group_size: int, records: int) -> list[Composed]:
    """Alternative pairs that all steps attain on some data; empty if the dominating pairs are attained."""
    allocated = allocates(phases)
    alike = all(scheme_of(phase).is_alike(phase, group_size) for phase in phases)
    if not truncates(phases) and (not allocated or (alike and group_size == 1)):
        return []
    if alike and group_size <= EqualMembers.most_members:
        choices: tuple[int, ...] = (group_size,)
    else:
        choices = (1, 0) if allocated else (0,)
    return [
        tuple(pair for phase in phases for pair in scheme_of(phase).attained(phase, group_size, records, members))
        for members in choices
    ]


def uncovered(phases: Sequence[Phase], adjacencies: Collection[str]) -> str:
    """Reason why no theorem bounds these phases under one of the adjacencies; empty if a theorem does."""
    if "add-remove" in adjacencies and not all(scheme_of(phase).add_remove for phase in phases):
        return "no theorem covers shuffled batches under add-remove adjacency: all batches of an epoch change"
    return ""


def loss_intervals(
    phases: Sequence[Phase],
    group_size: int,
    records: int,
    direction: str,
    question: Callable[[PrivacyLoss], list[Interval]],
) -> list[Interval]:
    """Intervals that contain the worst-case values of quantities of the privacy loss.

    The upper end is the value of the dominating pairs, the lower end the value of the attained pairs, or 0 for shuffled
    batches.
    """
    highs = question(PrivacyLoss(composed(phases, group_size, records), DIRECTIONS[direction]))
    # Alternative pairs with the shared steps of random allocation revealed; none without it or out of range.
    parts = [scheme_of(phase).revealed(phase, group_size, records) for phase in phases] if allocates(phases) else []
    if parts and all(parts):
        shared = tuple(pair for part in parts for pair in part)
        alternatives = question(PrivacyLoss(shared, DIRECTIONS[direction]))
        highs = [min(pair, key=lambda high: high.upper) for pair in zip(highs, alternatives, strict=True)]
    if not has_lower(phases):
        return [Interval(0.0, high.upper, high.method, "no lower bound is known") for high in highs]
    attained_pairs = _from_below(phases, group_size, records)
    if not attained_pairs:
        return highs
    candidates = zip(*(question(PrivacyLoss(pairs, DIRECTIONS[direction])) for pairs in attained_pairs), strict=True)
    lows = (max(ends, key=lambda low: low.lower) for ends in candidates)
    return [
        Interval(min(low.lower, high.upper), high.upper, high.method, low.lower_method)
        for low, high in zip(lows, highs, strict=True)
    ]


def canary_mixture(phase: Phase, group_size: int, records: int, *, spread: float = 0.0) -> Mixture:
    """Distribution of one step along the direction of a canary group: the drawn members, each of norm one, and noise.

    With fixed-size batches a drawn member displaces another record, whose gradient is orthogonal, unlike in the worst
    case of Theorem 3.3.
    """
    sigma = phase.noise_multiplier / math.cos(spread)
    rate = phase.rate(records)
    return Mixture.full(group_size, sigma) if rate >= 1.0 else Mixture.poisson(group_size, rate, sigma)


def group_epsilons(
    phases: Sequence[Phase],
    group_size: int,
    records: int,
    deltas: Sequence[float],
    direction: str,
    *,
    widths: Sequence[float] | None = None,
    other_direction: Sequence[Interval | None] | None = None,
) -> list[Interval]:
    """Epsilon at each delta for groups of up to ``group_size`` in one direction, with its worst-case value in each
    interval.

    Without noise it has no upper bound, and is infinite if delta is below the probability of outcomes that are
    impossible on the other dataset.
    """
    each = tuple(widths) if widths is not None else (WIDTH,) * len(deltas)
    others = None if other_direction is None else tuple(other_direction)
    return list(_epsilons(tuple(phases), group_size, records, tuple(deltas), direction, each, others))


def worst_epsilons(
    phases: Sequence[Phase],
    group_size: int,
    records: int,
    deltas: Sequence[float],
    direction: str,
    *,
    width: float = WIDTH,
) -> list[Interval]:
    widths = [width] * len(deltas)
    if direction != "both":
        return group_epsilons(phases, group_size, records, deltas, direction, widths=widths)
    remove = group_epsilons(phases, group_size, records, deltas, "remove", widths=widths)
    add = group_epsilons(phases, group_size, records, deltas, "add", widths=widths, other_direction=remove)
    return [one.worse(other) for one, other in zip(remove, add, strict=True)]


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
        log_hidden = math.fsum(scheme_of(phase).log_hidden(phase, group_size, records) for phase in quiet)
        seen = 0.0 if direction == "add" else -math.expm1(log_hidden) * (1.0 - 1e-9)
        seen = 1.0 if log_hidden == -math.inf else seen
        return tuple(Interval(math.inf if delta < seen else 0.0, math.inf).by("without noise") for delta in deltas)
    if has_lower(phases) and _from_below(phases, group_size, records):  # two pairs: refine fully
        other_direction = None
    question = functools.partial(PrivacyLoss.epsilons, deltas=deltas, width=widths, other_direction=other_direction)
    return tuple(loss_intervals(phases, group_size, records, direction, question))


def tpr_interval(phases: Sequence[Phase], group_size: int, records: int, fpr: float, direction: str) -> Interval:
    """The maximum true-positive rate at a false-positive rate in (0, 1], in a direction of the spec."""
    rates = []
    for side in DIRECTIONS if direction == "both" else (direction,):
        question = functools.partial(PrivacyLoss.reros, kappas=[fpr], direction=DIRECTIONS[side])
        rates += loss_intervals(phases, group_size, records, side, question)
    return functools.reduce(Interval.worse, rates)


def mu_interval(phases: Sequence[Phase], group_size: int, records: int, epsilons: Mapping[float, Interval]) -> Interval:
    """The smallest mu for which all steps are mu-GDP: up to the mu of Theorem 20, from the largest mu below an
    attained point.
    """
    upper = mu_of_all_steps(phases, group_size, records)
    lower = 0.0
    for delta, epsilon in epsilons.items():
        if not 0.0 < epsilon.lower < math.inf:
            continue
        low, high = 0.0, upper  # the delta of ``low`` at this epsilon is certainly below the attained one
        while high - low > 1e-6 * upper:
            middle = 0.5 * (low + high)
            below = PrivacyLoss.gaussian(1.0 / middle).delta(epsilon.lower).upper < delta
            low, high = (middle, high) if below else (low, middle)
        lower = max(lower, low)
    return Interval(min(lower, upper), upper).by("one mu for all deltas")


def mu_of_all_steps(phases: Sequence[Phase], group_size: int, records: int) -> float:
    """The mu of Theorem 20, rounded up. It is inversely proportional to the noise."""
    squares = (count * pair.dominating_effect**2 for pair, count in composed(phases, group_size, records))
    return math.sqrt(math.fsum(squares)) * (1.0 + _ROUNDING)


def noise_ruled_out(phases: Sequence[Phase], group_size: int, records: int, mu: float) -> str:
    """Text on the noise multipliers that the lower bound ``mu`` rules out: at least a / mu times the declared one,
    with a the mu of all steps.

    Amplification by sampling is ignored. Empty without a positive mu or noise, or above ten times the declared
    noise.
    """
    if not mu > 0.0 or any(phase.noise_multiplier < NO_NOISE for phase in phases):
        return ""
    times = mu_of_all_steps(phases, group_size, records) / mu
    if times > _MAX_NOISE_RATIO:
        return ""
    declared = {phase.noise_multiplier for phase in phases}
    if len(declared) > 1:
        return f"; rules out noise of at least {round_up(times, 4)} times the declared noise"
    return f"; rules out noise multipliers >= {round_up(times * declared.pop(), 4)} at these rates and steps"
