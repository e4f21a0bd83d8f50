"""What a reader of an answer must know first: of how much of the training it speaks, and what numbers do not say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpspec.engine.recorded.channels.assumptions import batches_left, unused_batches
from dpspec.engine.recorded.half_precision import norm_excess
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.engine.recorded.told_noise import compared, not_measured
from dpspec.engine.results.decimals import exact, nearest

#: Kinds of canaries that are made of records.
REPEATED = ("mislabelled", "duplicate")

#: Constants with more values than this are told of: schedules have few, what follows the data has many.
_FEW = 8


def _of_own_loop(run: RecordedRun) -> Iterator[str]:
    """What is believed of a loop that tells of itself."""
    found = compared(run)
    if found is not None and found.apart:
        yield f"The gradients of {found.apart} of {run.steps} steps are not the sum and the noise that were told of."
    elif why := not_measured(run):
        yield f"That the noise is in what moved the model is the loop's word: {why}."
    yield "That norms after clipping and batches are those of its gradients is the loop's word: nobody saw them made."


def cautions(run: RecordedRun, delta: float | None, *, infinite: bool = False) -> Iterator[str]:
    """Sentences, the worst first.

    delta: the largest that is asked about, None for none. infinite: whether no epsilon is finite.
    """
    if infinite:
        yield "No epsilon is finite, so that no claim about this run can be proved."
    if run.end is None:
        yield (
            f"The recording has no end: it was killed, a fault ended it (a warning of dpspec.record tells), or it is "
            f"still going on. All that is said here is of its first {run.steps} steps."
        )
    error = run.said("error")
    if isinstance(error, str) and error:
        yield f"The block was ended by {error} after {run.steps} steps: what was still to come is not in the recording."
    unscored = unscored_of(run)
    if unscored:
        yield f"The attack that was planted is missing: {unscored}. What the model gives away was not looked at."
    if run.scored is not None and not run.scored.final:
        yield (
            "The model whose canaries were scored is not the one that the recording ends with: its parameters are "
            "others. What is said here of the steps that were recorded is not said of that model."
        )
    if run.header.source == "own-loop":
        yield from _of_own_loop(run)
    if run.header.told_before:
        yield (
            f"The accountant had counted {run.header.told_before} steps when the recording began: it shows a part of "
            "the training."
        )
    elif run.said("resumed") is True:
        yield "The optimizer had made steps when the recording began: it shows a part of the training."
    elif not run.header.accountant:
        yield "No accountant was given to the recorder, so that steps before the recording were not looked for."
    if run.header.canary_kind in REPEATED:
        yield (
            f"Canaries of kind {run.header.canary_kind} repeat what records hold: whom a record is about may be in the "
            "training with a canary as well, and what is said of single records is said of each alone; see groups."
        )
    records = run.header.records
    if records is not None and delta is not None and delta * records >= 1.0:
        yield (
            f"delta = {exact(delta)} is not below 1 over the {records} records: publishing one record as it "
            "is, chosen by chance, would satisfy such a claim."
        )
    for name, words in (("clip_norm", "clip norm"), ("divisor", "divisor"), ("noise_multiplier", "noise multiplier")):
        values = np.unique(run[name][np.isfinite(run[name])])
        if len(values) > _FEW and run.header.clipping != "adaptive":
            yield (
                f"The {words} took {len(values)} values in {run.steps} steps: where they were computed from records or "
                "gradients, nothing here holds (see data-independent-hyperparameters)."
            )
    excess = norm_excess(run)
    if excess:
        yield (
            f"Gradients were clipped in {run.said('norm_type')}: rounding lets them be up to {nearest(100 * excess)}% "
            "longer than the clip norm, and each noise multiplier is counted as so much smaller."
        )
    unused = unused_batches(run)
    if unused:
        yield f"{batches_left(unused).capitalize()}: see unused-batches under what this rests on."


def unscored_of(run: RecordedRun) -> str:
    """That canaries were planted and what they show is not there, and why; "" where it is, or none were planted."""
    planted = run.header.canaries
    if not planted or (run.scored is not None and run.folder.has_canaries):
        return ""
    if run.scored is not None:
        return f"{planted} canaries were planted and scored, and their scores were kept back"
    return f"{planted} canaries were planted and not scored: run.score was not called, or it raised"
