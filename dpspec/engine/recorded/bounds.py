"""Bounds on epsilon of a recorded run: of its executed schedule from above, by canaries from below.

Theorems and proofs: ``docs/explanation/proofs/recorded-runs.md``; canaries are its Theorem R4. The file of scores is
untrusted. It is read only if its digest follows the end of the recording. Its bits must follow from the bytes whose
digest the header contains, which the recorder writes before the first step.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from scipy import special

from dpspec.accounting import Interval, Mixture, PrivacyLoss, largest_sum_pair, real_divisor_pair
from dpspec.contract import Assumption, DataError, Evidence, FrozenMap, Scope, Series
from dpspec.contract.findings import AssumptionStatus
from dpspec.contract.results import RecordedPhase
from dpspec.data.score_table import read_columns
from dpspec.engine.recorded.channels import stated
from dpspec.engine.recorded.recorded_run import Array, RecordedRun
from dpspec.errors import RecordingError
from dpspec.kit.findings import PROFILE_DELTAS, profile
from dpspec.recording.folder.header import BYTES, GRADIENTS, MOST_CANARIES, CoinSource
from dpspec.recording.folder.run_folder import CANARIES, STEPS
from dpspec.regular_files import read_regular
from dpspec.stats.attacks import guess_counts

#: Confidence of the limits of a custom loop's measured noise.
NOISE_CONFIDENCE = 0.99

ZERO_OUT, ADD_REMOVE = "zero-out", "add-remove"

#: Name of the series of the schedule's privacy profile, and the relative width of its intervals.
PROFILE, _PROFILE_WIDTH = "recorded-profile", 1e-3

#: Number of different noise multipliers that are composed exactly. More are rounded down to this number of digits.
_DISTINCT, _DIGITS = 24, 3

#: Bounds of a noise multiplier. Below the first, epsilon exceeds the range of a float.
_SMALLEST, _LARGEST = 1e-100, 1e9


def phases_of(run: RecordedRun) -> list[RecordedPhase]:
    clip_norms = [None if math.isnan(value) else float(value) for value in run["clip_norm"].tolist()]
    if run.header.clipping == "adaptive":  # chosen by noisy counts
        clip_norms = [None] * run.steps
    keys = zip(noise_multipliers(run), clip_norms, run.rates, strict=True)
    phases: list[RecordedPhase] = []
    first = 1
    for (multiplier, clip, rate), same in groupby(keys):
        steps = sum(1 for _ in same)
        phases.append(RecordedPhase(first=first, steps=steps, noise_multiplier=multiplier, clip_norm=clip, rate=rate))
        first += steps
    return phases


def noise_multipliers(run: RecordedRun) -> list[float | None]:
    """Per step, the noise multiplier relative to the longest contribution that rounding allows."""
    reduced = supported_share(run) / (1.0 + run.norm_excess)
    return [sigma if sigma is None else sigma * reduced for sigma in configured_multipliers(run)]


def supported_share(run: RecordedRun) -> float:
    """The share, at most 1, of the declared noise of a custom loop that the measured noise supports; 1 for Opacus.

    If all noise has s times the declared standard deviation, the squares of its N coordinates over s^2 are a
    chi-square of N degrees of freedom. The declared noise counts if s = 1 is within the one-sided confidence interval
    of level :data:`NOISE_CONFIDENCE`. Otherwise the lower limit of s counts.
    """
    squares, count = run.scaled_squares, run.header.parameters
    noisy = np.zeros(0) if squares is None else squares[squares > 0.0]
    if run.header.source != "own-loop" or not count or not len(noisy):
        return 1.0
    total, freedom = float(noisy.sum()), count * len(noisy)
    if total >= float(special.chdtri(freedom, NOISE_CONFIDENCE)):
        return 1.0
    return min(1.0, math.sqrt(total / float(special.chdtri(freedom, 1.0 - NOISE_CONFIDENCE))))


def configured_multipliers(run: RecordedRun) -> list[float | None]:
    """Per step, the configured noise multiplier; 0 without noise, None if the recorder did not observe the noise."""
    return [
        None if not sigma < _LARGEST or math.isnan(squares) else (0.0 if squares == 0.0 else float(sigma))
        for sigma, squares in zip(run["noise_multiplier"].tolist(), run["noise_squares"].tolist(), strict=True)
    ]


@dataclass(frozen=True)
class ScheduleEpsilon:
    """Epsilon of a schedule.

    interval: contains the worst case over datasets; None if nothing bounds it. method: or why the bound is not finite.
    tight: whether the lower end is meaningful. It is not if noise was rounded, or if participation is bounded.
    """

    interval: Interval | None
    method: str
    tight: bool = True


def epsilon_of(run: RecordedRun, adjacency: str, delta: float, size: int) -> ScheduleEpsilon:
    """Epsilon of the executed schedule at ``delta`` for groups of ``size`` records."""
    noise = noise_multipliers(run)
    multipliers = [sigma for sigma in noise if sigma is not None]
    unknown = len(noise) - len(multipliers)
    if unknown:
        reason = f"the noise multiplier or the noise was not observed at {unknown} of {len(noise)} steps"
        return ScheduleEpsilon(None, reason)
    bound = _bounded(run, multipliers, adjacency, delta, size)
    if supported_share(run) < 1.0:  # a conservative noise multiplier gives no lower bound
        bound = replace(bound, tight=False, method=f"{bound.method}, with the lower limit of the measured noise")
    return bound


def _bounded(run: RecordedRun, noise: Sequence[float], adjacency: str, delta: float, size: int) -> ScheduleEpsilon:
    scheme = run.header.scheme
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
            return _adaptive_epsilon(run, noise, rates, adjacency, delta, size)
        if run.header.world:
            return _ranked_epsilon(run.header.world, run.header.share or 0, noise, rates, delta, size)
        return poisson_epsilon(noise, rates, delta, size)
    if not run.header.in_epochs:
        reason = "were not reported" if scheme == "none" else f"are {scheme} ({run.header.sampler})"
        reason = "were not observed at every step" if run.header.is_poisson else reason
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
    header, noise = run.header, configured_multipliers(run)
    size, records = header.batch_size or 0, header.records or 0
    sigma = max((math.inf if value is None else value for value in noise), default=math.inf)
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


def poisson_epsilon(noise: Sequence[float], rates: Sequence[float], delta: float, group_size: int) -> ScheduleEpsilon:
    """Epsilon at ``delta`` in (0, 1) of Poisson sampled steps for groups of up to ``group_size``.

    If there are many different noise multipliers, they are rounded down. A rate of 0 counts as 1.
    """
    loss, exact = _poisson_loss(noise, rates, group_size)
    return ScheduleEpsilon(interval=loss.epsilon(delta), method="PLD of Poisson samples", tight=exact)


def _poisson_loss(noise: Sequence[float], rates: Sequence[float], group_size: int) -> tuple[PrivacyLoss, bool]:
    """The privacy loss of all steps, and whether no noise multiplier was rounded."""
    exact = len(set(noise)) <= _DISTINCT
    rounded = list(noise) if exact else _rounded_down(noise, _DIGITS)
    counts = Counter(zip(rounded, rates, strict=True))
    components = [(Mixture.poisson(group_size, rate or 1.0, sigma), steps) for (sigma, rate), steps in counts.items()]
    return PrivacyLoss(tuple(components)), exact


def _adaptive_epsilon(
    run: RecordedRun, noise: Sequence[float], rates: Sequence[float], adjacency: str, delta: float, size: int
) -> ScheduleEpsilon:
    """Epsilon of steps with Opacus' adaptive clipping, whose noisy count costs too.

    Opacus adds more noise to gradients than its multiplier says, and divides the count by the real batch size: Theorem
    55 of ``docs/explanation/proofs/adaptive-clipping.md``.
    """
    if adjacency == ADD_REMOVE:
        reason = "which nothing bounds if a record is added or removed: use --adjacency zero-out"
        return ScheduleEpsilon(None, f"adaptive clipping divides its noisy count by the real batch size, {reason}")
    counted = None if run.end is None else run.end.adaptive
    if counted is None or counted[0] < run.steps or not 0.0 < counted[5] < _LARGEST:
        return ScheduleEpsilon(None, "the noisy count of adaptive clipping was not observed at every step")
    raised = run["deviation"] / run["clip_norm"] / run["noise_multiplier"]
    multipliers = np.asarray(noise) * raised
    if not np.isfinite(multipliers).all():
        return ScheduleEpsilon(None, "the noise multiplier is not below twice the noise of the count")
    rounded = _rounded_down(multipliers.tolist(), _DIGITS + 2)  # clip norms are rounded, so quotients differ
    counts = Counter(zip(rounded, rates, strict=True))
    pairs = ((real_divisor_pair(rate, sigma, counted[5], size), steps) for (sigma, rate), steps in counts.items())
    method = "Gaussians of the drawn records, with the noisy count of adaptive clipping; batches amplify nothing"
    return ScheduleEpsilon(interval=PrivacyLoss(tuple(pairs)).epsilon(delta), tight=False, method=method)


def _rounded_down(values: Sequence[float], digits: int) -> list[float]:
    unit = 10.0 ** (np.floor(np.log10(np.maximum(values, 1e-300))) - (digits - 1))
    rounded: list[float] = (np.floor(np.asarray(values) / unit) * unit).tolist()
    return rounded


def _ranked_epsilon(
    world: int, share: int, noise: Sequence[float], rates: Sequence[float], delta: float, size: int
) -> ScheduleEpsilon:
    """Epsilon of Poisson samples by several ranks; each omits empty draws from its ``share`` of records.

    With probability eta at most, the sum of (1 - rate)^share over steps and ranks, a draw is empty. The run is within
    eta of Poisson samples in total variation, so it is (epsilon, delta + (1 + e^epsilon) eta)-DP if they are
    (epsilon, delta)-DP (Theorem R6 of ``docs/explanation/proofs/recorded-runs.md``).
    """
    eta = _empty_draw(world, share, rates)
    loose = poisson_epsilon(noise, rates, 0.5 * delta, size).interval
    charge = math.inf if loose is None or loose.upper > 700.0 else (1.0 + math.exp(loose.upper)) * eta
    if not charge <= 0.5 * delta:
        reason = f"Opacus' sampler omits the empty draws of a rank, which occur with probability {eta:.2g}"
        return ScheduleEpsilon(None, f"{reason}, too much for delta: use larger batches")
    above = poisson_epsilon(noise, rates, delta - charge, size)
    below = poisson_epsilon(noise, rates, delta + charge, size)
    if above.interval is None or below.interval is None:
        return above
    return replace(above, interval=replace(above.interval, lower=below.interval.lower))


def _empty_draw(world: int, share: int, rates: Sequence[float]) -> float:
    """Bound on the probability that a rank draws no record at a step; 0 for one process."""
    return world * math.fsum((1.0 - rate) ** share for rate in rates)


def profile_series(
    run: RecordedRun, adjacencies: Sequence[str], group_sizes: Sequence[int], source: str
) -> Iterator[Series]:
    """Upper bounds on the privacy profile of the executed schedule; no series if nothing bounds it."""
    rows = [
        (adjacency, size, epsilon, delta)
        for adjacency in adjacencies
        for size in group_sizes
        for epsilon, delta in _profile(run, adjacency, size)
    ]
    if rows:
        yield profile(rows, rigor="certified", source=source, name=PROFILE)


def _profile(run: RecordedRun, adjacency: str, size: int) -> list[tuple[float, float]]:
    interval = epsilon_of(run, adjacency, PROFILE_DELTAS[-1], size).interval
    if interval is None or math.isinf(interval.upper):
        return []
    noise, rates = [sigma or 0.0 for sigma in noise_multipliers(run)], [rate for rate in run.rates if rate is not None]
    if len(rates) < len(noise) or run.header.clipping == "adaptive":
        ends = [(epsilon_of(run, adjacency, delta, size).interval, delta) for delta in PROFILE_DELTAS]
        return [(end.upper, delta) for end, delta in ends if end is not None and math.isfinite(end.upper)]
    epsilons = _poisson_loss(noise, rates, size)[0].epsilons(PROFILE_DELTAS, width=_PROFILE_WIDTH)
    # Omitted empty draws add (1 + e^epsilon) eta to delta, as in ``_ranked_epsilon``.
    eta = _empty_draw(run.header.world or 0, run.header.share or 0, rates)
    charged = [
        (end.upper, delta + (1.0 + math.exp(min(end.upper, 700.0))) * eta)
        for end, delta in zip(epsilons, PROFILE_DELTAS, strict=True)
    ]
    return [(epsilon, delta) for epsilon, delta in charged if math.isfinite(epsilon) and delta < 1.0]


#: Maximum size of the file: a byte and a float64 for each canary, and the overhead of an archive.
_MOST_BYTES = 9 * MOST_CANARIES + 2**16

#: Confidence of the lower bound.
CONFIDENCE = 0.95

#: Largest p-value of the schedule's own curve at which canaries contradict the schedule.
CONTRADICTED = 1e-6

#: Smaller deltas at which the curve is also tested, falling.
_DELTAS = (1e-6, 1e-8, 1e-10, 1e-12)


def read_canaries(run: RecordedRun) -> tuple[Array, Array] | None:
    """Inclusion bits (m,) int8, 1 if included, and scores (m,) float64, higher for "included"; None if not scored."""
    path, scored, header = run.folder.path / CANARIES, run.scored, run.header
    if scored is None:
        if path.exists():
            raise RecordingError(f"{path}: {STEPS} does not hold its digest: scoring was cut short; remove the file")
        return None
    if scored.canaries != header.canaries or not header.canaries:
        raise RecordingError(f"{path.parent / STEPS}: reports {scored.canaries} scored canaries of {header.canaries}")
    if not path.exists():
        return None
    try:
        content = read_regular(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise RecordingError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if hashlib.sha256(content).hexdigest() != scored.digest:
        raise RecordingError(f"{path}: its digest is not the one that {STEPS} holds: it was changed")
    try:
        read = read_columns(path, content, {"coin": "coin", "score": "score"}, MOST_CANARIES)
        secret = read_columns(path, content, {"secret": "secret"}, BYTES).values["secret"]
    except DataError as error:
        raise RecordingError(str(error)) from None
    coins, scores = read.values["coin"], read.values["score"]
    if read.rows != header.canaries:
        raise RecordingError(f"{path}: has {read.rows} canaries instead of {header.canaries}")
    if np.isnan(scores).any():
        raise RecordingError(f"{path}: a score is NaN, which no recorder writes")
    right = len(secret) == BYTES and bool(np.isin(secret, np.arange(256)).all())
    source = CoinSource(secret.astype(np.uint8).tobytes() if right else b"", header.canary_seed)
    right &= header.canary_seed is None or CoinSource.of(header.canary_seed) == source
    right &= source.commitment == header.commitment and np.array_equal(coins, source.coins(header.canaries))
    if not right or int((coins == 0).sum()) * header.copies != header.left_out:
        raise RecordingError(f"{path}: its coins are not those fixed before training")
    return coins.astype(np.int8), scores


@dataclass(frozen=True, kw_only=True)
class CanaryBound:
    """The result of the canary attack, for groups of the copies of a canary.

    guesses, correct: the numbers of guessed bits and of correct ones, per rung, in the order of confidence. lower: the
    lower bound on epsilon at :data:`CONFIDENCE`. upper: the certified epsilon of the schedule; None if nothing bounds
    it. p_value: of the schedule's curve, including the smaller deltas in ``further`` if they may contradict it. final:
    whether the scored model is the recorded one after its last step. constant: whether all scores are equal.
    """

    delta: float
    canaries: int
    guesses: tuple[int, ...]
    correct: tuple[int, ...]
    lower: float
    upper: float | None
    p_value: float
    final: bool
    constant: bool
    further: tuple[float, ...]
    assumptions: tuple[Assumption, ...]

    @property
    def above(self) -> bool:
        """Whether the lower bound exceeds the certified upper bound; for a sound run with probability at most 0.05."""
        return self.upper is not None and self.lower > self.upper

    @property
    def contradicts(self) -> bool:
        """Whether a sound run of this schedule shows such guesses with probability at most 1e-6."""
        return self.p_value <= CONTRADICTED


def canary_bound(run: RecordedRun, delta: float) -> CanaryBound | None:
    """The bound from scored canaries at ``delta``, and the schedule's, in zero-out adjacency."""
    read = read_canaries(run)
    if read is None:
        return None
    (coins, scores), number = read, run.header.canaries
    ordered = coins[np.argsort(scores, kind="stable")]
    outcomes = bytes(ordered.astype(np.uint8) + ord("0")).decode("ascii")
    guesses, correct = guess_counts.counts([outcomes], guess_counts.blind(number))

    def bounds(deltas: Sequence[float]) -> list[tuple[float, float]]:
        intervals = [
            (epsilon_of(run, ZERO_OUT, tested_delta, run.header.copies).interval, tested_delta)
            for tested_delta in deltas
        ]
        return [(interval.upper, tested_delta) for interval, tested_delta in intervals if interval is not None]

    first = bounds([delta])
    points = [(upper, tested_delta) for upper, tested_delta in first if upper < math.inf]
    further: list[tuple[float, float]] = []
    # Bounds at smaller deltas are larger: if this one at the smallest delta rejects nothing, neither do the others.
    smallest = [(upper, _DELTAS[-1]) for upper, _ in points]
    if points and guess_counts.p_value(number, guesses, correct, smallest) <= CONTRADICTED:
        further = bounds([tested_delta for tested_delta in _DELTAS if tested_delta < delta])
    return CanaryBound(
        delta=delta,
        canaries=number,
        guesses=tuple(guesses),
        correct=tuple(correct),
        lower=guess_counts.epsilon_lower(number, guesses, correct, delta, CONFIDENCE),
        upper=first[0][0] if first else None,
        p_value=guess_counts.p_value(number, guesses, correct, [*points, *further]),
        final=run.scored is not None and run.scored.final,
        further=tuple(tested_delta for _, tested_delta in further),
        constant=bool((scores == scores[0]).all()),
        assumptions=tuple(_assumptions(run)),
    )


def evidence_of(run: RecordedRun, bound: CanaryBound, adjacency: str = ZERO_OUT) -> Evidence:
    """The guesses as evidence on the executed pipeline; against all iterates if the canaries are gradients.

    ``adjacency`` is zero-out, or add-remove if no constant follows from the number of records.
    """
    header, gradients = run.header, run.header.canary_kind == GRADIENTS
    return Evidence(
        id="canaries" if adjacency == ZERO_OUT else f"canaries/{adjacency}",
        kind="one-run-ladder",
        statistics=FrozenMap(
            {"canaries": bound.canaries, "guesses": list(bound.guesses), "correct": list(bound.correct)}
        ),
        scope=Scope(
            adjacency=adjacency,
            access="all-iterates" if gradients else "final-model",
            adversary="gradient" if gradients else "record",
            data="planted",
            pipeline="executed",
            min_records=max(0, (header.records or 0) - header.canaries * header.copies),
        ),
        at=FrozenMap({"delta": bound.delta, "group_size": header.copies}),
        method=f"one run, {'all noisy gradients' if gradients else 'final model'}, {bound.canaries} canaries"
        f"{f' of {header.copies} equal records' if header.copies > 1 else ''} of a recorded script",
        source=guess_counts.SOURCE,
        power=guess_counts.largest(bound.canaries, bound.guesses, bound.delta, CONFIDENCE),
        assumptions=bound.assumptions,
    )


def _assumptions(run: RecordedRun) -> Iterator[Assumption]:
    header = run.header
    status: AssumptionStatus = "reported" if header.canary_seed is None else "declared"
    source = "the system's randomness, fixed by its digest"
    if header.canary_seed is not None:
        source = f"the seed {header.canary_seed}, which was not chosen for its bits"
    if run.scored is not None and not run.scored.final:
        yield stated("scored-model", "; its parameters differ", "unchecked")
    yield stated("blind-training")
    yield stated("fair-coins", f"; they follow from {source}", status)
    yield stated("scored-once")
