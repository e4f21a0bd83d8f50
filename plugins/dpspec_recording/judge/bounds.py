"""Bounds on epsilon of the executed schedule of a recorded run.

Theorems and proofs: ``docs/explanation/proofs/recorded-runs.md``.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TypeAlias

import numpy as np

from dpspec.accounting import Interval, PrivacyLoss, largest_sum_pair, real_divisor_pair
from dpspec.contract import Series
from dpspec.contract.executed import ExecutedPhase
from dpspec.kit.findings import PROFILE_DELTAS, profile
from dpspec_recording.judge.recorded_run import LARGEST_MULTIPLIER, RecordedRun
from dpspec_recording.observers.loop_arguments import omitted_arguments
from dpspec_recording.observers.noise.adaptive_count import AdaptiveCount

ZERO_OUT, ADD_REMOVE = "zero-out", "add-remove"

#: Name of the series of the schedule's privacy profile, and the relative width of its intervals.
PROFILE, _PROFILE_WIDTH = "recorded-profile", 1e-3

#: Number of different noise multipliers that are composed exactly. More are rounded to this number of digits.
_DISTINCT, _DIGITS = 24, 3

#: Smallest noise multiplier with a bound. Below it, epsilon exceeds the range of a float.
_SMALLEST = 1e-100


def phases_of(run: RecordedRun) -> list[ExecutedPhase]:
    clip_norms = [None if math.isnan(value) else float(value) for value in run["clip_norm"].tolist()]
    if run.header.clipping == "adaptive":  # chosen by noisy counts
        clip_norms = [None] * run.steps
    keys = zip(run.configured_multipliers, clip_norms, run.rates, strict=True)
    phases: list[ExecutedPhase] = []
    first = 1
    for (multiplier, clip, rate), same in groupby(keys):
        steps = sum(1 for _ in same)
        phases.append(
            ExecutedPhase(
                first=first,
                steps=steps,
                noise_multiplier=multiplier,
                counted_share=run.counted_share,
                clip_norm=clip,
                rate=rate,
            )
        )
        first += steps
    return phases


@dataclass(frozen=True)
class ScheduleEpsilon:
    """Epsilon of a schedule.

    interval: contains the worst case over datasets; None if nothing bounds it. Its upper end counts every charge, its
    lower end what some data attain. method: or why the bound is not finite. tight: whether the lower end is meaningful.
    It is not if no data are known to attain it. charges: names of errors that the upper end counts, such as rounding.
    """

    interval: Interval | None
    method: str
    tight: bool = True
    charges: tuple[str, ...] = ()


class ScheduleBounds:
    """Epsilon of the executed schedule of a run, computed once for each adjacency, delta and group size."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self._bounds: dict[tuple[str, float, int], ScheduleEpsilon] = {}
        # Poisson samples have the same pairs in both adjacencies.
        self._symmetric = None not in run.rates and run.header.clipping != "adaptive"

    @property
    def is_of_phases_alone(self) -> bool:
        """Whether the bounds count nothing but Poisson samples with the noise and rates of the steps."""
        rates, header = [rate for rate in self.run.rates if rate is not None], self.run.header
        sampled = len(rates) == self.run.steps and None not in self.run.configured_multipliers
        return sampled and header.clipping != "adaptive" and _empty_draws(self.run, rates, 1) is None

    def epsilon(self, adjacency: str, delta: float, size: int) -> ScheduleEpsilon:
        """Epsilon at ``delta`` for groups of ``size`` records."""
        key = ("" if self._symmetric else adjacency, delta, size)
        if key not in self._bounds:
            self._bounds[key] = _epsilon_of(self.run, *key)
        return self._bounds[key]


def _epsilon_of(run: RecordedRun, adjacency: str, delta: float, size: int) -> ScheduleEpsilon:
    noise = [sigma for sigma in run.configured_multipliers if sigma is not None]
    unknown = run.steps - len(noise)
    if unknown:
        reason = f"the noise multiplier or the noise was not observed at {unknown} of {run.steps} steps"
        if omitted := omitted_arguments(run, "noise_multiplier"):
            reason = f"the noise multiplier is unknown at {unknown} of {run.steps} steps, because {omitted}"
        return ScheduleEpsilon(None, reason)
    bound = _bounded(run, noise, adjacency, delta, size)
    if run.supported_share < 1.0:
        bound = replace(bound, method=f"{bound.method}, with the lower limit of the measured noise")
    return replace(bound, charges=(*_charges(run), *bound.charges))


def _charges(run: RecordedRun) -> Iterator[str]:
    """What upper ends count beyond the noise multipliers of the script."""
    if run.norm_excess:
        yield "rounding of norms"
    if run.supported_share < 1.0:
        yield "uncertainty of the measured noise"


def _bounded(run: RecordedRun, configured: Sequence[float], adjacency: str, delta: float, size: int) -> ScheduleEpsilon:
    scheme, noise = run.header.scheme, [sigma * run.counted_share for sigma in configured]
    if bare := sum(sigma < _SMALLEST for sigma in noise):
        reason = f"{bare} of {len(noise)} updates got no noise: no epsilon is finite"
        return ScheduleEpsilon(interval=Interval(0.0, math.inf), method=reason, tight=False)
    sized = zip(run.header.layers, run.quietest, strict=True)
    quiet = [] if run.scaled_squares is None else [name for (name, size), least in sized if size and least == 0.0]
    if quiet:
        named = ", ".join(quiet[:3]) + (f" and {len(quiet) - 3} more" if len(quiet) > 3 else "")
        return ScheduleEpsilon(None, f"some updates of {named} got no noise: nothing bounds what these parameters show")
    rates, adaptive = [rate for rate in run.rates if rate is not None], run.header.clipping == "adaptive"
    if len(rates) == len(noise):
        if adaptive and run.header.world:
            return ScheduleEpsilon(None, "adaptive clipping has a bound for one process only")
        if adaptive:
            bound_at = partial(_adaptive_epsilon, run, noise, rates, adjacency, size)
        else:
            steps = tuple(zip(noise, rates, strict=True))
            bound_at = partial(poisson_epsilon, steps, _attained_steps(run, configured, rates), group_size=size)
        return _with_empty_draws(_empty_draws(run, rates, size), bound_at, delta)
    if not run.header.in_epochs:
        reason = "were not reported" if scheme == "none" else f"are {scheme} ({run.header.sampler})"
        reason = "were not observed at every step" if run.header.is_poisson else reason
        if omitted := omitted_arguments(run, "rate"):
            reason = f"have no declared rate, because {omitted}"
        return ScheduleEpsilon(None, f"the distribution of the batches is unknown: they {reason}")
    if adaptive:
        return ScheduleEpsilon(None, f"adaptive clipping has a bound for Poisson samples only, not {scheme} batches")
    if adjacency == ADD_REMOVE:
        return ScheduleEpsilon(None, f"{scheme} batches all change when a record is added: nothing bounds that")
    internal = run.internal
    if internal is None or internal.most_often is None or internal.sampling is None or internal.sampling.repeats:
        return ScheduleEpsilon(
            None, "the number of batches of a record was not observed, or some are in one batch twice"
        )
    # Batches in an order independent of the records; a record is in at most ``most_often`` batches.
    worst = sorted(noise)[: internal.most_often]
    if not worst:
        return ScheduleEpsilon(interval=Interval(0.0, 0.0), method="no step")
    mu = size * math.sqrt(math.fsum(sigma**-2 for sigma in worst)) * (1.0 + 1e-12)
    method = f"a Gaussian at each of {len(worst)} batches that a record is in, nothing amplified"
    return ScheduleEpsilon(interval=PrivacyLoss.gaussian(1.0 / mu).epsilon(delta), tight=False, method=method)


def shuffled_epsilon(run: RecordedRun, adjacency: str, delta: float) -> tuple[Interval, int] | None:
    """Bound epsilon of a shuffled loader from below, on datasets of at least a number of records; None if unknown.

    ``docs/explanation/proofs/shuffle.md`` has the datasets. Noise counts as the largest of all steps, and a group as
    one of its members.
    """
    header = run.header
    size, records = header.batch_size or 0, header.records or 0
    steps = zip(run.configured_multipliers, run.attained_lengths.tolist(), strict=True)
    relative = (math.inf if noise is None or not length else noise / length for noise, length in steps)
    sigma = max(relative, default=math.inf)
    whole_run = run.resumed is None and not header.world and not header.canaries and header.repeats == 1
    if (
        header.scheme != "shuffled"
        or header.clipping == "adaptive"
        or not whole_run
        or not _SMALLEST <= sigma < math.inf
        or not 1 < size <= records
    ):
        return None
    batches = (records // size, -(-records // size))  # the loader drops an incomplete last batch, or keeps it
    drops, keeps = (
        np.array_equal(run["drawn"], np.resize(np.minimum(size, records - size * np.arange(count)), run.steps))
        for count in batches
    )
    if not drops and not keeps:
        return None
    count = batches[0] if drops else batches[1]
    epochs, last_steps = divmod(run.steps, count)
    drawn = min(count * size, records)
    losses: list[PrivacyLoss] = []
    if adjacency == ZERO_OUT:
        full = (largest_sum_pair(count, sigma, 2.0, 1.0, drawn / records), epochs)
        part = (
            largest_sum_pair(max(1, last_steps), sigma, 2.0, 1.0, max(1, last_steps) * size / records),
            min(last_steps, 1),
        )
        losses.append(PrivacyLoss(tuple((pair, times) for pair, times in (full, part) if times), "present-first"))
    elif not epochs:
        return None
    else:
        if drops:
            pair = largest_sum_pair(count, sigma, 2.0, 0.0, drawn / (drawn + 1))
            losses.append(PrivacyLoss(((pair, epochs),), "present-first"))
        if keeps:
            losses.append(PrivacyLoss.gaussian(sigma * (1.0 + 1e-12) / math.sqrt(epochs)))
    return min((loss.epsilon(delta) for loss in losses), key=lambda end: end.lower), drawn - 1


#: The noise multiplier and the rate of a step.
_Step: TypeAlias = tuple[float, float]


def _attained_steps(run: RecordedRun, noise: Sequence[float], rates: Sequence[float]) -> tuple[_Step, ...] | None:
    """The steps whose contributions some data attain, with noise relative to these; None if no data are known to.

    A killed part of a resumed run made some steps after its last checkpoint, whose weights no later part continues.
    """
    lengths, resumed = run.attained_lengths.tolist(), run.resumed
    if not any(lengths):
        return None
    steps = enumerate(zip(noise, lengths, rates, strict=True), start=1)
    return tuple(
        (sigma / length, rate)
        for number, (sigma, length, rate) in steps
        if length and (resumed is None or not resumed.is_lost(number))
    )


def poisson_epsilon(
    counted: Sequence[_Step], attained: Sequence[_Step] | None, delta: float, group_size: int
) -> ScheduleEpsilon:
    """Epsilon at ``delta`` in (0, 1) of Poisson sampled steps for groups of up to ``group_size``.

    The upper end is of the ``counted`` steps, the lower end of the ``attained`` ones.
    """
    upper = _poisson_loss(counted, group_size).epsilon(delta)
    lower = Interval(0.0, 0.0) if not attained else upper
    rounded = _are_rounded(counted)
    if attained and (rounded or attained != counted):
        lower = _poisson_loss(attained, group_size, up=True).epsilon(delta)
    return ScheduleEpsilon(
        interval=replace(upper, lower=lower.lower, lower_method=lower.lower_method),
        method="PLD of Poisson samples",
        tight=attained is not None,
        charges=("rounding of noise multipliers",) if rounded else (),
    )


def _are_rounded(steps: Sequence[_Step]) -> bool:
    """Whether the noise multipliers are too many to compose each."""
    return len({sigma for sigma, _ in steps}) > _DISTINCT


def _poisson_loss(steps: Sequence[_Step], group_size: int, *, up: bool = False) -> PrivacyLoss:
    """The privacy loss of all steps. Many different noise multipliers are rounded down, or ``up`` for a lower end."""
    noise = [sigma for sigma, _ in steps]
    rounded = _rounded(noise, _DIGITS, up=up) if _are_rounded(steps) else noise
    counts = Counter(zip(rounded, (rate for _, rate in steps), strict=True))
    return PrivacyLoss.of_steps(((*step, count) for step, count in counts.items()), group_size=group_size)


def _adaptive_epsilon(
    run: RecordedRun, noise: Sequence[float], rates: Sequence[float], adjacency: str, size: int, delta: float
) -> ScheduleEpsilon:
    """Epsilon of steps with Opacus' adaptive clipping, whose noisy count costs too.

    Opacus adds more noise to gradients than its multiplier says, and divides the count by the real batch size: Theorem
    55 of ``docs/explanation/proofs/adaptive-clipping.md``.
    """
    if adjacency == ADD_REMOVE:
        reason = "which nothing bounds if a record is added or removed: use --adjacency zero-out"
        return ScheduleEpsilon(None, f"adaptive clipping divides its noisy count by the real batch size, {reason}")
    counted = run.fact(AdaptiveCount)
    if counted is None or counted.counts < run.steps or not 0.0 < counted.least_std < LARGEST_MULTIPLIER:
        return ScheduleEpsilon(None, "the noisy count of adaptive clipping was not observed at every step")
    raised = run["deviation"] / run["clip_norm"] / run["noise_multiplier"]
    multipliers = np.asarray(noise) * raised
    if not np.isfinite(multipliers).all():
        return ScheduleEpsilon(None, "the noise multiplier is not below twice the noise of the count")
    rounded = _rounded(multipliers.tolist(), _DIGITS + 2)  # clip norms are rounded, so quotients differ
    counts = Counter(zip(rounded, rates, strict=True))
    pairs = (
        (real_divisor_pair(rate, sigma, counted.least_std, size), steps) for (sigma, rate), steps in counts.items()
    )
    method = "Gaussians of the drawn records, with the noisy count of adaptive clipping; batches amplify nothing"
    return ScheduleEpsilon(interval=PrivacyLoss(tuple(pairs)).epsilon(delta), tight=False, method=method)


def _rounded(values: Sequence[float], digits: int, *, up: bool = False) -> list[float]:
    unit = 10.0 ** (np.floor(np.log10(np.maximum(values, 1e-300))) - (digits - 1))
    quotients = np.asarray(values) / unit
    rounded: list[float] = ((np.ceil if up else np.floor)(quotients) * unit).tolist()
    return rounded


@dataclass(frozen=True)
class _EmptyDraws:
    """Steps without a drawn record that are not steps with noise alone.

    Attributes:
        probability: A bound on the probability of one or more in the run, for each of two neighbors.
        effect: What happens then.
        fix: What prevents it.
    """

    probability: float
    effect: str
    fix: str


def _empty_draws(run: RecordedRun, rates: Sequence[float], size: int) -> _EmptyDraws | None:
    """The empty draws that change the distribution of a run's Poisson samples; None if none does.

    Opacus' sampler of several processes omits the empty draws of a rank. Its loader with ``rand_on_empty`` replaces an
    empty batch by a random row. A neighbor may lack ``size`` records.
    """
    header = run.header
    if header.world:
        eta = header.world * _empty_draw(rates, header.share or 0)
        return _EmptyDraws(eta, "Opacus' sampler omits the empty draws of a rank", "use larger batches")
    if not run.options.fills_empty:
        return None
    eta = _empty_draw(rates, max(0, (header.present or 0) - size))
    fix = "leave rand_on_empty out of make_private, and Opacus steps with noise alone"
    return _EmptyDraws(eta, "rand_on_empty=True of make_private replaces an empty batch by a random row", fix)


def _empty_draw(rates: Sequence[float], records: int) -> float:
    """A bound on the probability that one of several Poisson samples of ``records`` is empty."""
    return math.fsum((1.0 - rate) ** records for rate in rates)


def _with_empty_draws(
    empty: _EmptyDraws | None, bound_at: Callable[[float], ScheduleEpsilon], delta: float
) -> ScheduleEpsilon:
    """Epsilon at ``delta`` of Poisson samples with epsilon ``bound_at(delta)``, except at empty draws.

    The run is within their probability eta of Poisson samples in total variation, so it is
    (epsilon, delta + (1 + e^epsilon) eta)-DP if these are (epsilon, delta)-DP (Theorem R6 of
    ``docs/explanation/proofs/recorded-runs.md``).
    """
    if empty is None:
        return bound_at(delta)
    loose = bound_at(0.5 * delta).interval
    charge = math.inf if loose is None or loose.upper > 700.0 else (1.0 + math.exp(loose.upper)) * empty.probability
    if not charge <= 0.5 * delta:
        probability = f"with probability up to {min(1.0, empty.probability):.2g}, too much for delta"
        return ScheduleEpsilon(None, f"{empty.effect}, {probability}: {empty.fix}")
    above = bound_at(delta - charge)
    if above.interval is None:
        return above
    if delta + charge >= 1.0:  # any two outputs are within a delta of 1
        return replace(above, interval=replace(above.interval, lower=0.0))
    below = bound_at(delta + charge)
    if below.interval is None:
        return above
    return replace(
        above,
        interval=replace(above.interval, lower=below.interval.lower),
        charges=(*above.charges, "empty draws") if charge else above.charges,
    )


def profile_series(
    bounds: ScheduleBounds, adjacencies: Sequence[str], group_sizes: Sequence[int], source: str
) -> Iterator[Series]:
    """Upper bounds on the privacy profile of the executed schedule; no series if nothing bounds it."""
    rows = [
        (adjacency, size, epsilon, delta)
        for adjacency in adjacencies
        for size in group_sizes
        for epsilon, delta in _profile(bounds, adjacency, size)
    ]
    if rows:
        yield profile(rows, rigor="certified", source=source, name=PROFILE)


def _profile(bounds: ScheduleBounds, adjacency: str, size: int) -> list[tuple[float, float]]:
    run, interval = bounds.run, bounds.epsilon(adjacency, PROFILE_DELTAS[-1], size).interval
    if interval is None or math.isinf(interval.upper):
        return []
    noise = [(sigma or 0.0) * run.counted_share for sigma in run.configured_multipliers]
    rates = [rate for rate in run.rates if rate is not None]
    if len(rates) < len(noise) or run.header.clipping == "adaptive":
        ends = [(bounds.epsilon(adjacency, delta, size).interval, delta) for delta in PROFILE_DELTAS]
        return [(end.upper, delta) for end, delta in ends if end is not None and math.isfinite(end.upper)]
    steps = tuple(zip(noise, rates, strict=True))
    epsilons = _poisson_loss(steps, size).epsilons(PROFILE_DELTAS, width=_PROFILE_WIDTH)
    # Empty draws add (1 + e^epsilon) eta to delta, as in ``_with_empty_draws``.
    empty = _empty_draws(run, rates, size)
    eta = 0.0 if empty is None else empty.probability
    charged = [
        (end.upper, delta + (1.0 + math.exp(min(end.upper, 700.0))) * eta)
        for end, delta in zip(epsilons, PROFILE_DELTAS, strict=True)
    ]
    return [(epsilon, delta) for epsilon, delta in charged if math.isfinite(epsilon) and delta < 1.0]
