"""What ``dpspec check`` prints: the answer first, then what ran, what its accountant says, and what was tested."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpspec.engine.judging.conformance_status import rejected
from dpspec.engine.recorded.cautions import cautions, unscored_of
from dpspec.engine.recorded.channels.table import assumes
from dpspec.engine.recorded.costs.canary_bound import CONFIDENCE, CONTRADICTED, told_against
from dpspec.engine.recorded.own_checks import advice
from dpspec.engine.results.decimals import duration, exact, lower, nearest, upper
from dpspec.reporters.view.page_layout import Page
from dpspec.stats.conformance.measurement import LEVEL

if TYPE_CHECKING:
    from dpspec.contract import Check
    from dpspec.engine.recorded.checked_run import CheckedRun
    from dpspec.engine.recorded.costs.epsilons import Cost
    from dpspec.engine.recorded.schedule import Stretch

#: So many phases are shown one by one.
_SHOWN = 8

_STYLES = {"proved": "bold green", "open": "bold yellow", "refuted": "bold red", "contradicted": "bold red"}

_NEIGHBOURS = {
    "zero-out": "data sets of the same number of records, of which some are put to nothing (zero-out)",
    "add-remove": "data sets of which one has some records more (add-remove)",
}


def run_page(checked: CheckedRun, width: int, *, color: bool = False, every: bool = False) -> str:
    """The page, as wide as ``width``; ``every``: all checks, instead of those that are rejected."""
    page = Page(width, color=color)
    _answer(page, checked)
    _ran(page, checked)
    _costs(page, checked)
    _conformance(page, checked, every)
    page.heading("Channels")
    for channel in checked.channels:
        page.item((channel.name, "bold"), f" ({channel.status}): {channel.text}")
    page.heading("What this rests on")
    for one in checked.assumptions:
        page.item((one.name, "bold"), f" ({one.status}): {one.text}")
    if checked.canaries is not None:
        page.heading("What the lower bound rests on besides")
        for one in checked.canaries.assumptions:
            page.item((one.name, "bold"), f" ({one.status}): {one.text}")
    for note in _notes(checked):
        page.item(f"not recognised: {note}")
    return page.text()


def _notes(checked: CheckedRun) -> list[str]:
    """What could not be recognised; of a loop that says itself who was drawn, no loader is missing."""
    told = checked.run.header.source == "own-loop" and bool((checked.run["drawn"] >= 0).any())
    return [note for note in checked.run.header.notes if not (told and note.startswith("no loader was given"))]


def _answer(page: Page, checked: CheckedRun) -> None:
    question, status = checked.question, checked.conformance.status
    if question.epsilon is None:
        hint = "no --epsilon was given, so that nothing is proved here; what follows is what ran"
        page.line(("NOTHING CLAIMED", "bold yellow"), f"  {hint}", hang=17)
    if question.epsilon is not None and checked.verdict is not None:
        size = question.group_sizes[0]
        group = f" for groups of {size}" if size > 1 else " for single records" if len(question.group_sizes) > 1 else ""
        style, hang = _STYLES[checked.verdict], max(8, len(checked.verdict) + 2)
        claim = f"epsilon <= {exact(question.epsilon)} at delta = {exact(question.delta)}{group}"
        given = assumes(checked.channels) if checked.verdict == "proved" else ()
        assuming = f", assuming {', '.join(given)}:" if given else " "
        claim = f"{assuming} {claim}, for {_NEIGHBOURS[question.adjacency]}"
        page.line((checked.verdict.upper(), style), claim, hang=hang)
        page.line(f"{checked.reason}.", indent=hang)
    style = "bold green" if status == "conforms-within" else "bold red"
    page.line((status.upper(), style), f"  {_ended(checked)}")
    for caution in _cautions(checked):
        page.item(("Note: ", "bold"), caution)


def _cautions(checked: CheckedRun) -> list[str]:
    """What a reader must know first; of canaries where no verdict says it."""
    found = list(cautions(checked.run, checked.question.delta, infinite=checked.infinite))
    if checked.canaries is not None and checked.canaries.note:
        found.insert(0, checked.canaries.note)
    if checked.verdict is None and checked.canaries is not None:
        against = told_against(checked.canaries, math.inf, counted=False)
        if against is not None:
            words = f"contradicted {against[1]}" if against[0] == "contradicted" else against[1]
            found.insert(0, f"{words[0].upper()}{words[1:]}.")
    return found


def _ended(checked: CheckedRun) -> str:
    run = checked.run
    seconds = run.said("seconds")
    took = f" in {duration(float(seconds))}" if isinstance(seconds, int | float) else ""
    if run.end is None:
        return f"{_steps(run.steps)} recorded; the recording has no end: it was killed, or is still going on"
    error = run.said("error")
    why = f", ended by {error}" if isinstance(error, str) and error else ""
    return f"{_steps(run.steps)} recorded{took}{why}"


def _steps(number: int) -> str:
    return f"{number} step{'' if number == 1 else 's'}"


def _ran(page: Page, checked: CheckedRun) -> None:
    header = checked.run.header
    page.heading("What ran")
    inner = f" around {header.inner}" if header.inner else ""
    clipping = f", {header.clipping} clipping" if header.source == "opacus" else ", a loop of one's own"
    page.line(
        f"{header.model} of {header.parameters} parameters; {header.optimizer or 'no optimizer'}{inner}{clipping}",
        indent=2,
    )
    records = f" from {header.records} records" if header.records else ""
    ahead = f", loaded ahead by {header.workers} processes" if header.workers else ""
    page.line(f"{_batches(checked)}{records}{ahead}", indent=2)
    if header.canaries:
        among = f"{header.canaries} of them are places for canaries ({header.canary_kind})"
        page.line(f"{among}, {header.left_out} of which were left out", indent=2)
    for phase in checked.phases[:_SHOWN]:
        page.item(_phase(phase))
    if len(checked.phases) > _SHOWN:
        page.item(f"and {len(checked.phases) - _SHOWN} more phases")


def _batches(checked: CheckedRun) -> str:
    """How batches were drawn, as far as anybody said or saw."""
    header = checked.run.header
    if header.scheme == "none":
        told = header.source == "own-loop" and bool((checked.run["drawn"] >= 0).any())
        return "batches that the loop told of, drawn" if told else "batches that nobody saw, drawn"
    kind = "batches of an unknown kind" if header.scheme == "unknown" else f"{header.scheme} batches"
    return f"{kind} ({header.sampler})"


def _phase(phase: Stretch) -> str:
    steps = f"step {phase.first}" if phase.steps == 1 else f"steps {phase.first} to {phase.first + phase.steps - 1}"
    noise = (
        "noise not seen" if phase.noise_multiplier is None else f"noise multiplier {nearest(phase.noise_multiplier)}"
    )
    if phase.noise_multiplier == 0.0:
        noise = "no noise"
    clip = "" if phase.clip_norm is None else f", clip norm {nearest(phase.clip_norm)}"
    rate = "no Poisson sample" if phase.rate is None else f"rate {nearest(phase.rate)}"
    return f"{steps}: {rate}, {noise}{clip}"


def _costs(page: Page, checked: CheckedRun) -> None:
    page.heading(f"What it costs, at delta = {exact(checked.question.delta)}")
    if checked.conformance.status != "conforms-within":
        page.line("What ran does not conform: these are the costs of what its options say.", indent=2)
    for size, cost in checked.costs.items():
        who = "one record" if size == 1 else f"groups of {size}"
        page.item((f"{who}: ", "bold"), _cost(cost))
    if checked.measured is not None:
        about = f"about {nearest(checked.measured)}, an estimate"
        page.item(f"one record, with the noise and the norms that were measured: {about}")
    if checked.run.header.canaries:
        page.item(("one record, by canaries: ", "bold"), _canaries(checked))
    told = checked.told
    if told is None:
        page.item("no accountant was given to the recorder: the script's own figure is not known")
        return
    figure = "no figure" if told.epsilon is None else f"epsilon {nearest(told.epsilon)}"
    page.item(f"the script's accountant ({told.mechanism}): {figure}, recomputed. {told.sentence}")


def _canaries(checked: CheckedRun) -> str:
    """What canaries show, and what that is beside the certified bound."""
    found = checked.canaries
    if found is None:
        return f"nothing: {unscored_of(checked.run)}"
    model = "the final model" if found.final else "another model than the recorder saw last"
    model = "the noisy gradients of all steps" if found.gradients else model
    what = "clipped gradient" if found.gradients else "record"
    said = (
        f"epsilon >= {lower(found.lower)} at {CONFIDENCE:.0%} confidence, for a {what} that is put to nothing, from "
        f"{model}; {found.canaries} canaries can show {nearest(found.largest)} at most"
    )
    if found.contradicts:
        return f"{said}. The recorded schedule does not allow that: {_at_level(found.p_value)}"
    if found.above:
        return f"{said}. Above the certified bound, as in one of twenty sound runs: {_at_level(found.p_value)}"
    return said


def _at_level(p_value: float) -> str:
    """A p-value beside the level at which canaries contradict a recording."""
    return f"p = {upper(p_value)}, and a recording is contradicted at {exact(CONTRADICTED)} or less"


def _cost(cost: Cost) -> str:
    interval = cost.interval
    if interval is None:
        return f"not bounded: {cost.reason}"
    if not math.isfinite(interval.upper):
        return f"epsilon is infinite: {cost.reason}" if cost.reason else "epsilon is not bounded"
    how = f" ({cost.how})" if cost.how else ""
    true = f" (true value >= {lower(interval.lower)})" if cost.tight else ""
    return f"epsilon <= {upper(interval.upper)}{true}, certified{how}"


def _conformance(page: Page, checked: CheckedRun, every: bool) -> None:
    page.heading("Conformance")
    page.line(checked.conformance.reason, indent=2)
    family = len(checked.checks)
    bad = [check for check in checked.checks if rejected(check, family)]
    if bad or every:
        level = f"p <= {lower(LEVEL / family)}, which is {exact(LEVEL)} shared among all {family} checks"
        page.line(f"A check is rejected where {level}.", indent=2)
    given = {""}
    for check in checked.checks if every else bad:
        page.item(_check(check, check in bad), indent=4)
        if check in bad and (words := advice(check, bad)) not in given:
            page.line(words, indent=6)
            given.add(words)


def _check(check: Check, bad: bool) -> str:
    values = ""
    if check.declared is not None and check.measured is not None:
        values = f"; should be {nearest(check.declared)}, was {nearest(check.measured)}"
    note = f" ({check.note})" if check.note else ""
    state = "REJECTED" if bad else "not rejected"
    return f"{state}: {check.assumption}: {check.test}{note}, p = {upper(check.p_value)}{values}"


def run_json(checked: CheckedRun) -> Mapping[str, Any]:
    """The same as JSON; numbers that are infinite are null."""
    bad = [check for check in checked.checks if rejected(check, len(checked.checks))]
    header, question = checked.run.header, checked.question
    return {
        "run": {
            "steps": checked.run.steps,
            "ended": checked.run.end is not None,
            "optimizer": header.optimizer,
            "inner": header.inner,
            "clipping": header.clipping,
            "sampling": header.scheme,
            "notes": _notes(checked),
            "cautions": _cautions(checked),
        },
        "phases": [
            {
                "first": phase.first,
                "steps": phase.steps,
                "noise_multiplier": phase.noise_multiplier,
                "clip_norm": phase.clip_norm,
                "rate": phase.rate,
            }
            for phase in checked.phases
        ],
        "claim": {
            "epsilon": question.epsilon,
            "delta": question.delta,
            "group_size": question.group_sizes[0],
            "adjacency": question.adjacency,
            "public_constants": question.public_constants,
            "public": list(question.public),
            "assume": list(question.assume),
            "assuming": list(assumes(checked.channels)),
            "verdict": checked.verdict,
            "reason": checked.reason,
        },
        "costs": [
            {
                "group_size": size,
                "lower": _finite(cost.interval.lower) if cost.interval is not None and cost.tight else None,
                "upper": _finite(cost.interval.upper) if cost.interval is not None else None,
                "how": cost.how,
                "reason": cost.reason,
            }
            for size, cost in checked.costs.items()
        ],
        "accountant": None
        if checked.told is None
        else {
            "mechanism": checked.told.mechanism,
            "epsilon": _finite(checked.told.epsilon),
            "difference": checked.told.sentence,
        },
        "measured_epsilon": _finite(checked.measured),
        "canaries": _canary_json(checked),
        "conformance": {
            "status": checked.conformance.status,
            "reason": checked.conformance.reason,
            "level": LEVEL / max(1, len(checked.checks)),
        },
        "checks": [
            {
                "assumption": check.assumption,
                "test": check.test,
                "note": check.note,
                "observed": check.observed,
                "p_value": check.p_value,
                "declared": _finite(check.declared),
                "measured": _finite(check.measured),
                "detectable": _finite(check.detectable),
                "rejected": check in bad,
                "advice": advice(check, bad) if check in bad else "",
            }
            for check in checked.checks
        ],
        "channels": [
            {
                "name": one.name,
                "status": one.status,
                "text": one.text,
                "detectable": one.detectable,
                "sources": list(one.sources),
                "assumes": list(one.assumes),
            }
            for one in checked.channels
        ],
        "assumptions": [{"name": one.name, "status": one.status, "text": one.text} for one in checked.assumptions],
    }


def _canary_json(checked: CheckedRun) -> Mapping[str, Any] | None:
    header, found = checked.run.header, checked.canaries
    if not header.canaries:
        return None
    planted = {"kind": header.canary_kind, "planted": header.canaries, "left_out": header.left_out}
    if found is None:
        return {**planted, "scored": checked.run.scored is not None, "lower": None}
    return {
        **planted,
        "scored": True,
        "lower": found.lower,
        "largest": found.largest,
        "confidence": CONFIDENCE,
        "adjacency": "zero-out",
        "access": "all-iterates" if found.gradients else "final-model",
        "guesses": list(found.guesses),
        "correct": list(found.correct),
        "p_value": found.p_value,
        "final_model": found.final,
        "contradicts": found.contradicts,
        "above_certified": found.above,
        "assumptions": [{"name": one.name, "status": one.status, "text": one.text} for one in found.assumptions],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
