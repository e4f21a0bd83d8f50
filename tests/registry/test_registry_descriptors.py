"""What a descriptor must be before it enters the catalog."""

from __future__ import annotations

import dataclasses

import pytest

from dpspec.contract import Backend, Dataset, Mechanism, Model, Reporter, Schemas
from dpspec.contract.fragments import CLIP_NORM, NOISE_MULTIPLIER, SAMPLING
from dpspec.registry.descriptors import FAMILIES, problems
from dpspec.registry.schema_flaws import flaws


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
        ("mechanism", {"summary": ""}, "summary must be one line of text"),
        ("mechanism", {"summary": "two\nlines"}, "summary must be one line of text"),
        ("mechanism", {"trial_revision": 0}, "trial_revision must be a whole number from 1, got 0"),
        ("mechanism", {"trial_revision": "1"}, "trial_revision must be a whole number from 1, got '1'"),
        ("mechanism", {"example": " "}, "example must be the text of a whole spec"),
        ("mechanism", {"claims": frozenset()}, "claims must be a frozenset"),
        ("mechanism", {"claims": ["approx-dp"]}, "claims must be a frozenset"),
        ("mechanism", {"claims": frozenset({"gdp"})}, "schemas.claims.approx-dp: is not among its claims (gdp)"),
        ("mechanism", {"audit": "demo.audit"}, "audit must name code as 'package.module:Attribute'"),
        ("mechanism", {"audit": None}, "audit must name code"),
        ("mechanism", {"schemas": None}, "schemas.mechanism: must be a mapping"),
        ("mechanism", {"schemas": CLASH}, "schemas.mechanism.properties.steps: this key belongs to core"),
        ("dataset", {"schema": fragment(kind={})}, "schema.properties.kind: this key belongs to core"),
        ("dataset", {"source": "a.b:C()"}, "source must name code"),
        ("model", {"factory": ""}, "factory must name code"),
        ("backend", {"trainer": ":B"}, "trainer must name code"),
        ("backend", {"capabilities": ["iterates"]}, "capabilities must be a frozenset"),
        ("backend", {"capabilities": frozenset({"iterate"})}, "unknown capabilities 'iterate' (valid: gradient-"),
        ("reporter", {"suffix": "pdf"}, "suffix must look like '.json', got 'pdf'"),
        ("reporter", {"render": "a.b"}, "render must name code"),
    ],
)
def test_problems_are_named(name, changes, problem):
    texts = found(dataclasses.replace(GOOD[name], **changes))
    assert any(problem in text for text in texts), texts


def test_a_mechanism_without_steps_may_use_the_word():
    assert found(dataclasses.replace(MECHANISM, schemas=CLASH, steps=False, claims=frozenset({"pure-dp"}))) == []


def test_core_fragments_pass_with_nothing_to_improve():
    schema = fragment(noise_multiplier=NOISE_MULTIPLIER, clip_norm=CLIP_NORM, sampling=SAMPLING)
    assert list(flaws(schema)) == []


DESCRIBED = {"description": "d"}


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"oneOf": [{"type": "string"}]}, "schema.properties.a.oneOf: oneOf gives misleading messages"),
        ({"$ref": "http://example.org/x"}, "schema.properties.a.$ref: is not a keyword"),
        ({"prefixItems": [{}]}, "prefixItems: is not a keyword"),
        ({"type": "float"}, "type: has an unusable value 'float'"),
        ({"type": []}, "type: has an unusable value []"),
        ({"minimum": "0"}, "minimum: has an unusable value '0'"),
        ({"minimum": float("nan")}, "minimum: has an unusable value nan"),
        ({"maximum": True}, "maximum: has an unusable value True"),
        ({"default": float("inf")}, "default: has an unusable value inf"),
        ({"default": {1: 2}}, "default: has an unusable value {1: 2}"),
        ({"enum": []}, "enum: has an unusable value []"),
        ({"pattern": "("}, "pattern: has an unusable value '('"),
        ({"required": ["a", 1]}, "required: has an unusable value ['a', 1]"),
        ({"minLength": -1}, "minLength: has an unusable value -1"),
        ({"items": [{}]}, "items: must be a schema, not a list"),
        ({"allOf": {}}, "allOf: must be a list of schemas"),
        ({"allOf": [{"then": 3}]}, "allOf[0].then: must be a schema, not a int"),
        ({"properties": []}, "properties: must be a mapping from names to schemas"),
        ({"properties": {1: {}}}, "properties.1: must be named by text"),
        ({"additionalProperties": "no"}, "additionalProperties: must be a schema, not a str"),
    ],
)
def test_fatal_flaws(part, text):
    fatal = [str(flaw) for flaw in flaws(fragment(a={**DESCRIBED, **part})) if flaw.fatal]
    assert any(text in line for line in fatal), fatal


@pytest.mark.parametrize("schema", [None, [], {}, {"type": "object"}, {"type": "array", "properties": {}}, True])
def test_a_fragment_is_the_schema_of_a_mapping(schema):
    assert [flaw.fatal for flaw in flaws(schema)] == [True]


def test_endless_nesting_is_a_flaw():
    schema = fragment()
    schema["properties"]["again"] = schema
    assert any("nests deeper" in str(flaw) for flaw in flaws(schema))


def test_what_only_an_author_cares_about_is_not_fatal():
    nested = {"type": "object", "description": "d", "properties": {"b": {"type": "integer"}}}
    found = {str(flaw): flaw.fatal for flaw in flaws(fragment(a=nested))}
    assert found == {
        "schema.properties.a: lets misspelt keys pass; set additionalProperties: false": False,
        "schema.properties.a.properties.b: has no description": False,
    }


def test_keywords_are_not_confused_with_keys_of_that_name():
    schema = fragment(oneOf={"type": "integer", "description": "A key called oneOf."})
    assert list(flaws(schema)) == []


def test_properties_inside_conditions_refine_and_need_no_description():
    condition = {"if": {"properties": {"a": {"const": 1}}}, "then": {"properties": {"b": False}}}
    assert list(flaws({**fragment(a={"description": "a"}, b={"description": "b"}), "allOf": [condition]})) == []
