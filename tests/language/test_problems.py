"""Our words for keywords of JSON Schema that core's own schemas use little, and plugins may use."""

from __future__ import annotations

from typing import Any

import pytest

from dpspec.language.problems import problems

NUMBER = {"type": "number"}
EITHER = {"anyOf": [{"type": "number", "minimum": 0}, {"enum": ["auto", "none"]}]}
CASES = {
    "if": {"properties": {"mode": {"enum": ["a", "b"]}}, "required": ["mode"]},
    "then": {"properties": {"x": False}},
    "else": {"properties": {"y": False}},
}


@pytest.mark.parametrize(
    ("schema", "value", "code", "message"),
    [
        ({"multipleOf": 8}, 12, "out-of-range", "key must be a multiple of 8, got 12"),
        ({"minLength": 2}, "x", "bad-length", "key must have at least 2 characters, got 1"),
        ({"maxLength": 1}, "xyz", "bad-length", "key must have at most 1 character, got 3"),
        ({"maxItems": 1}, [1, 2], "bad-length", "key must have at most 1 item, got 2"),
        ({"minProperties": 1}, {}, "bad-length", "key must have at least 1 entry, got 0"),
        ({"maxProperties": 2}, {"a": 1, "b": 2, "c": 3}, "bad-length", "key must have at most 2 entries, got 3"),
        ({"const": "x"}, "y", "bad-choice", "'y' is not a choice for key"),
        ({"enum": [1, 2]}, 3, "bad-choice", "3 is not a choice for key"),
        ({"not": {"const": 3}}, 3, "not-allowed", "key cannot be 3"),
        ({"contains": {"const": 3}}, [1], "not-allowed", "key cannot be a list"),
        ({"type": ["number", "null"]}, "x", "wrong-type", 'key must be a number or null, got "x"'),
        ({"type": "boolean"}, "yes", "wrong-type", 'key must be true or false, got "yes"'),
        (EITHER, -1, "out-of-range", "key must be at least 0, got -1"),
        (EITHER, "atuo", "bad-choice", "'atuo' is not a choice for key; did you mean 'auto'?"),
        (CASES, {"mode": "a", "x": 1}, "conflicting-key", "'x' is not allowed with mode a, b"),
        (CASES, {"y": 1}, "conflicting-key", "'y' is not allowed without mode a, b"),
        ({"properties": {"x": False}}, {"x": 1}, "conflicting-key", "'x' is not allowed here"),
        ({"additionalProperties": NUMBER}, {"x": "y"}, "wrong-type", 'x must be a number, got "y"'),
        ({"items": {"items": NUMBER}}, [[1], [2, "y"]], "wrong-type", 'key[1][1] must be a number, got "y"'),
        ({"propertyNames": {"maxLength": 1}}, {"xy": 1}, "bad-length", "key must have at most 1 character, got 2"),
    ],
)
def test_texts(schema: dict[str, Any], value: Any, code: str, message: str) -> None:
    whole = {"type": "object", "properties": {"key": schema}}
    (found,) = problems(whole, {"key": value}, ("block",))
    assert (found.code, found.message) == (code, message)
    assert found.path[:2] == ("block", "key")


def test_pattern_properties_are_known_keys() -> None:
    schema = {"patternProperties": {"^x-": {}}, "properties": {"y": {}}, "additionalProperties": False}
    (found,) = problems(schema, {"x-a": 1, "y": 2, "z": 3})
    assert found.message.startswith("unknown key 'z' in the spec")


def test_patterns_end_where_the_text_ends() -> None:
    schema = {"pattern": "^[a-z]+$"}
    assert list(problems(schema, "abc")) == []
    assert [d.code for d in problems(schema, "abc\n")] == ["bad-format"]


def test_help_for_booleans_and_lists() -> None:
    assert [d.help for d in problems({"type": "boolean"}, "off")] == ["write false"]
    assert [d.help for d in problems({"type": "array"}, 3)] == ["write it in brackets: [...]"]
    assert [d.help for d in problems({"type": "string"}, True)] == ["write it in quotes"]


def test_user_text_is_clipped_and_escaped() -> None:
    schema = {"properties": {}, "additionalProperties": False}
    (found,) = problems(schema, {"\x1b" + "k" * 500: 1})
    assert "\x1b" not in found.message
    assert len(found.message) < 100
