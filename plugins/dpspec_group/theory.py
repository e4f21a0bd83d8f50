"""Group privacy of DP-SGD: from a spec's phases to mixtures of Gaussians, and from those to epsilon.

Ganesh 2024, "Tight Group-Level DP Guarantees for DP-SGD with Sampling via Mixture of Gaussians Mechanisms":
with c the random number of group members in a batch (Theorem 3.1, Poisson: Binomial(k, rate)) or twice that number
(Theorem 3.3, fixed size: 2 Hypergeometric(batch, n + k, k)), the T-fold composition of the pair

    N(0, sigma^2)   and   sum_j P[c = j] N(j, sigma^2)

dominates T steps of DP-SGD for groups of up to k records, under add-up-to-k and remove-up-to-k.

Truncated Poisson batches have no one pair: they leak no more than one, and on some data as much as another
(``dpspec.accounting.TruncatedPoisson``). Their interval lies between the two.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from dpspec.accounting import Direction, Interval, Mixture, Pair, PrivacyLoss, TruncatedPoisson
from dpspec.contract import Phase

#: The spec's words for people, and the accountant's: present-first compares with-the-group to without.
DIRECTIONS: dict[str, Direction] = {"remove": "present-first", "add": "absent-first"}

#: With less noise than this, epsilon is beyond what a float can hold.
NO_NOISE = 1e-100

SOURCES = {
    "poisson": "Ganesh 2024, Theorem 3.1",
    "fixed": "Ganesh 2024, Theorem 3.3",
    "full": "Ganesh 2024, Theorem 3.1 at rate 1",
    "shuffled": "one Gaussian release for each epoch, not amplified",
    "truncated-poisson": "Ganesh 2024, Lemma 2.9, given which batches are full; one record: Ganesh 2025",
}


def source_of(phases: Sequence[Phase]) -> str:
    """The theorems behind the bound of these phases."""
    return "; ".join(SOURCES[scheme] for scheme in sorted({phase.sampling.scheme for phase in phases}))


def dominating(phase: Phase, group_size: int, records: int) -> Pair:
    """A pair that dominates one step of a phase, in units of the clip norm.

    records: the size of the data set that is held. For fixed-size batches Theorem 3.3 wants a lower bound on the
    smaller data set of a pair, which is ``records - group_size``; truncated ones want an upper bound, ``records``.
    Raises ``ValueError`` naming the argument that does not fit, or the scheme that no theorem covers.
    """
    if phase.sampling.scheme == "truncated-poisson":
        return _truncated(phase, group_size, records, phase.noise_multiplier).above()
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


def _truncated(phase: Phase, group_size: int, smaller: int, sigma: float) -> TruncatedPoisson:
    return TruncatedPoisson(group_size, phase.rate(), int(phase["sampling"]["max_batch"]), smaller, sigma)


def truncates(phases: Sequence[Phase]) -> bool:
    """Whether some phase has truncated batches, so that what dominates it and what is attained are two things."""
    return any(phase.sampling.scheme == "truncated-poisson" for phase in phases)


def composed(phase: Phase, group_size: int, records: int) -> tuple[Pair, int]:
    """What dominates a whole phase: a pair, and how often it is composed.

    Shuffled batches, of records that stay and are put to nothing: given the orders, every member is in one batch of
    each epoch, so that an epoch moves its sums by vectors of length k at most together, and is dominated by one
    Gaussian release of sensitivity k; not knowing the orders can only leak less (joint convexity). A phase begins
    ceil(steps / ceil(records / batch_size)) epochs, and no more with more records.
    """
    if phase.sampling.scheme == "shuffled":
        batches = -(-records // int(phase["sampling"]["batch_size"]))
        return Mixture.full(group_size, phase.noise_multiplier), -(-phase.steps // batches)
    return dominating(phase, group_size, records), phase.steps


def shuffles(phases: Sequence[Phase]) -> bool:
    """Whether some phase has shuffled batches, of which nothing is known from below."""
    return any(phase.sampling.scheme == "shuffled" for phase in phases)


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
    above = tuple(composed(phase, group_size, records) for phase in phases)
    most = question(PrivacyLoss(above, DIRECTIONS[direction]))
    if shuffles(phases):
        return [Interval(0.0, high.upper, high.method, "nothing is known from below") for high in most]
    if not truncates(phases):
        return most
    below = tuple((attained(phase, group_size, records), phase.steps) for phase in phases)
    least = question(PrivacyLoss(below, DIRECTIONS[direction]))
    return [
        Interval(min(low.lower, high.upper), high.upper, high.method, low.lower_method)
        for low, high in zip(least, most, strict=True)
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
    phases: Sequence[Phase], group_size: int, records: int, deltas: Sequence[float], direction: str
) -> list[Interval]:
    """Epsilon at each delta for groups of up to ``group_size``, in one direction (``remove`` or ``add``).

    Each interval holds the worst-case epsilon over the data sets of the theorem and adversaries that see every iterate.
    Without noise nothing is bounded, and epsilon is infinite for certain where delta is below the chance of an outcome
    that the other data set never produces.
    """
    return list(_epsilons(tuple(phases), group_size, records, tuple(deltas), direction))


@functools.lru_cache(maxsize=256)  # a run and its verification, and claims that differ in nothing else, ask the same
def _epsilons(
    phases: tuple[Phase, ...], group_size: int, records: int, deltas: tuple[float, ...], direction: str
) -> tuple[Interval, ...]:
    quiet = [phase for phase in phases if phase.noise_multiplier < NO_NOISE]
    if quiet:
        seen = _seen(quiet, group_size, records, direction)
        return tuple(Interval(math.inf if delta < seen else 0.0, math.inf).by("without noise") for delta in deltas)
    return tuple(ask(phases, group_size, records, direction, lambda loss: loss.epsilons(deltas)))


def _seen(quiet: Sequence[Phase], group_size: int, records: int, direction: str) -> float:
    """How likely steps without noise show for certain which data set it was: from below, up to rounding.

    With the group they do once a member is drawn. Without it they never do, unless every batch has a member.
    """
    log_hidden = 0.0
    for phase in quiet:
        if phase.sampling.scheme == "shuffled":
            continue
        drawn = attained(phase.replace(noise_multiplier=1.0), group_size, records)
        missed = float(drawn.log_probabilities[0]) if drawn.sensitivities[0] == 0.0 else -math.inf
        log_hidden += phase.steps * missed
    if direction == "add":
        return 1.0 if log_hidden == -math.inf else 0.0
    return -math.expm1(log_hidden) * (1.0 - 1e-9)
