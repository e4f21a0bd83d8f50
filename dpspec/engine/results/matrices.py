"""The cells of a matrix: varying axes, names of cells, and series joined across cells.

An axis is a dotted place in the spec. Only varying axes are named, by as few last parts of their places as are unique.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from dpspec.contract import FrozenMap, Json, Series
from dpspec.errors import UsageError

#: The column of a joined series that names the cell, unless the series has such a column.
AUDIT = "audit"


class Cell(Protocol):
    """The parts of an audit that matrices need."""

    @property
    def name(self) -> str:
        """The audit's name, which ends with the cell's values in brackets."""

    @property
    def source(self) -> str:
        """The file of its spec."""

    @property
    def cell(self) -> FrozenMap:
        """By dotted places, the values that its matrix sets; empty for other audits."""

    @property
    def series(self) -> tuple[Series, ...]:
        """Its curves and tables."""


A = TypeVar("A", bound=Cell)


@dataclass(frozen=True)
class Matrix(Generic[A]):
    """At least two cells of one spec.

    Attributes:
        axes: The varying places, with their short names.
        audits: The cells, in their order.
        numbers: The indices of the audits in the result.
    """

    name: str
    axes: Mapping[str, str]
    audits: tuple[A, ...]
    numbers: tuple[int, ...]

    def values(self, audit: Cell) -> dict[str, Json]:
        """A cell's values by the axes' short names; None for the spec's own value."""
        return {name: audit.cell.get(place) for place, name in self.axes.items()}


def matrices(every: Sequence[A], origins: Sequence[str]) -> tuple[Matrix[A], ...]:
    """The matrices among audits, in the order of their first cells.

    ``origins`` is the file of each audit's result; cells of different results form no matrix.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, (audit, origin) in enumerate(zip(every, origins, strict=True)):
        if audit.cell:
            groups.setdefault((origin, audit.source, base_name(audit)), []).append(number)
    found = []
    for (_, _, name), numbers in groups.items():
        audits = tuple(every[number] for number in numbers)
        if len(audits) > 1:
            found.append(Matrix(name, _axes(audits), audits, tuple(numbers)))
    return tuple(found)


def joined_series(every: Sequence[A], found: Sequence[Matrix[A]], name: str) -> Series:
    """The joined series of this name: a column for the audit, one for each axis, and its own.

    Missing columns are None. The joined series has the weakest rigor and the strictest privacy of its parts; a column
    holds bounds if it does in all.
    """
    held = [(audit, series) for audit in every for series in audit.series if series.name == name]
    if not held:
        names = dict.fromkeys(series.name for audit in every for series in audit.series)
        raise UsageError(f"no audit has a series {name!r}; there are: {', '.join(names) or 'none'}")
    axes: dict[str, dict[str, Json]] = {audit.name: {} for audit in every}
    for matrix in found:
        axes.update((audit.name, matrix.values(audit)) for audit in matrix.audits)
    first = held[0][1]
    own = dict.fromkeys(column for _, series in held for column in series.columns)
    varying = [axis for axis in dict.fromkeys(a for audit, _ in held for a in axes[audit.name]) if axis not in own]
    columns: dict[str, list[Json]] = {column: [] for column in (AUDIT, *varying, *own)}
    for audit, series in held:
        rows = max(map(len, series.columns.values()), default=0)
        if AUDIT not in own:
            columns[AUDIT] += [audit.name] * rows
        for axis in varying:
            columns[axis] += [axes[audit.name].get(axis)] * rows
        for column in own:
            columns[column] += list(series.columns.get(column, [None] * rows))
    return Series(
        name=name,
        title=first.title,
        columns=FrozenMap(columns),
        units=FrozenMap({**dict.fromkeys(columns, ""), **first.units}),
        rigor=max((series.rigor for _, series in held), key=_RIGOR.index),
        source="; ".join(dict.fromkeys(series.source for _, series in held)),
        privacy=max((series.privacy for _, series in held), key=_PRIVACY.index),
        bounds=FrozenMap(
            {
                key: side
                for key, side in first.bounds.items()
                if all(key not in series.columns or series.bounds.get(key) == side for _, series in held)
            }
        ),
    )


#: From strong to weak, and from public to secret.
_RIGOR = ("certified", "theorem", "statistical", "approximate")
_PRIVACY = ("public", "data-dependent", "per-record")


def base_name(audit: Cell) -> str:
    return audit.name.partition("[")[0] or audit.name


def _axes(audits: Sequence[Cell]) -> dict[str, str]:
    places = list(dict.fromkeys(place for audit in audits for place in audit.cell))
    varying = [place for place in places if len({repr(audit.cell.get(place)) for audit in audits}) > 1] or places
    return {place: _short(place, varying) for place in varying}


def _short(place: str, places: Sequence[str]) -> str:
    """The fewest last parts of a place that no other place ends with."""
    pieces = place.split(".")
    for count in range(1, len(pieces)):
        end = pieces[-count:]
        if not any(other != place and other.split(".")[-count:] == end for other in places):
            return ".".join(end)
    return place
