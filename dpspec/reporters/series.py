"""The numbers of a series in words: bounds rounded to the side on which they hold."""

from dpspec import decimals
from dpspec.contract import Json, Series
from dpspec.reporters import words
from dpspec.text import spaced

#: The maximum number of rows of a series in a report of lines.
MOST_ROWS = 24


def constants(series: Series) -> str:
    """``noise std sigma 0.0379, smoothness mu 1.381`` for a series of constants; empty for others."""
    names, values = str(series.plot.get("x", "")), series.plot.get("y")
    column = str(values[0]) if isinstance(values, tuple) and values else ""
    if series.plot.get("kind") != "constants" or names not in series.columns or column not in series.columns:
        return ""
    pairs = zip(series.columns[names], series.columns[column], strict=True)
    return ", ".join(f"{words.value(name)} {series_cell(series, column, value)}" for name, value in pairs)


def series_rows(series: Series) -> tuple[tuple[str, ...], ...]:
    """The texts of all rows."""
    columns = ([series_cell(series, column, item) for item in cells] for column, cells in series.columns.items())
    return tuple(zip(*columns, strict=True))


def series_cell(series: Series, column: str, item: Json) -> str:
    """Upper bounds rounded up, lower bounds down, other floats to nearest."""
    if item is None:
        return "-"
    if not isinstance(item, float):
        return words.value(item)
    rounded = {"upper": decimals.upper, "lower": decimals.lower}.get(series.bounds.get(column, ""), decimals.nearest)
    return rounded(item)


def rounding(series: Series) -> str:
    bounds = {
        side: [c for c, rounded_side in series.bounds.items() if rounded_side == side] for side in ("upper", "lower")
    }
    ways = (("upper", "up"), ("lower", "down"))
    rounded_columns = [f"{', '.join(map(spaced, bounds[side]))} rounded {to}" for side, to in ways if bounds[side]]
    return ", ".join([*rounded_columns, "all else to nearest"]) if rounded_columns else "rounded to nearest"
