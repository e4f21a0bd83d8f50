"""A privacy statement to publish, and a record for a public registry of deployments.

The statement follows the blocks of NIST SP 800-226, *Guidelines for Evaluating Differential Privacy Guarantees* (2025),
which covers more than epsilon: the unit of privacy, correctness of the implementation, trust model, security and data
collection. Each block is checked, declared, not covered, or not met: a check rejected it.

The record is YAML of the OpenDP Differential Privacy Deployments Registry, one per audit. Its keys follow
``schemas/deployments-schema.yaml`` of opendp/deployments-registry-data (its research: Ghazi, Nanayakkara and Vadhan).
An audit provides the mechanism, its parameters and their evidence. Required keys on the publication are marked as to
be filled in; optional ones are omitted.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from dpspec import decimals
from dpspec.contract import Finding, Json
from dpspec.contract.results import AuditResult, Result, Verdict
from dpspec.reporters import words
from dpspec.reporters.limits import ALWAYS
from dpspec.reporters.summary import answer
from dpspec.results.evidence_weight import proven_curves
from dpspec.results.status import accepted_cautions, claim_block, is_control, open_cautions
from dpspec.results.void_bounds import for_readers
from dpspec.text import markdown

Coverage: TypeAlias = Literal["checked", "declared", "not met", "not covered"]

_UNITS = {"add-remove": "added or removed", "replace-one": "replaced by another", "zero-out": "replaced by nothing"}
_RELEASED = {
    "all-iterates": "every intermediate model",
    "final-model": "the final model",
    "transcript": "every intermediate model, and the other records of each batch",
}

#: The maximum probability with which a curve may be below its Gaussian fit.
_MOST_FLOOR = 1e-3


def render(result: Result, *, internal: bool = False) -> str:
    """A published statement has no data-dependent value, so ``internal`` has no effect."""
    lines: list[str] = []
    result = for_readers(result)
    for audit in result.audits:
        lines += [f"# Privacy statement: {markdown(audit.name)}", ""]
        outcome = answer(replace(result, audits=(audit,)))
        lines += [f"**{markdown(outcome.headline)}.** {markdown(outcome.detail)}".rstrip(), ""]
        if description := audit.document.get("description"):
            lines += [markdown(str(description)), ""]
        lines.append("| Claim | Statement | Verdict | Bounds | Rigor of the upper bound | Source |")
        lines.append("|---|---|---|---|---|---|")
        for verdict, upper in _guarantees(audit):
            label = words.headline(audit, verdict)
            label += " (a control, false on purpose)" if is_control(audit, verdict) else ""
            origin = ("none", "none") if upper is None else (words.rigor(upper), f"{upper.method}; {upper.source}")
            cells = (verdict.claim, verdict.text, label, str(words.bounds(audit, verdict)), *origin)
            lines.append(f"| {' | '.join(map(markdown, cells))} |")
        lines.append("")
        for rule in open_cautions(audit):
            lines.append(f"- **Open caution {markdown(rule.name)}**: {markdown(f'{rule.text} {rule.why} {rule.fix}')}")
        for rule in accepted_cautions(audit):
            lines.append(f"- {markdown(words.sentence(words.accepted(rule)))}")
        lines += [""] if lines[-1] else []
        if facts := [f"{text}." for text in curves_of(audit)]:
            lines += [*(f"- {markdown(text)}" for text in facts), ""]
        lines += ["After the blocks of NIST SP 800-226:", "", "| Block | Coverage | |", "|---|---|---|"]
        lines += [f"| {name} | **{coverage}** | {markdown(text)} |" for name, (coverage, text) in blocks(audit).items()]
        lines.append("")
        if assumptions := _assumptions(audit):
            lines += ["The bounds hold under these assumptions:", ""]
            lines += [*(f"- {markdown(text)}" for text in assumptions), ""]
        lines += [
            f"Spec digest {markdown(audit.digest[:16])}, audited {markdown(result.created)} by dpspec. "
            "`dpspec verify` recomputes",
            "every number from the result file.",
            "",
        ]
    return "\n".join(lines)


def _guarantees(audit: AuditResult) -> list[tuple[Verdict, Finding | None]]:
    """Privacy claims with the findings of their upper ends."""
    private = [verdict for verdict in audit.verdicts if verdict.kind != "metric"]
    return [
        (verdict, None if verdict.upper_finding is None else audit.findings[verdict.upper_finding])
        for verdict in private
    ]


def _assumptions(audit: AuditResult) -> list[str]:
    assumptions = [
        assumption for finding in audit.findings if finding.bound == "upper" for assumption in finding.assumptions
    ]
    return list(
        dict.fromkeys(
            f"{assumption.name} ({assumption.status}): {assumption.text or assumption.name}"
            for assumption in assumptions
        )
    )


def curves_of(audit: AuditResult) -> list[str]:
    """Each proved curve as mu of Gaussian differential privacy, with the regret of this approximation."""
    from dpspec.accounting import fit_gdp

    sentences = []
    for curve in () if audit.conformance.status == "deviates" else proven_curves(audit):
        mu, regret, floor = fit_gdp(curve.polygon)
        if math.isfinite(mu) and floor < _MOST_FLOOR:
            but = f", except with probability {decimals.upper(floor)}" if floor else ""
            sentences.append(
                f"The proved curve{words.curve(curve) or ', single records'}: "
                f"mu-GDP with mu at most {decimals.upper(mu)}{but}. "
                f"This approximation loses at most {decimals.upper(regret)} (regret)"
            )
    return sentences


def blocks(audit: AuditResult) -> dict[str, tuple[Coverage, str]]:
    threat = audit.document.get("threat_model") or {}
    private = [verdict for verdict in audit.verdicts if verdict.kind != "metric" and not is_control(audit, verdict)]
    verdicts = [words.verdict_label(audit, verdict) for verdict in private]
    decided = bool(private) and set(verdicts) <= {"proved", "supported"}
    count = f"{verdicts.count('proved')} of {words.count(len(private), 'claim')} proved, by the bounds below"
    group_size = threat.get("group_size") or 1
    sizes = " and ".join(map(words.value, group_size if isinstance(group_size, list | tuple) else [group_size]))
    adjacency, access = str(threat.get("adjacency", "add-remove")), str(threat.get("access", "all-iterates"))
    unit = words.unit(audit.document)
    record_limits = (a.text for finding in audit.findings for a in finding.assumptions if a.name == "records-per-user")
    records = "The number of records per person is not checked"
    if unit != "record":
        records = words.sentence(next(record_limits, "the number of records of a user is not checked"))
    neighbours = f"one {unit}, {_UNITS.get(adjacency, adjacency)}; groups of {sizes} were accounted for. {records}"
    metrics = "; ".join(f"{verdict.text}: {verdict.verdict}" for verdict in audit.verdicts if verdict.kind == "metric")
    return {
        "Epsilon and delta": ("checked", count)
        if decided
        else ("declared", f"{count}; the others are not established by this audit" if private else count),
        "Unit of privacy": ("declared", neighbours),
        "Released output": ("declared", f"the adversary sees {_RELEASED.get(access, access)}"),
        "Mechanism": _mechanism(audit),
        "Utility": ("checked", metrics) if metrics else ("not covered", "no claim about the model's utility"),
        "Bias": ("not covered", "differences of errors between groups of people were not measured"),
        "Side channels": ("not covered", "floating-point behaviour of the noise, its generator, and timing"),
        "Other releases": ("not covered", "other releases from the same data compose with this one"),
        "Trust model": ("declared", "the party that trains sees the data; models trained for audits stay there"),
        "Security and access control": ("not covered", "access to the data, the code and the logs"),
        "Data collection": ("not covered", "the collection and the pre-processing of the data"),
    }


def _mechanism(audit: AuditResult) -> tuple[Coverage, str]:
    mechanism = audit.document.get("mechanism", {})
    values = {key: value for key, value in mechanism.items() if isinstance(value, str | int | float | Mapping)}
    declared = words.conditions(values)
    if audit.recording is not None:
        executed = "; ".join(words.phases(audit.recording))
        declared = f"{words.sentence(audit.recording.ran)}. Executed: {executed}" if executed else audit.recording.ran
    compared = {
        "no-deviation-found": "was compared with this",
        "deviates": "deviates from this",
        "checks-missing": "was not tested as planned",
    }
    if audit.recording is not None:
        compared["no-deviation-found"] = "was tested at each recorded step"
        compared["deviates"] = "is not what its accounting assumes"
    status, reason = audit.conformance.status, audit.conformance.reason
    if status not in compared:
        return "declared", f"{declared}. The executed run was not compared with this"
    coverages: dict[str, Coverage] = {"checks-missing": "declared", "deviates": "not met"}
    coverage = coverages.get(status, "declared" if open_cautions(audit) else "checked")
    if cautions := words.name_list([rule.name for rule in open_cautions(audit)]):
        reason = f"{reason} Open cautions: {cautions}."
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

    result = for_readers(result)
    documents = [_record(replace(result, audits=(audit,))) for audit in result.audits]
    text: str = yaml.safe_dump_all(
        documents, sort_keys=False, allow_unicode=True, width=float("inf"), explicit_start=True
    )
    return _HEAD + text


def _record(result: Result) -> dict[str, Json]:
    """The document of the only audit of a result."""
    (audit,) = result.audits
    verdict, parameters = _parameters_of(audit)
    owner = markdown(str(audit.document.get("owner") or "")) or FILL_IN
    unit, covered = words.unit(audit.document), blocks(audit)

    def block(name: str) -> str:
        coverage, text = covered[name]
        return _plainly(words.sentence(f"{text.rstrip('.')} ({coverage})"))

    stated = [
        f"Claim {guarantee.claim}: {guarantee.text}. Verdict {words.headline(audit, guarantee)}, "
        f"{words.bounds(audit, guarantee)}" + (f"; {words.rigor(upper)}" if upper else "")
        for guarantee, upper in _guarantees(audit)
        if not is_control(audit, guarantee)
    ]
    if verdict is None:
        who = "single records" if unit == "record" else f"one {unit}"
        stated.insert(0, f"No claim about epsilon of {who} was established by the audit")
    by = dict.fromkeys(markdown(f"By {upper.method}; {upper.source}") for _, upper in _guarantees(audit) if upper)
    deployment: dict[str, Json] = {
        "basic": {
            "name": markdown(audit.name),
            "data_curators": [{"data_curator_name": owner, "data_curator_type": "Industry"}],
            "description": markdown(str(audit.document.get("description") or "")) or FILL_IN,
            "intended_use": FILL_IN,
            "data_product_type": "Machine learning model",
            "data_product_region": FILL_IN,
            "publication_date": result.created[:10],
        },
        **({"dp_variant": {"variant_name": _VARIANTS[verdict.kind]}} if verdict else {}),
        "privacy_loss": {
            "privacy_unit": markdown(unit),
            "privacy_unit_details": block("Unit of privacy"),
            **({"privacy_parameters": parameters} if verdict else {}),
            "privacy_parameters_details": ". ".join(
                _plainly(text.removesuffix("."))
                for text in (*stated, *(rule.text for rule in open_cautions(audit)), *curves_of(audit))
            )
            + ".",
        },
        "deployment_model": {
            "model_name": "Central",
            "trust_assumptions": block("Trust model"),
            "release_type_details": block("Released output"),
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": "Pre-processing is accounted for if the mechanism declares it. "
            "Hyperparameter tuning is outside the audit.",
            "mechanisms": f"{block('Mechanism')}. {markdown(ALWAYS[0])}",
            "composition": ". ".join(by) or "Not established",
            "post_processing": "Outside the audit; it costs no privacy if it uses the released output only.",
            "justification": " ".join(
                [
                    f"{_plainly(answer(result).headline)}.",
                    "Claims were compared with proved bounds"
                    f"{' and with attacks on the executed pipeline' if audit.trials else ''}.",
                    *(f"{_plainly(text)}." for text in _assumptions(audit)),
                ]
            ),
            "utility": block("Utility"),
            "additional_information": f"Audited with dpspec, spec digest {markdown(audit.digest)}. "
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
            claim = claim_block(audit, verdict)
            narrow = claim.get("group_size", 1) != 1 or any(claim.get(key) is not None for key in ("record", "over"))
            if verdict.kind in _PARAMETERS and words.verdict_label(audit, verdict) == name and not narrow:
                keys = _PARAMETERS[verdict.kind]
                return verdict, {key: float(claim[key]) for key in keys if claim.get(key) is not None}
    return None, {}


def _plainly(text: str) -> str:
    """Markdown without comparison signs and underscores, which would need escapes."""
    return markdown(text.replace("<=", "at most").replace(">=", "at least").replace("_", " "))
