"""Parts of the section ``recording`` of a result: setup, cautions and the script's accountant."""

import math
from collections import Counter
from collections.abc import Iterator

from dpspec.contract import FrozenMap
from dpspec.contract.executed import ExecutedOrigin
from dpspec.decimals import duration, nearest
from dpspec.engine.accountant_figure import ACCOUNTANT_NAMES, History, accountant_epsilon, composed
from dpspec_recording.folder.coins import NEW_TOKENS
from dpspec_recording.judge.bounds import ScheduleEpsilon
from dpspec_recording.judge.canaries import CanaryBound
from dpspec_recording.judge.generator import recorded_noise
from dpspec_recording.judge.joined_checks import seam_notes
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.judge.section_groups import AccountantReport
from dpspec_recording.observers.constants.accountant import Accountant
from dpspec_recording.observers.rules import Rules
from dpspec_recording.observers.sensitivity.contributions import Contributions

#: Kinds of canaries that repeat records or their beginnings.
_REPEATED = ("mislabelled", "duplicate", NEW_TOKENS)


def cautions(run: RecordedRun, canaries: CanaryBound | None, unbounded: str) -> Iterator[str]:
    """Sentences on the run. unbounded: why no epsilon is finite, without a full stop; empty if one is."""
    header = run.header
    if canaries is not None and canaries.constant:
        yield (
            f"All {canaries.canaries} canaries have the same score, so the attack shows nothing: check that the loss "
            "depends on the model and on the record."
        )
    if header.clipping == "adaptive" and header.is_poisson and not unbounded:
        yield (
            "The bound for adaptive clipping is usually above the accountant's figure, which counts the gradients "
            "alone. Opacus divides the noisy count of unclipped records by the real batch size, so the bound charges "
            "the count too, and sampling amplifies nothing beyond the probability that a record is drawn. Flat "
            "clipping has a bound near the accountant's figure."
        )
    if unbounded:
        yield f"No epsilon is finite, so no claim about this run can be proved: {unbounded}."
    if run.end is None:
        yield f"The recording has no end: the result covers its first {run.steps} steps only."
    if header.canaries and not (run.scored is not None and run.folder.has_canaries):
        score_state = (
            "scored, but the folder lacks their scores" if run.scored is not None else "not scored by run.score"
        )
        yield f"{header.canaries} canaries were inserted and {score_state}: the model's leakage was not measured."
    if run.scored is not None and not run.scored.final:
        yield "The scored model is not the recorded one: the results for the recorded steps do not apply to it."
    if run.resumed is not None and (history := _history(run)) is not None:
        counted = sum(int(steps) for _, _, steps in history) - header.told_before
        if header.accountant and counted < run.steps:
            yield f"The accountant counted {counted} of {run.steps} steps: its epsilon is not the cost of all parts."
    if not header.accountant:
        yield "The recorder got no accountant, so steps before the recording were not checked."
    if header.canary_kind in _REPEATED:
        yield f"Canaries of kind {header.canary_kind} repeat records: a person with both is a group of two."
    rules = run.fact(Rules)
    if rules is not None and rules.failed:
        failed = ", ".join(rules.failed)
        yield f"The code of rules failed in the recording, and did not look for their mistakes: {failed}."
    yield from seam_notes(run)
    facts = run.fact(Contributions)
    if facts is not None and run.half_excess:
        longer = f"may be {nearest(100 * run.norm_excess)}% longer than the clip norm"
        yield f"Gradients were clipped in {facts.norm_type} and {longer}; upper bounds count less noise by that."
    elif excess := run.norm_excess:
        longer = f"{nearest(100 * excess)}% longer than the clip norm; upper bounds count less noise by that"
        yield f"Rounding in float32 of norms of {run.largest_layer:,} values may leave a contribution {longer}."


def recorded_origin(run: RecordedRun) -> ExecutedOrigin:
    """The origin of the first part, or of the first rank."""
    header = run.header
    common = {name: getattr(header, name) for name in ("began", "machine", "dtypes", "dataset", "indices", "federated")}
    noise = recorded_noise(run)
    return ExecutedOrigin(**common, versions=FrozenMap(header.versions), records=header.present, noise=noise)


def unrecognized(run: RecordedRun) -> Iterator[str]:
    """The parts that the recorder did not observe; a loop that reports its batches needs no loader."""
    if run.header.no_loader and not reports_batches(run):
        yield "no loader was given: the drawn records are not observed"
    yield from run.header.notes


def reports_batches(run: RecordedRun) -> bool:
    """Whether a custom loop reports its batches."""
    return run.header.batches_are_reported and bool((run["drawn"] >= 0).any())


def setup(run: RecordedRun) -> Iterator[str]:
    """Yield sentences without a full stop."""
    header = run.header
    steps = f"{run.steps} step{'' if run.steps == 1 else 's'} recorded"
    if run.end is None:
        yield f"{steps}; the recording has no end"
    else:
        yield f"{steps} in {duration(run.end.seconds)}" + (f", ended by {run.end.error}" if run.end.error else "")
    if header.canaries:
        copies = f" of {header.copies} equal records each" if header.copies > 1 else ""
        yield f"{header.canaries} canaries ({header.canary_kind}){copies}, {header.left_out // header.copies} excluded"
    if header.canary_kind == NEW_TOKENS:
        yield "each included canary adds a record that ends in a token id that no other record has; " + (
            f"the canaries extend the model's vocabulary by {header.new_ids} ids"
            if header.new_ids
            else "the vocabulary is the model's own"
        )


#: Maximum number of entries of a history that is composed.
_MOST = 2000


def accountant_report(run: RecordedRun, delta: float, cost: ScheduleEpsilon) -> AccountantReport | None:
    mechanism = run.header.accountant
    if not mechanism:
        return None
    history = _history(run)
    epsilon = None
    if history is None or len(history) > _MOST:
        difference = "The recording lacks part of its history."
    elif not history:
        difference = "It counted no step."
    elif (epsilon := accountant_epsilon(mechanism, history, delta)) is None:
        difference = "Its history has no finite epsilon."
    else:
        difference = f"It composes by {ACCOUNTANT_NAMES.get(mechanism, mechanism)}. By PLD, its history has epsilon "
        difference += f"{composed(history).epsilon(delta).upper:.4g}"
        if cost.interval is not None and math.isfinite(cost.interval.upper):
            difference += f" and the executed schedule {cost.interval.upper:.4g}"
        difference += "."
    return AccountantReport(mechanism=mechanism, delta=delta, epsilon=epsilon, difference=difference)


def _history(run: RecordedRun) -> History | None:
    if (facts := run.fact(Accountant)) is not None:
        history = facts.history
        return history if all(0.0 <= s < 1e9 and 0.0 <= q <= 1.0 and n < 2**40 for s, q, n in history) else None
    reported_entries = zip(run["told_noise"].tolist(), run["told_rate"].tolist(), strict=True)
    counts = Counter(entry for entry in reported_entries if not any(map(math.isnan, entry)))
    return [(sigma, rate, steps) for (sigma, rate), steps in counts.items()]
