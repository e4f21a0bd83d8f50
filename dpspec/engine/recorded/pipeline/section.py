"""The section ``recording`` of a result: what was executed, why the accountant differs, and the channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpspec.contract import Assumption, Check
from dpspec.engine.judging.conformance_status import rejected
from dpspec.engine.recorded.cautions import cautions
from dpspec.engine.recorded.channels.table import assumes, channels
from dpspec.engine.recorded.costs.canary_bound import CanaryBound
from dpspec.engine.recorded.costs.epsilons import Cost
from dpspec.engine.recorded.costs.told import told_of
from dpspec.engine.recorded.own_checks import advice
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.engine.recorded.schedule import stretches
from dpspec.engine.results.decimals import duration
from dpspec.engine.results.recording import AccountantReport, RecordedPhase, Recording

#: The number of phases that a result lists.
_MOST_PHASES = 200


def section(
    run: RecordedRun,
    *,
    digest: str,
    checks: Sequence[Check],
    assumptions: Sequence[Assumption],
    delta: float,
    cost: Cost,
    infinite: bool,
    shown: CanaryBound | None,
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
        infinite: Whether an asked epsilon is infinite.
        shown: What its canaries show; None if none were scored.
        assumed: Names that the user assumes.
        public: Names of hyperparameters that the user declares public.
    """
    phases, bad = stretches(run), [one for one in checks if rejected(one, len(checks))]
    found = channels(checks, assumptions)
    report = told_of(run, delta, cost)
    notes = [] if shown is None else [note for note in (shown.note, _ABOVE if shown.above else "") if note]
    return Recording(
        steps=run.steps,
        ended=run.end is not None,
        setup=(*_setup(run), f"SHA-256 of the recorded files: {digest}"),
        cautions=(*notes, *cautions(run, delta, infinite=infinite)),
        unrecognized=tuple(_unrecognized(run)),
        phases=tuple(
            RecordedPhase(
                first=one.first,
                steps=one.steps,
                noise_multiplier=one.noise_multiplier,
                clip_norm=one.clip_norm,
                rate=one.rate,
            )
            for one in phases[:_MOST_PHASES]
        ),
        more_phases=max(0, len(phases) - _MOST_PHASES),
        accountant=None
        if report is None
        else AccountantReport(
            mechanism=report.mechanism, delta=delta, epsilon=report.epsilon, difference=report.sentence
        ),
        advice=tuple(dict.fromkeys(words for one in bad if (words := advice(one, bad)))),
        channels=found,
        assumes=assumes(found),
        assumed=assumed,
        public=public,
    )


_ABOVE = "The lower bound from canaries exceeds the certified bound: nothing is proved."


def _setup(run: RecordedRun) -> Iterator[str]:
    """Sentences without a full stop."""
    header = run.header
    seconds, error = run.said("seconds"), run.said("error")
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
        yield f"{header.canaries} canaries ({header.canary_kind}), {header.left_out} of which were left out"


def _reports_batches(run: RecordedRun) -> bool:
    """Whether a custom loop reports which records it draws."""
    return run.header.source == "own-loop" and bool((run["drawn"] >= 0).any())


def _batches(run: RecordedRun) -> str:
    header = run.header
    if header.scheme == "none":
        return "batches reported by the loop, drawn" if _reports_batches(run) else "batches not observed, drawn"
    kind = "batches of an unknown kind" if header.scheme == "unknown" else f"{header.scheme} batches"
    return f"{kind} ({header.sampler})"


def _unrecognized(run: RecordedRun) -> list[str]:
    """What the recorder did not recognize; a loop that reports its batches lacks no loader."""
    reports = _reports_batches(run)
    return [note for note in run.header.notes if not (reports and note.startswith("no loader was given"))]
