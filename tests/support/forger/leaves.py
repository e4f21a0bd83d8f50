"""Edits of a result's JSON, with their paths: leaves, and items of lists and mappings."""

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str | int, ...]

#: Enumerations in results: each word is replaced by the others.
WORDS = (
    ("contradicted", "refuted", "proved", "supported", "open"),
    ("no-deviation-found", "deviates", "not-run"),
    ("certified", "theorem", "statistical", "approximate"),
    ("upper", "lower", "estimate"),
    ("public", "data-dependent", "per-record"),
    ("by-construction", "declared", "not-rejected", "reported", "unchecked", "false"),
    ("measured", "reported"),
    ("all", "collection", "this", "planted"),
    ("declared", "executed"),
    ("add-remove", "replace-one", "zero-out"),
    ("add", "remove", "both"),
    ("all-iterates", "final-model"),
    ("gradient", "record", "none"),
    ("all", "same-missing-values"),
    ("epsilon", "delta", "mu", "gamma", "accuracy", "tpr"),
    ("approx-dp", "pure-dp", "gdp", "metric", "rero", "membership"),
)


@dataclass(frozen=True)
class Edit:
    """One forged document, a result's JSON or a page's text; ``paths`` are the places that were edited."""

    what: str
    paths: tuple[Path, ...]
    document: Any

    @property
    def text(self) -> str:
        return self.document if isinstance(self.document, str) else json.dumps(self.document)


def pattern(path: Path) -> str:
    """Return a path with ``*`` for every index."""
    return ".".join("*" if isinstance(key, int) else key for key in path)


def put(document: Any, path: Path, value: Any) -> Any:
    """Return a copy of the document with another value at a path."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(document, dict):
        return {**document, key: put(document.get(key), rest, value)}
    return [put(item, rest, value) if i == key else item for i, item in enumerate(document)]


def walk(document: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every value with its path, containers before their items."""
    yield path, document
    if isinstance(document, dict | list):
        for key, item in document.items() if isinstance(document, dict) else enumerate(document):
            yield from walk(item, (*path, key))


def others(value: Any) -> list[Any]:
    """Return plausible other values of a leaf's type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, max(value - 1, 0) if value != 0 else 7, 2 * value + 3]
    if isinstance(value, float):
        return [value * 0.5, value * 1.25 + 0.01, 0.0 if value else 0.25, "inf"]
    if value is None:
        return [1.0, 0, "x"]
    if value in ("inf", "-inf"):
        return [1.0]
    words = [word for group in WORDS if value in group for word in group if word != value]
    return words or [f"{value} proved", value[:-1] if value else "x", ""][: 3 if value else 1]


def sample(found: list[Any], chance: random.Random, most: int) -> list[Any]:
    return found if len(found) <= most else chance.sample(found, most)


def chosen(document: Any, chance: random.Random, most: int) -> Iterator[tuple[Path, Any]]:
    """Yield values with their paths, at most ``most`` of each pattern."""
    groups: dict[str, list[tuple[Path, Any]]] = defaultdict(list)
    for path, value in walk(document):
        groups[pattern(path)].append((path, value))
    for members in groups.values():
        yield from sample(members, chance, most)


def leaves(document: Any, chance: random.Random, most: int, values: int) -> Iterator[Edit]:
    """Leaves, each replaced by so many others."""
    for path, value in chosen(document, chance, most):
        if not isinstance(value, dict | list):
            for other in sample(others(value), chance, values):
                yield Edit(f"{value!r:.60} becomes {other!r:.60}", (path,), put(document, path, other))


def items(document: Any, chance: random.Random, most: int) -> Iterator[Edit]:
    """Items of lists and mappings removed, repeated, exchanged, added."""
    for path, value in chosen(document, chance, most):
        if isinstance(value, list) and value:
            i = chance.randrange(len(value))
            yield Edit("an item is removed", ((*path, i),), put(document, path, [*value[:i], *value[i + 1 :]]))
            yield Edit("an item is repeated", ((*path, i),), put(document, path, [*value, value[i]]))
            j = chance.randrange(len(value))
            if value[i] != value[j]:
                swapped = list(value)
                swapped[i], swapped[j] = value[j], value[i]
                yield Edit("items are exchanged", ((*path, i), (*path, j)), put(document, path, swapped))
            leaf = [(p, v) for p, v in walk(value[i]) if not isinstance(v, dict | list)]
            if leaf:
                place, old = chance.choice(leaf)
                added = [*value, put(value[i], place, chance.choice(others(old)))]
                yield Edit("an item is added", ((*path, len(value)),), put(document, path, added))
        if isinstance(value, dict) and value:
            key = chance.choice(list(value))
            kept = {k: v for k, v in value.items() if k != key}
            yield Edit("a key is removed", ((*path, key),), put(document, path, kept))
        if isinstance(value, dict):
            for new in (None, 1):
                yield Edit("a key is added", ((*path, "note"),), put(document, path, {**value, "note": new}))
