"""Keys are found in any schema of the shape that specs have, with their kinds and types."""

from __future__ import annotations

from dpspec.cli.explain import keys
from dpspec.language.blocks import reference
from dpspec.registry.loader import load_catalog

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


def test_keys_with_their_types_and_kinds():
    group, other = (f"mechanism.kind is {kind}" for kind in ("group", "other"))
    assert [(key.path, key.type, key.where) for key in keys(SCHEMA)] == [
        ("dpspec", "always 1", ""),
        ("mechanism", "map; required", ""),
        ("mechanism.kind", "group | other; required", ""),
        ("mechanism.noise", "number, at least 0, at most 1000000; default 1.5", group),
        ("mechanism.sampling", "map", group),
        ("mechanism.sampling.rate", "number, at most 1", group),
        ("mechanism.noise", "integer or null, above 0", other),
        ("claims", "list of any value", ""),
        ("claims.delta", "number", ""),
        ("claims.tags", "list of string", ""),
    ]


def test_a_choice_that_makes_no_difference_is_not_mentioned() -> None:
    known = keys(reference(load_catalog()))
    where = {path: [key.where for key in known if key.path == f"claims.{path}"] for path in ("id", "epsilon", "points")}
    assert where == {
        "id": [""],
        "epsilon": ["claims.kind is approx-dp, per-instance-dp or pure-dp", "claims.kind is renyi-dp"],
        "points": ["claims.kind is tradeoff"],
    }
