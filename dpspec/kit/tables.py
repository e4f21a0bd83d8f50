"""Series for reports from rows or columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import dpspec.contract as dps


def series(
    name: str,
    title: str,
    columns: Mapping[str, Sequence[dps.Json]],
    *,
    rigor: dps.findings.Rigor,
    source: str,
    x: str | None = None,
    y: Sequence[str] = (),
    by: str | None = None,
    band: Sequence[str] = (),
    log: Sequence[str] = (),
    identity: bool = False,
    kind: str | None = None,
    units: Mapping[str, str] | None = None,
    upper: Iterable[str] = (),
    lower: Iterable[str] = (),
    privacy: dps.findings.Privacy = "public",
) -> dps.Series:
    """Create a series of named ``columns`` of equal length. Non-finite floats become empty (None).

    Drawing options are those of ``dpspec.contract.Series.plot``; without ``y`` the series is only a table. ``units``
    maps columns to units. ``upper`` and ``lower`` are the columns with bounds, which reports round up and down.
    """
    plot: dict[str, dps.Json] = {"kind": kind, "x": x, "y": list(y), "by": by, "band": list(band), "log": list(log)}
    plot["identity"] = identity
    return dps.Series(
        name=name,
        title=title,
        columns=dps.FrozenMap({column: [_finite(value) for value in values] for column, values in columns.items()}),
        units=dps.FrozenMap(dict.fromkeys(columns, "") | dict(units or {})),
        rigor=rigor,
        source=source,
        privacy=privacy,
        plot=dps.FrozenMap({key: value for key, value in plot.items() if value} if y else {}),
        bounds=dps.FrozenMap(dict.fromkeys(upper, "upper") | dict.fromkeys(lower, "lower")),
    )


def columns_of(names: Sequence[str], rows: Iterable[Sequence[dps.Json]]) -> dict[str, list[dps.Json]]:
    """Convert rows, each with a value per name, to columns. Raises ``ValueError`` for a row of another length.

    >>> columns_of(("epsilon", "delta"), [(1.0, 1e-5), (2.0, 1e-6)])
    {'epsilon': [1.0, 2.0], 'delta': [1e-05, 1e-06]}
    """
    columns: dict[str, list[dps.Json]] = {name: [] for name in names}
    for row in rows:
        for name, value in zip(names, row, strict=True):
            columns[name].append(value)
    return columns


def _finite(value: dps.Json) -> dps.Json:
    return None if isinstance(value, float) and not math.isfinite(value) else value
