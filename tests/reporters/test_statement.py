"""The privacy statement and the record for the registry: true to the verdicts, and nothing of the data in them."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import yaml
from support import audits
from support import results as factory
from support.schemas import registry_errors

from dpspec.accounting import gaussian
from dpspec.contract import Assumption, Finding, FrozenMap
from dpspec.contract.results import AuditResult, Conformance
from dpspec.reporters import statement

DOCUMENT = FrozenMap(
    {
        "description": "A | model",
        "mechanism": {"kind": "group", "noise_multiplier": 1.5, "sampling": {"scheme": "poisson", "rate": 0.05}},
        "threat_model": {"adjacency": "add-remove", "unit": "record", "access": "final-model", "group_size": [1, 8]},
    }
)


def audit(**changes: object) -> AuditResult:
    return dataclasses.replace(factory.audit(document=DOCUMENT), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("verdict", ["proved", "open", "refuted", "contradicted"])
def test_only_a_proved_claim_is_called_checked(verdict: str) -> None:
    found = statement.blocks(audit(verdicts=(factory.verdict(verdict=verdict),)))
    coverage, text = found["Epsilon and delta"]
    assert coverage == ("checked" if verdict == "proved" else "declared")
    assert ("not established" in text) == (verdict != "proved")
    assert "groups of 1 and 8" in found["Unit of privacy"][1]
    assert found["Released output"][1].endswith("the final model")


@pytest.mark.parametrize(
    ("status", "coverage", "words"),
    [
        ("no-deviation-found", "checked", "compared with this"),
        ("deviates", "not met", "deviates"),
        ("not-run", "declared", "not compared"),
    ],
)
def test_the_mechanism_is_checked_only_where_it_ran(status: str, coverage: str, words: str) -> None:
    conformance = Conformance(status=status, expect=status, expected=True, reason="because")  # type: ignore[arg-type]
    found, text = statement.blocks(audit(conformance=conformance))["Mechanism"]
    assert found == coverage
    assert words in text
    assert "noise_multiplier 1.5" in text


SECRET = Finding(
    quantity="accuracy", value=0.987654, bound="estimate", rigor="approximate", method="m", source="s",
    privacy="data-dependent", assumptions=(Assumption(name="x", status="declared", text="y"),),
)  # fmt: skip


def test_the_statement_has_all_blocks_and_nothing_of_the_data() -> None:
    one = audit(findings=(*factory.audit().findings, SECRET))
    page = statement.render(factory.result(one), internal=True)
    assert "0.987654" not in page
    assert "# Privacy statement: demo" in page
    assert "A &#124; model" in page
    for name, (coverage, _) in statement.blocks(one).items():
        assert f"| {name} | **{coverage}** |" in page


def test_a_proved_curve_is_one_number_with_what_that_gives_away() -> None:
    profile = [(epsilon, float(gaussian.delta(epsilon, 1.0))) for epsilon in np.linspace(0.0, 6.0, 200)]
    found = tuple(audits.bound(float(epsilon), delta) for epsilon, delta in profile)
    (said,) = statement.curves_of(audit(findings=found))
    mu, regret = (float(number) for number in re.findall(r"at most ([0-9.e-]+)", said))
    assert 1.0 <= mu < 1.1  # the pairs are those of a Gaussian mechanism with mu = 1, and a little is lost between them
    assert 0.0 <= regret < 0.01
    assert "single records" in said
    assert f"- {said}." in statement.render(factory.result(audit(findings=found)))
    assert statement.curves_of(audit(findings=found[:1])) == []


CLAIMS = (
    {"id": "family", "kind": "approx-dp", "epsilon": 20.0, "delta": 1e-6, "group_size": 8},
    {"id": "one", "kind": "approx-dp", "epsilon": 3.0, "delta": 1e-6, "group_size": 1},
    {"id": "two", "kind": "approx-dp", "epsilon": 2.0, "delta": 1e-5, "group_size": 1},
)


def deployed(*verdicts: Any, **changes: object) -> AuditResult:
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
    records = list(yaml.safe_load_all(statement.render_registry(factory.result(*audits))))
    assert [error for record in records for error in registry_errors(record)] == []
    return [record["deployment"] for record in records]


def test_it_states_the_first_proved_claim_about_single_records() -> None:
    (found,) = deployments(deployed())
    assert found["privacy_loss"]["privacy_parameters"] == {"epsilon": 3.0, "delta": 1e-6}
    assert found["dp_variant"]["variant_name"] == "Approximate DP"
    assert found["privacy_loss"]["privacy_unit"] == "user"
    assert (found["administrative"]["status"], found["administrative"]["tier"]) == ("Draft", 2)
    # A proof comes before what is only supported.
    (found,) = deployments(deployed(factory.verdict("one", verdict="supported"), factory.verdict("two")))
    assert found["privacy_loss"]["privacy_parameters"] == {"epsilon": 2.0, "delta": 1e-5}


@pytest.mark.parametrize("verdict", ["open", "refuted", "contradicted"])
def test_what_is_not_established_is_no_parameter(verdict: str) -> None:
    (found,) = deployments(deployed(factory.verdict("one", verdict=verdict)))
    assert not {"privacy_parameters", "dp_variant"} & {*found["privacy_loss"], *found}
    assert found["privacy_loss"]["privacy_parameters_details"].startswith("No claim about epsilon")
    assert found["administrative"]["tier"] == 1


@pytest.mark.parametrize("narrow", [{"group_size": 4}, {"record": 7}, {"over": "collection"}])
def test_a_narrow_claim_is_no_guarantee_of_the_deployment(narrow: dict[str, Any]) -> None:
    base = deployed(factory.verdict("one"))
    document = FrozenMap({**base.document, "claims": [{**CLAIMS[1], **narrow}]})
    (found,) = deployments(dataclasses.replace(base, document=document))
    assert "privacy_parameters" not in found["privacy_loss"]


def test_a_control_that_fails_as_it_should_is_not_published() -> None:
    control = factory.verdict("two", verdict="refuted", expect=("refuted",), text="too good")
    base = deployed(factory.verdict("one"), control)
    claims = [CLAIMS[0], {"id": "two", "control": True}]
    controlled = dataclasses.replace(base, document=FrozenMap({**base.document, "claims": claims}))
    (found,) = deployments(controlled)
    assert "too good" not in found["privacy_loss"]["privacy_parameters_details"]


def test_every_audit_is_a_document_of_its_own() -> None:
    found = deployments(deployed(name="One [a]"), deployed(name="two"))
    assert [record["basic"]["name"] for record in found] == ["One \\[a\\]", "two"]
    text = statement.render_registry(factory.result(deployed(name="One [a]"), deployed(name="two")))
    assert [record["url_slug"] for record in yaml.safe_load_all(text)] == ["one-a", "two"]


def test_nothing_of_the_data_and_no_folded_text() -> None:
    base = deployed()
    result = factory.result(dataclasses.replace(base, findings=(*base.findings, SECRET)))
    text = statement.render_registry(result, internal=True)
    assert "0.987654" not in text
    styles = {token.style for token in yaml.scan(text) if isinstance(token, yaml.ScalarToken)}
    assert styles <= {None, "'", '"', "|"}  # the registry's own check refuses others
