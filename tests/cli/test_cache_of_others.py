"""``--store`` with the wrong folder: nothing of it is touched, by any command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def somebodys(folder: Path) -> list[Path]:
    files = [folder / part / "thesis.tex" for part in ("unfinished", "damaged", "tmp/old", "trials/ab")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("years of work", encoding="utf-8")
        os.utime(file.parent, (0, 0))
    return files


@pytest.mark.parametrize("store", ["", "work", "."])
def test_removing_everything_removes_nothing_of_others(dpspec, tmp_path, store):
    files = somebodys(tmp_path / "work" if store == "work" else tmp_path)
    ended = dpspec("cache", "rm", "--all", "--store", store)
    assert ended.code == 2
    assert "store" in ended.err
    assert all(file.exists() for file in files)


def test_training_writes_nothing_into_a_folder_of_others(dpspec, counting, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("years of work", encoding="utf-8")
    ended = dpspec("run", counting, "--store", "work")
    assert ended.code == 2
    assert "is not a store of trials" in ended.err
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["thesis.tex"]
