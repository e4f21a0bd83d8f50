"""Names places in a document by dotted text, ``claims.family.epsilon``, and puts values there."""

from __future__ import annotations

from collections.abc import Sequence

from dpspec.contract import Path, Span
from dpspec.spec.tree import Node, claim_ids
from dpspec.spec.words import did_you_mean, listed, quoted


class PlaceError(Exception):
    """A dotted text names no place; ``part`` is the index of the piece at fault."""

    def __init__(self, message: str, part: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.part = part
        self.hint = hint


def resolve(root: Node, text: str) -> Path:
    """The path that a dotted text names: keys by name, list items by position from 0, claims also by id.

    The last pieces may be new keys of maps; whether they mean anything is for the schema to say.
    """
    parts = text.split(".")
    node: Node | None = root
    path: Path = ()
    for i, part in enumerate(parts):
        if not part:
            raise PlaceError(f"{quoted(text)} has an empty piece between its dots", i)
        step: str | int = part
        value = node.value if node is not None else {}
        if isinstance(value, list):
            step = _item(root, path, value, part, i)
            node = value[step]
        elif isinstance(value, dict):
            node = value.get(part)
        elif value is None:
            node = None
        else:
            raise PlaceError(f"{quoted('.'.join(parts[:i]))} is a single value and has no {quoted(part)}", i)
        path = (*path, step)
    return path


def put(root: Node, path: Path, value: Node, keys: Sequence[Span | None]) -> Node:
    """The tree with ``value`` in place of what stands at ``path``; a null removes what stands there.

    ``keys`` holds the spans of the path's pieces, for keys that did not exist.
    """
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        items = list(root.value) if isinstance(root.value, list) else []
        items[step] = put(items[step], rest, value, keys[1:])
        return Node(items, root.span, root.key)
    entries = dict(root.value) if isinstance(root.value, dict) else {}
    if not rest:
        if value.value is None and step in entries:
            del entries[step]
        else:
            entries[step] = Node(value.value, value.span, keys[0])
    else:
        below = entries.get(step, Node({}, keys[0], keys[0]))
        entries[step] = put(below, rest, value, keys[1:])
    return Node(entries, root.span, root.key)


def _item(root: Node, path: Path, items: list[Node], part: str, index: int) -> int:
    ids = claim_ids(root) if path == ("claims",) else {}
    if part in ids:
        return ids[part]
    if part.isascii() and part.isdigit() and len(part) < 6 and int(part) < len(items):
        return int(part)
    if path == ("claims",):
        near = did_you_mean(part, ids)
        message = f"no claim is called {quoted(part)}" + (f"; did you mean {quoted(near)}?" if near else "")
        raise PlaceError(message, index, f"claims: {listed(ids)}" if ids else None)
    where = ".".join(str(p) for p in path)
    raise PlaceError(
        f"{quoted(where)} is a list without an item {quoted(part)}", index, f"its items: 0 to {len(items) - 1}"
    )
