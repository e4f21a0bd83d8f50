"""Tables by columns: what Parquet files and CSV files with categories become, and what is refused."""

import re
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.refused import refused

from dpspec.contract import DataError, DataSource, FrozenMap, LoadedData
from dpspec.data import source as limits
from dpspec.data import table_files as kind
from dpspec.data.table_files import Csv

pa = pytest.importorskip("pyarrow")

Make = Callable[..., DataSource]
Write = Callable[..., Path]

TABLE: dict[str, Any] = {"path": "table.parquet", "label": "label", "classes": ["no", "yes"]}
SIZES = {"size": ["small", "large", ""]}


def test_values_of_every_plain_type(parquet: Write, source: Make, tmp_path: Path) -> None:
    columns = {
        "whole": pa.array([1, 2, 3], pa.int8()),
        "single": pa.array([0.5, 1.5, -2.5], pa.float32()),
        "truth": [True, False, True],
        "exact": [Decimal("1.25"), Decimal("2.50"), Decimal("-3.75")],
        "size": pa.array(["small", None, "large"]).dictionary_encode(),
        "code": [3, 1, 3],
        "label": ["yes", "no ", "no"],
    }
    parquet(**columns)
    made = source("parquet", tmp_path, **TABLE, categories={**SIZES, "code": ["1", "3"]})
    facts, rows = made.facts(), made.load()
    assert (facts.records, facts.shape, facts.classes, facts.test_records) == (3, (9,), 2, 0)
    assert rows.train_x.tolist() == [
        [1, 0.5, 1, 1.25, 1, 0, 0, 0, 1],
        [2, 1.5, 0, 2.5, 0, 0, 1, 1, 0],
        [3, -2.5, 1, -3.75, 0, 1, 0, 0, 1],
    ]
    assert rows.train_y.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("labels", "classes", "wanted"),
    [
        ([1, 0, 2], 3, [1, 0, 2]),
        ([True, False, True], ["false", "true"], [1, 0, 1]),
        (["b", "a", "b"], ["b", "a"], [0, 1, 0]),
        ([True, None, False], ["false", "true", ""], [1, 2, 0]),
    ],
)
def test_labels_by_their_text(labels, classes, wanted, parquet, source, tmp_path):
    parquet(a=[1.0, 2.0, 3.0], label=labels)
    rows = source("parquet", tmp_path, **{**TABLE, "classes": classes}).load()
    assert rows.train_y.tolist() == wanted


def test_columns_and_test_tables(parquet: Write, source: Make, tmp_path: Path) -> None:
    parquet(a=[1, 2], b=[3, 4], note=["x", "y"], label=["no", "yes"])
    parquet("test.parquet", b=[5], label=["yes"], a=[6])
    options = {**TABLE, "test_path": "test.parquet", "columns": ["b", "a"]}
    facts, rows = source("parquet", tmp_path, **options).facts(), source("parquet", tmp_path, **options).load()
    assert (facts.records, facts.test_records) == (2, 1)
    assert rows.train_x.tolist() == [[3, 1], [4, 2]]
    assert rows.test_x.tolist() == [[5, 6]]
    assert rows.test_y.tolist() == [1]
    refused(source("parquet", tmp_path, **{**options, "columns": ["note"]}), "test.parquet: has no column 'note'")
    refused(
        source("parquet", tmp_path, **TABLE, test_path="test.parquet"),
        "test.parquet: the features differ from the features of",
        "columns",
    )
    before = source("parquet", tmp_path, **options).facts().digest
    parquet("test.parquet", b=[5], label=["no"], a=[6])
    assert source("parquet", tmp_path, **options).facts().digest != before


def test_digests_follow_whatever_changes_rows(parquet: Write, source: Make, tmp_path: Path) -> None:
    parquet(a=[1, 2], size=["small", "large"], label=["no", "yes"])
    variants: list[dict[str, Any]] = [
        {"categories": SIZES},
        {"categories": {"size": ["large", "small"]}},
        {"columns": ["a"]},
        {"columns": ["a"], "classes": ["yes", "no"]},
    ]
    assert len({source("parquet", tmp_path, **{**TABLE, **v}).facts().digest for v in variants}) == len(variants)


@pytest.mark.family
@pytest.mark.parametrize("typed", [True, False], ids=["dictionary", "text"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_texts_that_the_file_holds_once_are_held_once_in_memory(typed, kind, source, tmp_path):
    """A few kilobytes on disk that would be 25 GB, were every record's text a copy."""
    files = pytest.importorskip("pyarrow.parquet")
    long, count = "q" * 250_000, 100_000
    places = pa.array([0, 1, None, *[0] * (count - 3)], pa.int32())
    size = pa.DictionaryArray.from_arrays(places, pa.array([long, "p"], kind))
    files.write_table(pa.table({"size": size, "label": ["no"] * count}), tmp_path / "table.parquet", store_schema=typed)
    rows = source("parquet", tmp_path, **TABLE, categories={"size": ["p", long, ""]}).load()
    assert rows.train_x[:4].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]
    made = source("parquet", tmp_path, **TABLE, categories={"size": ["p", ""]})
    refused(made, "record 0: the value is not a category of column 'size'")


@pytest.mark.parametrize(
    ("columns", "options", "parts"),
    [
        ({"a": [1]}, {}, ["has no column 'label' (one column"]),
        ({"a": pa.array([], pa.int8()), "label": pa.array([], pa.string())}, {}, ["is empty"]),
        ({"a": [1, None], "label": ["no", "no"]}, {}, ["record 1: column 'a': the value is missing; replace"]),
        ({"a": ["1"], "label": ["no"]}, {}, ["column 'a' is not numeric; list its values under categories"]),
        ({"a": [[1]], "label": ["no"]}, {}, ["column 'a' has type list"]),
        ({"a": [1, 2], "label": ["no", "maybe"]}, {}, ["record 1: the label is not a declared class"]),
        ({"a": ["m"], "label": ["no"]}, {"categories": {"a": ["s", "l"]}}, ["record 0: the value is not a", "(s, l)"]),
        ({"a": [1], "label": ["no"]}, {"categories": {"label": ["s", "l"]}}, ["column 'label', which is not a feat"]),
    ],
)
def test_unsuitable_tables_are_refused(columns, options, parts, parquet, source, tmp_path):
    parquet(**columns)
    refused(source("parquet", tmp_path, **{**TABLE, **options}), "table.parquet", *parts)


def test_limits(parquet: Write, source: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is small on disk may be huge in memory: what the footer admits counts."""
    parquet(a=np.zeros(5000), label=["no"] * 5000)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "MAX_BYTES", 100)
        refused(source("parquet", tmp_path, **TABLE), "decompressed bytes; the maximum is 100")
    monkeypatch.setattr(limits, "MAX_VALUES", 4999)
    refused(source("parquet", tmp_path, **TABLE, columns=["a"]), "5000 values; at most 4999 are read")


def test_files_that_are_none(source: Make, tmp_path: Path, parquet: Write) -> None:
    made = source("parquet", tmp_path, **TABLE)
    (tmp_path / "table.parquet").write_bytes(b"PAR1 and so on PAR1")
    refused(made, "table.parquet: not a readable Parquet file")
    whole = parquet(a=[1.5, 2.5], label=["no", "yes"]).read_bytes()
    (tmp_path / "table.parquet").write_bytes(whole[1:])
    refused(made, "table.parquet: not a readable Parquet file")
    (tmp_path / "table.parquet").write_bytes(b"PK\3\4")
    refused(made, "table.parquet: is a zip archive")


def test_without_pyarrow(source: Make, tmp_path: Path, parquet: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet(a=[1], label=["no"])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    refused(source("parquet", tmp_path, **TABLE), "needs pyarrow", "pip install 'dpspec[parquet]'")


def test_csv_and_parquet_agree(parquet: Write, source: Make, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,size,label\n1, large,yes\n2,,no\n3,small,no\n")
    parquet(a=[1, 2, 3], size=["large", None, "small"], label=["yes", "no", "no"])
    options: dict[str, Any] = {"label": "label", "classes": ["no", "yes"], "categories": SIZES}
    csv, other = (source(k, tmp_path, path=f"table.{k}", **options) for k in ("csv", "parquet"))
    assert csv.facts().shape == other.facts().shape == (4,)
    assert np.array_equal(csv.load().train_x, other.load().train_x)
    assert csv.load().train_x.tolist() == [[1, 0, 1, 0], [2, 0, 0, 1], [3, 1, 0, 0]]
    assert np.array_equal(csv.load().train_y, other.load().train_y)
    options["categories"] = {"size": ["large", "small", ""]}
    assert csv.facts().digest != source("csv", tmp_path, path="table.csv", **options).facts().digest


WITH_GAPS = "age,sugar,kind,ill\n3, ,a,no\n?,4,,yes\n6,8,a,no\n"
GAPS = {"path": "t.csv", "label": "ill", "classes": ("no", "yes"), "categories": {"kind": ("", "a")}}


def loaded(tmp_path: Path, **more: object) -> LoadedData:
    (tmp_path / "t.csv").write_text(WITH_GAPS, encoding="utf-8")
    return Csv(FrozenMap({**GAPS, **more}), tmp_path).load()


def test_missing_values_become_nan(tmp_path: Path) -> None:
    x = loaded(tmp_path, missing=("", "?")).train_x
    assert np.argwhere(np.isnan(x)).tolist() == [[0, 1], [1, 0]]
    assert x[:, 2:].tolist() == [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]


def test_missing_values_count_nothing_towards_the_radius(tmp_path: Path) -> None:
    x = loaded(tmp_path, missing=("", "?"), radius=1.0, standardise={"mean": 0.0, "std": 2.0}).train_x
    assert np.isnan(x).sum() == 2
    norms = np.sqrt(np.nansum(np.square(x.astype(np.float64)), axis=1))
    assert norms == pytest.approx(np.ones(3), rel=1e-6)


@pytest.mark.parametrize("missing", [None, ("?",)])
def test_what_is_not_declared_missing_is_an_error(tmp_path: Path, missing: tuple[str, ...] | None) -> None:
    with pytest.raises(DataError, match=r"t\.csv:2: column 'sugar': an empty cell"):
        loaded(tmp_path, **({} if missing is None else {"missing": missing}))


def test_how_missing_values_are_written_is_part_of_the_digest(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(WITH_GAPS, encoding="utf-8")
    digests = {
        Csv(FrozenMap({**GAPS, **more}), tmp_path).facts().digest
        for more in ({}, {"missing": ("",)}, {"missing": ("", "?")}, {"missing": ("?", "")})
    }
    assert len(digests) == 3


NAMED = {"path": "t.csv", "label": "ill", "classes": 2}


def table(tmp_path: Path, text: str, encoding: str = "utf-8", **options: object) -> Csv:
    (tmp_path / "t.csv").write_text(text, encoding=encoding)
    return Csv(FrozenMap({**NAMED, **options}), tmp_path)


@pytest.mark.parametrize("index", ["Unnamed: 0.1", "", "__index_level_0__", "rownames"])
def test_an_index_column_is_a_warning(tmp_path: Path, index: str) -> None:
    text = f"{index},age,ill\n0,30,1\n"
    (remark,) = table(tmp_path, text).remarks()
    assert (remark.code, remark.severity, remark.help) == (
        "index-column",
        "warning",
        'list the features without it: columns: ["age"]',
    )
    assert not list(table(tmp_path, text, columns=["age"]).remarks())
    (remark,) = table(tmp_path, "age,ill,\n30,1,\n").remarks()
    assert "the last column has no name" in remark.message


def test_the_metadata_of_pandas_decide_on_parquet_files(tmp_path: Path, source: Make) -> None:
    files = pytest.importorskip("pyarrow.parquet")
    columns = pa.table({"patient": [1, 2], "age": [3, 4], "label": ["no", "yes"]})
    for metadata, warnings in (
        ({b"pandas": b'{"index_columns": ["patient"]}'}, 1),
        ({b"pandas": b'{"index_columns": [{"kind": "range"}]}'}, 0),
        ({b"pandas": b"{"}, 0),
        ({}, 0),
    ):
        files.write_table(columns.replace_schema_metadata(metadata), tmp_path / "table.parquet")
        made: Any = source("parquet", tmp_path, **TABLE)
        assert len(list(made.remarks())) == warnings


@pytest.mark.parametrize("written", [["False", "True"], ["false", "true"], ["FALSE", "TRUE"]])
def test_categories_of_a_boolean_column_may_be_written_as_for_csv(written, parquet, source, tmp_path):
    parquet(active=[True, False, True], label=["no", "yes", "no"])
    rows = source("parquet", tmp_path, **TABLE, categories={"active": written}).load()
    assert rows.train_x.tolist() == [[0, 1], [1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([date(2020, 1, 1)] * 2), "column 'a' has type date32"),
        (pa.array([[1.0]] * 2), "column 'a' has type list"),
        (pa.array(["x"] * 2), "column 'a' is not numeric; list its values under categories"),
        (pa.array([b"x"] * 2), "column 'a' has type binary"),
    ],
    ids=["date", "list", "text", "bytes"],
)
def test_facts_refuse_the_types_that_rows_refuse(
    column: Any, message: str, parquet: Write, source: Make, tmp_path: Path
) -> None:
    """``validate`` reads facts alone."""
    parquet(a=column, label=["no", "yes"])
    with pytest.raises(DataError, match=re.escape(message)):
        source("parquet", tmp_path, **TABLE).facts()
