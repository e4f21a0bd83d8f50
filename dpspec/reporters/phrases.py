"""Phrases for the parts of a result: assumptions, conformance tests, recordings, places of values, and printed names.

Text from specs, plugins and recordings is returned unescaped: each format escapes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from dpspec.contract import Assumption, Check, Finding, Printed
from dpspec.contract.catalog import Catalog
from dpspec.contract.findings import AS_RUN
from dpspec.engine.judging.conformance_status import family_sizes, rejected
from dpspec.engine.results import decimals
from dpspec.engine.results.recording import AccountantReport, Recording
from dpspec.engine.results.result import AuditResult, Result
from dpspec.registry.foreign_code import resolve
from dpspec.reporters import labels
from dpspec.text import joined

_STATUS_ORDER = ("false", "unchecked", "reported", "declared", "not-rejected", "by-construction")


def assumptions_of(audit: AuditResult) -> list[Assumption]:
    held = [*(finding.assumptions for finding in findings(audit)), *(one.assumptions for one in audit.evidence)]
    distinct = dict.fromkeys(of for assumptions in held for of in assumptions)
    return sorted(distinct, key=lambda of: _STATUS_ORDER.index(of.status))


def assumption(of: Assumption, *, tested_above: bool = False) -> str:
    """In short if the report lists its test above."""
    text = of.text or of.name
    details = ["tested above" if tested_above else of.test or ""]
    if of.level is not None:
        details.append(f"level {decimals.nearest(of.level, digits=2)}")
    if of.detectable is not None and not tested_above:
        details.append(detectable(of.detectable))
    known = ", ".join(detail for detail in details if detail)
    return f"{text} ({known})" if known else text


def printed(of: Printed) -> str:
    state = "known to be wrong, backs no verdict" if of.refuted else "not known to be wrong"
    return f"the formula as printed, {state}{f': {of.reason}' if of.reason else ''}"


def families(result: Result) -> list[int]:
    """For each audit the number of checks that its own were judged among."""
    return family_sizes([(len(one.checks), len(one.trials), one.planned_trials) for one in result.audits])


def ranked(checks: Sequence[Check], family: int) -> list[tuple[Check, bool]]:
    """Rejected checks first. A p-value that is not a probability counts as rejected: the result was edited."""
    judged = [(one, not 0.0 <= one.p_value <= 1.0 or rejected(one, family)) for one in checks]
    bad = sorted((one for one, is_rejected in judged if is_rejected), key=lambda one: one.p_value)
    return [*((one, True) for one in bad), *((one, False) for one, is_rejected in judged if not is_rejected)]


def check(of: Check) -> str:
    text = f"{of.assumption}{f', {of.note}' if of.note else ''}: {of.test}, p = {decimals.upper(of.p_value, digits=2)}"
    if of.declared is not None:
        text += f", declared {decimals.given(of.declared)}"
    if of.measured is not None:
        text += f", {of.observed} {decimals.nearest(of.measured)}"
    elif of.observed == "reported":
        text += ", reported by the backend"
    return text if of.detectable is None else f"{text}, {detectable(of.detectable)}"


def foreseen(of: Check) -> str:
    power = "detection limit depends on the run" if of.detectable is None else detectable(of.detectable)
    return f"check {of.assumption}{f', {of.note}' if of.note else ''} ({of.test}, {of.observed}): {power}"


def detectable(deviation: float) -> str:
    """Rounded up."""
    if deviation == 0:
        return "smallest detectable deviation: any"
    return f"smallest detectable deviation {decimals.upper(100 * deviation, digits=2)}%"


def _is_as_run(of: Finding) -> bool:
    return of.quantity == AS_RUN and of.bound == "estimate"


def findings(audit: AuditResult) -> tuple[Finding, ...]:
    """All except the epsilon of the executed run, which reports show with the conformance."""
    return tuple(finding for finding in audit.findings if not _is_as_run(finding))


def as_run(audit: AuditResult) -> tuple[str, ...]:
    """The estimated epsilon of the executed run for each method, group size and delta, and the assumptions."""
    found = [finding for finding in audit.findings if _is_as_run(finding)]
    given = [finding for finding in found if finding.lower is not None]
    lines = []
    for finding in found:
        begin = f"Estimated epsilon of the executed run ({finding.method})"
        if finding.lower is None:
            missing = "; ".join(one.text for one in finding.assumptions)
            lines.append(f"{begin}: not available; missing: {missing}.")
            continue
        high = "no upper end" if math.isinf(finding.value) else decimals.upper(finding.value)
        at = f" at {labels.conditions(finding.at)}" if finding.at else ""
        lines.append(f"{begin}: {decimals.lower(finding.lower)} to {high}{at}.")
    if given:
        assumed = dict.fromkeys(one.text for finding in given for one in finding.assumptions)
        sure = {decimals.exact(finding.confidence) for finding in given if finding.confidence is not None}
        held = f" All intervals hold at joint confidence {', '.join(sorted(sure))}." if sure else ""
        deviates = audit.conformance.status == "deviates"
        doubt = " The run deviates and may violate this assumption." if deviates else ""
        lines.append(f"No claim depends on this estimate.{held} Assumption: {'; '.join(assumed)}.{doubt}")
    return tuple(lines)


_PLACE = re.compile(r"(findings|verdicts|checks|series|evidence|power)\[(\d+)\]")


def place(result: Result, audit: str, what: str) -> str:
    """``quickstart: findings[3].value (epsilon <= 2.349, delta 1e-5)``: audit, path and its subject."""
    path = f"{audit}: {what}" if audit else what
    found = _PLACE.match(what)
    holder = next((one for one in result.audits if one.name == audit), None)
    if found is None or holder is None:
        return path
    parts, index = getattr(holder, found[1]), int(found[2])
    if index >= len(parts):
        return path
    one = parts[index]
    match found[1]:
        case "findings":
            texts = [labels.statement(one), labels.conditions(one.at), one.method]
        case "verdicts":
            texts = [f"claim {one.claim}"]
        case "checks":
            texts = [one.assumption, one.test, one.note]
        case "series":
            texts = [one.title]
        case "evidence":
            texts = [one.id]
        case _:
            texts = [one.method, labels.conditions(one.at)]
    subject = ", ".join(filter(None, texts))
    return f"{path} ({subject})" if subject else path


_MOST_PHASES = 8

#: The headings of the three parts of a recording.
EXECUTED, CHANNELS, ACCOUNTANT = "Executed run", "Channels", "The script's accountant"

#: The columns of the table of channels.
CHANNEL_COLUMNS = ("channel", "status", "requirement, and evidence in the recording")


def executed(recording: Recording) -> list[str]:
    shown = list(recording.setup)
    for phase in recording.phases[:_MOST_PHASES]:
        last = phase.first + phase.steps - 1
        steps = f"step {phase.first}" if phase.steps == 1 else f"steps {phase.first} to {last}"
        noise = "noise not observed"
        if phase.noise_multiplier is not None:
            noise = (
                f"noise multiplier {decimals.nearest(phase.noise_multiplier)}" if phase.noise_multiplier else "no noise"
            )
        clip = "" if phase.clip_norm is None else f", clip norm {decimals.nearest(phase.clip_norm)}"
        rate = "no Poisson sample" if phase.rate is None else f"rate {decimals.nearest(phase.rate)}"
        shown.append(f"{steps}: {rate}, {noise}{clip}")
    more = len(recording.phases) - _MOST_PHASES + recording.more_phases
    return [*shown, f"and {more} more phases"] if more > 0 else shown


def channel_rows(recording: Recording) -> list[tuple[str, str, str]]:
    return [(one.name, one.status, one.text) for one in recording.channels]


def accountant(report: AccountantReport | None) -> str:
    if report is None:
        return "The recorder received no accountant: the script's figure is unknown."
    figure = "no figure" if report.epsilon is None else f"epsilon {decimals.nearest(report.epsilon)}, recomputed"
    return f"{report.mechanism}: {figure} at delta = {decimals.exact(report.delta)}. {report.difference}"


def declared(recording: Recording) -> str:
    parts = [
        f"{what} {', '.join(names)}"
        for what, names in (("assumes", recording.assumed), ("declares public", recording.public))
        if names
    ]
    return f"The user {' and '.join(parts)}." if parts else ""


def recording_notes(recording: Recording, *, cautions: bool = True) -> list[str]:
    unknown = [f"not recognized: {one}" for one in recording.unrecognized]
    return [*(recording.cautions if cautions else ()), *recording.advice, *unknown]


#: Core's modules with assumptions as values, or with their texts by name in TEXTS.
_MODULES = (
    "dpspec.engine.recorded.channels",
    "dpspec.kit.findings",
    "dpspec.kit.users",
    "dpspec.kit.scores_elsewhere",
    "dpspec.engine.running.conclude",
    "dpspec.engine.selection",
)


def printed_names(catalog: Catalog) -> dict[str, list[str]]:
    """By name, one block per meaning: a line with kind and name, then lines of text."""
    from dpspec.engine.recorded.channels import KINDS, channel_of
    from dpspec.reporters.labels import CHECKED, sentence

    found: dict[str, list[str]] = {}
    for name, kind in KINDS.items():
        of_channel = joined([own for own in kind.names if own != name]) or f"all called {name}"
        text = f"Channel by which records can reach a recorded model; requirement: {kind.text}"
        found.setdefault(name, []).append(f"channel {name}\n{text}.\nIts checks and assumptions: {of_channel}.")
    for name, text in CHECKED.items():
        found.setdefault(name, []).append(f"check {name}\n{sentence(text)}.")
    for name, text in dict.fromkeys(_assumptions(catalog)):
        found.setdefault(name, []).append(f"assumption {name}\n{sentence(text)}.")
    for name in (name for kind in KINDS.values() for name in kind.names if name not in found):
        found[name] = [f"check {name}\nA check of recorded runs, in the channel {channel_of(name)}."]
    return found


def _assumptions(catalog: Catalog) -> Iterator[tuple[str, str]]:
    from dpspec.accounting import library_accuracy

    of_plugins = (name for offered in catalog.mechanisms.values() for name in offered.provider.assumptions)
    for name in (*_MODULES, *of_plugins):
        module: Any = resolve(f"{name}:__dict__")
        yield from module.get("TEXTS", {}).items()
        for value in module.values():
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, Assumption):
                    yield one.name, one.text
    stated = library_accuracy()
    yield stated.name, stated.text
