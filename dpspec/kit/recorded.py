"""Validated reading of a trial's evidence.

Stored trials are untrusted. Values that no run writes raise ``ValueError`` here, and the trial is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from dpspec.json_records import Record, read

if TYPE_CHECKING:
    import dpspec.contract as dps

R = TypeVar("R", bound=Record)


def recorded(trial: dps.Trial, key: str) -> Any:
    """Value of ``key`` in a trial's evidence, which must be present."""
    if key not in trial.evidence:
        raise ValueError(f"{key} is missing")
    return trial.evidence[key]


def recorded_number(trial: dps.Trial, key: str, *, least: int = 1, most: int = 2**63 - 1) -> int:
    """Integer from ``least`` to ``most`` in a trial's evidence."""
    return whole_number(recorded(trial, key), key, least=least, most=most)


def recorded_part(trial: dps.Trial, kind: type[R], *path: str) -> R | None:
    """Typed record at ``path`` of a trial's evidence; None if absent."""
    value: Any = trial.evidence
    for place, key in enumerate(path):
        if not isinstance(value, Mapping):
            raise ValueError(f"{'.'.join(path[:place])} must be a mapping, got {str(value)[:40]!r}")
        if value.get(key) is None:
            return None
        value = value[key]
    return read(kind, value, ".".join(path))


def fair_coins(value: object, count: int) -> str:
    """Validate a string of ``count`` characters 0 or 1."""
    if not isinstance(value, str) or len(value) != count or not set(value) <= {"0", "1"}:
        raise ValueError(f"coins must be {count} characters 0 or 1, got {str(value)[:40]!r}")
    return value


def coins_by_size(trial: dps.Trial, counts: Mapping[int, int]) -> dict[int, str]:
    """Inclusion bits per group size by ascending score, from evidence ``[[size, coins], ...]`` with ``counts``."""
    rows = _rows(recorded(trial, "outcomes"), "a size and its coins")
    if [size for size, _ in rows] != list(counts):
        raise ValueError(f"outcomes must have the group sizes {', '.join(map(str, counts))}, in order")
    return {size: fair_coins(coins, counts[size]) for size, coins in rows}


def scored_coins(value: object, count: int, edges: int) -> list[tuple[int, int]]:
    """Validate ``count`` pairs of an inclusion bit and the number of ``edges`` reached."""
    pairs = _rows(value, "a coin and the number of edges that its score reaches")
    if len(pairs) != count:
        raise ValueError(f"scores must be {count}, got {len(pairs)}")
    return [(whole_number(c, "a coin", most=1), whole_number(s, "a score", most=edges)) for c, s in pairs]


def whole_number(value: object, name: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """Validate an integer from ``least`` to ``most``."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be an integer from {least} to {most}, got {str(value)[:40]!r}")
    return value


def _rows(value: object, what: str) -> list[Any]:
    rows = value if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(row, list | tuple) and len(row) == 2 for row in rows):
        raise ValueError(f"outcomes must be a list, each {what}")
    return list(rows)
