"""The cells of a matrix as one: axes by what varies, series joined with the axes as columns."""

import pytest
from support import results

from dpspec.contract import FrozenMap, Series
from dpspec.contract.results import AuditResult, Result
from dpspec.errors import UsageError


def series(values: list[float], **changes: object) -> Series:
    columns = FrozenMap({"alpha": [0.1, 0.2][: len(values)], "beta": values})
    known: dict[str, object] = {
        "name": "curve", "title": "A curve", "columns": columns, "units": FrozenMap({"alpha": "share"}),
        "rigor": "certified", "source": "here",
    }  # fmt: skip
    return Series(**{**known, **changes})  # type: ignore[arg-type]


def cell(suffix: str, values: list[float] | None = None, **at: object) -> AuditResult:
    held = () if values is None else (series(values),)
    return results.audit(
        f"sweep[{suffix}]", cell=FrozenMap({k.replace("__", "."): v for k, v in at.items()}), series=held
    )


def of(*audits: AuditResult) -> Result:
    return results.result(*audits)


def test_axes_are_what_varies_by_their_last_piece() -> None:
    result = of(
        results.audit("other"),
        cell("1", mechanism__noise=1.0, mechanism__steps=10, mechanism__clip=1.0),
        cell("2", mechanism__noise=2.0, mechanism__steps=10, mechanism__clip=1.0),
    )
    (matrix,) = result.matrices
    assert (matrix.name, matrix.numbers) == ("sweep", (1, 2))
    assert matrix.axes == {"mechanism.noise": "noise"}
    assert [matrix.values(audit) for audit in matrix.audits] == [{"noise": 1.0}, {"noise": 2.0}]


def test_places_that_end_alike_keep_what_tells_them_apart() -> None:
    first = cell("1", claims__one__epsilon=1.0, claims__two__epsilon=1.0, data__size=1)
    second = cell("2", claims__one__epsilon=2.0, claims__two__epsilon=3.0)
    (matrix,) = of(first, second).matrices
    assert list(matrix.axes.values()) == ["one.epsilon", "two.epsilon", "size"]
    assert matrix.values(second) == {"one.epsilon": 2.0, "two.epsilon": 3.0, "size": None}


def test_one_cell_is_no_matrix() -> None:
    assert of(cell("1", a__b=1)).matrices == ()


def test_series_are_joined_with_the_axes_as_columns() -> None:
    result = of(cell("1", [0.5, 0.6], a__b=1), cell("2", [0.7], a__b=2), results.audit("other"))
    joined = result.series("curve")
    assert {name: list(column) for name, column in joined.columns.items()} == {
        "audit": ["sweep[1]", "sweep[1]", "sweep[2]"],
        "b": [1, 1, 2],
        "alpha": [0.1, 0.2, 0.1],
        "beta": [0.5, 0.6, 0.7],
    }
    assert joined.units["alpha"] == "share"
    with pytest.raises(UsageError, match="there are: curve, s"):
        result.series("curves")


def test_a_column_of_the_series_wins_over_an_axis_and_a_joined_series_is_worth_what_its_weakest_part_is() -> None:
    upper = FrozenMap({"alpha": "lower", "beta": "upper"})
    other = series(
        [0.5], rigor="approximate", source="elsewhere", privacy="per-record", bounds=FrozenMap({"alpha": "lower"})
    )
    one = results.audit("m[1]", cell=FrozenMap({"x.alpha": 7}), series=(series([0.5], bounds=upper),))
    two = results.audit("m[2]", cell=FrozenMap({"x.alpha": 8}), series=(other,))
    joined = of(one, two).series("curve")
    assert list(joined.columns["alpha"]) == [0.1, 0.1]
    assert (joined.rigor, joined.source, joined.privacy) == ("approximate", "here; elsewhere", "per-record")
    assert joined.bounds == {"alpha": "lower"}


def test_a_column_that_some_have_is_none_in_the_rows_of_others() -> None:
    wide = series([0.5], columns=FrozenMap({"alpha": [0.1], "gamma": [9.0]}))
    audits = (cell("1", [0.5], a__b=1), results.audit("sweep[2]", cell=FrozenMap({"a.b": 2}), series=(wide,)))
    joined = of(*audits).series("curve")
    assert list(joined.columns["gamma"]) == [None, 9.0]
    assert list(joined.columns["beta"]) == [0.5, None]
