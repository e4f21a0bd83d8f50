"""Keys of many kinds are told once, with the kinds that they depend on."""

from __future__ import annotations

from dpspec.cli.explain import Condition, Key, alike, keys, when
from dpspec.language.blocks import reference
from dpspec.registry.loader import load_catalog

PAIRS = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "z"), ("c", "y")]


def key(path: str, *case: str, text: str = "") -> Key:
    choosers = ("mechanism.kind", "claims.kind")
    conditions = tuple(Condition(name, (value,)) for name, value in zip(choosers, case, strict=False))
    return Key(path=path, type="number", description=text, conditions=conditions)


KNOWN = [key("claims.id", *pair) for pair in PAIRS]


def told(*cases: tuple[str, ...]) -> list[tuple[str, ...]]:
    alternatives = when([key("claims.epsilon", *case) for case in cases], KNOWN)
    return [tuple(map(str, conditions)) for conditions in alternatives]


def test_a_key_of_every_kind_needs_none() -> None:
    assert told(*PAIRS) == [()]


def test_a_choice_that_makes_no_difference_is_not_mentioned() -> None:
    assert told(("a", "x"), ("b", "x")) == [("claims.kind is x",)]
    assert told(("a", "x"), ("a", "y")) == [("mechanism.kind is a",)]
    assert told(("a", "x"), ("b", "x"), ("b", "z")) == [("claims.kind is x or z",)]
    assert told(("a", "x"), ("a", "y"), ("b", "x"), ("c", "y")) == [("claims.kind is x or y",)]


def test_what_is_no_product_is_told_case_by_case() -> None:
    assert told(("a", "x"), ("c", "y")) == [
        ("mechanism.kind is a", "claims.kind is x"),
        ("mechanism.kind is c", "claims.kind is y"),
    ]
    assert told(("b", "x")) == [("mechanism.kind is b", "claims.kind is x")]


def test_every_key_is_told_for_exactly_the_kinds_that_have_it() -> None:
    """Of all shipped keys: the cases that the conditions describe are those that the schema has."""
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
