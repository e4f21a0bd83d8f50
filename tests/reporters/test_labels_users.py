"""Reports of claims about users name the user, with all records that one has at most, wherever others name a record."""

from __future__ import annotations

import dataclasses

import pytest
import yaml

import dpspec
from dpspec.contract import FrozenMap, Scope
from dpspec.engine.results.result import Result
from dpspec.reporters import labels, markdown, page, statement
from dpspec.reporters.risk import rates
from dpspec.reporters.summary import details

SPEC = """\
dpspec: 1
name: users
mechanism: {kind: group, noise_multiplier: 4, clip_norm: 1, sampling: {scheme: poisson, rate: 0.01}, steps: 50}
data: {kind: declared, records: 1000, records_per_user: 5}
threat_model: {unit: user, group_size: [1, 2]}
claims:
  - {id: user, kind: approx-dp, epsilon: 9, delta: 1e-5}
  - {id: pair, kind: approx-dp, epsilon: 9, delta: 1e-5, group_size: 2}
"""
ONE, TWO = "one user (at most 5 records)", "2 users (at most 5 records each)"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("users")
    (folder / "users.yaml").write_text(SPEC, encoding="utf-8")
    return dpspec.run(folder / "users.yaml", store=folder / "store")


def test_odds_are_those_of_users(result: Result) -> None:
    one, two = map(str, rates(result.audits[0]))
    assert "of member users (at most" in one
    assert "of groups of 2 member users (at most" in two


def test_scopes_name_what_neighbours_differ_in(result: Result) -> None:
    scopes = {labels.scope(finding) for finding in result.audits[0].findings}
    assert all("adding or removing a user (at most 5 records)" in scope for scope in scopes)
    assert all(scope.endswith("any dataset, any user") for scope in scopes)
    replaced = dataclasses.replace(result.audits[0].findings[0], scope=Scope(adjacency="zero-out", unit="household"))
    assert "zero-out (unit: household)" in labels.scope(replaced)


def test_a_deployment_record_names_the_unit(result: Result) -> None:
    loss = yaml.safe_load(statement.render_registry(result))["deployment"]["privacy_loss"]
    assert loss["privacy_unit"] == "user (at most 5 records)"
    assert f"for {ONE}" in loss["privacy_parameters_details"]


@pytest.mark.parametrize("render", [page.render, markdown.render])
def test_no_page_speaks_of_single_records(result: Result, render: object) -> None:
    text = str(render(result, internal=False))  # type: ignore[operator]
    assert ONE in text
    assert TWO in text
    for wrong in (
        "a record was",
        "records were in",
        "single records",
        "groups of 5",
        "groups of 10",
        "adding or removing records",
    ):
        assert wrong not in text, wrong


def test_a_document_that_was_edited_is_read_all_the_same(result: Result) -> None:
    """Results are untrusted: a bound that is no number says nothing."""
    audit = result.audits[0]
    for bound in ("5", True, None, [5]):
        data = FrozenMap({"kind": "declared", "records_per_user": bound})
        edited = dataclasses.replace(audit, document=FrozenMap({**audit.document, "data": data}))
        assert "adding or removing a user, seeing" in dict(details(edited))["Adversary"]
