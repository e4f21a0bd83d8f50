"""A privacy statement to publish, and a record for a public registry of deployments.

The statement follows the blocks of NIST SP 800-226, *Guidelines for Evaluating Differential Privacy Guarantees* (2025),
which covers more than epsilon: the unit of privacy, correctness of the implementation, trust model, security and data
collection. Each block is checked, declared or not covered.

The record is YAML of the OpenDP Differential Privacy Deployments Registry, one per audit. Its keys follow
``schemas/deployments-schema.yaml`` of opendp/deployments-registry-data (its research: Ghazi, Nanayakkara and Vadhan).
An audit provides the mechanism, its parameters and their evidence. Required keys on the publication are marked as to
be filled in; optional ones are omitted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from dpspec.contract import Json
from dpspec.engine.judging.evidence_weight import proven_curves
from dpspec.engine.redact import redact
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult, Result, Verdict
from dpspec.reporters import labels
from dpspec.reporters.limits import ALWAYS
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
    result = redact(result)
    return tuple(
        Statement(
            name=audit.name,
            description=str(audit.document.get("description") or ""),
            guarantees=tuple(
                Guarantee(
                    claim=verdict.claim,
                    says=verdict.text,
                    verdict=labels.headline(audit, verdict),
                    control=labels.is_control(verdict),
                    interval=labels.interval(audit, verdict),
                    rigor="" if upper is None else labels.rigor(upper),
                    source="" if upper is None else f"{upper.method}; {upper.source}",
                )
                for verdict in audit.verdicts
                if verdict.kind != "metric"
                for upper in [None if verdict.upper_finding is None else audit.findings[verdict.upper_finding]]
            ),
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
            created=result.created,
        )
        for audit in result.audits
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


#: The value of required keys that only the publisher knows.
FILL_IN = "To be filled in"

_HEAD = """\
# A record for the OpenDP Differential Privacy Deployments Registry, one document per deployment.
# Fill in: data_curators, intended_use, data_product_region, publication_date, registry_authors, and the name and the
# description if they are too short. Optional keys that an audit does not provide are omitted.
"""

#: The registry's names of claim kinds, and the parameters that it has keys for.
_VARIANTS = {"approx-dp": "Approximate DP", "pure-dp": "Pure DP"}
_PARAMETERS = {"approx-dp": ("epsilon", "delta"), "pure-dp": ("epsilon",)}


def render_registry(result: Result, *, internal: bool = False) -> str:
    """YAML, a document per audit, with Markdown in its strings. No data-dependent value: ``internal`` has no effect."""
    import yaml

    documents = [
        _record(audit, statement) for audit, statement in zip(redact(result).audits, statements(result), strict=True)
    ]
    text: str = yaml.safe_dump_all(
        documents, sort_keys=False, allow_unicode=True, width=float("inf"), explicit_start=True
    )
    return _HEAD + text


def _record(audit: AuditResult, statement: Statement) -> dict[str, Json]:
    verdict, parameters = _parameters_of(audit)
    owner = markdown(str(audit.document.get("owner") or "")) or FILL_IN
    unit = labels.unit(audit)
    stated = [
        f"Claim {one.claim}: {one.says}. Verdict {one.verdict}, interval {one.interval.strip('[]').replace(',', ' to')}"
        + (f"; {one.rigor}" if one.rigor else "")
        for one in statement.guarantees
        if not one.control
    ]
    if verdict is None:
        who = "single records" if unit == "record" else f"one {unit}"
        stated.insert(0, f"No claim about epsilon of {who} was established by the audit")
    by = dict.fromkeys(markdown(f"By {one.source}") for one in statement.guarantees if one.source)
    deployment: dict[str, Json] = {
        "basic": {
            "name": markdown(audit.name),
            "data_curators": [{"data_curator_name": owner, "data_curator_type": "Industry"}],
            "description": markdown(statement.description) or FILL_IN,
            "intended_use": FILL_IN,
            "data_product_type": "Machine learning model",
            "data_product_region": FILL_IN,
            "publication_date": statement.created[:10],
        },
        **({"dp_variant": {"variant_name": _VARIANTS[verdict.kind]}} if verdict else {}),
        "privacy_loss": {
            "privacy_unit": markdown(unit),
            "privacy_unit_details": _text_of(statement, "Unit of privacy"),
            **({"privacy_parameters": parameters} if verdict else {}),
            "privacy_parameters_details": ". ".join(_plainly(text) for text in (*stated, *statement.curves)) + ".",
        },
        "deployment_model": {
            "model_name": "Central",
            "trust_assumptions": _text_of(statement, "Trust model"),
            "release_type_details": _text_of(statement, "Released output"),
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": "Pre-processing is accounted for if the mechanism declares it. "
            "Hyperparameter tuning is outside the audit.",
            "mechanisms": f"{_text_of(statement, 'Mechanism')}. {markdown(ALWAYS[0])}",
            "composition": ". ".join(by) or "Not established",
            "post_processing": "Outside the audit; it costs no privacy if it uses the released output only.",
            "justification": " ".join(
                [
                    "Claims were compared with proved bounds and with attacks on the executed pipeline.",
                    *(f"{_plainly(text)}." for text in statement.assumptions),
                ]
            ),
            "utility": _text_of(statement, "Utility"),
            "additional_information": f"Audited with dpspec, spec digest {markdown(statement.digest)}. "
            "The result file holds the evidence; dpspec verify recomputes every number from it.",
        },
        "administrative": {"status": "Draft", "registry_authors": [FILL_IN], "tier": 2 if verdict else 1},
    }
    slug = re.sub(r"[^a-z0-9]+", "-", audit.name.lower()).strip("-") or "deployment"
    return {"url_slug": slug, "deployment": deployment}


def _parameters_of(audit: AuditResult) -> tuple[Verdict | None, dict[str, float]]:
    """The first proved claim about (epsilon, delta) of single records, else the first supported one.

    Claims over a collection of datasets or about one record do not count as a guarantee of a deployment.
    """
    for name in ("proved", "supported"):
        for verdict in audit.verdicts:
            claim = labels.claim_block(audit, verdict)
            narrow = claim.get("group_size", 1) != 1 or any(claim.get(key) is not None for key in ("record", "over"))
            if verdict.kind in _PARAMETERS and labels.verdict_label(audit, verdict) == name and not narrow:
                keys = _PARAMETERS[verdict.kind]
                return verdict, {key: float(claim[key]) for key in keys if claim.get(key) is not None}
    return None, {}


def _text_of(statement: Statement, name: str) -> str:
    block = next(block for block in statement.blocks if block.name == name)
    return _plainly(labels.sentence(f"{block.text.rstrip('.')} ({block.coverage})"))


def _plainly(text: str) -> str:
    """Markdown without comparison signs and underscores, which would need escapes."""
    return markdown(text.replace("<=", "at most").replace(">=", "at least").replace("_", " "))
