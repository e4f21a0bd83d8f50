"""Missing values: NaN where a table says so, an error everywhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpspec.contract import DataError, FrozenMap, LoadedData
from dpspec.data.table_files import Csv

TABLE = "age,sugar,kind,ill\n3, ,a,no\n?,4,,yes\n6,8,a,no\n"
OPTIONS = {"path": "t.csv", "label": "ill", "classes": ("no", "yes"), "categories": {"kind": ("", "a")}}


def loaded(tmp_path: Path, **more: object) -> LoadedData:
    (tmp_path / "t.csv").write_text(TABLE, encoding="utf-8")
    return Csv(FrozenMap({**OPTIONS, **more}), tmp_path).load()


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
    with pytest.raises(DataError, match=r"t\.csv:2: column 'sugar': ' ' is not a finite number"):
        loaded(tmp_path, **({} if missing is None else {"missing": missing}))


def test_how_missing_values_are_written_is_part_of_the_digest(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE, encoding="utf-8")
    digests = {
        Csv(FrozenMap({**OPTIONS, **more}), tmp_path).facts().digest
        for more in ({}, {"missing": ("",)}, {"missing": ("", "?")}, {"missing": ("?", "")})
    }
    assert len(digests) == 3
