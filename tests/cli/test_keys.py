"""Keys are found in any schema of the shape that specs have, with their kinds and types."""

from __future__ import annotations

import pytest

from dpspec.cli.keys import find, keys

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
        ("mechanism.kind is group",),
    )
    assert (other.type, other.conditions) == ("integer or null, above 0", ("mechanism.kind is other",))


def test_types(known):
    types = {key.path: key.type for key in known}
    assert types["dpspec"] == "always 1"
    assert types["mechanism"] == "map; required"
    assert types["mechanism.kind"] == "group | other; required"
    assert types["claims.tags"] == "list of text"


def test_a_last_part_is_enough(known):
    assert [key.path for key in find("rate", known)] == ["mechanism.sampling.rate"]
    assert [key.path for key in find("sampling.rate", known)] == ["mechanism.sampling.rate"]
    assert find("ate", known) == []
