"""Group privacy of DP-SGD: the mixtures of Gaussians of a spec's phases, and epsilon, rates, advantage and mu.

Ganesh 2024, "Tight Group-Level DP Guarantees for DP-SGD with Sampling via Mixture of Gaussians Mechanisms":
with c the random number of group members in a batch (Theorem 3.1, Poisson: Binomial(k, rate)) or twice that number
(Theorem 3.3, fixed size: 2 Hypergeometric(batch, n + k, k)), the T-fold composition of the pair

    N(0, sigma^2)   and   sum_j P[c = j] N(j, sigma^2)

dominates T steps of DP-SGD for groups of up to k records, under add-up-to-k and remove-up-to-k. No membership test has
a larger true-positive rate at a false-positive rate, or a larger advantage tpr - fpr, than the best test of this pair.
In the direction remove the test detects the presence of the group, in the direction add its absence.

*One mu for all deltas.* An adversary who also sees c distinguishes N(c, sigma^2) from N(0, sigma^2), with the same
distribution of c in both. Given c = j this is G_(j/sigma), at most G_(s/sigma) with s the largest shift. Revealing c
can only help a test, so each step is s/sigma-GDP, and all steps are mu-GDP with

    mu = sqrt(sum over steps of (s / sigma)^2)                     (Dong, Roth & Su 2022, Corollary 3.3).

With Poisson batches no smaller mu holds for all deltas: all members are in all batches with a probability p > 0, so
that the best test for this event, of level Phi(-z), has power at least p Phi(mu - z), and ln p + ln Phi(mu - z) exceeds
ln Phi(m - z) for every m < mu and large z. Therefore mu does not reflect the amplification by sampling.

*Random allocation.* ``docs/explanation/proofs/random-allocation.md``: with the noise of each step split among the k
members (Theorem 1) an epoch is dominated by k independent pairs RandomAllocation(t, sigma / sqrt(k)), and for groups of
at most four also by the pair that reveals which members share steps (Theorem 2). The smaller epsilon is used. For k = 1
both are attained. Lower bounds come from k members with one gradient (Theorem 3), and outside its range from a single
member and from the sum over an epoch: N(k, t sigma^2) against N(0, t sigma^2). If sigma / sqrt(k) is below the range of
the accountant, the steps count as revealed, which is an upper bound: one Gaussian release with noise sigma and
sensitivity k.

*Several batches per epoch.* A member is in a uniformly random set of r of the t steps. Cut the t steps, in random
order, into r blocks of floor(t / r) or ceil(t / r) steps, and draw one step of each block uniformly: all sets of r
steps are equally likely. An adversary who sees the blocks, which have the same distribution without the member,
observes one independent allocation per block. By joint convexity this leaks at least as much. An epoch is therefore
dominated, for each member, by r - (t mod r) pairs of floor(t / r) steps and t mod r pairs of one step more. (Feldman &
Shenfeld 2025 treat r of t.) The lower end is the divergence of the sums, N(k r, t sigma^2). The exact value is not
known.

For truncated Poisson batches, the dominating and the attained pair differ (``dpspec.accounting.TruncatedPoisson``) and
give the two ends of the interval.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence

from dpspec.accounting import (
    Direction,
    EqualMembers,
    Interval,
    Mixture,
    Pair,
    PrivacyLoss,
    RandomAllocation,
    TruncatedPoisson,
    round_up,
)
from dpspec.contract import Phase

#: Directions of specs, and of the accountant: present-first compares the dataset with the group to the one without.
DIRECTIONS: dict[str, Direction] = {"remove": "present-first", "add": "absent-first"}

#: Noise multipliers below this count as no noise: epsilon overflows.
NO_NOISE = 1e-100

#: Below this noise, in clip norms, the bound of random allocation assumes that its steps are revealed.
MIN_ALLOCATED_NOISE = 0.1

#: Rounding error of a product of two correctly rounded numbers.
_LAST_PLACE = 4.0 * sys.float_info.epsilon

#: Largest noise multiplier, relative to the declared one, that is reported as ruled out. Beyond it sampling dominates.
_MAX_NOISE_RATIO = 10.0

#: Rounding error of a square root of a sum of at most 10^6 products.
_ROUNDING = 1e-9

#: Default relative width of intervals of epsilon.
WIDTH = 1e-4

#: Relative width of epsilon in curves without a claim. One composition per direction computes a curve at this width.
CURVE_WIDTH = 1e-3

SOURCES = {
    "poisson": "Ganesh 2024, Theorem 3.1",
    "fixed": "Ganesh 2024, Theorem 3.3",
    "full": "Ganesh 2024, Theorem 3.1 at rate 1",
    "shuffled": "one Gaussian release per epoch, without amplification",
    "truncated-poisson": "Ganesh 2024, Lemma 2.9, given which batches are full; one record: Ganesh 2025",
    "random-allocation": "Chua et al. 2025 and Feldman & Shenfeld 2025, one record; groups: proofs, Theorems 1 and 2",
}

#: Source of the bound for records in several batches per epoch.
_SEVERAL = "several batches per epoch: one block of steps each"

#: Source of the bound on mu.
MU_SOURCE = "Ganesh 2024, Lemma 2.9; Dong, Roth & Su 2022, Corollary 3.3"


def source_of(phases: Sequence[Phase]) -> str:
    """Sources of the bound for these phases."""
    found = [SOURCES[scheme] for scheme in sorted({phase.sampling.scheme for phase in phases})]
    several = any(phase.sampling.batches_per_epoch > 1 for phase in phases)
    return "; ".join([*found, _SEVERAL] if several else found)


def dominating(phase: Phase, group_size: int, records: int) -> Pair:
    """A pair that dominates one step of a phase, in units of the clip norm.

    Args:
        phase: The phase.
        group_size: k.
        records: Size of the dataset. The smaller dataset of a pair has at least ``records - group_size`` records for
            fixed-size batches (Theorem 3.3), and between this and ``records`` for truncated batches.

    Raises:
        ValueError: If an argument is invalid or no theorem covers the sampling scheme.
    """
    if phase.sampling.scheme == "truncated-poisson":
        fewest = max(0, records - group_size)
        return _truncated(phase, group_size, records, phase.noise_multiplier, fewest).above()
    return attained(phase, group_size, records)


def attained(phase: Phase, group_size: int, records: int) -> Mixture:
    """A pair that one step of a phase attains on some data: the dominating pair, except for truncated batches.

    For truncated batches the smaller dataset has ``records - group_size`` records.

    Raises:
        ValueError: As :func:`dominating`.
    """
    sampling, sigma = phase.sampling, phase.noise_multiplier
    match sampling.scheme:
        case "poisson":
            return Mixture.poisson(group_size, phase.rate(), sigma)
        case "truncated-poisson":
            return _truncated(phase, group_size, max(0, records - group_size), sigma).attained()
        case "fixed":
            return Mixture.fixed(group_size, records - group_size, int(phase["sampling"]["batch_size"]), sigma)
        case "full":
            return Mixture.full(group_size, sigma)
    raise ValueError(f"no theorem here covers {sampling.scheme} batches")


def _truncated(phase: Phase, group_size: int, smaller: int, sigma: float, fewest: int = 0) -> TruncatedPoisson:
    return TruncatedPoisson(group_size, phase.rate(), int(phase["sampling"]["max_batch"]), smaller, sigma, fewest)


def truncates(phases: Sequence[Phase]) -> bool:
    """Whether a phase has truncated batches, whose dominating and attained pairs differ."""
    return any(phase.sampling.scheme == "truncated-poisson" for phase in phases)


def composed(phase: Phase, group_size: int, records: int) -> tuple[tuple[Pair, int], ...]:
    """Pairs that dominate a phase, with the number of compositions of each.

    Shuffled batches under zero-out adjacency: given the orders, every member is in one batch per epoch. The total shift
    of an epoch's sums has norm at most k, so that one Gaussian release of sensitivity k dominates the epoch. Unknown
    orders leak at most as much (joint convexity). A phase begins ceil(steps / ceil(records / batch_size)) epochs, and
    no more with more records. Random allocation: see the module.
    """
    if phase.sampling.scheme == "random-allocation":
        return _allocated(phase, group_size)
    if phase.sampling.scheme == "shuffled":
        batches = -(-records // int(phase["sampling"]["batch_size"]))
        return ((Mixture.full(group_size, phase.noise_multiplier), -(-phase.steps // batches)),)
    return ((dominating(phase, group_size, records), phase.steps),)


def _epochs(phase: Phase) -> tuple[int, int]:
    """Number of epochs of random allocation, and of steps in each."""
    steps = int(phase["sampling"]["epoch_steps"])
    epochs, rest = divmod(phase.steps, steps)
    if rest:
        raise ValueError(f"steps must be a multiple of {steps}, the steps of an epoch, got {phase.steps}")
    return epochs, steps


def _allocated(phase: Phase, group_size: int) -> tuple[tuple[Pair, int], ...]:
    """Pairs that dominate all epochs: one per member, or Gaussian pairs if the noise per member is out of range.

    With r batches per epoch the squared norms of the revealed steps' shifts sum to at most k^2 r: no step has more than
    k members, and all steps have k r.
    """
    epochs, steps = _epochs(phase)
    each, times = _noise_of_each(phase, group_size), phase.sampling.batches_per_epoch
    if each < MIN_ALLOCATED_NOISE:
        return ((Mixture.full(group_size, phase.noise_multiplier), epochs * times),)
    short, longer = divmod(steps, times)
    blocks = ((short, times - longer), (short + 1, longer))
    return tuple((RandomAllocation(length, each), epochs * group_size * count) for length, count in blocks if count)


def _noise_of_each(phase: Phase, group_size: int) -> float:
    """The noise per member if it is split among the members, rounded down from sigma / sqrt(k)."""
    sigma = phase.noise_multiplier
    return sigma if group_size == 1 else sigma / math.sqrt(group_size) * (1.0 - _LAST_PLACE)


def allocates(phases: Sequence[Phase]) -> bool:
    """Whether a phase uses random allocation."""
    return any(phase.sampling.scheme == "random-allocation" for phase in phases)


def _shared(phases: Sequence[Phase], group_size: int, records: int) -> tuple[tuple[Pair, int], ...]:
    """Dominating pairs with the shared steps revealed (Theorem 2); none without random allocation or out of range."""
    if group_size == 1 or group_size > RandomAllocation.most_members or not allocates(phases):
        return ()
    pairs: list[tuple[Pair, int]] = []
    for phase in phases:
        if phase.sampling.scheme != "random-allocation":
            pairs.extend(composed(phase, group_size, records))
            continue
        if phase.noise_multiplier < MIN_ALLOCATED_NOISE * group_size or phase.sampling.batches_per_epoch > 1:
            return ()
        epochs, steps = _epochs(phase)
        pairs.append((RandomAllocation(steps, phase.noise_multiplier, group_size), epochs))
    return tuple(pairs)


def _from_below(phases: Sequence[Phase], group_size: int, records: int) -> list[tuple[tuple[Pair, int], ...]]:
    """Alternative pairs that all steps attain on some data; empty if the dominating pairs are attained."""
    allocated = [phase for phase in phases if phase.sampling.scheme == "random-allocation"]
    alike = all(
        phase.noise_multiplier >= MIN_ALLOCATED_NOISE * group_size and phase.sampling.batches_per_epoch == 1
        for phase in allocated
    )
    if not truncates(phases) and (not allocated or (alike and group_size == 1)):
        return []
    if alike and group_size <= EqualMembers.most_members:
        return [_attained_pairs(phases, group_size, records, group_size)]
    return [_attained_pairs(phases, group_size, records, members) for members in ((1, 0) if allocated else (0,))]


def _attained_pairs(
    phases: Sequence[Phase], group_size: int, records: int, members: int
) -> tuple[tuple[Pair, int], ...]:
    """Pairs that all steps attain on some data.

    Args:
        phases: The phases.
        group_size: k.
        records: Size of the dataset.
        members: Number of members with one common gradient in an epoch of random allocation. 0, or a number out of
            range, uses the sum over the epoch with all members.
    """
    pairs: list[tuple[Pair, int]] = []
    for phase in phases:
        if phase.sampling.scheme != "random-allocation":
            pairs.append((attained(phase, group_size, records), phase.steps))
            continue
        epochs, steps = _epochs(phase)
        times = phase.sampling.batches_per_epoch
        if members and times == 1 and phase.noise_multiplier >= MIN_ALLOCATED_NOISE * members:
            kind = RandomAllocation if members == 1 else EqualMembers
            pairs.append((kind(steps, phase.noise_multiplier, members), epochs))
        else:
            shift = group_size * times / math.sqrt(steps) * (1.0 - 2.0 * _LAST_PLACE)
            pairs.append((Mixture([shift], [1.0], phase.noise_multiplier), epochs))
    return tuple(pairs)


def shuffles(phases: Sequence[Phase]) -> bool:
    """Whether a phase has shuffled batches, which have no lower bound."""
    return any(phase.sampling.scheme == "shuffled" for phase in phases)


def uncovered(phases: Sequence[Phase], adjacencies: Collection[str]) -> str:
    """Reason why no theorem bounds these phases under one of the adjacencies; empty if a theorem does.

    An additional record shifts all later records in the order of an epoch: every batch can change by two records, and
    the number of batches by one. The Gaussian release per epoch requires neighbours with equal orders.
    """
    if shuffles(phases) and "add-remove" in adjacencies:
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
    if shuffles(phases):
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
    if _from_below(phases, group_size, records):  # the interval combines two pairs, so refine fully
        other_direction = None
    question = functools.partial(PrivacyLoss.epsilons, deltas=deltas, width=widths, other_direction=other_direction)
    return tuple(loss_intervals(phases, group_size, records, direction, question))


def _detection_probability(quiet: Sequence[Phase], group_size: int, records: int, direction: str) -> float:
    """Lower bound on the probability that steps without noise reveal the dataset with certainty.

    With the group they do if a member is drawn. Without the group they do only if every batch would have a member.
    """
    log_hidden = 0.0
    for phase in quiet:
        if phase.sampling.scheme == "shuffled":
            continue
        if phase.sampling.scheme == "random-allocation":
            return 1.0  # every member is in every epoch
        drawn = attained(phase.replace(noise_multiplier=1.0), group_size, records)
        missed = float(drawn.log_probabilities[0]) if drawn.sensitivities[0] == 0.0 else -math.inf
        log_hidden += phase.steps * missed
    if direction == "add":
        return 1.0 if log_hidden == -math.inf else 0.0
    return -math.expm1(log_hidden) * (1.0 - 1e-9)


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
