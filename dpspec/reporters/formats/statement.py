"""A privacy statement to publish: one page along the blocks of NIST SP 800-226.

*Guidelines for Evaluating Differential Privacy Guarantees* (NIST SP 800-226, 2025) covers more than epsilon: the unit
of privacy, correctness of the implementation, trust model, security and data collection. Each block is checked,
declared or not covered.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from dpspec.engine.judging.evidence_weight import proven_curves
from dpspec.engine.redact import redact
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult, Result, Verdict, apart
from dpspec.reporters import labels
from dpspec.text import json_text, markdown

Coverage: TypeAlias = Literal["checked", "declared", "not covered"]

_UNITS = {"add-remove": "added or removed", "replace-one": "replaced by another", "zero-out": "replaced by nothing"}


#: The maximum probability with which a curve may be below its Gaussian fit.
_MOST_FLOOR = 1e-3


@dataclass(frozen=True)
class Block:
    name: str
    coverage: Coverage
    text: str


@dataclass(frozen=True)
class Guarantee:
    """A claim, its interval with the rigor of the upper end; a control is false on purpose."""

    claim: str
    says: str
    verdict: str
    control: bool
    interval: str
    rigor: str
    source: str


@dataclass(frozen=True)
class Statement:
    name: str
    description: str
    guarantees: tuple[Guarantee, ...]
    curves: tuple[str, ...]
    blocks: tuple[Block, ...]
    assumptions: tuple[str, ...]
    digest: str
    created: str


def statements(result: Result) -> tuple[Statement, ...]:
    return tuple(
        Statement(
            name=audit.name,
            description=str(audit.document.get("description") or ""),
            guarantees=tuple(_guarantee(audit, verdict) for verdict in audit.verdicts if verdict.kind != "metric"),
            curves=() if audit.conformance.status == "deviates" else tuple(_curves(audit)),
            blocks=tuple(_blocks(audit)),
            assumptions=tuple(
                dict.fromkeys(
                    f"{assumption.name} ({assumption.status}): {assumption.text or assumption.name}"
                    for finding in audit.findings
                    if finding.bound == "upper"
                    for assumption in finding.assumptions
                )
            ),
            digest=audit.digest,
            created=part.created,
        )
        for part in apart(redact(result))
        for audit in part.audits
    )


def render(result: Result, *, internal: bool = False) -> str:
    """A published statement has no data-dependent value, so ``internal`` has no effect."""
    lines: list[str] = []
    for statement in statements(result):
        lines += [f"# Privacy statement: {markdown(statement.name)}", ""]
        if statement.description:
            lines += [markdown(statement.description), ""]
        lines.append("| Claim | Statement | Verdict | Interval | Rigor of the upper bound | Source |")
        lines.append("|---|---|---|---|---|---|")
        for one in statement.guarantees:
            verdict = f"{one.verdict} (a control, false on purpose)" if one.control else one.verdict
            cells = (one.claim, one.says, verdict, one.interval, one.rigor or "none", one.source or "none")
            lines.append(f"| {' | '.join(map(markdown, cells))} |")
        lines.append("")
        if statement.curves:
            lines += [*(f"- {markdown(text)}." for text in statement.curves), ""]
        lines += ["After the blocks of NIST SP 800-226:", "", "| Block | Coverage | |", "|---|---|---|"]
        lines += [f"| {block.name} | **{block.coverage}** | {markdown(block.text)} |" for block in statement.blocks]
        lines.append("")
        if statement.assumptions:
            lines += ["The bounds hold under these assumptions:", ""]
            lines += [*(f"- {markdown(text)}" for text in statement.assumptions), ""]
        digest, created = markdown(statement.digest[:16]), markdown(statement.created)
        lines += [
            f"Spec digest {digest}, audited {created} by dpspec. "
            "The lower end of an interval is certified by theory or",
            "found by an attack; `dpspec verify` recomputes every number from the result file.",
            "",
        ]
    return "\n".join(lines)


def render_json(result: Result, *, internal: bool = False) -> str:
    found = [asdict(statement) for statement in statements(result)]
    return json_text(json.dumps(found, indent=2, allow_nan=False)) + "\n"


def _guarantee(audit: AuditResult, verdict: Verdict) -> Guarantee:
    upper = audit.findings[verdict.upper_finding] if verdict.upper_finding is not None else None
    return Guarantee(
        claim=verdict.claim,
        says=verdict.text,
        verdict=labels.headline(audit, verdict),
        control=labels.is_control(verdict),
        interval=labels.interval(audit, verdict),
        rigor="" if upper is None else labels.rigor(upper),
        source="" if upper is None else f"{upper.method}; {upper.source}",
    )


def _curves(audit: AuditResult) -> Iterator[str]:
    """Each proved curve as mu of Gaussian differential privacy, with the regret of this approximation."""
    from dpspec.accounting import fit_gdp

    for curve in proven_curves(audit):
        mu, regret, floor = fit_gdp(curve.polygon)
        if math.isfinite(mu) and floor < _MOST_FLOOR:
            but = f", except with probability {decimals.upper(floor)}" if floor else ""
            yield (
                f"The proved curve{labels.curve(curve) or ', single records'}: "
                f"mu-GDP with mu at most {decimals.upper(mu)}{but}. "
                f"This approximation loses at most {decimals.upper(regret)} (regret)"
            )


def _blocks(audit: AuditResult) -> Iterator[Block]:
    threat = audit.document.get("threat_model") or {}
    private = [verdict for verdict in audit.verdicts if verdict.kind != "metric" and not labels.is_control(verdict)]
    verdicts = [labels.verdict_label(audit, verdict) for verdict in private]
    decided = [label for label in verdicts if label in ("proved", "supported")]
    proved = verdicts.count("proved")
    yield Block(
        "Epsilon and delta",
        "checked" if private and len(decided) == len(private) else "declared",
        f"{proved} of {labels.count(len(private), 'claim')} proved, by the bounds below"
        + ("" if len(decided) == len(private) else "; the others are not established by this audit"),
    )
    asked = threat.get("group_size") or 1
    sizes = asked if isinstance(asked, list | tuple) else [asked]
    adjacency = str(threat.get("adjacency", "add-remove"))
    unit = labels.unit(audit)
    known = (a.text for finding in audit.findings for a in finding.assumptions if a.name == "records-per-user")
    records = "The number of records per person is not checked"
    if unit != "record":
        records = labels.sentence(next(known, "the number of records of a user is not checked"))
    yield Block(
        "Unit of privacy",
        "declared",
        f"one {unit}, {_UNITS.get(adjacency, adjacency)}; groups of "
        f"{' and '.join(map(labels.value, sizes))} were accounted for. {records}",
    )
    released = {
        "all-iterates": "every intermediate model",
        "final-model": "the final model",
        "transcript": "every intermediate model, and the other records of each batch",
    }
    access = str(threat.get("access", "all-iterates"))
    yield Block("Released output", "declared", f"the adversary sees {released.get(access, access)}")
    yield Block("Mechanism", *_mechanism(audit))
    metrics = "; ".join(f"{one.text}: {one.verdict}" for one in audit.verdicts if one.kind == "metric")
    yield Block("Utility", "checked" if metrics else "not covered", metrics or "no claim about the model's utility")
    yield Block("Bias", "not covered", "differences of errors between groups of people were not measured")
    yield Block("Side channels", "not covered", "floating-point behaviour of the noise, its generator, and timing")
    yield Block("Other releases", "not covered", "other releases from the same data compose with this one")
    yield Block("Trust model", "declared", "the party that trains sees the data; models trained for audits stay there")
    yield Block("Security and access control", "not covered", "access to the data, the code and the logs")
    yield Block("Data collection", "not covered", "the collection and the pre-processing of the data")


def _mechanism(audit: AuditResult) -> tuple[Coverage, str]:
    mechanism = audit.document.get("mechanism", {})
    values = {key: value for key, value in mechanism.items() if isinstance(value, str | int | float | Mapping)}
    declared = labels.conditions(values)
    compared = {
        "no-deviation-found": "was compared with this",
        "deviates": "deviates from this",
        "checks-missing": "was not tested as planned",
    }
    status, reason = audit.conformance.status, audit.conformance.reason
    if status not in compared:
        return "declared", f"{declared}. The executed run was not compared with this"
    coverage: Coverage = "declared" if status == "checks-missing" else "checked"
    return coverage, f"{declared}. The executed run {compared[status]}: {reason}"
