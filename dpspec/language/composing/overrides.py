"""``--set path=value``: the topmost layer. Values are YAML by the same rules as in a file.

Places in a document are named by dotted text, ``claims.family.epsilon``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from dpspec.contract import Diagnostic, Path, Span
from dpspec.language.reading.tree import Node, claim_ids
from dpspec.language.reading.yaml_source import read_yaml
from dpspec.text import closest, did_you_mean, listed, quoted, visible

#: No place in a spec lies deeper.
MAX_PIECES = 64


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
    if len(parts) > MAX_PIECES:
        raise PlaceError(f"a path of {len(parts)} pieces is too long; specs are at most {MAX_PIECES} levels deep", 0)
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
        message = f"no claim is called {quoted(part)}" + did_you_mean(closest(part, ids))
        raise PlaceError(message, index, f"claims: {listed(ids)}" if ids else None)
    where = ".".join(str(p) for p in path)
    raise PlaceError(
        f"{quoted(where)} is a list without an item {quoted(part)}", index, f"its items: 0 to {len(items) - 1}"
    )


#: What stands for the file's name in the spans of values that the command line gave.
FILE = "--set"


@dataclass(frozen=True, kw_only=True)
class Override:
    """One ``--set``, parsed: where, what, and on which line of all overrides together."""

    place: str
    value: Node
    line: int

    def keys(self) -> list[Span]:
        """The spans of the place's pieces."""
        return piece_spans(self.place, Span(FILE, self.line, 1, self.line, len(self.place) + 1))


def text_of(overrides: Sequence[str]) -> str:
    """All overrides as the text of a file, one a line, for showing them in messages."""
    return "\n".join(_one_line(o) for o in overrides)


def parse(overrides: Sequence[str]) -> tuple[list[Override], list[Diagnostic]]:
    """Parse every override; each one that cannot be parsed gives a diagnostic."""
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
        # Spaces instead of the path keep the value's columns right; a map or list in flow style may stand there.
        source = read_yaml(" " * (len(place) + 1) + value, FILE, line=line)
        empty = [d.code for d in source.diagnostics] == ["empty-file"]
        if source.diagnostics and not empty:
            diagnostics += [_with_quotes(d, place, value) for d in source.diagnostics]
            continue
        column = len(place) + 2
        node = source.root or Node(None, Span(FILE, line, column, line, column + len(value)))
        parsed.append(Override(place=place.strip(), value=node, line=line))
    return parsed, diagnostics


def _with_quotes(diagnostic: Diagnostic, place: str, value: str) -> Diagnostic:
    """What most often cuts a list or a map short: a space that the shell took for the end of the argument."""
    cut = any(value.count(opening) > value.count(closing) for opening, closing in ("[]", "{}"))
    if diagnostic.code != "syntax" or diagnostic.help or not cut:
        return diagnostic
    return dataclasses.replace(diagnostic, help=f"where it has spaces, quote the whole: --set '{visible(place)}=...'")


def apply(root: Node, overrides: Sequence[Override]) -> tuple[Node, list[Diagnostic]]:
    """The document with every override in place, and a diagnostic for each that has no place."""
    diagnostics: list[Diagnostic] = []
    for override in overrides:
        try:
            path = resolve(root, override.place)
        except PlaceError as error:
            span = override.keys()[error.part]
            diagnostics.append(Diagnostic(code="bad-path", message=error.message, span=span, help=error.hint))
            continue
        if path[0] == "extends":
            message = "extends cannot be overridden: parents are read before the command line"
            diagnostics.append(Diagnostic(code="bad-path", message=message, span=override.keys()[0]))
            continue
        root = put(root, path, override.value, override.keys())
    return root, diagnostics


def covers(path: Path, other: Path) -> bool:
    """Whether setting ``path`` decides all that stands at ``other``."""
    return other[: len(path)] == path


def piece_spans(place: str, span: Span) -> list[Span]:
    """The span of each piece of a dotted text that begins at ``span``."""
    spans: list[Span] = []
    column = span.column
    for part in place.split("."):
        spans.append(Span(span.file, span.line, column, span.line, column + max(len(part), 1)))
        column += len(part) + 1
    return spans


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()) if text else text
