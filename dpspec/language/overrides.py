"""``--set path=value``: the topmost layer. Values are YAML with the same rules as in a file.

Paths are dotted, for example ``claims.family.epsilon``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from dpspec.contract import Diagnostic, Path, Span
from dpspec.language.tree import Node, claim_ids
from dpspec.language.yaml_source import read_yaml
from dpspec.text import closest, did_you_mean, listed, quoted, visible

MAX_KEYS = 64


class PlaceError(Exception):
    """``part`` is the index of the invalid key in the path."""

    def __init__(self, message: str, part: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.part = part
        self.hint = hint


def resolve(root: Node, text: str) -> Path:
    """Keys by name, list items by position from 0, claims also by id. The last keys may be new."""
    parts = text.split(".")
    if len(parts) > MAX_KEYS:
        raise PlaceError(f"the path has {len(parts)} keys; specs are at most {MAX_KEYS} levels deep", 0)
    node: Node | None = root
    path: Path = ()
    for i, part in enumerate(parts):
        if not part:
            raise PlaceError(f"{quoted(text)} has an empty key between its dots", i)
        step: str | int = part
        value = node.value if node is not None else {}
        if isinstance(value, list):
            ids = claim_ids(root) if path == ("claims",) else {}
            if part in ids:
                step = ids[part]
            elif part.isascii() and part.isdigit() and len(part) < 6 and int(part) < len(value):
                step = int(part)
            elif path == ("claims",):
                message = f"no claim is called {quoted(part)}" + did_you_mean(closest(part, ids))
                raise PlaceError(message, i, f"claims: {listed(ids)}" if ids else None)
            else:
                message = f"{quoted('.'.join(map(str, path)))} is a list without an item {quoted(part)}"
                raise PlaceError(message, i, f"its items: 0 to {len(value) - 1}")
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
    """Null removes the key; ``keys`` are the spans of new keys."""
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


#: File name in the spans of values from the command line.
FILE = "--set"


@dataclass(frozen=True, kw_only=True)
class Override:
    place: str
    value: Node
    line: int

    def keys(self) -> list[Span]:
        return key_spans(self.place, Span(FILE, self.line, 1, self.line, len(self.place) + 1))


def parse(overrides: Sequence[str]) -> tuple[list[Override], list[Diagnostic]]:
    parsed: list[Override] = []
    diagnostics: list[Diagnostic] = []
    for line, override in enumerate(overrides, start=1):
        text = one_line(override)
        place, equals, value = text.partition("=")
        if not equals or not place.strip():
            span = Span(FILE, line, 1, line, len(text) + 1)
            message = f"--set needs PATH=VALUE, for example --set mechanism.steps=100; got {quoted(text)}"
            diagnostics.append(Diagnostic(code="bad-path", message=message, span=span))
            continue
        # Replacing the path by spaces keeps the value's columns.
        source = read_yaml(" " * (len(place) + 1) + value, FILE, line=line)
        empty = [d.code for d in source.diagnostics] == ["empty-file"]
        if source.diagnostics and not empty:
            # A list or map is often cut short by a space that ended the shell argument.
            cut = any(value.count(opening) > value.count(closing) for opening, closing in ("[]", "{}"))
            hint = f"quote the argument if it has spaces: --set '{visible(place)}=...'"
            diagnostics += [
                dataclasses.replace(d, help=hint) if cut and d.code == "syntax" and not d.help else d
                for d in source.diagnostics
            ]
            continue
        column = len(place) + 2
        node = source.root or Node(None, Span(FILE, line, column, line, column + len(value)))
        parsed.append(Override(place=place.strip(), value=node, line=line))
    return parsed, diagnostics


def apply(root: Node, overrides: Sequence[Override]) -> tuple[Node, list[Diagnostic]]:
    diagnostics: list[Diagnostic] = []
    for override in overrides:
        try:
            path = resolve(root, override.place)
        except PlaceError as error:
            span = override.keys()[error.part]
            diagnostics.append(Diagnostic(code="bad-path", message=error.message, span=span, help=error.hint))
            continue
        if path[0] == "extends":
            message = "extends cannot be overridden: parents are merged before overrides"
            diagnostics.append(Diagnostic(code="bad-path", message=message, span=override.keys()[0]))
            continue
        root = put(root, path, override.value, override.keys())
    return root, diagnostics


def key_spans(place: str, span: Span) -> list[Span]:
    spans: list[Span] = []
    column = span.column
    for part in place.split("."):
        spans.append(Span(span.file, span.line, column, span.line, column + max(len(part), 1)))
        column += len(part) + 1
    return spans


def one_line(text: str) -> str:
    return " ".join(text.splitlines()) if text else text
