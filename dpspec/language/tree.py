"""A document as a tree that keeps the span of each value and key."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dpspec.contract import Diagnostic, Json, Path, Span

#: Value of a node: a scalar, a mapping of nodes or a list of nodes.
Content: TypeAlias = "dict[str, Node] | list[Node] | str | int | float | bool | None"


@dataclass(frozen=True, slots=True)
class Node:
    """Containers are never changed in place."""

    value: Content
    span: Span | None = None
    key: Span | None = None


class Origin(dict[Path, Span]):
    """Spans of values by path, and of keys (``keys_at``)."""

    def __init__(self) -> None:
        super().__init__()
        self.keys_at: dict[Path, Span] = {}


def child(node: Node, key: str) -> Node | None:
    return node.value.get(key) if isinstance(node.value, dict) else None


def plain(node: Node) -> Json:
    if isinstance(node.value, dict):
        return {k: plain(v) for k, v in node.value.items()}
    return list(map(plain, node.value)) if isinstance(node.value, list) else node.value


def value_at(block: Json, path: Path) -> Json:
    """None if the path does not exist."""
    for step in path:
        if isinstance(block, list | tuple) and isinstance(step, int):
            block = block[step] if step < len(block) else None
        else:
            block = block.get(step) if isinstance(block, Mapping) else None
    return block


def from_plain(value: Json) -> Node:
    if isinstance(value, Mapping):
        return Node({str(k): from_plain(v) for k, v in value.items()})
    if isinstance(value, list | tuple):
        return Node([from_plain(v) for v in value])
    return Node(value)


def origin(root: Node) -> Origin:
    found = Origin()
    nodes: list[tuple[Path, Node]] = [((), root)]
    for path, node in nodes:
        if node.span is not None:
            found[path] = node.span
        if node.key is not None:
            found.keys_at[path] = node.key
        if isinstance(node.value, dict | list):
            inner = node.value.items() if isinstance(node.value, dict) else enumerate(node.value)
            nodes.extend(((*path, key), value) for key, value in inner)
    return found


def claim_ids(root: Node) -> dict[str, int]:
    """Claim N, counted from 1, has the default id ``claim-N``."""
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
    """By its path, or the nearest parent key that has a span."""
    if diagnostic.span is not None:
        return diagnostic
    path, at_key = diagnostic.path, diagnostic.at_key
    while True:
        key = spans.keys_at.get(path) if isinstance(spans, Origin) else None
        span = key if at_key and key is not None else spans.get(path)
        if span is not None:
            return dataclasses.replace(diagnostic, span=span)
        if not path:
            return diagnostic
        path, at_key = path[:-1], True  # report a missing value at the key of its block


def source_file(spans: Mapping[Path, Span]) -> str:
    span = spans.get(())
    return span.file if span is not None else ""
