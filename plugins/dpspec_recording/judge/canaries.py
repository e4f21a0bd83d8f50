"""The attack of a recorded run by its canaries: a lower bound on epsilon, and whether it contradicts the schedule.

Theorem R4 of ``docs/explanation/proofs/recorded-runs.md``. The file of scores is untrusted. It is read only if its
digest follows the end of the recording. Its bits must follow from the bytes whose digest the header contains, which the
recorder writes before the first step.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpspec.contract import Assumption, DataError, Evidence, FrozenMap, Scope
from dpspec.contract.findings import AssumptionStatus
from dpspec.data.score_table import read_columns
from dpspec.decimals import lower, upper
from dpspec.errors import RecordingError
from dpspec.regular_files import read_regular
from dpspec.stats.attacks import guess_counts
from dpspec_recording.folder.coins import BYTES, GRADIENTS, CoinSource
from dpspec_recording.folder.events import MOST_CANARIES
from dpspec_recording.folder.writer import CANARIES, PUBLIC
from dpspec_recording.judge.bounds import ZERO_OUT, ScheduleBounds
from dpspec_recording.judge.recorded_run import Array, RecordedRun
from dpspec_recording.outcomes.conditions import stated
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Issue

CONTRADICTED = Fault(
    name="contradicted-schedule",
    condition="nothing-unseen",
    title="lower bound by canaries, above the bound of the recorded schedule",
    observed="measured",
    source="https://arxiv.org/abs/2602.17454",
    advice="",
)

UNSCORED = Fault(
    name="unscored-canaries",
    condition="canaries",
    title="inserted canaries without a score",
    observed="reported",
    source="https://github.com/kiddyboots216/privacy-auditing-of-llms/blob/main/audit_mia.py",
    advice="Call run.score after the block, in the training script, and keep canaries.npz in the folder.",
)

#: Maximum size of the file: a byte and a float64 for each canary, and the overhead of an archive.
_MOST_BYTES = 9 * MOST_CANARIES + 2**16

#: Confidence of the lower bound.
CONFIDENCE = 0.95

#: Largest p-value of the schedule's own curve at which canaries contradict the schedule.
_CONTRADICTED = 1e-6

#: Smaller deltas at which the curve is also tested, falling.
_DELTAS = (1e-6, 1e-8, 1e-10, 1e-12)


def unscored(run: RecordedRun) -> Iterator[Issue]:
    """The test that all inserted canaries have a score; none without canaries, or without an end."""
    if run.header.canaries and run.end is not None:
        scored = run.scored is not None and run.folder.has_canaries
        yield UNSCORED.none_found(0 if scored else run.header.canaries, "", None)


def _read_canaries(run: RecordedRun) -> tuple[Array, Array] | None:
    """Inclusion bits (m,) int8, 1 if included, and scores (m,) float64, higher for "included"; None if not scored."""
    path, scored, header = run.folder.path / CANARIES, run.scored, run.header
    if scored is None:
        if path.exists():
            raise RecordingError(f"{path}: {PUBLIC} does not hold its digest: scoring was cut short; remove the file")
        return None
    if scored.canaries != header.canaries or not header.canaries:
        raise RecordingError(f"{path.parent / PUBLIC}: reports {scored.canaries} scored canaries of {header.canaries}")
    if not path.exists():
        return None
    try:
        content = read_regular(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise RecordingError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if hashlib.sha256(content).hexdigest() != scored.digest:
        raise RecordingError(f"{path}: its digest is not the one that {PUBLIC} holds: it was changed")
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
        return self.p_value <= _CONTRADICTED


def canary_bound(schedule: ScheduleBounds, delta: float) -> CanaryBound | None:
    """The bound from scored canaries at ``delta``, and the schedule's, in zero-out adjacency."""
    run = schedule.run
    read = _read_canaries(run)
    if read is None:
        return None
    (coins, scores), number = read, run.header.canaries
    ordered = coins[np.argsort(scores, kind="stable")]
    outcomes = bytes(ordered.astype(np.uint8) + ord("0")).decode("ascii")
    guesses, correct = guess_counts.counts([outcomes], guess_counts.blind(number))

    def bounds(deltas: Sequence[float]) -> list[tuple[float, float]]:
        intervals = [
            (schedule.epsilon(ZERO_OUT, tested_delta, run.header.copies).interval, tested_delta)
            for tested_delta in deltas
        ]
        return [(interval.upper, tested_delta) for interval, tested_delta in intervals if interval is not None]

    first = bounds([delta])
    points = [(upper, tested_delta) for upper, tested_delta in first if upper < math.inf]
    further: list[tuple[float, float]] = []
    # Bounds at smaller deltas are larger: if this one at the smallest delta rejects nothing, neither do the others.
    smallest = [(upper, _DELTAS[-1]) for upper, _ in points]
    if points and guess_counts.p_value(number, guesses, correct, smallest) <= _CONTRADICTED:
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


def doubts(bound: CanaryBound | None) -> Iterator[Assumption]:
    """A doubt if canaries exceed the certified bound, of another model or without contradicting the schedule."""
    if bound is None or not (bound.above or bound.contradicts):
        return
    canary_text = f"{bound.canaries} canaries show epsilon >= {lower(bound.lower)} at {CONFIDENCE:.0%} confidence"
    if not bound.final:
        yield stated("scored-model", f"; its parameters differ, and {canary_text}", "unchecked")
    elif not bound.contradicts:
        text = (
            f"{canary_text}, above the certified bound; one in twenty sound runs shows that: train again with other "
            "inclusion bits and more canaries"
        )
        yield stated("canaries", status="unchecked", text=text)


def contradiction(bound: CanaryBound | None) -> Iterator[Issue]:
    """The test that rejects if canaries contradict the schedule. One that does not reject would support nothing."""
    if bound is not None and bound.contradicts and bound.upper is not None:
        note = f"at delta = {bound.delta:g}, p = {upper(bound.p_value)}"
        yield CONTRADICTED.compared(False, bound.upper, bound.lower, note, None)
