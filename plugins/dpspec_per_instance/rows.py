"""Tables from rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dpspec.contract as dps


def table(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[dps.Json]],
    *,
    plot: Mapping[str, Any] | None = None,
    **about: Any,
) -> dps.Series:
    """A series of numbers without units from its rows; ``about``: its rigor, source and privacy."""
    found: dict[str, list[dps.Json]] = {column: [] for column in columns}
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            found[column].append(value)
    return dps.Series(
        name=name,
        title=title,
        columns=dps.FrozenMap(found),
        units=dps.FrozenMap(dict.fromkeys(columns, "")),
        plot=dps.FrozenMap(plot or {}),
        **about,
    )
