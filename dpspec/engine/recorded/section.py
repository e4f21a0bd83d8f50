"""The section ``recording`` of a result: setup, cautions, executed schedule, accountant, advice and channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dpspec.contract import Assumption, Check
from dpspec.engine.judging.conformance_status import rejected
from dpspec.engine.recorded.accountant import accountant_report
from dpspec.engine.recorded.assumptions import unused_batches, unused_text
from dpspec.engine.recorded.canary_bound import CanaryBound
from dpspec.engine.recorded.channels import assumes, channels
from dpspec.engine.recorded.checks import advice
from dpspec.engine.recorded.noise_checks import compared, why_noise_unconfirmed
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.engine.recorded.schedule import ScheduleEpsilon, phases_of
from dpspec.engine.results.decimals import duration, exact, nearest
from dpspec.engine.results.recording import Recording

#: Kinds of canaries that repeat records.
_REPEATED = ("mislabelled", "duplicate")

#: Maximum number of values of a constant without a caution. Schedules have few values, data-dependent constants many.
_FEW = 8

#: Maximum number of phases that a result lists.
_MOST_PHASES = 200


def section(
    run: RecordedRun,
    *,
    digest: str,
    checks: Sequence[Check],
    assumptions: Sequence[Assumption],
    delta: float,
    cost: ScheduleEpsilon,
    infinite: bool,
    canaries: CanaryBound | None,
    assumed: tuple[str, ...],
    public: tuple[str, ...],
) -> Recording:
    """The section of a run.

    Args:
        run: The run.
        digest: The SHA-256 of its files.
        checks: All its checks.
        assumptions: All its assumptions, for the strictest adjacency.
        delta: The delta at which epsilon is reported.
        cost: Epsilon of one record there.
        infinite: Whether a requested epsilon is infinite.
        canaries: The result of its canaries; None if none were scored.
        assumed: Names that the user assumes.
        public: Names of hyperparameters that the user declares public.
    """
    phases, bad = phases_of(run), [check for check in checks if rejected(check, len(checks))]
    found = channels(checks, assumptions)
    notes = []
    if canaries is not None and canaries.constant:
        notes.append(
            f"All {canaries.canaries} canaries have the same score, so the attack shows nothing: check that the loss "
            "depends on the model and on the record."
        )
    if canaries is not None and canaries.above:
        notes.append("The lower bound from canaries exceeds the certified bound: nothing is proved.")
    return Recording(
        steps=run.steps,
        ended=run.end is not None,
        setup=(*_setup(run), f"SHA-256 of the recorded files: {digest}"),
        cautions=(*notes, *cautions(run, delta, infinite=infinite)),
        unrecognized=tuple(_unrecognized(run)),
        phases=tuple(phases[:_MOST_PHASES]),
        more_phases=max(0, len(phases) - _MOST_PHASES),
        accountant=accountant_report(run, delta, cost),
        advice=tuple(dict.fromkeys(words for check in bad if (words := advice(check, bad)))),
        channels=found,
        assumes=assumes(found),
        assumed=assumed,
        public=public,
    )


def cautions(run: RecordedRun, delta: float | None, *, infinite: bool = False) -> Iterator[str]:
    """Yield sentences on the limits of the result, in the order of importance.

    Args:
        run: The run.
        delta: The largest delta of the bounds; None for none.
        infinite: Whether an epsilon is infinite.
    """
    header = run.header
    if infinite:
        yield "No epsilon is finite, so no claim about this run can be proved."
    if run.end is None:
        yield (
            "The recording has no end: the process was killed, an error ended it (dpspec.record warned), or it is "
            f"still running. The result covers its first {run.steps} steps only."
        )
    error = run.at_end("error")
    if isinstance(error, str) and error:
        yield f"{error} ended the block after {run.steps} steps: the recording does not contain what followed."
    if unscored := _unscored(run):
        yield f"The result of the attack by canaries is missing: {unscored}. The model's leakage was not measured."
    if run.scored is not None and not run.scored.final:
        yield (
            "The scored model differs from the one at the end of the recording. The results for the recorded steps do "
            "not apply to it."
        )
    if header.source == "own-loop":
        gradients = compared(run)
        if gradients is not None and gradients.apart:
            yield f"The gradients of {gradients.apart} of {run.steps} steps are not the reported sum and noise."
        elif why := why_noise_unconfirmed(run):
            yield f"Only the loop's report shows that the noise is in the model updates: {why}."
        yield "Only the loop's report shows that norms after clipping and batches belong to its gradients."
    if header.told_before:
        yield (
            f"The accountant had counted {header.told_before} steps when the recording began: it shows a part of the "
            "training."
        )
    elif run.at_end("resumed") is True:
        yield "The optimizer had made steps when the recording began: it shows a part of the training."
    elif not header.accountant:
        yield "The recorder got no accountant, so steps before the recording were not checked."
    if header.canary_kind in _REPEATED:
        yield (
            f"Canaries of kind {header.canary_kind} repeat records: a person may be in the training with a record and "
            "a canary. Results for single records cover each separately; see groups."
        )
    if header.records is not None and delta is not None and delta * header.records >= 1.0:
        yield (
            f"delta = {exact(delta)} is not below 1 over the {header.records} records: publishing one random record "
            "would satisfy such a claim."
        )
    for name, words in (("clip_norm", "clip norm"), ("divisor", "divisor"), ("noise_multiplier", "noise multiplier")):
        values = np.unique(run[name][np.isfinite(run[name])])
        if len(values) > _FEW and header.clipping != "adaptive":
            yield (
                f"The {words} took {len(values)} values in {run.steps} steps: if they were computed from records or "
                "gradients, no bound holds (see data-independent-hyperparameters)."
            )
    if excess := run.norm_excess:
        yield (
            f"Gradients were clipped in {run.at_end('norm_type')}: rounding lets them be up to "
            f"{nearest(100 * excess)}% longer than the clip norm, and each noise multiplier is reduced by that factor."
        )
    if unused := unused_batches(run):
        yield f"{unused_text(unused).capitalize()}: see the assumption unused-batches."


def _unscored(run: RecordedRun) -> str:
    """Why the result of inserted canaries is missing; empty if it is not, or without canaries."""
    count = run.header.canaries
    if not count or (run.scored is not None and run.folder.has_canaries):
        return ""
    if run.scored is not None:
        return f"{count} canaries were inserted and scored, but the folder lacks their scores"
    return f"{count} canaries were inserted and not scored: run.score was not called, or it raised"


def _setup(run: RecordedRun) -> Iterator[str]:
    """Yield sentences without a full stop."""
    header = run.header
    seconds, error = run.at_end("seconds"), run.at_end("error")
    took = f" in {duration(float(seconds))}" if isinstance(seconds, int | float) else ""
    steps = f"{run.steps} step{'' if run.steps == 1 else 's'} recorded"
    if run.end is None:
        yield f"{steps}; the recording has no end"
    else:
        yield f"{steps}{took}" + (f", ended by {error}" if isinstance(error, str) and error else "")
    inner = f" around {header.inner}" if header.inner else ""
    clipping = f", {header.clipping} clipping" if header.source == "opacus" else ", a custom loop"
    yield f"{header.model} of {header.parameters} parameters; {header.optimizer or 'no optimizer'}{inner}{clipping}"
    records = f" from {header.records} records" if header.records else ""
    ahead = f", loaded by {header.workers} processes" if header.workers else ""
    yield f"{_batches(run)}{records}{ahead}"
    if header.canaries:
        yield f"{header.canaries} canaries ({header.canary_kind}), {header.left_out} excluded"


def _reports_batches(run: RecordedRun) -> bool:
    """Whether a custom loop reports the records that it draws."""
    return run.header.source == "own-loop" and bool((run["drawn"] >= 0).any())


def _batches(run: RecordedRun) -> str:
    header = run.header
    if header.scheme == "none":
        return "batches reported by the loop, drawn" if _reports_batches(run) else "batches not observed, drawn"
    kind = "batches of an unknown kind" if header.scheme == "unknown" else f"{header.scheme} batches"
    return f"{kind} ({header.sampler})"


def _unrecognized(run: RecordedRun) -> list[str]:
    """Notes of the recorder; a loop that reports its batches needs no loader."""
    reports = _reports_batches(run)
    return [note for note in run.header.notes if not (reports and note.startswith("no loader was given"))]
