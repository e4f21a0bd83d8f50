"""The privacy statement and the record for the registry: true to the verdicts, and nothing of the data in them."""

import dataclasses
import json
import math
import re
from typing import Any

import numpy as np
import pytest
import yaml
from support import audits
from support import results as factory
from support.schemas import registry_errors

from dpspec.accounting import gaussian
from dpspec.contract import Assumption, Finding, FrozenMap, Scope
from dpspec.contract.executed import ExecutedOrigin, ExecutedSection
from dpspec.contract.results import AuditResult, Conformance, Verdict
from dpspec.reporters import deployments_registry, disclosures, statement

DOCUMENT = FrozenMap(
    {
        "description": "A | model",
        "mechanism": {"kind": "group", "noise_multiplier": 1.5, "sampling": {"scheme": "poisson", "rate": 0.05}},
        "threat_model": {"adjacency": "add-remove", "unit": "record", "access": "final-model", "group_size": [1, 8]},
    }
)


def audit(**changes: object) -> AuditResult:
    return dataclasses.replace(factory.audit(document=DOCUMENT), **changes)  # type: ignore[arg-type]


def stated(audited: AuditResult) -> dict[str, disclosures.Line]:
    return {line.key: line for line in disclosures.lines(factory.result(audited), audited)}


@pytest.mark.parametrize("verdict", ["proved", "open", "refuted", "contradicted"])
def test_only_a_proved_claim_is_called_checked(verdict: str) -> None:
    found = stated(audit(verdicts=(factory.verdict(verdict=verdict),)))
    assert found["privacy-loss"].coverage == ("checked" if verdict == "proved" else "declared")
    assert ("not established" in found["privacy-loss"].text) == (verdict != "proved")
    assert "groups of 1 and 8" in found["unit"].text
    assert found["released-output"].text.endswith("the final model")


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
    line = stated(audit(conformance=conformance))["mechanism"]
    assert line.coverage == coverage
    assert words in line.text
    assert "noise multiplier 1.5" in line.text


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
    for line in stated(one).values():
        assert f"| {line.name} | **{line.coverage}** |" in page


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
            "deployment": FACTS,
            "mechanism": {"kind": "group", "noise_multiplier": 1.5},
            "threat_model": {"adjacency": "add-remove", "unit": "user", "access": "final-model", "group_size": [1, 8]},
            "claims": CLAIMS,
        }
    )
    chosen = verdicts or tuple(factory.verdict(str(claim["id"])) for claim in CLAIMS)
    return dataclasses.replace(factory.audit(document=document, verdicts=chosen), **changes)  # type: ignore[arg-type]


#: What a publisher declares, so that a record is complete.
FACTS = {"curator_type": "nonprofit", "intended_use": "Triage", "region": "Europe", "published": "2026-02-03"}


def deployments(*audits: AuditResult) -> list[dict[str, Any]]:
    records = list(yaml.safe_load_all(deployments_registry.render(factory.result(*audits))))
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
    text = deployments_registry.render(factory.result(deployed(name="One [a]"), deployed(name="two")))
    assert [record["url_slug"] for record in yaml.safe_load_all(text)] == ["one-a", "two"]


def test_nothing_of_the_data_and_no_folded_text() -> None:
    base = deployed()
    result = factory.result(dataclasses.replace(base, findings=(*base.findings, SECRET)))
    text = deployments_registry.render(result, internal=True)
    assert "0.987654" not in text
    styles = {token.style for token in yaml.scan(text) if isinstance(token, yaml.ScalarToken)}
    assert styles <= {None, "'", '"', "|"}  # the registry's own check refuses others


def test_a_control_is_in_no_statement() -> None:
    base = deployed(
        factory.verdict("one"), factory.verdict("two", verdict="refuted", expect=("refuted",), text="too good")
    )
    claims = [CLAIMS[1], {"id": "two", "control": True}]
    controlled = dataclasses.replace(base, document=FrozenMap({**base.document, "claims": claims}))
    for text in (statement.render(factory.result(controlled)), statement.render_json(factory.result(controlled))):
        assert "too good" not in text
        assert "epsilon <= 3" in text.replace("\\", "").replace("&lt;", "<")


def test_what_nobody_declares_is_left_to_fill_in() -> None:
    base = deployed()
    bare = dataclasses.replace(base, document=FrozenMap({k: v for k, v in base.document.items() if k != "deployment"}))
    (record,) = yaml.safe_load_all(deployments_registry.render(factory.result(bare)))
    assert record["deployment"]["basic"]["data_curators"][0]["data_curator_type"] == "To be filled in"
    assert "model_name" not in record["deployment"]["deployment_model"]
    assert all("To be filled in" in error for error in registry_errors(record))
    assert len(registry_errors(record)) == 2  # the kind of the curator, and the date
    found = stated(bare)
    for key in ("trust-model", "tuning", "earlier-releases", "data-collection", "security", "side-channels", "people"):
        assert found[key].coverage == "not covered"


def test_declared_facts_are_called_declared() -> None:
    facts = {
        **FACTS,
        "trust_model": "local",
        "tuning": "On public data",
        "earlier_releases": "None",
        "operator": "A. B.",
    }
    data = {"kind": "csv", "path": "visits.csv", "public": False, "collection": {"name": "Visits 2024"}}
    base = deployed()
    told = dataclasses.replace(base, document=FrozenMap({**base.document, "deployment": facts, "data": data}))
    found = stated(told)
    for key, text in {
        "trust-model": "no number here covers a party that sees the message of one person",
        "tuning": "On public data",
        "earlier-releases": "declared: None",
        "data": "Visits 2024 (declared); csv visits.csv",
        "people": "run by: A. B.",
    }.items():
        assert text in found[key].text
        assert found[key].coverage == "declared"
    (record,) = deployments(told)
    assert record["deployment_model"]["model_name"] == "Local"
    assert record["basic"]["publication_date"] == "2026-02-03"


def test_the_digest_of_private_rows_is_not_published() -> None:
    secret = dataclasses.replace(factory.audit().facts, digest="5ec7e7" * 8)
    for public in (False, None, True):
        document = FrozenMap({**DOCUMENT, "data": {"kind": "csv", "path": "a.csv", "public": public}})
        result = factory.result(audit(document=document, facts=secret))
        for text in (statement.render(result), statement.render_json(result), deployments_registry.render(result)):
            assert public or "5ec7e7" not in text
        assert ("5ec7e7" in statement.render(result)) == bool(public)


def test_a_recording_shows_its_trust_model_and_number_types() -> None:
    for federated, model, unit in ((True, "Federated", "client"), (False, "Central", "record")):
        origin = ExecutedOrigin(
            began="2026-01-02T03:04:05+00:00",
            versions=FrozenMap({"torch": "2.13.0"}),
            machine="Linux, cpu",
            dtypes=("bfloat16", "float32"),
            dataset="Subset of Visits",
            records=120,
            federated=federated,
        )
        recorded = audit(recording=ExecutedSection(origin=origin), trials=(), planned_trials=0)
        found = stated(recorded)
        assert (found["trust-model"].coverage, found["floating-point"].coverage) == ("observed", "observed")
        assert "bfloat16 and float32" in found["floating-point"].text
        assert found["data"].text.startswith(f"class Subset of Visits; no name declared; 120 {unit}s")
        assert f"one {unit}" in found["unit"].text
        assert "recorded" in found["people"].text
        (record,) = yaml.safe_load_all(deployments_registry.render(factory.result(recorded)))
        assert record["deployment"]["deployment_model"]["model_name"] == model
        for declared in ("central", "federated", "local"):
            facts = FrozenMap({**recorded.document, "deployment": {"trust_model": declared}})
            told = dataclasses.replace(recorded, document=facts)
            agrees = declared == model.lower()
            assert stated(told)["trust-model"].coverage == ("observed" if agrees else "not met")
            assert ("does not agree with the recording" in stated(told)["trust-model"].text) != agrees
            (record,) = yaml.safe_load_all(deployments_registry.render(factory.result(told)))
            assert record["deployment"]["deployment_model"].get("model_name") == (model if agrees else None)


def test_the_json_is_the_statement() -> None:
    infinite = factory.verdict("one", upper=math.inf, verdict="open", expected=False)
    document = json.loads(statement.render_json(factory.result(deployed(infinite))))
    (one,) = document["statements"]
    assert document["schema"] == "dpspec/statement/v1"
    assert (one["passed"], one["exit_code"]) == (False, 1)
    assert one["claims"][0]["upper"] == "inf"
    assert [line["key"] for line in one["lines"]] == list(disclosures.CLAUSES)
    assert all(line["clauses"] for line in one["lines"])


@pytest.mark.parametrize(
    ("data", "only"), [("all", ""), ("collection", "the declared collection"), ("this", "this dataset")]
)
def test_a_proof_for_some_datasets_says_so(data: str, only: str) -> None:
    first, *others = factory.audit().findings
    narrow = audit(findings=(dataclasses.replace(first, scope=Scope(data=data)), *others))
    text = stated(narrow)["privacy-loss"].text
    assert only in text
    assert ("only" in text) == bool(only)


def test_the_statement_has_the_risk_of_larger_groups_and_says_that_another_model_is_released() -> None:
    """Oracle: 1 - f(0.01) of mu-GDP is Phi(mu + Phi^-1(0.01)): 0.0339 at mu = 0.5, 0.9527 at mu = 4."""
    first = dataclasses.replace(factory.audit().findings[0], quantity="mu", value=0.5, lower=None, at=FrozenMap())
    group = dataclasses.replace(first, value=4.0, at=FrozenMap({"group_size": 8}))
    found = stated(audit(findings=(first, group), series=(), verdicts=(factory.verdict(),)))
    assert "identifies at most 4 on average" in found["risk"].text
    assert "Groups of 8 members: at most 96 of 100 groups" in found["risk"].text
    conforms = factory.conformance("no-deviation-found")
    assert "another run of this mechanism" in stated(audit(conformance=conforms, planned_trials=1))["mechanism"].text
    assert "another run" not in stated(audit(conformance=conforms, planned_trials=0, trials=()))["mechanism"].text


def cell(noise: float, *verdicts: Verdict, **changes: object) -> AuditResult:
    """A cell of a sweep over the noise, with the claims ``one`` and ``control``."""
    mechanism = {"kind": "group", "noise_multiplier": noise, "sampling": {"scheme": "poisson", "rate": 0.05}}
    claims = [CLAIMS[1], {"id": "control", "control": True}]
    document = FrozenMap({**DOCUMENT, "name": "sweep", "mechanism": mechanism, "claims": claims})
    control = factory.verdict("control", verdict="refuted", expect=("refuted",), text="too good")
    at = FrozenMap({"mechanism.noise_multiplier": noise})
    found = factory.audit(f"sweep[{noise}]", document=document, cell=at, verdicts=(*verdicts, control))
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]


def test_a_sweep_has_one_statement_with_a_row_for_each_cell() -> None:
    failed = factory.verdict("one", verdict="refuted", expected=False, upper=7.5)
    result = factory.result(
        cell(0.5, failed), *(cell(noise, factory.verdict("one", upper=2.5)) for noise in range(2, 46)), audit()
    )
    text = statement.render(result)
    assert re.findall(r"^# (.*)$", text, re.MULTILINE) == [
        "Privacy statement: sweep, 45 cells",
        "Privacy statement: demo",
    ]
    assert len(text) < 60_000  # a statement for each of these cells has 225,000
    assert "**The claim one (noise multiplier=0.5) is not met" in text
    assert "| **declared** | 44 of 45 claims proved" in text
    rows = [line for line in text.splitlines() if re.match(r"\| [0-9.]+ \|", line)]
    assert len(rows) == 45
    assert "refuted" in rows[0]
    assert all("proved" in row for row in rows[1:])
    assert "too good" not in text  # a control


def test_a_line_of_a_sweep_is_as_strong_as_in_its_weakest_cell() -> None:
    conforms, deviates = factory.conformance("no-deviation-found"), factory.conformance("deviates")
    cells = [cell(1.0, conformance=conforms), cell(2.0, conformance=deviates), cell(3.0, conformance=conforms)]
    titles = ["noise 1", "noise 2", "noise 3"]
    found = {line.key: line for line in disclosures.lines_of_cells(factory.result(*cells), cells, titles)}
    assert list(found) == list(disclosures.CLAUSES)
    assert found["mechanism"].coverage == "not met"
    assert found["mechanism"].text.startswith("of the cell noise 2: ")
    assert "noise multiplier 2" in found["mechanism"].text
    assert ". Of the cell noise 1 (checked): kind group, noise multiplier 1," in found["mechanism"].text
    assert ". Of the cell noise 3 (checked): kind group, noise multiplier 3," in found["mechanism"].text
    assert found["adjacency"] == stated(cells[0])["adjacency"]  # equal in all cells
    more, names = [*cells, cell(4.0, conformance=conforms)], [*titles, "noise 4"]
    found = {line.key: line for line in disclosures.lines_of_cells(factory.result(*more), more, names)}
    assert found["mechanism"].coverage == "not met"
    assert found["mechanism"].text.startswith("of the cell noise 2: ")
    assert found["mechanism"].text.endswith("The line of 3 other cells differs")


def test_the_risk_of_a_sweep_is_that_of_its_riskiest_cell() -> None:
    """Oracle: 1 - f(0.01) of mu-GDP is Phi(mu + Phi^-1(0.01)): 0.0339 at mu = 0.5, 0.1658 at mu = 1.3564."""
    first = dataclasses.replace(factory.audit().findings[0], quantity="mu", value=0.5, lower=None, at=FrozenMap())
    risky = dataclasses.replace(first, value=1.3564)
    cells = [cell(2.0, findings=(first,), series=()), cell(1.0, findings=(risky,), series=())]
    found = {line.key: line for line in disclosures.lines_of_cells(factory.result(*cells), cells, ["a", "b"])}
    assert "The cell b has the highest risk" in found["risk"].text
    assert "identifies at most 17 on average" in found["risk"].text


def test_the_json_of_a_sweep_has_each_cell_and_its_own_lines() -> None:
    good, bad = factory.verdict("one", upper=2.5), factory.verdict("one", verdict="refuted", expected=False, upper=7.5)
    (sweep,) = json.loads(statement.render_json(factory.result(cell(1.0, good), cell(0.5, bad))))["statements"]
    assert (sweep["name"], sweep["passed"], "claims" in sweep) == ("sweep", False, False)
    assert [one["values"] for one in sweep["cells"]] == [{"noise_multiplier": 1.0}, {"noise_multiplier": 0.5}]
    assert [one["passed"] for one in sweep["cells"]] == [True, False]
    assert [[claim["id"] for claim in one["claims"]] for one in sweep["cells"]] == [["one"], ["one"]]
    for one in sweep["cells"]:
        own = {line["key"]: line["text"] for line in one["lines"]}
        assert "mechanism" in own
        assert "adjacency" not in own


def of_pipeline(pipeline: list[Any], *assumptions: Assumption) -> AuditResult:
    mechanism = {"kind": "preprocessing", "private": {"kind": "gaussian"}, "pipeline": pipeline}
    found = (dataclasses.replace(factory.audit().findings[0], assumptions=assumptions),)
    document = FrozenMap({**DOCUMENT, "name": "sweep", "mechanism": mechanism, "claims": CLAIMS[1:2]})
    at = FrozenMap({"mechanism.pipeline": pipeline})
    return factory.audit(f"sweep[{len(pipeline)}]", document=document, cell=at, findings=found)


ALONE = Assumption(name="released", status="declared", text="only the private output is released")
MOMENTS = Assumption(name="released", status="declared", text="the noisy moments are released too")
SHARED = Assumption(name="noise-scale", status="declared", text="noise of the declared scale")
BY_RECORDER = Assumption(name="steps", status="by-construction", text="the loop counts its steps")


def test_an_assumption_that_not_all_cells_have_names_its_cells() -> None:
    cells = [of_pipeline([], SHARED, ALONE), of_pipeline([{"dp-pca": 2}], SHARED, MOMENTS, BY_RECORDER)]
    text = statement.render(factory.result(*cells)).replace("\\", "")
    assert "- noise-scale (declared): noise of the declared scale\n" in text
    assert f"- released (declared): of the cell pipeline=[]: {ALONE.text}\n" in text
    assert f"- released (declared): of the cell pipeline=[dp-pca 2]: {MOMENTS.text}\n" in text
    assert f"- steps (by-construction): of the cell pipeline=[dp-pca 2]: {BY_RECORDER.text}\n" in text
    (sweep,) = json.loads(statement.render_json(factory.result(*cells)))["statements"]
    own = [[one["text"] for one in found["assumptions"]] for found in sweep["cells"]]
    assert own == [[ALONE.text], [MOMENTS.text, BY_RECORDER.text]]


def test_the_mechanism_of_a_sweep_has_the_pipeline_of_each_cell() -> None:
    cells = [of_pipeline([]), of_pipeline([{"dp-pca": 2}])]
    found = {line.key: line for line in disclosures.lines_of_cells(factory.result(*cells), cells, ["none", "pca"])}
    text = found["mechanism"].text
    assert text.startswith("of the cell none: kind preprocessing, private kind gaussian. ")
    assert "Of the cell pca: kind preprocessing, private kind gaussian, pipeline [dp-pca 2]. " in text
    preparation = found["pre-processing"]
    assert preparation.coverage == "not covered"
    assert "Of the cell pca (declared): part of the mechanism and of its bounds: [dp-pca 2]" in preparation.text


def test_cells_are_named_while_they_are_few() -> None:
    titles = [f"noise {number}" for number in range(1, 10)]
    for numbers, words in (
        ([0], "the cell noise 1"),
        ([0, 2, 8], "the cells noise 1; noise 3; noise 9"),
        ([*range(1, 9)], "all cells but noise 1"),
        ([0, 2, 4, 6, 8], "5 of 9 cells, the first noise 1"),
    ):
        assert disclosures.cells_in_words(numbers, titles) == words


def test_the_provenance_of_a_sweep_is_what_all_cells_share() -> None:
    cells = [
        dataclasses.replace(of_pipeline([]), digest="a" * 64),
        dataclasses.replace(of_pipeline([{}]), digest="b" * 64),
    ]
    (sweep,) = json.loads(statement.render_json(factory.result(*cells)))["statements"]
    assert "aaaa" not in json.dumps(sweep["provenance"])
    assert [
        mark in json.dumps(one["provenance"]) for mark, one in zip(("aaaa", "bbbb"), sweep["cells"], strict=True)
    ] == [
        True,
        True,
    ]
    assert {"Data", "Judged"} <= set(sweep["provenance"])
