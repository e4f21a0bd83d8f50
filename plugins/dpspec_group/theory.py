"""Group privacy of DP-SGD: from a spec's phases to mixtures of Gaussians, and from those to epsilon, rates and mu.

Ganesh 2024, "Tight Group-Level DP Guarantees for DP-SGD with Sampling via Mixture of Gaussians Mechanisms":
with c the random number of group members in a batch (Theorem 3.1, Poisson: Binomial(k, rate)) or twice that number
(Theorem 3.3, fixed size: 2 Hypergeometric(batch, n + k, k)), the T-fold composition of the pair

    N(0, sigma^2)   and   sum_j P[c = j] N(j, sigma^2)

dominates T steps of DP-SGD for groups of up to k records, under add-up-to-k and remove-up-to-k. So no test of
membership has a larger true-positive rate at a false-positive rate, or a larger advantage tpr - fpr, than the best one
of this pair. The direction is the one in which the test looks: remove, for the group's presence; add, for its absence.

*One mu for all deltas.* Whoever is also told c sees N(c, sigma^2) against N(0, sigma^2), c of one law in both, and that
is G_(j/sigma) given c = j, at most G_(s/sigma) with s the largest shift. Telling c can only help a test, so each step
is s/sigma-GDP, and the whole

    mu = sqrt(sum over steps of (s / sigma)^2)                     (Dong, Roth & Su 2022, Corollary 3.3).

With Poisson batches no smaller mu holds for all deltas: all members are in all batches with a probability p > 0, so
that the best test for that, of level Phi(-z), has the power p Phi(mu - z) at least, and ln p + ln Phi(mu - z) exceeds
ln Phi(m - z) for every m < mu once z is large. So one mu knows nothing of the amplification by sampling.

*Random allocation.* ``docs/explanation/proofs/random-allocation.md``: with the noise of each step split among the k
members (Theorem 1) an epoch is dominated by k independent pairs RandomAllocation(t, sigma / sqrt(k)), and for groups of
at most four also by the pair that reveals which members share steps (Theorem 2); the smaller epsilon counts. With k = 1
both are attained. From below are k members of one gradient (Theorem 3), and beyond its range one member alone and the
sums of an epoch added up: N(k, t sigma^2) against N(0, t sigma^2). Where sigma / sqrt(k) is too small to compute with,
steps count as revealed: one Gaussian release of noise sigma and vectors no longer than k, which is never less.

*Several batches an epoch.* A member that is in r of the t steps, a uniformly random set of them, has W_s of that set
instead. Cut the t steps, in a random order, into r blocks of floor(t / r) or ceil(t / r) steps, and draw one step of
each block, uniformly: every set of r steps is as likely as any other. Who is told the blocks, which are drawn alike
without the member, sees independent W of one step of each block; that is not less, as what two mixtures of equal
weights leak is at most the mean of what their parts do (joint convexity). So an epoch is dominated, for each member, by
r - (t mod r) pairs of floor(t / r) steps and t mod r pairs of one step more. (Feldman & Shenfeld 2025 treat r of t.)
The lower end is that of sums, N(k r, t sigma^2); between the two nobody here knows.

Truncated Poisson batches have no one pair: they leak no more than one, and on some data as much as another
(``dpspec.accounting.TruncatedPoisson``). Their interval lies between the two.
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

#: The spec's words for people, and the accountant's: present-first compares with-the-group to without.
DIRECTIONS: dict[str, Direction] = {"remove": "present-first", "add": "absent-first"}

#: With less noise than this, epsilon is beyond what a float can hold.
NO_NOISE = 1e-100

#: Below this noise, in clip norms, an epoch of random allocation is bounded as if its steps were told.
LEAST_ALLOCATED = 0.1

#: Room for the rounding of a product of two correctly rounded numbers.
_LAST_PLACE = 4.0 * sys.float_info.epsilon

#: Noise that is ruled out is told of up to so many times the declared one: beyond, sampling decides what leaks.
_TOLD = 10.0

#: Room for the rounding of a square root of a sum of at most 10^6 products.
_ROUNDING = 1e-9

#: How narrow intervals of epsilon are, relative to themselves, where nothing else is said.
WIDTH = 1e-4

#: The same of curves that nobody claims: to three digits, which is more than is drawn or read off them, and at most a
#: thousandth larger than they need be. One composition in each direction gives all of a curve so, and not 1e-4.
CURVE_WIDTH = 1e-3

SOURCES = {
    "poisson": "Ganesh 2024, Theorem 3.1",
    "fixed": "Ganesh 2024, Theorem 3.3",
    "full": "Ganesh 2024, Theorem 3.1 at rate 1",
    "shuffled": "one Gaussian release for each epoch, not amplified",
    "truncated-poisson": "Ganesh 2024, Lemma 2.9, given which batches are full; one record: Ganesh 2025",
    "random-allocation": "Chua et al. 2025 and Feldman & Shenfeld 2025, one record; groups: proofs, Theorems 1 and 2",
}

#: Of random allocation in which records are in several batches of an epoch.
_SEVERAL = "several batches an epoch: a block of steps for each"

#: What one mu for all deltas rests on.
MU_SOURCE = "Ganesh 2024, Lemma 2.9; Dong, Roth & Su 2022, Corollary 3.3"


def source_of(phases: Sequence[Phase]) -> str:
    """The theorems behind the bound of these phases."""
    found = [SOURCES[scheme] for scheme in sorted({phase.sampling.scheme for phase in phases})]
    several = any(phase.sampling.batches_per_epoch > 1 for phase in phases)
    return "; ".join([*found, _SEVERAL] if several else found)


def dominating(phase: Phase, group_size: int, records: int) -> Pair:
    """A pair that dominates one step of a phase, in units of the clip norm.

    records: the size of the data set that is held. For fixed-size batches Theorem 3.3 wants a lower bound on the
    smaller data set of a pair, which is ``records - group_size``; truncated ones want both ends, up to ``records``.
    Raises ``ValueError`` naming the argument that does not fit, or the scheme that no theorem covers.
    """
    if phase.sampling.scheme == "truncated-poisson":
        fewest = max(0, records - group_size)
        return _truncated(phase, group_size, records, phase.noise_multiplier, fewest).above()
    return attained(phase, group_size, records)


def attained(phase: Phase, group_size: int, records: int) -> Mixture:
    """A pair that one step of a phase has for some data: the dominating one itself, unless batches are truncated.

    Of those the smaller data set has ``records - group_size`` records. Raises as :func:`dominating` does.
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
    """Whether some phase has truncated batches, so that what dominates it and what is attained are two things."""
    return any(phase.sampling.scheme == "truncated-poisson" for phase in phases)


def composed(phase: Phase, group_size: int, records: int) -> tuple[tuple[Pair, int], ...]:
    """What dominates a whole phase: pairs, each with how often it is composed.

    Shuffled batches, of records that stay and are put to nothing: given the orders, every member is in one batch of
    each epoch, so that an epoch moves its sums by vectors of length k at most together, and is dominated by one
    Gaussian release of sensitivity k; not knowing the orders can only leak less (joint convexity). A phase begins
    ceil(steps / ceil(records / batch_size)) epochs, and no more with more records. Random allocation: see the module.
    """
    if phase.sampling.scheme == "random-allocation":
        return _allocated(phase, group_size)
    if phase.sampling.scheme == "shuffled":
        batches = -(-records // int(phase["sampling"]["batch_size"]))
        return ((Mixture.full(group_size, phase.noise_multiplier), -(-phase.steps // batches)),)
    return ((dominating(phase, group_size, records), phase.steps),)


def _epochs(phase: Phase) -> tuple[int, int]:
    """How many epochs of random allocation there are, and of how many steps each is."""
    steps = int(phase["sampling"]["epoch_steps"])
    epochs, rest = divmod(phase.steps, steps)
    if rest:
        raise ValueError(f"steps must be a whole number of epochs of {steps}, got {phase.steps}")
    return epochs, steps


def _allocated(phase: Phase, group_size: int) -> tuple[tuple[Pair, int], ...]:
    """What dominates all epochs: pairs of each member, or Gaussian ones where members' are out of range.

    With r batches an epoch the told steps see vectors with squares that add up to k^2 r at most: no step has more than
    k members, and all of them together k r.
    """
    epochs, steps = _epochs(phase)
    each, times = _noise_of_each(phase, group_size), phase.sampling.batches_per_epoch
    if each < LEAST_ALLOCATED:
        return ((Mixture.full(group_size, phase.noise_multiplier), epochs * times),)
    short, longer = divmod(steps, times)
    blocks = ((short, times - longer), (short + 1, longer))
    return tuple((RandomAllocation(length, each), epochs * group_size * count) for length, count in blocks if count)


def _noise_of_each(phase: Phase, group_size: int) -> float:
    """The noise that is left for each member where it is split among them: not above sigma / sqrt(k)."""
    sigma = phase.noise_multiplier
    return sigma if group_size == 1 else sigma / math.sqrt(group_size) * (1.0 - _LAST_PLACE)


def allocates(phases: Sequence[Phase]) -> bool:
    """Whether some phase allocates records at random."""
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
        if phase.noise_multiplier < LEAST_ALLOCATED * group_size or phase.sampling.batches_per_epoch > 1:
            return ()
        epochs, steps = _epochs(phase)
        pairs.append((RandomAllocation(steps, phase.noise_multiplier, group_size), epochs))
    return tuple(pairs)


def _from_below(phases: Sequence[Phase], group_size: int, records: int) -> list[tuple[tuple[Pair, int], ...]]:
    """Pairs that all steps have for some data, other ones for other data; none if the dominating pairs are attained."""
    allocated = [phase for phase in phases if phase.sampling.scheme == "random-allocation"]
    alike = all(
        phase.noise_multiplier >= LEAST_ALLOCATED * group_size and phase.sampling.batches_per_epoch == 1
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
    """Pairs that all steps have for some data. In an epoch of random allocation ``members`` count, all with one
    gradient; 0, and where they are out of range: all members, by the sum of the epoch."""
    pairs: list[tuple[Pair, int]] = []
    for phase in phases:
        if phase.sampling.scheme != "random-allocation":
            pairs.append((attained(phase, group_size, records), phase.steps))
            continue
        epochs, steps = _epochs(phase)
        times = phase.sampling.batches_per_epoch
        if members and times == 1 and phase.noise_multiplier >= LEAST_ALLOCATED * members:
            kind = RandomAllocation if members == 1 else EqualMembers
            pairs.append((kind(steps, phase.noise_multiplier, members), epochs))
        else:
            shift = group_size * times / math.sqrt(steps) * (1.0 - 2.0 * _LAST_PLACE)
            pairs.append((Mixture([shift], [1.0], phase.noise_multiplier), epochs))
    return tuple(pairs)


def shuffles(phases: Sequence[Phase]) -> bool:
    """Whether some phase has shuffled batches, of which nothing is known from below."""
    return any(phase.sampling.scheme == "shuffled" for phase in phases)


def uncovered(phases: Sequence[Phase], adjacencies: Collection[str]) -> str:
    """Why nothing bounds these phases between such neighbours, in words; empty where something does.

    One record more moves all that come after it in the order of an epoch: every batch can change by two records, and
    their number by one. The Gaussian release for each epoch is of neighbours that share their orders.
    """
    if shuffles(phases) and "add-remove" in adjacencies:
        return "no theorem covers shuffled batches of records that come or go: all of an epoch's batches change"
    return ""


def ask(
    phases: Sequence[Phase],
    group_size: int,
    records: int,
    direction: str,
    question: Callable[[PrivacyLoss], list[Interval]],
) -> list[Interval]:
    """What is asked of a training's loss: intervals that hold what the mechanism leaks at worst.

    Where what dominates and what is attained are two things, from the lower end of the one to the upper of the other;
    from 0 where nothing is known from below.
    """
    above = tuple(pair for phase in phases for pair in composed(phase, group_size, records))
    most = question(PrivacyLoss(above, DIRECTIONS[direction]))
    if shared := _shared(phases, group_size, records):
        others = question(PrivacyLoss(shared, DIRECTIONS[direction]))
        most = [min(one, other, key=lambda high: high.upper) for one, other in zip(most, others, strict=True)]
    if shuffles(phases):
        return [Interval(0.0, high.upper, high.method, "nothing is known from below") for high in most]
    below = _from_below(phases, group_size, records)
    if not below:
        return most
    least = zip(*(question(PrivacyLoss(pairs, DIRECTIONS[direction])) for pairs in below), strict=True)
    best = (max(lows, key=lambda low: low.lower) for lows in least)
    return [
        Interval(min(low.lower, high.upper), high.upper, high.method, low.lower_method)
        for low, high in zip(best, most, strict=True)
    ]


def without_amplification(pair: Pair) -> Mixture:
    """The Gaussian pair whose sensitivity is the pair's largest: it dominates it (Ganesh 2024, Lemma 2.9)."""
    return Mixture([pair.dominating_effect], [1.0], 1.0)


def planted_mixture(phase: Phase, group_size: int, records: int, *, spread: float = 0.0) -> Mixture:
    """What one step adds along the direction of a planted group: members that were drawn, each of norm one.

    With fixed-size batches a drawn member displaces another record, whose gradient points elsewhere: the planted
    direction sees the member alone, unlike the worst case of Theorem 3.3.

    records: how many are in the run, planted ones included; batches of a fixed size include each the less often.
    spread: the angle between each member and the direction, which sees its cosine; the noise is divided by it, as only
    their ratio counts.
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
    beside: Sequence[Interval | None] | None = None,
) -> list[Interval]:
    """Epsilon at each delta for groups of up to ``group_size``, in one direction (``remove`` or ``add``).

    Each interval holds the worst-case epsilon over the data sets of the theorem and adversaries that see every iterate.
    Without noise nothing is bounded, and epsilon is infinite for certain where delta is below the chance of an outcome
    that the other data set never produces.

    widths: the relative width wanted at each delta, by default ``WIDTH``. beside: the other direction's interval at
    each delta, where only the worse of both counts, or None: an epsilon that is certainly no larger need not be narrow.
    """
    each = tuple(widths) if widths is not None else (WIDTH,) * len(deltas)
    others = tuple(beside) if beside is not None else None
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
    """The same in the worse of the directions that are spoken of: ``remove``, ``add`` or ``both``."""
    widths = [width] * len(deltas)
    if direction != "both":
        return group_epsilons(phases, group_size, records, deltas, direction, widths=widths)
    remove = group_epsilons(phases, group_size, records, deltas, "remove", widths=widths)
    add = group_epsilons(phases, group_size, records, deltas, "add", widths=widths, beside=remove)
    return [one.worse(other) for one, other in zip(remove, add, strict=True)]


@functools.lru_cache(maxsize=256)  # a run and its verification, and claims that differ in nothing else, ask the same
def _epsilons(
    phases: tuple[Phase, ...],
    group_size: int,
    records: int,
    deltas: tuple[float, ...],
    direction: str,
    widths: tuple[float, ...],
    beside: tuple[Interval | None, ...] | None,
) -> tuple[Interval, ...]:
    quiet = [phase for phase in phases if phase.noise_multiplier < NO_NOISE]
    if quiet:
        seen = _seen(quiet, group_size, records, direction)
        return tuple(Interval(math.inf if delta < seen else 0.0, math.inf).by("without noise") for delta in deltas)
    if _from_below(phases, group_size, records):  # the lower end is another pair's: these answer for two
        beside = None
    question = functools.partial(PrivacyLoss.epsilons, deltas=deltas, width=widths, beside=beside)
    return tuple(ask(phases, group_size, records, direction, question))


def _seen(quiet: Sequence[Phase], group_size: int, records: int, direction: str) -> float:
    """How likely steps without noise show for certain which data set it was: from below, up to rounding.

    With the group they do once a member is drawn. Without it they never do, unless every batch has a member.
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
    """The largest true-positive rate at a false-positive rate in (0, 1], in a direction of the spec."""
    sides = DIRECTIONS if direction == "both" else (direction,)
    rates = [_rate(phases, group_size, records, fpr, side) for side in sides]
    return rates[0] if len(rates) == 1 else rates[0].worse(rates[1])


def advantage_interval(phases: Sequence[Phase], group_size: int, records: int) -> Interval:
    """The largest advantage tpr - fpr of a test, which is the same in both directions."""
    (interval,) = ask(phases, group_size, records, "remove", lambda loss: [loss.advantage()])
    return interval


def mu_interval(phases: Sequence[Phase], group_size: int, records: int, epsilons: Mapping[float, Interval]) -> Interval:
    """The least mu for which all steps together are mu-GDP for groups of ``group_size``: up to the mu of the module,
    and from the largest whose curve lies below what is attained at one of the deltas.

    epsilons: by delta, of the same phases in the direction that is asked for.
    """
    upper = mu_of_all_steps(phases, group_size, records)
    lower = 0.0
    for delta, epsilon in epsilons.items():
        lower = max(lower, _attained_mu(epsilon.lower, delta, upper))
    return Interval(min(lower, upper), upper).by("one mu for all deltas")


def mu_of_all_steps(phases: Sequence[Phase], group_size: int, records: int) -> float:
    """The mu of the module, rounded up; noise a times as large has one a times as small."""
    parts = (composed(phase, group_size, records) for phase in phases)
    squares = (count * pair.dominating_effect**2 for pairs in parts for pair, count in pairs)
    return math.sqrt(math.fsum(squares)) * (1.0 + _ROUNDING)


def noise_ruled_out(phases: Sequence[Phase], group_size: int, records: int, mu: float) -> str:
    """The noise with which no training of the declared rates and steps has as large a mu as is shown, in words.

    Such noise is a / mu times the declared one, a the mu of all its steps, and all that is larger. It leaves out the
    amplification by sampling, so that with small rates less noise is ruled out too, and not told of. Nothing is said
    where no mu is shown, where a phase has no noise, or where it is more than ten times the declared noise.
    """
    if not mu > 0.0 or any(phase.noise_multiplier < NO_NOISE for phase in phases):
        return ""
    times = mu_of_all_steps(phases, group_size, records) / mu
    if times > _TOLD:
        return ""
    declared = {phase.noise_multiplier for phase in phases}
    if len(declared) > 1:
        return f"; rules out noise {round_up(times, 4)} times as large as declared, and more"
    return f"; rules out noise multipliers of {round_up(times * declared.pop(), 4)} and more at these rates and steps"


def _rate(phases: Sequence[Phase], group_size: int, records: int, fpr: float, side: str) -> Interval:
    way = DIRECTIONS[side]
    (interval,) = ask(phases, group_size, records, side, lambda loss: [loss.rero(fpr, direction=way)])
    return interval


def _attained_mu(epsilon: float, delta: float, largest: float) -> float:
    """A mu at most ``largest`` whose curve certainly lies below ``delta`` at ``epsilon``, which is attained there."""
    if not 0.0 < epsilon < math.inf:
        return 0.0
    low, high = 0.0, largest
    while high - low > 1e-6 * largest:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if PrivacyLoss.gaussian(1.0 / middle).delta(epsilon).upper < delta else (low, middle)
    return low
