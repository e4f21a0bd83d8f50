"""Epsilon by group size by conversions of one record's guarantee, alongside the bound of groups (Ganesh 2024)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import dpspec.contract as dps
from dpspec.kit import users
from dpspec_group import theory
from dpspec_group.bounds import SIZE_SERIES, Accounted, directions_of, size_delta
from dpspec_papers.extended_series import series_named, with_columns
from dpspec_papers.group_conversions import converted_epsilons
from dpspec_papers.refusals import CONVERSIONS


def compare(
    spec: dps.Spec, facts: dps.Facts, bounds: Sequence[dps.Finding | dps.Series]
) -> Iterator[dps.Finding | dps.Series]:
    """The series of epsilon by group size with a column for each baseline.

    ``linear`` is not a bound: over many steps the epsilon of a group exceeds it, over one step it can be smaller.
    """
    series, baselines = series_named(bounds, SIZE_SERIES), spec.mechanism.get("baselines", ())
    if series is None or not baselines:
        return
    accounted, delta = Accounted.of(users.in_records(spec), facts.records), size_delta(users.in_records(spec))
    sizes = [users.members(spec) * size for size in series.columns["group_size"]]
    epsilon_of_one = _epsilon_of_one(accounted, series, sizes, delta)
    columns: dict[str, list[dps.Json]] = {}
    for name in baselines:
        if not math.isfinite(epsilon_of_one):
            columns[name] = [math.inf] * len(sizes)
        elif name == "linear":
            columns[name] = [size * epsilon_of_one for size in sizes]
        else:
            pairs = theory.composed(accounted.phases, 1, accounted.records)
            columns[name] = converted_epsilons(pairs, sizes, delta, name)
    conversions = [name for name in columns if name in CONVERSIONS]
    if conversions:
        # Of the bounds; other baselines are marked in the legend.
        series = replace(series, rigor="theorem", source=f"{series.source}; Vadhan 2017, Lemma 2.2")
    yield with_columns(series, columns, lines=columns, upper=conversions)


def _epsilon_of_one(accounted: Accounted, series: dps.Series, sizes: Sequence[int], delta: float) -> float:
    """Epsilon of one record: of the series, if it has the size, or computed."""
    phases, adjacency = accounted.phases, accounted.spec.threat_model.adjacency
    listed = dict(zip(sizes, series.columns["epsilon"], strict=True)).get(1)
    if listed:
        return float(listed)
    if theory.uncovered(phases, [adjacency]):
        return math.inf
    _, whole = directions_of(accounted.spec)
    return float(theory.group_epsilons(phases, 1, accounted.records, [delta], whole)[0].upper)
