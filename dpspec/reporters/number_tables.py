"""Findings that differ in one or two conditions only, as a table: one row a group size, one column a delta, say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpspec.contract import Finding, Json, Series
from dpspec.engine.results import decimals
from dpspec.reporters import labels
from dpspec.reporters.layout import text_table

#: Fewer findings than this read better one a line.
_LEAST = 6

#: A series of more rows than this is for figures and files.
_MOST_ROWS = 24

#: Places of a table that may be empty, as a share of all.
_HOLES = 0.25


@dataclass(frozen=True)
class Grid:
    """A table of texts: a head and rows, all as long; ``title`` says what they share, if anything."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def lines(self) -> tuple[str, ...]:
        """The head and the rows with aligned columns."""
        return text_table((self.head, *self.rows), justify="right")


def grid(findings: Sequence[Finding], room: int) -> Grid | None:
    """The table of findings that share all but one or two conditions; None where they do not, or it does not fit.

    The lower ends beside upper values stay out of it: they say how tight those are and are in the JSON.
    """
    first = findings[0]
    alike = all(
        f.quantity == first.quantity and f.bound == first.bound and set(f.at) == set(first.at) for f in findings
    )
    if len(findings) < _LEAST or not alike or any(f.privacy != first.privacy for f in findings):
        return None
    varying = [key for key in first.at if len({f.at[key] for f in findings}) > 1]
    if len(varying) == 1:
        return _strip(findings, varying[0], room)
    if len(varying) != 2:
        return None
    by_place = {(f.at[varying[0]], f.at[varying[1]]): f for f in findings}
    tables = [_table(first, by_place, *keys) for keys in (varying, varying[::-1])]
    if len(by_place) != len(findings) or None in tables:
        return None
    fitting = [table for table in tables if table is not None and len(table.lines()[0]) <= room]
    return min(fitting, key=lambda table: len(table.rows), default=None)


def pictures(series: Series) -> tuple[str, ...]:
    """The columns whose cells are pictures, which no table prints; none where the series is no table of pictures."""
    names = series.plot.get("y", ())
    if series.plot.get("kind") != "pictures" or not isinstance(names, tuple):
        return ()
    return tuple(str(name) for name in names if name in series.columns)


def series_table(series: Series, room: int) -> tuple[str, ...]:
    """A short series as lines of a table, bounds rounded their way; empty where it is long or does not fit.

    Columns of pictures are left out.
    """
    head = tuple(column for column in series.columns if column not in pictures(series))
    columns = [[cell(series, column, item) for item in series.columns[column]] for column in head]
    if not columns or len(columns[0]) > _MOST_ROWS:
        return ()
    table = Grid(title="", head=head, rows=tuple(zip(*columns, strict=True)))
    return table.lines() if len(table.lines()[0]) <= room else ()


def cell(series: Series, column: str, item: Json) -> str:
    """A cell of a series as tables show it: upper bounds rounded up, lower ones down, other floats to nearest."""
    if item is None:
        return "-"
    if not isinstance(item, float):
        return labels.value(item)
    way = {"upper": decimals.upper, "lower": decimals.lower}.get(series.bounds.get(column, ""), decimals.nearest)
    return way(item)


def rounding(series: Series) -> str:
    """How the numbers of a table are rounded, in words."""
    bounds = {way: [c for c, told in series.bounds.items() if told == way] for way in ("upper", "lower")}
    said = [f"{', '.join(bounds[way])} rounded {to}" for way, to in (("upper", "up"), ("lower", "down")) if bounds[way]]
    return ", ".join([*said, "all else to nearest"]) if said else "rounded to nearest"


def _strip(findings: Sequence[Finding], key: str, room: int) -> Grid | None:
    """The table where only ``key`` differs: one line of conditions, one of numbers."""
    ordered = sorted(findings, key=lambda finding: _order(finding.at[key]))
    values = [labels.value(finding.at[key]) for finding in ordered]
    strip = Grid(
        title=_shared(findings[0], key),
        head=(key, *values),
        rows=((_sign(findings[0]), *(labels.number(finding) for finding in ordered)),),
    )
    return strip if len(set(values)) == len(values) and len(strip.lines()[0]) <= room else None


def _shared(finding: Finding, *varying: str) -> str:
    """The conditions that all findings share, as a title."""
    fixed = labels.conditions({key: item for key, item in finding.at.items() if key not in varying})
    return f"at {fixed}" if fixed else ""


def _sign(finding: Finding) -> str:
    """A finding's statement without its number: ``epsilon <=``."""
    return labels.statement(finding).removesuffix(labels.number(finding)).strip()


def _table(first: Finding, by_place: dict[tuple[Json, Json], Finding], one: str, other: str) -> Grid | None:
    """The table with ``one`` down the side and ``other`` across; None where too many places are empty."""
    swapped = one != next(iter(k for k in first.at if k in (one, other)))
    placed = {((b, a) if swapped else (a, b)): finding for (a, b), finding in by_place.items()}
    down, across = sorted({a for a, _ in placed}, key=_order), sorted({b for _, b in placed}, key=_order)
    places = len(down) * len(across)
    if places - len(placed) > _HOLES * places:
        return None
    return Grid(
        title=_shared(first, one, other),
        head=(_sign(first), *(f"{other} {labels.value(b)}" if b == across[0] else labels.value(b) for b in across)),
        rows=tuple((f"{one} {labels.value(a)}", *(_cell(placed.get((a, b))) for b in across)) for a in down),
    )


def _cell(finding: Finding | None) -> str:
    return "-" if finding is None else labels.number(finding)


def _order(value: Json) -> tuple[bool, float, str]:
    """Numbers by size, then everything else by its text."""
    number = isinstance(value, int | float)
    return (not number, float(value) if number else 0.0, str(value))
