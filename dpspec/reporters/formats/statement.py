"""A privacy statement to publish: one page along the blocks of NIST SP 800-226, each checked, declared or not covered.

*Guidelines for Evaluating Differential Privacy Guarantees* (NIST SP 800-226, 2025) asks about more than epsilon: the
unit of privacy, correctness of the implementation, the trust model, security, and how data was collected. A statement
says of every block what this audit checked, what is only declared, and what it does not cover.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from dpspec.contract.spec import unit_in_words
from dpspec.engine.judging.proven_curves import proven_curves
from dpspec.engine.redact import redact
from dpspec.engine.results import decimals
from dpspec.engine.results.joined import apart
from dpspec.engine.results.result import AuditResult, Result, Verdict
from dpspec.reporters.view import words
from dpspec.text import json_text, markdown

Coverage: TypeAlias = Literal["checked", "declared", "not covered"]

_UNITS = {"add-remove": "added or removed", "replace-one": "replaced by another", "zero-out": "replaced by nothing"}


#: Where a curve from finitely many pairs is below every Gaussian one with more probability than this, mu says nothing.
_MOST_FLOOR = 1e-3


@dataclass(frozen=True)
class Block:
    """One block of the pyramid: what is known of it, and how."""

    name: str
    coverage: Coverage
    text: str


@dataclass(frozen=True)
class Guarantee:
    """One claim: what is said, the verdict, and the interval with the rigor of its upper end.

    control: whether the claim was made to fail, as a test of the audit.
    """

    claim: str
    says: str
    verdict: str
    control: bool
    interval: str
    rigor: str
    source: str


@dataclass(frozen=True)
class Statement:
    """The statement of one audit."""

    name: str
    description: str
    guarantees: tuple[Guarantee, ...]
    curves: tuple[str, ...]
    blocks: tuple[Block, ...]
    assumptions: tuple[str, ...]
    digest: str
    created: str


def statements(result: Result) -> tuple[Statement, ...]:
    """One statement per audit, without anything that depends on the data."""
    return tuple(_statement(audit, part.created) for part in apart(redact(result)) for audit in part.audits)


def render(result: Result, *, internal: bool = False) -> str:
    """Markdown. ``internal`` changes nothing: what is published holds no data-dependent value."""
    return "\n".join(line for statement in statements(result) for line in _page(statement))


def render_json(result: Result, *, internal: bool = False) -> str:
    """The same as JSON. ``internal`` changes nothing: what is published holds no data-dependent value."""
    said = [asdict(statement) for statement in statements(result)]
    return json_text(json.dumps(said, indent=2, allow_nan=False)) + "\n"


def _statement(audit: AuditResult, created: str) -> Statement:
    held = dict.fromkeys(
        f"{assumption.name} ({assumption.status}): {assumption.text or assumption.name}"
        for finding in audit.findings
        if finding.bound == "upper"
        for assumption in finding.assumptions
    )
    return Statement(
        name=audit.name,
        description=str(audit.document.get("description") or ""),
        guarantees=tuple(_guarantee(audit, verdict) for verdict in audit.verdicts if verdict.kind != "metric"),
        curves=() if audit.conformance.status == "deviates" else tuple(_curves(audit)),
        blocks=tuple(_blocks(audit)),
        assumptions=tuple(held),
        digest=audit.digest,
        created=created,
    )


def _guarantee(audit: AuditResult, verdict: Verdict) -> Guarantee:
    upper = audit.findings[verdict.upper_finding] if verdict.upper_finding is not None else None
    return Guarantee(
        claim=verdict.claim,
        says=verdict.text,
        verdict=words.headline(audit, verdict),
        control=words.is_control(verdict),
        interval=words.interval(audit, verdict),
        rigor="" if upper is None else words.rigor(upper),
        source="" if upper is None else f"{upper.method}; {upper.source}",
    )


def _curves(audit: AuditResult) -> Iterator[str]:
    """Every proved curve as one number: mu of Gaussian differential privacy, and the regret of saying only that."""
    from dpspec.accounting import fit_gdp

    for curve in proven_curves(audit):
        mu, regret, floor = fit_gdp(curve.polygon)
        if math.isfinite(mu) and floor < _MOST_FLOOR:
            but = f", but for a probability of {decimals.upper(floor)}" if floor else ""
            yield (
                f"The proved curve{words.curve(curve) or ', single records'}: "
                f"mu-GDP with mu at most {decimals.upper(mu)}{but}. "
                f"Saying only this gives away at most {decimals.upper(regret)} (regret)"
            )


def _blocks(audit: AuditResult) -> Iterator[Block]:
    threat = audit.document.get("threat_model") or {}
    private = [verdict for verdict in audit.verdicts if verdict.kind != "metric" and not words.is_control(verdict)]
    labels = [words.verdict_label(audit, verdict) for verdict in private]
    decided = [label for label in labels if label in ("proved", "supported")]
    proved = labels.count("proved")
    yield Block(
        "Epsilon and delta",
        "checked" if private and len(decided) == len(private) else "declared",
        f"{proved} of {words.count(len(private), 'claim')} proved, by the bounds below"
        + ("" if len(decided) == len(private) else "; the others are not established by this audit"),
    )
    asked = threat.get("group_size") or 1
    sizes = asked if isinstance(asked, list | tuple) else [asked]
    adjacency = str(threat.get("adjacency", "add-remove"))
    unit = unit_in_words(str(threat.get("unit", "record")), audit.document.get("data") or {})
    yield Block(
        "Unit of privacy",
        "declared",
        f"one {unit}, {_UNITS.get(adjacency, adjacency)}; groups of "
        f"{' and '.join(map(words.value, sizes))} were accounted for. {_bound(audit, unit)}",
    )
    released = {
        "all-iterates": "every intermediate model",
        "final-model": "the final model",
        "transcript": "every intermediate model, and which of the other records each step drew",
    }
    access = str(threat.get("access", "all-iterates"))
    yield Block("What is released", "declared", f"an adversary is taken to see {released.get(access, access)}")
    yield Block("Mechanism", *_mechanism(audit))
    yield Block("Utility", *_utility(audit))
    yield Block("Bias", "not covered", "how errors differ between groups of people was not measured")
    yield Block("Side channels", "not covered", "floating-point behaviour of the noise, its generator, and timing")
    yield Block("Other releases", "not covered", "what else was released from the same data composes with this")
    yield Block("Trust model", "declared", "the party that trains sees the data; models trained for audits stay there")
    yield Block("Security and access control", "not covered", "who can reach the data, the code and the logs")
    yield Block("Data collection", "not covered", "how the data was collected, and what about its pre-processing")


def _bound(audit: AuditResult, unit: str) -> str:
    """What is known of how many records a person has."""
    if unit == "record":
        return "That a person has no more records than that is not checked"
    known = (a.text for finding in audit.findings for a in finding.assumptions if a.name == "records-per-user")
    said = next(known, "how many records one has is not checked")
    return said[:1].upper() + said[1:]


def _mechanism(audit: AuditResult) -> tuple[Coverage, str]:
    mechanism = audit.document.get("mechanism", {})
    values = {key: value for key, value in mechanism.items() if isinstance(value, str | int | float | Mapping)}
    what = words.conditions(values)
    conformance = audit.conformance
    if conformance.status == "no-deviation-found":
        return "checked", f"{what}. What ran was tested against this: {conformance.reason}"
    if conformance.status == "deviates":
        return "checked", f"{what}. What ran deviates from this: {conformance.reason}"
    if conformance.status == "checks-missing":
        return "declared", f"{what}. What ran was not tested as planned: {conformance.reason}"
    return "declared", f"{what}. What ran was not tested against this"


def _utility(audit: AuditResult) -> tuple[Coverage, str]:
    metrics = [verdict for verdict in audit.verdicts if verdict.kind == "metric"]
    if not metrics:
        return "not covered", "no claim about the model's use was made"
    return "checked", "; ".join(f"{verdict.text}: {verdict.verdict}" for verdict in metrics)


def _page(statement: Statement) -> Iterator[str]:
    yield f"# Privacy statement: {markdown(statement.name)}"
    yield ""
    if statement.description:
        yield markdown(statement.description)
        yield ""
    yield "| Claim | Says | Verdict | Interval | Rigor of the upper bound | Source |"
    yield "|---|---|---|---|---|---|"
    for one in statement.guarantees:
        verdict = f"{one.verdict} (a control, made to fail)" if one.control else one.verdict
        cells = (one.claim, one.says, verdict, one.interval, one.rigor or "none", one.source or "none")
        yield f"| {' | '.join(markdown(cell) for cell in cells)} |"
    yield ""
    for text in statement.curves:
        yield f"- {markdown(text)}."
    if statement.curves:
        yield ""
    yield "After the blocks of NIST SP 800-226:"
    yield ""
    yield "| Block | Coverage | |"
    yield "|---|---|---|"
    for block in statement.blocks:
        yield f"| {block.name} | **{block.coverage}** | {markdown(block.text)} |"
    yield ""
    if statement.assumptions:
        yield "The bounds hold under these assumptions:"
        yield ""
        yield from (f"- {markdown(text)}" for text in statement.assumptions)
        yield ""
    digest, created = markdown(statement.digest[:16]), markdown(statement.created)
    yield f"Spec digest {digest}, audited {created} by dpspec. The lower end of an interval is certified by theory or"
    yield "found by an attack; `dpspec verify` recomputes every number from the result file."
    yield ""
