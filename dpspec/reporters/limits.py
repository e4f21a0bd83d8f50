"""What a result does not show, said by the result itself: derived from its scopes, statuses and gaps."""

from __future__ import annotations

from collections.abc import Iterator

from dpspec.engine.result import AuditResult, Result

#: True of every audit that this program can make.
ALWAYS = (
    "Floating-point behaviour of the noise, timing and other side channels are outside every number here.",
    "Claims are judged one mechanism at a time: what else was released from the same data is not counted.",
)


def limits(result: Result) -> tuple[str, ...]:
    """Sentences, the most specific first, each said once."""
    found = [sentence for audit in result.audits for sentence in _audit(audit)]
    return tuple(dict.fromkeys((*found, *ALWAYS)))


def _audit(audit: AuditResult) -> Iterator[str]:
    undecided = [verdict.claim for verdict in audit.verdicts if verdict.verdict == "open"]
    if undecided:
        why = "Nothing decides that, in either direction" if audit.complete else "The missing trials may decide that"
        yield f"Open in {audit.name}: {_listed(undecided)}. {why}."
    supported = [verdict.claim for verdict in audit.verdicts if verdict.verdict == "supported"]
    if supported:
        yield f"Only supported in {audit.name}: {_listed(supported)}. The evidence points that way but is no proof."
    if not audit.planned_trials:
        yield f"Nothing was trained for {audit.name}: its numbers speak of the mechanism as declared, not of any code."
    elif not audit.complete:
        missing = audit.needed_trials - len(audit.trials)
        yield f"{missing} of {audit.needed_trials} trials of {audit.name} are missing: a re-run resumes."
    if audit.settled_after is not None:
        yield (
            f"{audit.name} stopped after {audit.settled_after} of {audit.planned_trials} trials, when all its claims "
            "were decided: more might have shown more."
        )
    if audit.planned_trials:
        yield "A lower bound is what these attacks found: a stronger attack may find more, never less."
        if audit.conformance.status == "conforms-within":
            yield (
                "Conformance means that no test saw a deviation; deviations smaller than the tests can see, "
                "and of kinds that no test looks for, remain possible."
            )
        elif audit.conformance.status == "not-run":
            yield f"Whether the code that ran for {audit.name} is the mechanism as declared was not tested."
    if any(finding.scope.data != "all" for finding in audit.findings if finding.bound == "upper"):
        yield f"Some upper values of {audit.name} hold for the data that was used, or for a declared collection, only."


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
