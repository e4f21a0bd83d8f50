"""Located messages about a spec: the problem, its place, and the fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: Location of a value in a spec: mapping keys and list indices from the root.
Path: TypeAlias = tuple[str | int, ...]

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Span:
    """A range in a file. Lines and columns count from 1; the end is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """One message about a spec.

    Attributes:
        code: Short name in kebab case for ``dpspec explain``.
        path: Location in the spec, for example ``("mechanism", "sampling", "rate")``.
        span: Range in the file. Plugins omit it; core finds the range of the value or of its nearest parent.
        at_key: Point at the key instead of its value.
    """

    code: str
    message: str
    path: Path = ()
    help: str | None = None
    severity: Severity = "error"
    span: Span | None = None
    at_key: bool = False


def format_path(path: Path) -> str:
    """Format a path, for example ``mechanism.phases[1].steps``; the root is ``the spec``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the spec"


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Whether a diagnostic is an error."""
    return any(diagnostic.severity == "error" for diagnostic in diagnostics)
