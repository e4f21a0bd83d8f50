"""A document as a tree in which every value remembers where it and its key were written."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dpspec.contract import Diagnostic, Json, Path, Span, format_path

#: What a node holds: a scalar, a mapping or a list of nodes.
Content: TypeAlias = "dict[str, Node] | list[Node] | str | int | float | bool | None"


@dataclass(frozen=True, slots=True)
class Node:
    """A value, the span it was written at, and that of its key. Its containers are never changed in place."""

    value: Content
    span: Span | None = None
    key: Span | None = None


class Origin(Mapping[Path, Span]):
    """Where each value of a document was written; ``key`` answers the same for keys.

    Claims may be named by id as well as by position: ``("claims", "family", "epsilon")``.
    """

    __slots__ = ("_claims", "_keys", "_values")

    def __init__(self, values: Mapping[Path, Span], keys: Mapping[Path, Span], claims: Mapping[str, int]) -> None:
        self._values = dict(values)
        self._keys = dict(keys)
        self._claims = dict(claims)

    def __getitem__(self, path: Path) -> Span:
        return self._values[self._plain(path)]

    def __iter__(self) -> Iterator[Path]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def key(self, path: Path) -> Span | None:
        """Where the key of the value at ``path`` stands; None for list items and values without one."""
        return self._keys.get(self._plain(path))

    def _plain(self, path: Path) -> Path:
        if len(path) > 1 and path[0] == "claims" and isinstance(path[1], str) and path[1] in self._claims:
            return ("claims", self._claims[path[1]], *path[2:])
        return path


def child(node: Node, key: str) -> Node | None:
    """The value under a key of a map; None where there is none, or no map."""
    return node.value.get(key) if isinstance(node.value, dict) else None


def plain(node: Node) -> Json:
    """The tree as plain dicts, lists and scalars."""
    value = node.value
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value


def from_plain(value: Json) -> Node:
    """A tree without spans, of a JSON value."""
    if isinstance(value, Mapping):
        return Node({str(k): from_plain(v) for k, v in value.items()})
    if isinstance(value, list | tuple):
        return Node([from_plain(v) for v in value])
    return Node(value)


def not_json(value: Json, path: Path = (), depth: int = 64) -> Diagnostic | None:
    """What keeps a value that no file of ours held from being a document: depth, keys, NaN and infinities."""
    if depth == 0:
        return Diagnostic(code="too-deep", message="values are nested too deeply", path=path)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            return Diagnostic(code="bad-key", message="keys must be text", path=path)
        inner: list[tuple[str | int, Json]] = list(value.items())
    elif isinstance(value, list | tuple):
        inner = list(enumerate(value))
    elif value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return None
    else:
        return Diagnostic(code="bad-number", message="every number must be finite", path=path)
    found = (not_json(item, (*path, key), depth - 1) for key, item in inner)
    return next((diagnostic for diagnostic in found if diagnostic is not None), None)


def origin(root: Node) -> Origin:
    """The tables of all spans in a tree."""
    values: dict[Path, Span] = {}
    keys: dict[Path, Span] = {}
    for path, node in _walk(root, ()):
        if node.span is not None:
            values[path] = node.span
        if node.key is not None:
            keys[path] = node.key
    return Origin(values, keys, claim_ids(root))


def claim_ids(root: Node) -> dict[str, int]:
    """The position of each claim by its id; a claim without one is called ``claim-N``, counting from 1."""
    claims = root.value.get("claims") if isinstance(root.value, dict) else None
    ids: dict[str, int] = {}
    if claims is None or not isinstance(claims.value, list):
        return ids
    for i, claim in enumerate(claims.value):
        given = claim.value.get("id") if isinstance(claim.value, dict) else None
        name = given.value if given is not None and isinstance(given.value, str) else f"claim-{i + 1}"
        ids.setdefault(name, i)
    return ids


def locate(diagnostic: Diagnostic, spans: Mapping[Path, Span]) -> Diagnostic:
    """Give a diagnostic the span of its path, or of the nearest parent's key that stands in a file."""
    if diagnostic.span is not None:
        return diagnostic
    path, at_key = diagnostic.path, diagnostic.at_key
    while True:
        key = spans.key(path) if isinstance(spans, Origin) else None
        span = key if at_key and key is not None else spans.get(path)
        if span is not None:
            return dataclasses.replace(_inherited(diagnostic, span, spans), span=span)
        if not path:
            return diagnostic
        path, at_key = path[:-1], True  # a value that is not there is told at the key of its block


def _inherited(diagnostic: Diagnostic, span: Span, spans: Mapping[Path, Span]) -> Diagnostic:
    """With the way out for a key that does not fit and stands in a file that the spec extends, not in a table."""
    file = source_file(spans)
    if diagnostic.code != "unknown-key" or not file or span.file in (file, "--set") or span.file.endswith(".csv"):
        return diagnostic
    drop = f"it is inherited: {format_path(diagnostic.path)}: null in {file} drops it"
    return dataclasses.replace(diagnostic, help=f"{diagnostic.help}; {drop}" if diagnostic.help else drop)


def source_file(spans: Mapping[Path, Span]) -> str:
    """The file in which a document was written; empty where it was in none."""
    span = spans.get(())
    return span.file if span is not None else ""


def _walk(node: Node, path: Path) -> Iterator[tuple[Path, Node]]:
    yield path, node
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from _walk(child, (*path, key))
    elif isinstance(node.value, list):
        for i, child in enumerate(node.value):
            yield from _walk(child, (*path, i))
