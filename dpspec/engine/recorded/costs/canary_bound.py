"""What the canaries of a run show: a lower bound on epsilon of one record, and whether it contradicts the schedule.

Flipping one coin makes of the training another one, on data of which one record more, or less, contributes to the
batches that draw its place; all else agrees. So if what ran is (epsilon, delta)-DP for a record that is put to nothing
(zero-out), the theorem on one run holds of the guesses of all coins (:mod:`dpspec.stats.attacks.one_run`). The same
pair is one of add-remove where no constant follows from the number of records. Canaries that are gradients
(:mod:`dpspec.recording.planting.gradients`) are such contributions too, chosen by an adversary who chooses gradients;
they are scored by the gradients of all steps, which somebody who sees the final model alone does not have. Guess counts
follow from the number of canaries alone, and equal scores keep the order of places, which knows no coin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpspec.contract import Assumption, Evidence, FrozenMap, Scope
from dpspec.engine.recorded.costs.canary_scores import CanaryScores, read_canaries
from dpspec.engine.recorded.costs.epsilons import ZERO_OUT, Cost
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.recording.folder.canaries import GRADIENTS
from dpspec.stats.attacks import guess_counts

#: A lower bound is no larger than the truth with this probability.
CONFIDENCE = 0.95

#: The schedule that was recorded is contradicted where its own curve has a p-value of at most this.
CONTRADICTED = 1e-6

#: At which deltas below the one that is asked about that curve is looked at, falling.
_DELTAS = (1e-6, 1e-8, 1e-10, 1e-12)


@dataclass(frozen=True, kw_only=True)
class CanaryBound:
    """What was shown at ``delta``. canaries: of which ``present`` were in. guesses: how many coins were guessed, the
    surest first; correct: how many of each were guessed right.

    lower: epsilon is at least this, at :data:`CONFIDENCE`. largest: what would have been shown, had all guesses been
    right. upper: the certified epsilon of the schedule; None where it has none, and infinite where it is. p_value: of
    what the schedule allows, at smaller deltas too where that may contradict it; 1 where it allows everything.
    final: whether the model that was scored is the recorded one as its last step left it; of gradients always, which
    are scored by what was recorded. gradients: whether canaries are gradients, and scored by those of all steps.
    constant: whether all scores are equal. further: smaller deltas at which the schedule was compared too.
    """

    delta: float
    canaries: int
    present: int
    guesses: tuple[int, ...]
    correct: tuple[int, ...]
    lower: float
    largest: float
    upper: float | None
    p_value: float
    final: bool
    gradients: bool
    constant: bool
    further: tuple[float, ...]
    assumptions: tuple[Assumption, ...]

    @property
    def above(self) -> bool:
        """Whether the lower bound is above the certified upper one; for a sound run with probability 0.05 at most."""
        return self.upper is not None and self.lower > self.upper

    @property
    def note(self) -> str:
        """What a reader must know of the scores; empty if nothing."""
        if not self.constant:
            return ""
        return (
            f"All {self.canaries} canaries have the same score, so that the attack shows nothing: check that the loss "
            "depends on the model and on the record."
        )

    @property
    def contradicts(self) -> bool:
        """Whether no sound run of this schedule would show that, but for one in a million."""
        return self.p_value <= CONTRADICTED


def canary_bound(run: RecordedRun, delta: float, cost: Callable[[float], Cost]) -> CanaryBound | None:
    """What the canaries of a run show; None where none were scored, or their scores were kept back.

    cost: what one record loses at a delta by the schedule that ran, for zero-out. Raises ``RecordingError`` as
    ``read_canaries``.
    """
    read = read_canaries(run)
    if read is None:
        return None
    number = len(read.coins)
    guesses, correct = guess_counts.counts([outcomes(read)], guess_counts.blind(number))
    asked = cost(delta).interval
    upper_end = None if asked is None else asked.upper
    points: list[tuple[float, float]] = []
    further: tuple[float, ...] = ()
    if upper_end is not None and upper_end < float("inf"):
        points = [(upper_end, delta)]
        # Bounds at smaller deltas are larger: where even this one at the smallest rejects nothing, none of them does.
        if guess_counts.p_value(number, guesses, correct, [(upper_end, _DELTAS[-1])]) <= CONTRADICTED:
            found = [(cost(at).interval, at) for at in _DELTAS if at < delta]
            points += [(interval.upper, at) for interval, at in found if interval is not None]
            further = tuple(at for interval, at in found if interval is not None)
    return CanaryBound(
        delta=delta,
        canaries=number,
        present=int(read.coins.sum()),
        guesses=tuple(guesses),
        correct=tuple(correct),
        lower=guess_counts.epsilon_lower(number, guesses, correct, delta, CONFIDENCE),
        largest=guess_counts.largest(number, guesses, delta, CONFIDENCE),
        upper=upper_end,
        p_value=guess_counts.p_value(number, guesses, correct, points),
        final=run.scored is not None and run.scored.final,
        gradients=_of_gradients(run),
        further=further,
        constant=bool((read.scores == read.scores[0]).all()),
        assumptions=_assumptions(run),
    )


def evidence_of(run: RecordedRun, found: CanaryBound, adjacency: str = ZERO_OUT) -> Evidence:
    """The same as evidence on the executed pipeline against an adversary who sees the final model, or every iterate if
    the canaries are gradients.

    adjacency: zero-out, or add-remove if no constant follows from the number of records.
    """
    header, gradients = run.header, found.gradients
    return Evidence(
        id="canaries" if adjacency == ZERO_OUT else f"canaries/{adjacency}",
        kind="one-run-ladder",
        statistics=FrozenMap(
            {"canaries": found.canaries, "guesses": list(found.guesses), "correct": list(found.correct)}
        ),
        scope=Scope(
            adjacency=adjacency,
            access="all-iterates" if gradients else "final-model",
            adversary="gradient" if gradients else "record",
            data="planted",
            pipeline="executed",
            min_records=max(0, (header.records or 0) - header.canaries),
        ),
        at=FrozenMap({"delta": found.delta, "group_size": 1}),
        method=f"one run, {'all noisy gradients' if gradients else 'final model'}, {found.canaries} canaries of a "
        "recorded script",
        source=guess_counts.SOURCE,
        power=found.largest,
        assumptions=found.assumptions,
    )


def outcomes(read: CanaryScores) -> str:
    """The coins from the lowest score to the highest; equal scores in the order of their places."""
    ordered = read.coins[np.argsort(read.scores, kind="stable")]
    return bytes(ordered.astype(np.uint8) + ord("0")).decode("ascii")


def _of_gradients(run: RecordedRun) -> bool:
    return run.header.canary_kind == GRADIENTS


def _assumptions(run: RecordedRun) -> tuple[Assumption, ...]:
    """What the lower bound rests on, in the order in which a reader should doubt it."""
    header = run.header
    found = [
        Assumption(
            name="blind-training",
            status="declared",
            text="the training got its canaries from the recorder alone, and did not look at their coins"
            if _of_gradients(run)
            else "the training got its canaries from the planted data set alone, and neither it nor the loss looked at "
            "their coins",
        ),
        Assumption(
            name="fair-coins",
            status="reported" if header.canary_seed is None else "declared",
            text="each canary was in or out by a fair coin of its own, thrown before training; "
            + (
                "they follow from the system's randomness, fixed by its digest"
                if header.canary_seed is None
                else f"they follow from the seed {header.canary_seed}, which was not chosen for what they are"
            ),
        ),
        Assumption(
            name="scored-once",
            status="declared",
            text="this run was not chosen among several for what its canaries show; all of them are scored, by one "
            "rule",
        ),
    ]
    if run.scored is not None and not run.scored.final:
        text = "the model that was scored is the recorded one as its last step left it; its parameters are others"
        found.insert(0, Assumption(name="scored-model", status="unchecked", text=text))
    return tuple(found)
