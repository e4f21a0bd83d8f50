"""A document as a tree that keeps the span of each value and key."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dpspec.contract import Diagnostic, Json, Path, Span, format_path

#: Value of a node: a scalar, a mapping of nodes or a list of nodes.
Content: TypeAlias = "dict[str, Node] | list[Node] | str | int | float | bool | None"


@dataclass(frozen=True, slots=True)
class Node:
    """Containers are never changed in place."""

    value: Content
    span: Span | None = None
    key: Span | None = None


class Origin(dict[Path, Span]):
    """Spans of values by path, and of keys (``keys_at``). Claims have a path by position and one by id."""

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


def json_problem(value: Json, path: Path = (), depth: int = 64) -> Diagnostic | None:
    """A diagnostic if a value is too deep, has non-string keys, NaN or infinities."""
    if depth == 0:
        return Diagnostic(code="too-deep", message="values are nested too deeply", path=path)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            return Diagnostic(code="bad-key", message="keys must be strings", path=path)
        inner: list[tuple[str | int, Json]] = list(value.items())
    elif isinstance(value, list | tuple):
        inner = list(enumerate(value))
    elif value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return None
    else:
        return Diagnostic(code="bad-number", message="every number must be finite", path=path)
    found = (json_problem(item, (*path, key), depth - 1) for key, item in inner)
    return next((diagnostic for diagnostic in found if diagnostic is not None), None)


def origin(root: Node) -> Origin:
    found = Origin()
    ids = {i: name for name, i in claim_ids(root).items()}
    nodes: list[tuple[Path, Node]] = [((), root)]
    for path, node in nodes:
        paths = [path]
        if len(path) > 1 and path[0] == "claims" and path[1] in ids:
            paths.append(("claims", ids[int(path[1])], *path[2:]))
        for each in paths:
            if node.span is not None:
                found[each] = node.span
            if node.key is not None:
                found.keys_at[each] = node.key
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
            file, hint = source_file(spans), diagnostic.help
            own = span.file in (file, "--set")
            if diagnostic.code == "unknown-key" and file and not own:  # the spec inherits the key from a parent
                drop = f"it is inherited: {format_path(diagnostic.path)}: null in {file} drops it"
                hint = f"{hint}; {drop}" if hint else drop
            return dataclasses.replace(diagnostic, span=span, help=hint)
        if not path:
            return diagnostic
        path, at_key = path[:-1], True  # report a missing value at the key of its block


def source_file(spans: Mapping[Path, Span]) -> str:
    span = spans.get(())
    return span.file if span is not None else ""
