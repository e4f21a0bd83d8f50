"""Comparing what a result says with what was recomputed, leaf by leaf."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from dpspec.contract import Json

#: Numbers that differ by less than this, relatively, are equal: other machines round differently.
TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One value of a result that does not follow from the rest.

    ``differs`` is False for a value that cannot be recomputed because what it rests on was left out of the result.
    """

    audit: str
    what: str
    recorded: str
    recomputed: str
    differs: bool = True


def compare(audit: str, what: str, recorded: Json, recomputed: Json) -> Iterator[Mismatch]:
    """Walk two JSON values and yield a mismatch at every leaf where they differ."""
    if isinstance(recorded, dict) and isinstance(recomputed, dict):
        for key in [*recorded, *(k for k in recomputed if k not in recorded)]:
            yield from compare(audit, f"{what}.{key}", recorded.get(key), recomputed.get(key))
    elif isinstance(recorded, list) and isinstance(recomputed, list) and len(recorded) == len(recomputed):
        for i, (old, new) in enumerate(zip(recorded, recomputed, strict=True)):
            yield from compare(audit, f"{what}[{i}]", old, new)
    elif not _equal(recorded, recomputed):
        yield Mismatch(audit=audit, what=what, recorded=short(recorded), recomputed=short(recomputed))


def _equal(a: Json, b: Json) -> bool:
    if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, int | float) or not isinstance(b, int | float):
        return bool(a == b)
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=0.0) or a == b


def short(value: Json) -> str:
    """A value as it is told, on one line."""
    text = f"a list of {len(value)}" if isinstance(value, list) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
