"""The limits of a result."""

from collections.abc import Iterator, Mapping

from dpspec import decimals
from dpspec.contract.results import AuditResult, Result
from dpspec.reporters import words
from dpspec.results.executed_noise import executed_noise
from dpspec.results.origins import origin_summary, version_notices
from dpspec.tested_versions import untested_versions
from dpspec.text import joined

#: Limits of every audit.
ALWAYS = (
    "No upper bound here covers floating-point behavior of the noise, timing or other side channels.",
    "Each claim covers one mechanism: other releases from the same data are not counted.",
)

#: The place of an audit's name in a sentence; no shown text contains it.
_NAME = "\0"


def limits(result: Result) -> tuple[str, ...]:
    """Sentences; equal ones of several audits become one with their names."""
    names_by_sentence: dict[str, list[str]] = {}
    for audit in result.audits:
        for sentence in _audit(audit):
            names_by_sentence.setdefault(sentence, []).append(audit.name)
    sentences = [sentence.replace(_NAME, words.name_list(names)) for sentence, names in names_by_sentence.items()]
    untested = (f"{sentence}." for sentence in untested_versions(result.environment))
    return tuple(dict.fromkeys((*sentences, *stored_trials(result), *untested, *ALWAYS)))


def _audit(audit: AuditResult) -> Iterator[str]:
    """Sentences with ``_NAME`` for the name of the audit."""
    name, conformance = _NAME, audit.conformance.status
    undecided = [verdict.claim for verdict in audit.verdicts if verdict.verdict == "open"]
    if undecided and not audit.complete:
        yield f"Open in {name}: {joined(undecided)}. The missing trials may decide it."
    if audit.recording is not None:
        yield (
            f"All results of {name} come from its recording, made inside the training process: dpspec did not train "
            "or attack."
        )
    elif not audit.planned_trials:
        yield f"No training code was run for {name}: results apply to the specification."
    elif not audit.complete:
        missing = audit.planned_trials - len(audit.trials)
        yield f"{missing} of {audit.planned_trials} trials of {name} are missing: a re-run resumes."
    if audit.planned_trials:
        yield "A lower bound from an attack is a minimum: a stronger attack may find more."
        if conformance == "no-deviation-found":
            yield (
                "Conformance means that no test found a deviation. Deviations below the detection limits, and of kinds "
                "that no test covers, remain possible."
            )
            options = audit.document.get("audit")
            if isinstance(options, Mapping) and options.get("canary_free_run") is False:
                yield (
                    f"{name} was trained without a canary-free run: its tests cannot detect noise that is the same "
                    "in every run."
                )
        elif conformance == "checks-missing":
            yield f"Planned checks of {name} are missing: the deviations that they would detect are unknown."
        elif conformance == "not-run":
            yield f"No test compared the executed code of {name} with the declared mechanism."
    uppers = [finding.scope for finding in audit.findings if finding.bound == "upper"]
    if any(scope.data != "all" for scope in uppers):
        yield f"Some upper values of {name} hold only for its data, or for a declared collection."
    if least := max((scope.min_records for scope in uppers), default=0):
        yield f"Some upper values of {name} hold only for datasets of at least {least} records."
    for kind in sorted({scope.neighbours for scope in uppers} - {"all"}):
        yield f"Some upper values of {name} hold only between neighbours of the kind {kind!r}."
    noise = executed_noise(audit)
    if noise is not None and noise.revealed > 0.0:
        yield (
            f"The noise of {name} was drawn by {noise.generator} in float32, whose numbers end at 5.77 standard "
            "deviations: for an adversary who chooses gradients and sees noisy sums, no finite epsilon holds below "
            f"delta {decimals.lower(noise.revealed)}. Bounds assume noise of real numbers; "
            "noise: discrete-gaussian needs no such assumption."
        )
    yield from large_deltas(audit).values()


def real_numbers(audit: AuditResult) -> str:
    """What claims assume of the noise if its float32 numbers reveal more than a delta of the audit; otherwise empty.

    A sentence without a full stop.
    """
    noise = executed_noise(audit)
    deltas = [claim.get("delta") for claim in audit.document.get("claims", ())]
    if audit.recording is not None and not deltas:  # the number without a claim is at the mechanism's delta
        deltas = [audit.document.get("mechanism", {}).get("delta")]
    if noise is None or not any(isinstance(delta, int | float) and delta < noise.revealed for delta in deltas):
        return ""
    floor = decimals.lower(noise.revealed, digits=2)
    return (
        f"noise has real numbers: in float32, noisy sums of chosen gradients have no finite epsilon below delta {floor}"
    )


def large_deltas(audit: AuditResult) -> dict[str, str]:
    """For each claim with delta >= 1 / n, for n records, a sentence; a recorded run has a caution instead."""
    records = audit.facts.records
    claims = audit.document.get("claims", ()) if audit.recording is None else ()
    deltas = {claim["id"]: claim.get("delta") for claim in claims}
    return {
        claim: f"delta = {decimals.exact(delta)} of claim {claim} of {audit.name} is not below 1 / {records} records: "
        "publishing one random record would satisfy such a claim."
        for claim, delta in deltas.items()
        if isinstance(delta, int | float) and delta * records >= 1.0
    }


def stored_trials(result: Result) -> Iterator[str]:
    for audit in result.audits:
        if audit.stored_trials:
            yield (
                f"{audit.name}: {origin_summary(audit)}. Anyone with write access to the store can change trials in it."
            )
        for sentence in version_notices(audit.trials, result.environment):
            yield f"{audit.name}: {sentence}."
