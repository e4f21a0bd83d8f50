"""Rows as a series: the one way in which this plugin makes tables and curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import dpspec.contract as dps


def series(
    name: str,
    title: str,
    names: Sequence[str],
    rows: Iterable[Sequence[dps.Json]],
    *,
    source: str,
    units: Mapping[str, str] | None = None,
    privacy: dps.findings.Privacy = "public",
    plot: Mapping[str, dps.Json] | None = None,
) -> dps.Series:
    """A table with a column for each of ``names``; what is not finite is left empty.

    Its rigor is ``approximate``: rows of different standing stand in one table, and findings carry what is proved.
    """
    told = [[_finite(value) for value in row] for row in rows]
    return dps.Series(
        name=name,
        title=title,
        columns=dps.FrozenMap({column: [row[i] for row in told] for i, column in enumerate(names)}),
        units=dps.FrozenMap(dict.fromkeys(names, "") | dict(units or {})),
        rigor="approximate",
        source=source,
        privacy=privacy,
        plot=dps.FrozenMap(dict(plot or {})),
    )


def _finite(value: dps.Json) -> dps.Json:
    return None if isinstance(value, float) and not math.isfinite(value) else value
