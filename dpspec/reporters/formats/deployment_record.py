"""A result as YAML of the OpenDP Differential Privacy Deployments Registry: one record per audit, to be completed.

The keys follow ``schemas/deployments-schema.yaml`` of opendp/deployments-registry-data (its research: Ghazi,
Nanayakkara and Vadhan). An audit provides the mechanism, its parameters and their evidence. Required keys on the
publication are marked as to be filled in; optional ones are omitted.
"""

from __future__ import annotations

import re

from dpspec.contract import Json
from dpspec.engine.redact import redact
from dpspec.engine.results.result import AuditResult, Result, Verdict
from dpspec.reporters import labels
from dpspec.reporters.formats.statement import Statement, statements
from dpspec.reporters.limits import ALWAYS
from dpspec.text import markdown

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


def render(result: Result, *, internal: bool = False) -> str:
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
    verdict, parameters = _guarantee(audit)
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
            "privacy_unit_details": _block(statement, "Unit of privacy"),
            **({"privacy_parameters": parameters} if verdict else {}),
            "privacy_parameters_details": ". ".join(_text(text) for text in (*stated, *statement.curves)) + ".",
        },
        "deployment_model": {
            "model_name": "Central",
            "trust_assumptions": _block(statement, "Trust model"),
            "release_type_details": _block(statement, "Released output"),
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": "Pre-processing is accounted for if the mechanism declares it. "
            "Hyperparameter tuning is outside the audit.",
            "mechanisms": f"{_block(statement, 'Mechanism')}. {markdown(ALWAYS[0])}",
            "composition": ". ".join(by) or "Not established",
            "post_processing": "Outside the audit; it costs no privacy if it uses the released output only.",
            "justification": " ".join(
                [
                    "Claims were compared with proved bounds and with attacks on the executed pipeline.",
                    *(f"{_text(text)}." for text in statement.assumptions),
                ]
            ),
            "utility": _block(statement, "Utility"),
            "additional_information": f"Audited with dpspec, spec digest {markdown(statement.digest)}. "
            "The result file holds the evidence; dpspec verify recomputes every number from it.",
        },
        "administrative": {"status": "Draft", "registry_authors": [FILL_IN], "tier": 2 if verdict else 1},
    }
    slug = re.sub(r"[^a-z0-9]+", "-", audit.name.lower()).strip("-") or "deployment"
    return {"url_slug": slug, "deployment": deployment}


def _guarantee(audit: AuditResult) -> tuple[Verdict | None, dict[str, float]]:
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


def _block(statement: Statement, name: str) -> str:
    block = next(block for block in statement.blocks if block.name == name)
    return _text(labels.sentence(f"{block.text.rstrip('.')} ({block.coverage})"))


def _text(text: str) -> str:
    """Markdown without comparison signs and underscores, which would need escapes."""
    return markdown(text.replace("<=", "at most").replace(">=", "at least").replace("_", " "))
