"""The keys of a spec from its JSON Schema: dotted path, type, description, and the conditions of a key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

from dpspec.reporters.labels import value
from dpspec.text import joined

Node = Mapping[str, Any]
Conditions = tuple["Condition", ...]

_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matching {}",
}

#: The largest integer of any spec, which is not a limit of a key.
_ANY = 2**63 - 1

_NAMES = {"object": "map", "array": "list", "boolean": "true | false"}


@dataclass(frozen=True)
class Condition:
    path: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path} is {joined(self.values, 'or')}"


@dataclass(frozen=True, kw_only=True)
class Key:
    """Exists if all ``conditions`` hold. Paths do not contain list indices."""

    path: str
    type: str
    description: str
    conditions: Conditions


def keys(schema: Node) -> Iterator[Key]:
    """Parents first, without conditional repetitions of an unconditional key."""
    seen: set[Key] = set()
    always: dict[str, str] = {}
    for key in _walk(schema, schema, "", (), ()):
        if not key.conditions:
            always[key.path] = key.description
        elif key.path in always and key.description in ("", always[key.path]):
            continue
        if key not in seen:
            seen.add(key)
            yield key


def find(name: str, known: Sequence[Key]) -> list[Key]:
    exact = [key for key in known if key.path == name]
    return exact or [key for key in known if key.path.endswith(f".{name}")]


def choices(key: Key) -> tuple[str, ...]:
    first = key.type.partition(";")[0]
    return tuple(first.split(" | ")) if " | " in first else ()


def _walk(root: Node, node: Node, path: str, conditions: Conditions, open_: tuple[int, ...]) -> Iterator[Key]:
    """``open_`` has the parents, to end recursive schemas."""
    node = _resolved(root, node)
    if id(node) in open_:
        return
    open_ = (*open_, id(node))
    required = node.get("required", ())
    for name, below in node.get("properties", {}).items():
        if not isinstance(below, Mapping):
            continue
        inner = _resolved(root, below)
        place = f"{path}.{name}" if path else name
        if set(inner) - {"const"} or not conditions:
            text = type_of(root, inner, required=name in required)
            yield Key(path=place, type=text, description=_description(below, inner), conditions=conditions)
        yield from _walk(root, inner, place, conditions, open_)
    for keyword in ("allOf", "anyOf", "oneOf", "items", "additionalProperties", "else"):
        parts = node.get(keyword)
        for part in parts if isinstance(parts, list | tuple) else (parts,):
            if isinstance(part, Mapping):
                yield from _walk(root, part, path, conditions, open_)
    then = node.get("then")
    if isinstance(then, Mapping):
        yield from _walk(root, then, path, (*conditions, *_condition(node.get("if", {}), path)), open_)


def _resolved(root: Node, node: Node) -> Node:
    for _ in range(32):
        reference = node.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        target: Any = root
        for part in reference[2:].split("/"):
            target = target[part.replace("~1", "/").replace("~0", "~")]
        node = target
    return node


def _condition(test: Node, path: str) -> Iterator[Condition]:
    for name, part in test.get("properties", {}).items():
        place = f"{path}.{name}" if path else name
        if "const" in part:
            yield Condition(place, (str(part["const"]),))
        elif "enum" in part:
            yield Condition(place, tuple(str(choice) for choice in part["enum"]))
        else:
            yield from _condition(part, place)


def _description(outer: Node, inner: Node) -> str:
    return str(outer.get("description") or inner.get("description") or "")


def type_of(root: Node, node: Node, *, required: bool = False) -> str:
    """``number, above 0, at most 1; required``."""
    parts = [_shape(root, node)]
    parts += [_limit(words, node[keyword]) for keyword, words in _LIMITS.items() if node.get(keyword, _ANY) != _ANY]
    text = ", ".join(parts)
    if required:
        return f"{text}; required"
    return f"{text}; default {value(node['default']) or 'empty'}" if "default" in node else text


def _limit(words: str, number: Any) -> str:
    if number == 1 and words.endswith((" characters", " items")):
        return "not empty" if words.startswith("at least") else words.format(1).removesuffix("s")
    return words.format(value(number))


def _shape(root: Node, node: Node) -> str:
    if "const" in node:
        return f"always {value(node['const'])}"
    if "enum" in node:
        return " | ".join(value(choice) for choice in node["enum"])
    alternatives = node.get("anyOf") or node.get("oneOf")
    if alternatives:
        return " or ".join(dict.fromkeys(_shape(root, _resolved(root, part)) for part in alternatives))
    kind = node.get("type", "any value")
    name = " or ".join(_NAMES.get(one, one) for one in (kind if isinstance(kind, list) else [str(kind)]))
    if name == "list" and isinstance(node.get("items"), Mapping):
        return f"list of {_shape(root, _resolved(root, node['items']))}"
    return name


#: The values of conditions on the same paths, in the order of the paths.
_Case = tuple[tuple[str, ...], ...]


def alike(keys: Iterable[Key]) -> list[list[Key]]:
    """Groups of keys with equal path, type and description."""
    groups: dict[tuple[str, str, str], list[Key]] = {}
    for key in keys:
        groups.setdefault((key.path, key.type, key.description), []).append(key)
    return list(groups.values())


def when(keys: Sequence[Key], known: Sequence[Key]) -> list[tuple[Condition, ...]]:
    """Alternatives of conditions of keys of one path; those that hold for all ``known`` kinds are dropped."""
    alternatives: list[tuple[Condition, ...]] = []
    for paths in dict.fromkeys(_paths(key) for key in keys):
        cases = dict.fromkeys(_values(key) for key in keys if _paths(key) == paths)
        every = {_values(key) for key in known if _paths(key) == paths}
        alternatives += _factored(paths, list(cases), every)
    return alternatives


def _factored(paths: tuple[str, ...], cases: list[_Case], every: set[_Case]) -> list[tuple[Condition, ...]]:
    for place in range(len(paths)):
        others = dict.fromkeys(_without(case, place) for case in cases)
        if {case for case in every if _without(case, place) in others} == set(cases):
            rest = {_without(case, place) for case in every}
            return _factored((*paths[:place], *paths[place + 1 :]), list(others), rest)
    options = [list(dict.fromkeys(case[place] for case in cases)) for place in range(len(paths))]
    if every & set(product(*options)) == set(cases):
        cases = [tuple(tuple(dict.fromkeys(chain(*values))) for values in options)]
    return [tuple(map(Condition, paths, case)) for case in cases]


def _paths(key: Key) -> tuple[str, ...]:
    return tuple(condition.path for condition in key.conditions)


def _values(key: Key) -> _Case:
    return tuple(condition.values for condition in key.conditions)


def _without(case: _Case, place: int) -> _Case:
    return (*case[:place], *case[place + 1 :])
