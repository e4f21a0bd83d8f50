"""Tables of series: what bounds is rounded the way that it bounds, in every report that shows it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from support import results as factory

from dpspec.contract import FrozenMap, Series
from dpspec.engine.results import codec
from dpspec.engine.results.result import Result
from dpspec.errors import ResultError
from dpspec.reporters import html, terminal
from dpspec.reporters.number_tables import cell, rounding, series_table

SERIES = Series(
    name="curve",
    title="A curve",
    columns=FrozenMap({"rate": [0.12344], "epsilon": [2.95512], "shown": [1.23456], "mean": [2.95512], "n": [3]}),
    units=FrozenMap(dict.fromkeys(("rate", "epsilon", "shown", "mean", "n"), "")),
    rigor="certified",
    source="s",
    bounds=FrozenMap({"epsilon": "upper", "shown": "lower"}),
)


def result(series: Series = SERIES) -> Result:
    return factory.result(factory.audit(series=(series,)))


def test_bounds_are_rounded_their_way_and_the_rest_to_nearest() -> None:
    assert [cell(SERIES, name, column[0]) for name, column in SERIES.columns.items()] == [
        "0.1234",
        "2.956",
        "1.234",
        "2.955",
        "3",
    ]
    assert cell(SERIES, "epsilon", None) == "-"
    assert series_table(SERIES, 80)[1].split() == ["0.1234", "2.956", "1.234", "2.955", "3"]
    assert rounding(SERIES) == "epsilon rounded up, shown rounded down, all else to nearest"
    assert rounding(dataclasses.replace(SERIES, bounds=FrozenMap())) == "rounded to nearest"


@pytest.mark.parametrize("render", [terminal.render, html.render])
def test_reports_do_so(render) -> None:
    text = " ".join(render(result()).split())
    assert "2.956" in text
    assert "1.234" in text
    assert "rounded up" in text
    assert "1.235" not in text


def test_what_bounds_no_column_or_neither_way_is_refused() -> None:
    assert codec.load(codec.dump(result())).audits[0].series == (SERIES,)
    for wrong in ({"epsilom": "upper"}, {"epsilon": "up"}):
        text = codec.dump(result(dataclasses.replace(SERIES, bounds=FrozenMap(wrong))))
        with pytest.raises(ResultError, match=r"series\[0\]\.bounds"):
            codec.load(text)


def test_series_of_the_version_before_say_nothing_of_it() -> None:
    document = json.loads(codec.dump(result()))
    del document["audits"][0]["series"][0]["bounds"]
    assert codec.load(json.dumps(document)).audits[0].series[0].bounds == {}
