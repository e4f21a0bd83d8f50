"""A record for the OpenDP Differential Privacy Deployments Registry: YAML, a document for each audit.

Its keys follow ``schemas/deployments-schema.yaml`` of opendp/deployments-registry-data (its research: Ghazi,
Nanayakkara and Vadhan). An audit provides the mechanism, its parameters and their evidence; the spec may declare the
rest (``deployment``, ``owner``). Required keys that the spec omits are marked as to be filled in, so that the
registry's own check refuses the record until they are. Optional ones are omitted.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from dpspec.contract import Json
from dpspec.contract.results import AuditResult, Result, Verdict, claim_block, open_cautions
from dpspec.reporters import disclosures, words
from dpspec.reporters.limits import ALWAYS
from dpspec.reporters.provenance import deployment
from dpspec.reporters.statement import curves_of
from dpspec.reporters.summary import answer
from dpspec.results.void_bounds import for_readers
from dpspec.text import markdown

#: The value of required keys that only the publisher knows.
FILL_IN = "To be filled in"

_HEAD = f"""\
# A record for the OpenDP Differential Privacy Deployments Registry, one document per deployment.
# Replace each "{FILL_IN}", or declare it in the spec (deployment, owner) and write this file again.
# Optional keys that an audit does not provide are omitted.
"""

#: The registry's names of claim kinds, and the parameters that it has keys for.
_VARIANTS = {"approx-dp": "Approximate DP", "pure-dp": "Pure DP"}
_PARAMETERS = {"approx-dp": ("epsilon", "delta"), "pure-dp": ("epsilon",)}


#: The registry's names of trust models and of kinds of curators, by the names of a spec.
_MODELS = {name: name.capitalize() for name in ("central", "local", "shuffle", "federated", "varies")}
_CURATORS = {name: name.capitalize() for name in ("government", "industry", "nonprofit")}


def render(result: Result, *, internal: bool = False) -> str:
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
    document, facts = audit.document, deployment(audit.document)
    stated = {line.key: _block(line) for line in disclosures.lines(result, audit)}
    model = facts.get("trust_model") or disclosures.seen_trust_model(audit)
    model = None if disclosures.is_trust_model_doubted(audit) else model
    by = dict.fromkeys(
        markdown(f"By {upper.method}; {upper.source}") for _, upper in disclosures.guarantees(audit) if upper
    )
    curator = {
        "data_curator_name": markdown(str(document.get("owner") or "")) or FILL_IN,
        "data_curator_type": _CURATORS.get(str(facts.get("curator_type")), FILL_IN),
    }
    record: dict[str, Json] = {
        "basic": {
            "name": markdown(audit.name),
            "data_curators": [curator],
            "description": markdown(str(document.get("description") or "")) or FILL_IN,
            "intended_use": markdown(str(facts.get("intended_use") or "")) or FILL_IN,
            "data_product_type": "Machine learning model",
            "data_product_region": markdown(str(facts.get("region") or "")) or FILL_IN,
            "publication_date": str(facts.get("published") or FILL_IN),
        },
        **({"dp_variant": {"variant_name": _VARIANTS[verdict.kind]}} if verdict else {}),
        "privacy_loss": {
            "privacy_unit": markdown(disclosures.unit(audit)),
            "privacy_unit_details": f"{stated['unit']} {stated['adjacency']}",
            **({"privacy_parameters": parameters} if verdict else {}),
            "privacy_parameters_details": " ".join(_details(audit, has_parameters=verdict is not None)),
        },
        "deployment_model": {
            **({"model_name": _MODELS[str(model)]} if model else {}),
            "trust_assumptions": stated["trust-model"],
            "release_type_details": stated["released-output"],
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": f"{stated['pre-processing']} {stated['tuning']}",
            "mechanisms": f"{stated['mechanism']} {stated['floating-point']} {markdown(ALWAYS[0])}",
            "composition": f"{'. '.join(by) or 'Not established'}. {stated['earlier-releases']}",
            "post_processing": "Outside the audit; it costs no privacy if it uses the released output only.",
            "justification": " ".join(
                [
                    f"{_plainly(answer(result).headline)}.",
                    f"Attacks: {stated['attacks']}",
                    *(_plainly(f"{name} ({status}): {text}.") for name, status, text in disclosures.assumptions(audit)),
                ]
            ),
            "utility": f"{stated['utility']} {stated['bias']}",
            "additional_information": f"Audited with dpspec, spec digest {markdown(audit.digest)}. "
            f"{stated['verification']} {stated['versions']}",
        },
        "administrative": {"status": "Draft", "registry_authors": [FILL_IN], "tier": 2 if verdict else 1},
    }
    slug = re.sub(r"[^a-z0-9]+", "-", audit.name.lower()).strip("-") or "deployment"
    return {"url_slug": slug, "deployment": record}


def _block(line: disclosures.Line) -> str:
    return _plainly(words.sentence(f"{line.text.rstrip('.')} ({line.coverage})."))


def _details(audit: AuditResult, *, has_parameters: bool) -> Iterator[str]:
    """The claims and what limits them, each as a sentence."""
    unit = disclosures.unit(audit)
    if not has_parameters:
        who = "single records" if unit == "record" else f"one {unit}"
        yield f"No claim about epsilon of {who} was established by the audit."
    for guarantee, upper in disclosures.guarantees(audit):
        rigor = f"; {words.rigor(upper)}" if upper else ""
        yield _plainly(
            f"Claim {guarantee.claim}: {guarantee.text}. Verdict {words.headline(audit, guarantee)}, "
            f"{words.bounds(audit, guarantee)}{rigor}."
        )
    yield from (_plainly(rule.text) for rule in open_cautions(audit))
    yield from (_plainly(f"{text}.") for text in curves_of(audit))


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
