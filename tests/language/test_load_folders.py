"""A folder stands for the specs below it: one rule for all that take specs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import pytest

from dpspec.contract.catalog import Catalog
from dpspec.errors import UsageError
from dpspec.language import load
from dpspec.language.load import find_specs, is_spec, load_specs


def write(path: Path, text: str = "dpspec: 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_every_spec_below_is_found_in_order_and_the_rest_is_told(tmp_path: Path) -> None:
    b, a = write(tmp_path / "b.yaml"), write(tmp_path / "a" / "z.yml")
    parent = write(tmp_path / "a" / "parent.yaml", "name: parent\nlist:\n  - dpspec: 1\n")
    write(tmp_path / "expected.txt")
    for hidden in (".dpspec/store/x.yaml", ".git/x.yaml", "a/.x.yaml", "venv/lib/x.yaml"):
        write(tmp_path / hidden)
    write(tmp_path / "venv" / "pyvenv.cfg", "")
    found = find_specs([tmp_path])
    assert found.files == (a, b)
    assert found.others == (parent,)


def test_files_are_taken_as_given_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "s" / "a.yaml")
    write(tmp_path / "s" / "b.yaml")
    given = [Path("s/b.yaml"), Path("s"), Path("s/../s/a.yaml"), Path("absent.yaml"), Path("s/b.yaml")]
    assert find_specs(given).files == (Path("s/b.yaml"), Path("s/a.yaml"), Path("absent.yaml"))
    other = write(tmp_path / "none.yaml", "a: 1\n")
    assert find_specs([other]).files == (other,)  # who names a file means it


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("# a comment\n\ndpspec: 1\n", True),
        ("name: a\n'dpspec' : 1\n", True),
        ('"dpspec": 1\n', True),
        ("\ufeffdpspec: 1\n", True),
        ("{dpspec: 1, name: a}\n", True),
        ("name: a\ndpspec: {broken\n", True),  # what is wrong with a spec is told, not passed over
        ("dpspecs: 1\n", False),
        ("deep:\n  dpspec: 1\n", False),
        ("'dpspec\": 1\n", False),
        ("", False),
    ],
)
def test_a_spec_is_told_by_its_key(tmp_path: Path, text: str, spec: bool) -> None:
    assert is_spec(write(tmp_path / "a.yaml", text)) is spec


def test_what_cannot_be_read_is_no_spec(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "nowhere.yaml").symlink_to(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert not any(is_spec(path) for path in tmp_path.iterdir())
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    spec = write(tmp_path / "a.yaml")
    assert find_specs([tmp_path]).files == (spec,)


def test_what_we_may_not_read_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, closed = write(tmp_path / "a.yaml"), write(tmp_path / "closed.yaml")

    def refused(path: Path, mode: str) -> IO[bytes]:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return path.open("rb")

    monkeypatch.setattr(load, "open", refused, raising=False)
    assert find_specs([tmp_path]).files == (spec, closed)
    (tmp_path / "within").mkdir()
    within = str(tmp_path / "within")

    def scan(path: str) -> Any:
        if str(path) == within:
            raise PermissionError(13, "Permission denied", within)
        return scandir(path)

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", scan)
    with pytest.raises(UsageError, match="within' cannot be read: Permission denied"):
        find_specs([tmp_path])


def test_a_folder_without_a_spec_is_refused_and_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    with pytest.raises(UsageError, match="it has no YAML files; for a recording, use `dpspec check`"):
        find_specs([tmp_path])
    write(tmp_path / "a.yaml", "name: a\n")
    with pytest.raises(UsageError, match="its YAML file has no top-level key 'dpspec'"):
        find_specs([tmp_path])
    write(tmp_path / "b.yaml", "name: b\n")
    with pytest.raises(UsageError, match="none of its 2 YAML files has a top-level key 'dpspec'"):
        load_specs([tmp_path], Catalog())


def test_loading_says_which_files_it_took(tmp_path: Path) -> None:
    spec, other = write(tmp_path / "a.yaml"), write(tmp_path / "b.yaml", "name: b\n")
    loaded = load_specs([tmp_path], Catalog())
    assert loaded.files == (spec,)
    assert loaded.others == (other,)
    assert {d.span.file for d in loaded.diagnostics if d.span} == {str(spec)}
