"""Located messages about a spec: the problem, its place, and the fix. Words of results that version 0.3 renamed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dpspec.contract.frozen import Json

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


#: Renamed values of ``audit.expect``, which are the statuses of conformance.
STATUSES = {"conforms-within": "no-deviation-found"}

#: Renamed checks and assumptions.
ASSUMPTIONS = {
    "contribution": "sensitivity",
    "fresh-noise": "independent-noise",
    "noise-isotropy": "per-layer-noise",
    "public-constants": "data-independent-hyperparameters",
}

#: Renamed keys by their block.
KEYS = {
    "audit": {"twin": "canary_free_run"},
    "training": {"public_constants": "data_independent_hyperparameters"},
}


def with_old_words(document: Mapping[str, Json]) -> dict[str, Json]:
    """Return a document with the words of version 0.2, so that digests of equal specs stay equal."""
    found = dict(document)
    for block, keys in KEYS.items():
        if isinstance(found.get(block), Mapping):
            inner = found[block] = dict(found[block])
            for old, new in keys.items():
                if new in inner:
                    inner[old] = inner.pop(new)
    audit = found.get("audit")
    if isinstance(audit, Mapping) and audit.get("expect") in STATUSES.values():
        (word,) = (old for old, new in STATUSES.items() if new == audit["expect"])
        found["audit"] = {**audit, "expect": word}
    return found


def rename_in_result(data: Json) -> Json:
    """Return the JSON of a result of version 1 with the words of version 2."""
    if isinstance(data, list):
        return [rename_in_result(item) for item in data]
    if not isinstance(data, dict):
        return data
    found = {key: rename_in_result(value) for key, value in data.items()}
    for key, words in (("status", STATUSES), ("expect", STATUSES), ("assumption", ASSUMPTIONS)):
        if isinstance(found.get(key), str):
            found[key] = words.get(found[key], found[key])
    for assumption in found["assumptions"] if isinstance(found.get("assumptions"), list) else ():
        if isinstance(assumption, dict) and isinstance(assumption.get("name"), str):
            assumption["name"] = ASSUMPTIONS.get(assumption["name"], assumption["name"])
    for key in ("sources", "assumes", "assume"):
        if isinstance(found.get(key), list):
            found[key] = [ASSUMPTIONS.get(word, word) if isinstance(word, str) else word for word in found[key]]
    for block, keys in KEYS.items():
        inner = found["document"].get(block) if isinstance(found.get("document"), dict) else None
        if isinstance(inner, dict):
            for old in keys.keys() & inner.keys():
                inner[keys[old]] = inner.pop(old)
    return found
