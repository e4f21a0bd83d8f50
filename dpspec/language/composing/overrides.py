"""``--set path=value``: the topmost layer. Values are YAML with the same rules as in a file.

Paths are dotted, for example ``claims.family.epsilon``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from dpspec.contract import Diagnostic, Path, Span
from dpspec.language.reading.tree import Node, claim_ids
from dpspec.language.reading.yaml_source import read_yaml
from dpspec.text import closest, did_you_mean, listed, quoted, visible

#: Maximum number of keys in a dotted path.
MAX_KEYS = 64


class PlaceError(Exception):
    """A dotted path does not exist; ``part`` is the index of the invalid key in it."""

    def __init__(self, message: str, part: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.part = part
        self.hint = hint


def resolve(root: Node, text: str) -> Path:
    """Resolve a dotted path: keys by name, list items by position from 0, claims also by id.

    The last keys may be new; the schema decides whether they are valid.

    Raises:
        PlaceError: The path does not exist.
    """
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
            step = _item_index(root, path, value, part, i)
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
    """Return the tree with ``value`` at ``path``. Null removes the key.

    Args:
        root: The tree.
        path: The path to set.
        value: The new value.
        keys: The span of each key in the path, used for new keys.
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


def _item_index(root: Node, path: Path, items: list[Node], part: str, index: int) -> int:
    ids = claim_ids(root) if path == ("claims",) else {}
    if part in ids:
        return ids[part]
    if part.isascii() and part.isdigit() and len(part) < 6 and int(part) < len(items):
        return int(part)
    if path == ("claims",):
        message = f"no claim is called {quoted(part)}" + did_you_mean(closest(part, ids))
        raise PlaceError(message, index, f"claims: {listed(ids)}" if ids else None)
    where = ".".join(str(p) for p in path)
    raise PlaceError(
        f"{quoted(where)} is a list without an item {quoted(part)}", index, f"its items: 0 to {len(items) - 1}"
    )


#: File name in the spans of values from the command line.
FILE = "--set"


@dataclass(frozen=True, kw_only=True)
class Override:
    """One parsed ``--set``: path, value, and its line in the text of all overrides."""

    place: str
    value: Node
    line: int

    def keys(self) -> list[Span]:
        """Return the spans of the keys in the path."""
        return key_spans(self.place, Span(FILE, self.line, 1, self.line, len(self.place) + 1))


def as_text(overrides: Sequence[str]) -> str:
    """Return all overrides as the text of a file, one per line, for messages."""
    return "\n".join(_one_line(o) for o in overrides)


def parse(overrides: Sequence[str]) -> tuple[list[Override], list[Diagnostic]]:
    """Parse overrides. Each invalid one yields a diagnostic."""
    parsed: list[Override] = []
    diagnostics: list[Diagnostic] = []
    for line, override in enumerate(overrides, start=1):
        text = _one_line(override)
        place, equals, value = text.partition("=")
        if not equals or not place.strip():
            span = Span(FILE, line, 1, line, len(text) + 1)
            message = "--set expects PATH=VALUE, such as mechanism.noise_multiplier=1.2"
            diagnostics.append(Diagnostic(code="bad-path", message=message, span=span))
            continue
        # Replacing the path by spaces keeps the value's columns.
        source = read_yaml(" " * (len(place) + 1) + value, FILE, line=line)
        empty = [d.code for d in source.diagnostics] == ["empty-file"]
        if source.diagnostics and not empty:
            diagnostics += [_with_quoting_help(d, place, value) for d in source.diagnostics]
            continue
        column = len(place) + 2
        node = source.root or Node(None, Span(FILE, line, column, line, column + len(value)))
        parsed.append(Override(place=place.strip(), value=node, line=line))
    return parsed, diagnostics


def _with_quoting_help(diagnostic: Diagnostic, place: str, value: str) -> Diagnostic:
    """Add a hint if a list or map is cut short, usually by a space that ended the shell argument."""
    cut = any(value.count(opening) > value.count(closing) for opening, closing in ("[]", "{}"))
    if diagnostic.code != "syntax" or diagnostic.help or not cut:
        return diagnostic
    return dataclasses.replace(diagnostic, help=f"quote the argument if it has spaces: --set '{visible(place)}=...'")


def apply(root: Node, overrides: Sequence[Override]) -> tuple[Node, list[Diagnostic]]:
    """Apply overrides to a document. Each override with an invalid path yields a diagnostic."""
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


def covers(path: Path, other: Path) -> bool:
    """Return True if ``path`` equals ``other`` or contains it."""
    return other[: len(path)] == path


def key_spans(place: str, span: Span) -> list[Span]:
    """Return the span of each key in a dotted path that begins at ``span``."""
    spans: list[Span] = []
    column = span.column
    for part in place.split("."):
        spans.append(Span(span.file, span.line, column, span.line, column + max(len(part), 1)))
        column += len(part) + 1
    return spans


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()) if text else text
