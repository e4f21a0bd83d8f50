"""What a descriptor must be before it enters the catalog."""

from __future__ import annotations

import dataclasses

import pytest

from dpspec.contract import Backend, Dataset, Mechanism, Model, Reporter, Schemas
from dpspec.contract.attacks import Canary, Score
from dpspec.registry.descriptors import FAMILIES, problems


def fragment(**properties):
    return {"type": "object", "properties": properties, "additionalProperties": False}


SCHEMA = fragment(size={"type": "integer", "description": "How many."})
MECHANISM = Mechanism(
    kind="demo",
    summary="A demo.",
    schemas=Schemas(mechanism=SCHEMA, claims={"approx-dp": fragment(margin={"description": "m", "type": "number"})}),
    claims=frozenset({"approx-dp"}),
    audit="demo.audit:Audit",
    example="dpspec: 1\n",
)
GOOD = {
    "mechanism": MECHANISM,
    "dataset": Dataset(kind="rows", summary="Rows.", schema=SCHEMA, source="a.b:C"),
    "model": Model(kind="net", summary="A net.", schema=SCHEMA, factory="a.b:C"),
    "backend": Backend(
        kind="mine", summary="Mine.", schema=SCHEMA, capabilities=frozenset({"iterates"}), trainer="a:B"
    ),
    "reporter": Reporter(format="pdf", summary="A report.", render="a.b:render", suffix=".pdf"),
    "canary": Canary(kind="far", summary="Far.", space="input", make="a.b:make"),
    "score": Score(kind="near", summary="Near.", score="a.b:score"),
}


def found(provider):
    (family,) = [f for f in FAMILIES if isinstance(provider, f.type)]
    return problems(provider, family)


@pytest.mark.parametrize("name", GOOD)
def test_good_descriptors_have_no_problem(name):
    assert found(GOOD[name]) == []


def test_core_keys_may_be_narrowed():
    narrowed = fragment(adjacency={"enum": ["add-remove"], "description": "Only this."})
    schemas = Schemas(mechanism=SCHEMA, threat_model=narrowed)
    assert found(dataclasses.replace(MECHANISM, schemas=schemas)) == []


CLASH = Schemas(mechanism=fragment(steps={"type": "integer", "description": "s"}))


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("mechanism", {"trial_revision": 0}, "trial_revision must be an integer of at least 1, got 0"),
        ("mechanism", {"trial_revision": "1"}, "trial_revision must be an integer of at least 1, got '1'"),
        ("mechanism", {"claims": frozenset({"gdp"})}, "schemas.claims.approx-dp: is not among its claims (gdp)"),
        ("mechanism", {"audit": "demo.audit"}, "audit must name code as 'package.module:Attribute'"),
        ("mechanism", {"audit": None}, "audit must name code"),
        ("mechanism", {"schemas": CLASH}, "schemas.mechanism.properties.steps: this key belongs to core"),
        ("dataset", {"schema": fragment(kind={})}, "schema.properties.kind: this key belongs to core"),
        ("dataset", {"source": "a.b:C()"}, "source must name code"),
        ("model", {"factory": ""}, "factory must name code"),
        ("backend", {"trainer": ":B"}, "trainer must name code"),
        ("backend", {"capabilities": frozenset({"iterate"})}, "unknown capabilities 'iterate' (valid: gradient-"),
        ("reporter", {"render": "a.b"}, "render must name code"),
        ("backend", {"recording": "a.b"}, "recording must name code"),
        ("canary", {"limit": "a.b"}, "limit must name code"),
    ],
)
def test_problems_are_named(name, changes, problem):
    texts = found(dataclasses.replace(GOOD[name], **changes))
    assert any(problem in text for text in texts), texts


def test_a_mechanism_without_steps_may_use_the_word():
    assert found(dataclasses.replace(MECHANISM, schemas=CLASH, steps=False, claims=frozenset({"pure-dp"}))) == []


@pytest.mark.parametrize("schema", [None, [], {}, {"type": "object"}, {"type": "array", "properties": {}}, True])
def test_a_fragment_is_the_schema_of_a_mapping(schema):
    (problem,) = found(dataclasses.replace(GOOD["dataset"], schema=schema))
    assert "schema must be a JSON Schema with type 'object' and a mapping 'properties'" in problem
