"""Group privacy of DP-SGD: epsilon, rates, advantage and mu of a spec's phases.

``docs/explanation/proofs/groups.md`` has the theorems (20 and 21). In the direction remove a test detects the presence
of the group, in the direction add its absence.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from dpspec.accounting import Direction, EqualMembers, Interval, Mixture, Pair, PrivacyLoss, round_up
from dpspec.contract import Phase
from dpspec_group.schemes import SCHEMES, Composed, allocates, allocation_of, has_lower, scheme_of, truncates

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
    """Sources of the bound for these phases."""
    found = [SCHEMES[scheme].source for scheme in sorted({phase.sampling.scheme for phase in phases})]
    several = any(phase.sampling.batches_per_epoch > 1 for phase in phases)
    return "; ".join([*found, _SEVERAL] if several else found)


def composed(phase: Phase, group_size: int, records: int) -> Composed:
    """Pairs that dominate a phase, with the number of compositions of each."""
    return scheme_of(phase).composed(phase, group_size, records)


def _shared(phases: Sequence[Phase], group_size: int, records: int) -> Composed:
    """Dominating pairs with the shared steps of random allocation revealed; none without it or out of range."""
    pairs: list[tuple[Pair, int]] = []
    if not allocates(phases):
        return ()
    for phase in phases:
        allocation = allocation_of(phase)
        revealed = allocation.revealed(phase, group_size) if allocation else composed(phase, group_size, records)
        if not revealed:
            return ()
        pairs.extend(revealed)
    return tuple(pairs)


def _from_below(phases: Sequence[Phase], group_size: int, records: int) -> list[Composed]:
    """Alternative pairs that all steps attain on some data; empty if the dominating pairs are attained."""
    allocated = allocates(phases)
    alike = all(a.is_alike(phase, group_size) for phase in phases if (a := allocation_of(phase)))
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

    Args:
        phases: The phases.
        group_size: k.
        records: Size of the dataset.
        direction: ``remove`` or ``add``.
        question: Computes the quantities from a privacy loss.
    """
    dominating_pairs = tuple(pair for phase in phases for pair in composed(phase, group_size, records))
    highs = question(PrivacyLoss(dominating_pairs, DIRECTIONS[direction]))
    if shared := _shared(phases, group_size, records):
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


def without_amplification(pair: Pair) -> Mixture:
    """The Gaussian pair with the largest sensitivity of a pair, which dominates it (Ganesh 2024, Lemma 2.9)."""
    return Mixture([pair.dominating_effect], [1.0], 1.0)


def canary_mixture(phase: Phase, group_size: int, records: int, *, spread: float = 0.0) -> Mixture:
    """Distribution of one step along the direction of a canary group: the drawn members, each of norm one, and noise.

    With fixed-size batches a drawn member displaces another record, whose gradient is orthogonal, unlike in the worst
    case of Theorem 3.3.

    Args:
        phase: The phase.
        group_size: Number of members.
        records: Number of records in the run, inserted ones included; it determines the rate of fixed-size batches.
        spread: Angle between a member and the direction, in radians. The noise is divided by its cosine, because only
            the ratio matters.
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
    """Epsilon at each delta for groups of up to ``group_size`` in one direction.

    Each interval contains the worst-case epsilon over the datasets of the theorem and adversaries who see all iterates.
    Without noise epsilon has no upper bound, and is infinite if delta is below the probability of outcomes that are
    impossible on the other dataset.

    Args:
        phases: The phases.
        group_size: k.
        records: Size of the dataset.
        deltas: Deltas, each in (0, 1).
        direction: ``remove`` or ``add``.
        widths: Relative width per delta; ``WIDTH`` by default.
        other_direction: The other direction's interval per delta if only the maximum of both matters, else None. An
            epsilon that is certainly not larger is not refined.
    """
    each = tuple(widths) if widths is not None else (WIDTH,) * len(deltas)
    others = tuple(other_direction) if other_direction is not None else None
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
    """Results of :func:`group_epsilons` for ``remove`` or ``add``, or the maximum of both for ``both``."""
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
        seen = _detection_probability(quiet, group_size, records, direction)
        return tuple(Interval(math.inf if delta < seen else 0.0, math.inf).by("without noise") for delta in deltas)
    if has_lower(phases) and _from_below(phases, group_size, records):  # two pairs: refine fully
        other_direction = None
    question = functools.partial(PrivacyLoss.epsilons, deltas=deltas, width=widths, other_direction=other_direction)
    return tuple(loss_intervals(phases, group_size, records, direction, question))


def _detection_probability(quiet: Sequence[Phase], group_size: int, records: int, direction: str) -> float:
    """Lower bound on the probability that steps without noise reveal the dataset with certainty.

    With the group they do if a member is drawn. Without the group they do only if every batch would have a member.
    """
    log_hidden = math.fsum(scheme_of(phase).log_hidden(phase, group_size, records) for phase in quiet)
    if log_hidden == -math.inf:
        return 1.0
    return 0.0 if direction == "add" else -math.expm1(log_hidden) * (1.0 - 1e-9)


def tpr_interval(phases: Sequence[Phase], group_size: int, records: int, fpr: float, direction: str) -> Interval:
    """The maximum true-positive rate at a false-positive rate in (0, 1], in a direction of the spec."""
    sides = DIRECTIONS if direction == "both" else (direction,)
    rates = [_rate(phases, group_size, records, fpr, side) for side in sides]
    return rates[0] if len(rates) == 1 else rates[0].worse(rates[1])


def advantage_interval(phases: Sequence[Phase], group_size: int, records: int) -> Interval:
    """The maximum advantage tpr - fpr of a test, which is equal in both directions."""
    (interval,) = loss_intervals(phases, group_size, records, "remove", lambda loss: [loss.advantage()])
    return interval


def mu_interval(phases: Sequence[Phase], group_size: int, records: int, epsilons: Mapping[float, Interval]) -> Interval:
    """Interval of the smallest mu for which all steps are mu-GDP for groups of ``group_size``.

    The upper end is the mu of the module. The lower end is the largest mu whose curve is below an attained point.

    Args:
        phases: The phases.
        group_size: k.
        records: Size of the dataset.
        epsilons: Epsilon by delta of the same phases in the direction of interest.
    """
    upper = mu_of_all_steps(phases, group_size, records)
    lower = 0.0
    for delta, epsilon in epsilons.items():
        lower = max(lower, _attained_mu(epsilon.lower, delta, upper))
    return Interval(min(lower, upper), upper).by("one mu for all deltas")


def mu_of_all_steps(phases: Sequence[Phase], group_size: int, records: int) -> float:
    """The mu of the module, rounded up. It is inversely proportional to the noise."""
    parts = (composed(phase, group_size, records) for phase in phases)
    squares = (count * pair.dominating_effect**2 for pairs in parts for pair, count in pairs)
    return math.sqrt(math.fsum(squares)) * (1.0 + _ROUNDING)


def noise_ruled_out(phases: Sequence[Phase], group_size: int, records: int, mu: float) -> str:
    """Text on the noise multipliers that the lower bound ``mu`` rules out at the declared rates and steps.

    These are multipliers of at least a / mu times the declared one, with a the mu of all steps. Amplification by
    sampling is ignored, so that for small rates the test rules out smaller noise too. Empty without a positive mu, for
    phases without noise, or above ten times the declared noise.
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


def _rate(phases: Sequence[Phase], group_size: int, records: int, fpr: float, side: str) -> Interval:
    direction = DIRECTIONS[side]
    (interval,) = loss_intervals(phases, group_size, records, side, lambda loss: [loss.rero(fpr, direction=direction)])
    return interval


def _attained_mu(epsilon: float, delta: float, largest: float) -> float:
    """The largest mu, up to ``largest``, whose delta at ``epsilon`` is certainly below the attained ``delta``."""
    if not 0.0 < epsilon < math.inf:
        return 0.0
    low, high = 0.0, largest
    while high - low > 1e-6 * largest:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if PrivacyLoss.gaussian(1.0 / middle).delta(epsilon).upper < delta else (low, middle)
    return low
