"""Tables fold and never cut; series are tables if they fit."""

import dataclasses
import json

import pytest
from support import results as factory

from dpspec.contract import FrozenMap, Series
from dpspec.contract.results import Result
from dpspec.errors import ResultError
from dpspec.reporters import terminal
from dpspec.reporters.layout import text_table
from dpspec.reporters.series import constants, rounding, series_cell, series_rows
from dpspec.results import codec

SERIES = factory.series(
    {"rate": [0.12344], "epsilon": [2.95512], "shown": [1.23456], "mean": [2.95512], "n": [3]},
    bounds=FrozenMap({"epsilon": "upper", "shown": "lower"}),
)


def result(series: Series = SERIES) -> Result:
    return factory.result(factory.audit(series=(series,)))


def test_bounds_of_series_are_rounded_their_way_and_the_rest_to_nearest() -> None:
    values = ["0.1234", "2.956", "1.234", "2.955", "3"]
    assert [series_cell(SERIES, name, column[0]) for name, column in SERIES.columns.items()] == values
    assert series_cell(SERIES, "epsilon", None) == "-"
    assert series_rows(SERIES) == (tuple(values),)
    assert rounding(SERIES) == "epsilon rounded up, shown rounded down, all else to nearest"
    assert rounding(dataclasses.replace(SERIES, bounds=FrozenMap())) == "rounded to nearest"


def test_wrong_bounds_of_series_are_refused() -> None:
    assert codec.load(codec.dump(result())).audits[0].series == (SERIES,)
    for wrong in ({"epsilom": "upper"}, {"epsilon": "up"}):
        text = codec.dump(result(dataclasses.replace(SERIES, bounds=FrozenMap(wrong))))
        with pytest.raises(ResultError, match=r"series\[0\]\.bounds"):
            codec.load(text)
    document = json.loads(codec.dump(result()))
    del document["audits"][0]["series"][0]["bounds"]
    assert codec.load(json.dumps(document)).audits[0].series[0].bounds == {}


def test_a_series_of_constants_is_in_the_brief_report() -> None:
    columns = {"constant": ["noise std sigma", "L"], "value": [0.037912, 2]}
    held = factory.series(columns, {"kind": "constants", "x": "constant", "y": ["value"]}, title="Constants")
    assert "- Constants: noise std sigma 0.03791, L 2" in terminal.render_brief(result(held), width=200)
    gone = dataclasses.replace(held, plot=FrozenMap({"kind": "constants", "x": "gone", "y": ["value"]}))
    assert constants(gone) == constants(SERIES) == ""


ROWS = [("short", "a summary that is long enough to be folded at forty columns", "x 1"), ("longer-name", "", "y 2")]


@pytest.mark.parametrize("width", [5, 20, 30])
def test_a_page_that_is_too_narrow_cuts_nothing(width: int) -> None:
    joined = " ".join(text_table(ROWS, width, folded=1))
    assert all(word in joined for row in ROWS for cell in row for word in cell.split())
