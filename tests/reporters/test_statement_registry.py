"""A record for the deployments registry: valid by its schema, true to the verdicts, without anything of the data."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml
from support import results as factory
from support.schemas import registry_errors

from dpspec.contract import Finding, FrozenMap
from dpspec.engine.results.result import AuditResult
from dpspec.reporters import statement as registry

CLAIMS = (
    {"id": "family", "kind": "approx-dp", "epsilon": 20.0, "delta": 1e-6, "group_size": 8},
    {"id": "one", "kind": "approx-dp", "epsilon": 3.0, "delta": 1e-6, "group_size": 1},
    {"id": "two", "kind": "approx-dp", "epsilon": 2.0, "delta": 1e-5, "group_size": 1},
)


def audit(*verdicts: Any, **changes: object) -> AuditResult:
    document = FrozenMap(
        {
            "description": "A model",
            "mechanism": {"kind": "group", "noise_multiplier": 1.5},
            "threat_model": {"adjacency": "add-remove", "unit": "user", "access": "final-model", "group_size": [1, 8]},
            "claims": CLAIMS,
        }
    )
    chosen = verdicts or tuple(factory.verdict(str(claim["id"])) for claim in CLAIMS)
    return dataclasses.replace(factory.audit(document=document, verdicts=chosen), **changes)  # type: ignore[arg-type]


def deployments(*audits: AuditResult) -> list[dict[str, Any]]:
    records = list(yaml.safe_load_all(registry.render_registry(factory.result(*audits))))
    assert [error for record in records for error in registry_errors(record)] == []
    return [record["deployment"] for record in records]


def test_it_states_the_first_proved_claim_about_single_records() -> None:
    (found,) = deployments(audit())
    assert found["privacy_loss"]["privacy_parameters"] == {"epsilon": 3.0, "delta": 1e-6}
    assert found["dp_variant"]["variant_name"] == "Approximate DP"
    assert found["privacy_loss"]["privacy_unit"] == "user"
    assert found["administrative"]["status"] == "Draft"
    assert found["administrative"]["tier"] == 2


def test_a_proof_comes_before_what_is_only_supported() -> None:
    verdicts = (factory.verdict("one", verdict="supported"), factory.verdict("two"))
    (found,) = deployments(audit(*verdicts))
    assert found["privacy_loss"]["privacy_parameters"] == {"epsilon": 2.0, "delta": 1e-5}


@pytest.mark.parametrize("verdict", ["open", "refuted", "contradicted"])
def test_what_is_not_established_is_no_parameter(verdict: str) -> None:
    (found,) = deployments(audit(factory.verdict("one", verdict=verdict)))
    assert "privacy_parameters" not in found["privacy_loss"]
    assert "dp_variant" not in found
    assert found["privacy_loss"]["privacy_parameters_details"].startswith("No claim about epsilon")
    assert found["administrative"]["tier"] == 1


@pytest.mark.parametrize("narrow", [{"group_size": 4}, {"record": 7}, {"over": "collection"}])
def test_a_narrow_claim_is_no_guarantee_of_the_deployment(narrow: dict[str, Any]) -> None:
    base = audit(factory.verdict("one"))
    document = FrozenMap({**base.document, "claims": [{**CLAIMS[1], **narrow}]})
    (found,) = deployments(dataclasses.replace(base, document=document))
    assert "privacy_parameters" not in found["privacy_loss"]


def test_a_control_that_fails_as_it_should_is_not_published() -> None:
    control = factory.verdict("two", verdict="refuted", expect=("refuted",), text="too good")
    (found,) = deployments(audit(factory.verdict("one"), control))
    assert "too good" not in found["privacy_loss"]["privacy_parameters_details"]


def test_every_audit_is_a_document_of_its_own() -> None:
    found = deployments(audit(name="One [a]"), audit(name="two"))
    assert [record["basic"]["name"] for record in found] == ["One \\[a\\]", "two"]
    text = registry.render_registry(factory.result(audit(name="One [a]"), audit(name="two")))
    assert [record["url_slug"] for record in yaml.safe_load_all(text)] == ["one-a", "two"]


def test_nothing_of_the_data_and_no_folded_text() -> None:
    secret = Finding(
        quantity="accuracy", value=0.987654, bound="estimate", rigor="approximate", method="m", source="s",
        privacy="data-dependent",
    )  # fmt: skip
    base = audit()
    result = factory.result(dataclasses.replace(base, findings=(*base.findings, secret)))
    text = registry.render_registry(result, internal=True)
    assert "0.987654" not in text
    styles = {token.style for token in yaml.scan(text) if isinstance(token, yaml.ScalarToken)}
    assert styles <= {None, "'", '"', "|"}  # the registry's own check refuses others


def test_the_pinned_schema_sees_what_is_wrong() -> None:
    record = yaml.safe_load(registry.render_registry(factory.result(audit())))
    record["deployment"]["surprise"] = 1
    record["deployment"]["basic"]["data_product_type"] = "Surprise"
    del record["deployment"]["administrative"]["tier"]
    assert len(registry_errors(record)) == 3
