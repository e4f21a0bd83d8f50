"""CSV files of spreadsheets, pandas and R are read, or a message says what to change, without a cell."""

from pathlib import Path
from typing import Any

import pytest

from dpspec.contract import DataError, FrozenMap
from dpspec.data.csv_text import kind_of_value
from dpspec.data.table_files import Csv

NAMED = {"path": "t.csv", "label": "ill", "classes": 2}


def table(tmp_path: Path, text: str | bytes, codec: str = "utf-8", **options: Any) -> Csv:
    (tmp_path / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode(codec))
    return Csv(FrozenMap({**NAMED, **options}), tmp_path)


def refusal(made: Csv) -> DataError:
    with pytest.raises(DataError) as caught:
        made.load()
    return caught.value


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_tables_with_other_separators(tmp_path: Path, mark: str) -> None:
    text = f'"age"{mark}"ill"\n30{mark}1\n'
    with pytest.raises(DataError, match=r"2 columns if they are separated by .*; write separator: ") as caught:
        table(tmp_path, text).load()
    assert caught.value.key == "path"
    assert table(tmp_path, text, separator=mark).load().train_x.tolist() == [[30.0]]
    plain, other = table(tmp_path, "age,ill\n30,1\n"), table(tmp_path, "age,ill\n30,1\n", decimal=",")
    assert plain.facts().digest != other.facts().digest


def test_a_separator_declared_for_a_spreadsheet_is_located(tmp_path: Path) -> None:
    for line in ("sep=;", '"SEP=;"'):
        message = str(refusal(table(tmp_path, f"{line}\r\nage;ill\r\n1;0\r\n", separator=";")))
        assert '=;\'); remove this line and write separator: ";"' in message


def test_decimal_commas(tmp_path: Path) -> None:
    text = "druck;ill\n-0,25;1\n1e3;0\n"
    with pytest.raises(DataError, match=r't\.csv:2: column .druck.: a number with a decimal comma .* decimal: ","'):
        table(tmp_path, text, separator=";").load()
    assert table(tmp_path, text, separator=";", decimal=",").load().train_x.tolist() == [[-0.25], [1000.0]]
    for cell, kind in (("1.234,5", "separators of thousands"), ("1.5", "a decimal point")):
        with pytest.raises(DataError, match=f"a number with {kind}"):
            table(tmp_path, f"druck;ill\n{cell};1\n", separator=";", decimal=",").load()


@pytest.mark.parametrize(
    ("encoding", "declared", "part"),
    [
        ("cp1252", None, "t.csv:1: not a readable CSV file: is not utf-8 text; declare its encoding"),
        ("utf-16", None, "byte-order mark of UTF-16; write encoding: utf-16"),
        ("utf-16-le", None, "contains bytes 0"),
        ("utf-16-be", "utf-16", "has no byte-order mark of UTF-16; remove encoding"),
    ],
)
def test_encodings(tmp_path: Path, encoding: str, declared: str | None, part: str) -> None:
    text = "gr\xf6\xdfe,ill\n1,0\n"
    options = {} if declared is None else {"encoding": declared}
    assert part in str(refusal(table(tmp_path, text, encoding, **options)))
    if encoding in ("cp1252", "utf-16"):
        assert table(tmp_path, text, encoding, encoding=encoding).load().train_x.tolist() == [[1.0]]


def test_the_line_of_a_wrong_byte_is_exact_in_a_long_file(tmp_path: Path) -> None:
    lines = [b"a,ill", *[b"1,0"] * 20_000, b"\x81,1", b"2,0"]
    assert "t.csv:20002: not" in str(refusal(table(tmp_path, b"\n".join(lines))))
    message = str(refusal(table(tmp_path, b"\n".join(lines), encoding="cp1252")))
    assert "is not cp1252 text; declare its encoding, for example encoding: latin-1" in message


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    assert table(tmp_path, "\r\n  \r\na,ill\r\n1,0\r\n \r\n\r\n2,1\r\n").load().train_x.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("Patients\na,ill\n1,0\n", "its first line must name all columns, separated by one of"),
        ("1.5,0\n2.5,1\n", "its first line has numbers instead of names"),
        ("a,ill\n1,0,\n", "t.csv:2: 3 values under 2 column names; remove the separators at the ends of lines"),
        ("a,ill,\n1,0\n", "t.csv:2: 2 values under 3 column names; remove the separator at the end of the first line"),
        ("a,ill\n7,1,0\n", "t.csv:2: 3 values under 2 column names; if its first column has row names (R)"),
        ("a,ill\n1,0\n1,5,0\n", "t.csv:3: 3 values under 2 column names; quote values that contain ','"),
        ("a,ill\n1;0\n", "t.csv:2: one value under 2 column names; it is separated by ';' and the first line by ','"),
        ('a,ill\n"1\n",0\n"1"x,0\n', "t.csv:4: not a readable CSV file: ',' expected after '\"'; within quotes"),
        ("a,ill\n1,0.0\n", 'list labels with a decimal point: classes: ["0.0", "1.0"]'),
        ("a,ill\n1,\n", "t.csv:2: the label is not a declared class (0, 1); the cell is empty"),
    ],
)
def test_lines_that_do_not_fit(tmp_path: Path, text: str, part: str) -> None:
    assert part in str(refusal(table(tmp_path, text)))


@pytest.mark.parametrize(
    ("key", "text", "options"),
    [
        ("classes", "a,ill\n1,0\n", {"classes": ("0", " 0")}),
        ("categories", "a,ill\nx,0\n", {"categories": {"a": ("x", "x ", "y")}}),
    ],
)
def test_names_that_differ_by_blanks_only_are_refused(tmp_path, key, text, options):
    error = refusal(table(tmp_path, text, **options))
    assert f"{key} lists" in str(error)
    assert error.key == key


def test_a_label_in_other_letters_is_told_apart(tmp_path: Path) -> None:
    assert "in upper and lower case" in str(refusal(table(tmp_path, "a,ill\n1,Yes\n", classes=("no", "yes"))))


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        ("an empty cell", ["", " "]),
        ("a missing value", ["NA", "?", "-", "--", ".", "#N/A", "n/a", "-nan", "NULL"]),
        ("an infinite number", ["inf", "-Infinity"]),
        ("a number that is too large", ["1e400"]),
        ("a number with a decimal comma", ["-1,5"]),
        ("a number with separators of thousands", ["1,234.5", "1 234", "1\xa0234", "1'234", "1.234.567"]),
        ("a number with a unit", ["$5", "5 €", "70 kg"]),
        ("a date", ["2020-01-02", "01/02/20", "2020-01-02T03:04"]),
        ("a Boolean value", ["TRUE", "false"]),
        ("text", ["Ann", "0x10", "1_0", "(5)", "12 Elm Street"]),
    ],
)
def test_kinds_of_cells(kind: str, cells: list[str]) -> None:
    assert {cell: kind_of_value(cell)[0] for cell in cells} == dict.fromkeys(cells, kind)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('age,ill\n"Miller, Ann",1\n', {}),
        ('age,ill\n"Miller, Ann",1\n', {"categories": {"age": ("a", "b")}}),
        ("Miller\n1,2,3\n", {}),
        ("Miller,Miller,ill\n", {}),
        ("Miller,bil,3\n1,2,3\n", {"label": "bill"}),
    ],
)
def test_messages_contain_no_cell(tmp_path: Path, text: str, options: dict[str, Any]) -> None:
    """A first line without names is a record, even if a cell resembles a declared name."""
    error = refusal(table(tmp_path, text, **options))
    assert "Miller" not in str(error)
    assert "Miller" in (error.private or "")
