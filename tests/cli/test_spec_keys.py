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


def test_paths(known):
    assert [key.path for key in known] == [
        "dpspec",
        "mechanism",
        "mechanism.kind",
        "mechanism.noise",
        "mechanism.sampling",
        "mechanism.sampling.rate",
        "mechanism.noise",
        "claims",
        "claims.delta",
        "claims.tags",
        "loop",
        "loop.loop",
    ]


def test_a_key_that_depends_on_the_kind_says_so(known):
    one, other = find("mechanism.noise", known)
    assert (one.type, one.description, one.conditions) == (
        "number, at least 0, at most 1000000; default 1.5",
        "How much.",
        (Condition("mechanism.kind", ("group",)),),
    )
    assert (other.type, other.conditions) == (
        "whole number or null, above 0",
        (Condition("mechanism.kind", ("other",)),),
    )


def test_types(known):
    types = {key.path: key.type for key in known}
    assert types["dpspec"] == "always 1"
    assert types["mechanism"] == "map; required"
    assert types["mechanism.kind"] == "group | other; required"
    assert types["claims.tags"] == "list of text"


def test_limits_in_words():
    def said(**schema):
        return type_of({}, schema)

    assert said(type="string", minLength=1) == "text, not empty"
    assert said(type="string", maxLength=1) == "text, at most 1 character"
    assert said(type=["integer", "array"], minItems=2) == "whole number or list, at least 2 items"
    assert said(type="integer", maximum=2**63 - 1) == "whole number"
    assert said(type="string", default="") == "text; default empty"


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


def test_choices(known):
    assert choices(find("mechanism.kind", known)[0]) == ("group", "other")
    assert choices(find("claims.delta", known)[0]) == ()


def test_a_last_part_is_enough(known):
    assert [key.path for key in find("rate", known)] == ["mechanism.sampling.rate"]
    assert [key.path for key in find("sampling.rate", known)] == ["mechanism.sampling.rate"]
    assert find("ate", known) == []
