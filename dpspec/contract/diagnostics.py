"""Located messages about a spec: what is wrong, where, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

#: Where a value stands in a spec: mapping keys and list indices from the root.
Path: TypeAlias = tuple[str | int, ...]

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a file. Lines and columns count from 1; the end is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """One message about a spec.

    Plugins give a ``path`` in the spec (``("mechanism", "sampling", "rate")``) and leave ``span`` out: core
    looks it up, falling back to the nearest parent that stands in the file.
    ``at_key`` points at the key instead of its value. ``code`` is a short name in kebab case that
    ``dpspec explain`` knows.
    """

    code: str
    message: str
    path: Path = ()
    help: str | None = None
    severity: Severity = "error"
    span: Span | None = None
    at_key: bool = False


def format_path(path: Path) -> str:
    """Write a path as people do: ``mechanism.phases[1].steps``; the root is ``the spec``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the spec"
