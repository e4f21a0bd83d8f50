"""Keys are found in any schema of the shape that specs have, with their kinds and types."""

from __future__ import annotations

import pytest

from dpspec.cli.spec_keys import Condition, choices, find, keys, type_of

GROUP = {
    "properties": {
        "kind": {"const": "group"},
        "noise": {"type": "number", "minimum": 0, "maximum": 1e6, "description": "How much.", "default": 1.5},
        "sampling": {"$ref": "#/$defs/sampling"},
    }
}
OTHER = {"properties": {"noise": {"type": ["integer", "null"], "exclusiveMinimum": 0}, "rate": False}}
CLAIM = {
    "properties": {"delta": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
}
SCHEMA = {
    "type": "object",
    "required": ["mechanism"],
    "properties": {
        "dpspec": {"const": 1, "description": "The version."},
        "mechanism": {
            "type": "object",
            "description": "What is audited.",
            "required": ["kind"],
            "properties": {"kind": {"enum": ["group", "other"], "description": "Chooses."}},
            "allOf": [
                {"if": {"properties": {"kind": {"const": "group"}}}, "then": GROUP},
                {"if": {"properties": {"kind": {"const": "other"}}}, "then": OTHER},
            ],
        },
        "claims": {"type": "array", "items": CLAIM},
        "loop": {"$ref": "#/$defs/loop"},
    },
    "$defs": {
        "sampling": {
            "type": "object",
            "description": "Batches.",
            "properties": {"rate": {"type": "number", "maximum": 1}},
        },
        "loop": {"type": "object", "properties": {"loop": {"$ref": "#/$defs/loop"}}},
    },
}


@pytest.fixture
def known():
    return list(keys(SCHEMA))


def test_keys_with_their_types_and_conditions(known):
    group, other = (Condition("mechanism.kind", (kind,)) for kind in ("group", "other"))
    assert [(key.path, key.type, *key.conditions) for key in known] == [
        ("dpspec", "always 1"),
        ("mechanism", "map; required"),
        ("mechanism.kind", "group | other; required"),
        ("mechanism.noise", "number, at least 0, at most 1000000; default 1.5", group),
        ("mechanism.sampling", "map", group),
        ("mechanism.sampling.rate", "number, at most 1", group),
        ("mechanism.noise", "integer or null, above 0", other),
        ("claims", "list of any value"),
        ("claims.delta", "number"),
        ("claims.tags", "list of string"),
        ("loop", "map"),
        ("loop.loop", "map"),
    ]
    assert [key.description for key in find("mechanism.noise", known)] == ["How much.", ""]


def test_limits_in_words():
    def said(**schema):
        return type_of({}, schema)

    assert said(type="string", minLength=1) == "string, not empty"
    assert said(type="string", maxLength=1) == "string, at most 1 character"
    assert said(type=["integer", "array"], minItems=2) == "integer or list, at least 2 items"
    assert said(type="integer", maximum=2**63 - 1) == "integer"
    assert said(type="string", default="") == "string; default empty"


def test_a_case_that_says_nothing_new_is_left_out():
    case = {"properties": {"audit": {"type": "object", "description": "An attack."}, "claims": {"items": CLAIM}}}
    schema = {
        "properties": {
            "kind": {"enum": ["a"], "description": "Chooses."},
            "audit": {"type": "object", "description": "An attack."},
            "claims": {"type": "array", "description": "Statements."},
        },
        "allOf": [{"if": {"properties": {"kind": {"const": "a"}}}, "then": case}],
    }
    found = [(key.path, bool(key.conditions)) for key in keys(schema)]
    assert found == [
        ("kind", False),
        ("audit", False),
        ("claims", False),
        ("claims.delta", True),
        ("claims.tags", True),
    ]


def test_choices_and_last_parts_of_paths(known):
    assert choices(find("mechanism.kind", known)[0]) == ("group", "other")
    assert choices(find("claims.delta", known)[0]) == ()
    for name in ("rate", "sampling.rate"):
        assert [key.path for key in find(name, known)] == ["mechanism.sampling.rate"]
    assert find("ate", known) == []
