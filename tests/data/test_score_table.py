"""Tables of scores that others wrote: the same in each format, and everything that a table may not hold is located."""

import io
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fuzzing.chance import mutate_bytes

from dpspec.contract import DataError
from dpspec.data import score_table
from dpspec.data.score_table import read_table, table_digest

COINS, SCORES = [1, 0, 1, 0], [0.5, -1.25, 3.0, float("inf")]
NAMED = {"coin": "in", "score": "score"}


def csv_file(folder: Path, **columns: list[Any]) -> Path:
    path = folder / "t.csv"
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([",".join(columns), *rows]) + "\n", encoding="utf-8")
    return path


def npz_file(folder: Path, **columns: list[Any]) -> Path:
    np.savez(folder / "t.npz", **{name: np.array(values) for name, values in columns.items()})
    return folder / "t.npz"


WRITERS = [csv_file, npz_file]
Writer = Callable[..., Path]


@pytest.mark.parametrize("write", WRITERS)
def test_every_format_gives_the_same_table(write: Writer, tmp_path: Path) -> None:
    columns = {"in": COINS, "score": SCORES, "size": [1, 4, 4, 1], "name": ["a", "b", "c", "d"], "more": [9, 9, 9, 9]}
    path = write(tmp_path, **columns)
    options = {"path": path.name, **NAMED, "group_size": "size", "id": "name", "rows": 4}
    table = read_table(tmp_path, options, None)
    assert table.coins.tolist() == COINS
    assert table.scores.tolist() == SCORES
    assert (table.sizes, len(table)) == ((1, 4), 4)
    assert [part.tolist() for part in table.of_size(4)] == [[0, 1], [-1.25, 3.0]]
    assert table.digest == table_digest(tmp_path, options)
    assert read_table(tmp_path, {"path": path.name, **NAMED}, 7).sizes == (7,)


@pytest.mark.parametrize("truth", [[True, False, True, False], [1.0, 0.0, 1.0, 0.0]])
@pytest.mark.parametrize("write", WRITERS)
def test_coins_may_be_truth_values_or_numbers(write: Writer, truth: list[Any], tmp_path: Path) -> None:
    path = write(tmp_path, **{"in": truth, "score": SCORES})
    assert read_table(tmp_path, {"path": path.name, **NAMED}, 1).coins.tolist() == COINS


@pytest.mark.parametrize(
    ("columns", "options", "key", "words"),
    [
        ({"inn": COINS, "score": SCORES}, {}, "coin", "has no column 'in'; did you mean 'inn'?"),
        ({"in": [1, 0, 2, 0], "score": SCORES}, {}, "coin", "the inclusion bit is 2; it must be 1 (in) or 0 (out)"),
        ({"in": COINS, "score": [1.0, float("nan"), 2.0, 3.0]}, {}, "score", "not a number (NaN)"),
        ({"in": COINS, "score": [7.0] * 4}, {}, "score", "all scores are 7"),
        ({"in": COINS, "score": SCORES, "k": [1, 0, 1, 1]}, {"group_size": "k"}, "group_size", "the group size is 0"),
        ({"in": COINS, "score": SCORES, "n": [3, 5, 3, 4]}, {"id": "n"}, "id", "the id is also at"),
        ({"in": COINS, "score": SCORES}, {"rows": 5}, "rows", "4 rows, but rows declares 5"),
        ({"in": COINS, "score": SCORES}, {"score": "in"}, "score", "coin and score name the same column 'in'"),
        ({"in": COINS, "score": [1.0, 1.0, 2.0, 3.0], "k": [2, 2, 1, 1]}, {"group_size": "k"}, "score", "groups of 2"),
        ({"in": COINS, "score": ["high", "low", "high", "low"]}, {}, "score", "num"),
    ],
)
@pytest.mark.parametrize("write", WRITERS)
def test_what_no_table_may_hold_is_told_with_its_key(write, columns, options, key, words, tmp_path):
    path = write(tmp_path, **columns)
    with pytest.raises(DataError) as caught:
        read_table(tmp_path, {"path": path.name, **NAMED, **options}, 1)
    assert words in str(caught.value)
    assert str(path) in str(caught.value) or options.get("score") == "in"
    assert caught.value.key == f"audit.scores.{key}"


def test_missing_values_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for text, key, words in (
        ("in,score\n1,\n0,2\n", "score", ":2: column 'score': the score is missing"),
        ("in,score\n,1\n0,2\n", "coin", ":2: column 'in': the inclusion bit is missing"),
        ("in,score\n1\n0,2\n", "path", "t.csv:2: one value under 2 column names"),
        ("in,score\n1,1_0\n0,2\n", "score", "text instead of a number"),
        ("in;score\n1;1\n", "path", "separated by ';'; separate them by commas"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError) as caught:
            read_table(tmp_path, {"path": "t.csv", **NAMED}, 1)
        assert words in str(caught.value)
        assert caught.value.key == f"audit.scores.{key}"


class _Boom:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch pwned",)


def test_nothing_in_an_archive_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are pickles: refused by the header, for columns of texts as well."""
    monkeypatch.chdir(tmp_path)
    objects = np.array([_Boom()] * 4, dtype=object)
    np.savez(tmp_path / "t.npz", **{"in": np.array(COINS), "score": objects, "id": objects})  # type: ignore[arg-type]
    for options in ({}, {"score": "in2", "id": "id"}):
        with pytest.raises(DataError):
            read_table(tmp_path, {"path": "t.npz", **NAMED, **options}, 1)
    (tmp_path / "p.npz").write_bytes(pickle.dumps(_Boom()))
    with pytest.raises(DataError, match="not a readable"):
        read_table(tmp_path, {"path": "p.npz", **NAMED}, 1)
    assert not (tmp_path / "pwned").exists()


def test_an_archive_that_promises_too_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    header = io.BytesIO()
    shape = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(tmp_path / "t.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("in.npy", header.getvalue())
        archive.writestr("score.npy", header.getvalue())
    with pytest.raises(DataError, match="more than 1000000 rows"):
        read_table(tmp_path, {"path": "t.npz", **NAMED}, 1)
    np.savez(tmp_path / "w.npz", **{"in": np.array(COINS), "score": np.eye(4)})
    with pytest.raises(DataError, match="must have numbers and 1 axis"):
        read_table(tmp_path, {"path": "w.npz", **NAMED}, 1)
    wide = np.array(["x" * 10, "y", "z", "w"])
    monkey = {"in": np.array(COINS), "score": np.array(SCORES), "id": wide}
    np.savez(tmp_path / "i.npz", **monkey)  # type: ignore[arg-type]
    assert len(read_table(tmp_path, {"path": "i.npz", **NAMED, "id": "id"}, 1)) == 4
    np.savez(tmp_path / "s.npz", **{"in": np.array(COINS), "score": np.array(SCORES[:3])})
    with pytest.raises(DataError, match="equal lengths"):
        read_table(tmp_path, {"path": "s.npz", **NAMED}, 1)


def test_only_regular_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "t.txt").write_text("in,score\n1,2\n")
    for name, words in (
        ("pipe.csv", "not a regular file"),
        ("folder.csv", "a folder"),
        ("none.csv", "no such file"),
        ("/dev/zero", "not a regular file"),
        ("t.txt", "must end in .csv or .npz"),
    ):
        with pytest.raises(DataError, match=words) as caught:
            read_table(tmp_path, {"path": name, **NAMED}, 1)
        assert caught.value.key == "audit.scores.path"
    monkeypatch.setattr(score_table, "MOST_BYTES", 5)
    csv_file(tmp_path, **{"in": COINS, "score": SCORES})
    with pytest.raises(DataError, match="larger than 5 bytes"):
        read_table(tmp_path, {"path": "t.csv", **NAMED}, 1)


@pytest.mark.parametrize("write", WRITERS)
def test_damaged_files_are_refused_and_raise_nothing_else(write: Writer, tmp_path: Path) -> None:
    """Bytes changed, lost and put in by chance, 60 times for each format; each is a table or a located refusal."""
    columns = {"in": COINS * 5, "score": [float(n) for n in range(20)], "id": [f"c{n}" for n in range(20)]}
    path, chance = write(tmp_path, **columns), random.Random(2)
    whole, damaged = path.read_bytes(), path.with_stem("damaged")
    keys: list[str] = []
    for _ in range(60):
        damaged.write_bytes(mutate_bytes(chance, whole) or b"x")
        try:
            read_table(tmp_path, {"path": damaged.name, **NAMED, "id": "id"}, 1)
        except DataError as error:
            keys.append(error.key)
    assert len(keys) > 30
    assert all(key.startswith("audit.scores.") for key in keys)
