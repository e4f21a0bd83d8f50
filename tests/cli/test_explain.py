"""Keys are found in any schema of the shape that specs have, with their kinds and types."""

from __future__ import annotations

from dpspec.cli.explain import Condition, find, keys

GROUP = {
    "properties": {
        "kind": {"const": "group"},
        "noise": {"type": "number", "minimum": 0, "maximum": 1e6, "description": "How much.", "default": 1.5},
        "sampling": {"type": "object", "properties": {"rate": {"type": "number", "maximum": 1}}},
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
    },
}


def test_keys_with_their_types_and_conditions():
    known = list(keys(SCHEMA))
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
    ]
    assert [key.description for key in find("mechanism.noise", known)] == ["How much.", ""]
