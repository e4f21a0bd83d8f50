"""A mechanism's series with the columns of baselines."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import dpspec.contract as dps
from dpspec import kit


def series_named(bounds: Iterable[dps.Finding | dps.Series], name: str) -> dps.Series | None:
    return next((bound for bound in bounds if isinstance(bound, dps.Series) and bound.name == name), None)


def with_columns(
    series: dps.Series,
    columns: Mapping[str, Sequence[dps.Json]],
    *,
    lines: Iterable[str],
    upper: Iterable[str] = (),
    lower: Iterable[str] = (),
) -> dps.Series:
    """The series with further columns, ``lines`` are drawn; ``upper`` and ``lower`` are bounds."""
    added = kit.series(
        series.name, series.title, columns, rigor=series.rigor, source=series.source, upper=upper, lower=lower
    )
    return replace(
        series,
        columns=dps.FrozenMap({**series.columns, **added.columns}),
        units=dps.FrozenMap({**series.units, **added.units}),
        plot=dps.FrozenMap({**series.plot, "y": (*series.plot["y"], *lines)}),
        bounds=dps.FrozenMap({**series.bounds, **added.bounds}),
    )
