"""Every leaf of a JSON value in turn, replaced by what somebody else might have put there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Path = tuple[str | int, ...]

#: One of each type, ends of ranges, and texts that terminals, parsers and slow patterns would notice.
VALUES: Sequence[Any] = (
    None, True, 0, -1, 3, 0.5, 1e308, -0.0, 2**62, 2**64, "inf", "-inf", "", "x", "all", [], [1], ["x"], [[1]], [None],
    {}, {"x": 1}, {"": None}, "\ud800", "\x1b[2J\x07\u202e", "\n::error::x",
    "##vso[task.x]y ##teamcity[x]", "1" * 50_000,
    "a." * 20_000, " " * 20_000, "<script>alert(1)</script>", "]]>", "&#0;", "\ufffe", "0" * 300, "2026-01-01",
)  # fmt: skip


def leaves(tree: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all leaves, and of everything that holds some."""
    if path:
        yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from leaves(value, (*path, key))


def replaced(tree: Any, path: Path, value: Any) -> Any:
    """The tree with another value at a path; the rest is shared."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[step] = replaced(tree[step], rest, value)
    return copy
