"""Keys are found in any schema of the shape that specs have, with their kinds and types."""

from __future__ import annotations

from typing import Any

import pytest

from dpspec.cli.explain import Condition, Key, alike, keys, when
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


PAIRS = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "z"), ("c", "y")]


def key(path: str, case: tuple[str, ...]) -> Key:
    choosers = ("mechanism.kind", "claims.kind")
    conditions = tuple(Condition(name, (value,)) for name, value in zip(choosers, case, strict=False))
    return Key(path=path, type="number", description="", conditions=conditions)


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        (PAIRS, [()]),
        ([("a", "x"), ("b", "x")], [("claims.kind is x",)]),
        ([("a", "x"), ("a", "y")], [("mechanism.kind is a",)]),
        ([("a", "x"), ("b", "x"), ("b", "z")], [("claims.kind is x or z",)]),
        ([("a", "x"), ("c", "y")], [(f"mechanism.kind is {a}", f"claims.kind is {b}") for a, b in ("ax", "cy")]),
    ],
)
def test_a_choice_that_makes_no_difference_is_not_mentioned(cases: Any, said: list[tuple[str, ...]]) -> None:
    known = [key("claims.id", pair) for pair in PAIRS]
    found = when([key("claims.epsilon", case) for case in cases], known)
    assert [tuple(map(str, conditions)) for conditions in found] == said


def test_every_key_is_told_for_exactly_the_kinds_that_have_it() -> None:
    known = list(keys(reference(load_catalog())))
    every = {k.conditions for k in known}
    for group in alike(known):
        mine = {k.conditions for k in group}
        described = {case for said in when(group, known) for case in every if _within(case, said, mine)}
        assert described == mine, group[0]


def _within(case: tuple[Condition, ...], said: tuple[Condition, ...], mine: set[tuple[Condition, ...]]) -> bool:
    if tuple(c.path for c in case) not in {tuple(c.path for c in one) for one in mine}:
        return False
    values = {c.path: set(c.values) for c in case}
    return all(values[condition.path] <= set(condition.values) for condition in said)
