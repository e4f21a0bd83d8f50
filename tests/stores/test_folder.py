"""What is no store is neither written to nor swept: somebody's folder, somebody's bucket, the current folder."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import fsspec
import pytest

from dpspec.contract import FrozenMap, Trial
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import UsageError
from dpspec.stores.folder import MARK

KEY, OTHER = "ab" * 32, "cd" * 32
TRIAL = Trial(index=0, evidence=FrozenMap({"x": 1}))


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, with what is in its files."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def old(path: Path) -> None:
    path.mkdir(parents=True)
    os.utime(path, (0, 0))


def project(folder: Path) -> None:
    """Somebody's project, whose folders have the names of a store's."""
    for part in ("unfinished", "damaged", "trials"):
        (folder / part).mkdir(parents=True)
        (folder / part / "thesis.tex").write_text("years of work", encoding="utf-8")
    old(folder / "tmp" / "notes")


def deep(folder: Path) -> None:
    """All names as of a store, but for one file."""
    Store(folder).put(KEY, TRIAL, FrozenMap())
    (folder / MARK).unlink()
    (folder / "trials" / KEY[:2] / KEY / "mine.txt").write_text("mine", encoding="utf-8")


def misplaced(folder: Path) -> None:
    (folder / "trials" / "00" / KEY).mkdir(parents=True)


def linked(folder: Path) -> None:
    elsewhere = folder.with_name("elsewhere")
    elsewhere.mkdir()
    folder.mkdir()
    (folder / "trials").symlink_to(elsewhere)


def wrong_mark(folder: Path) -> None:
    folder.mkdir()
    (folder / MARK).write_text('{"store": "of shoes", "version": 1}', encoding="utf-8")


def later(folder: Path) -> None:
    folder.mkdir()
    (folder / MARK).write_text('{"store": "dpspec", "version": 2}', encoding="utf-8")


@pytest.mark.parametrize("make", [project, deep, misplaced, linked, wrong_mark, later])
@pytest.mark.parametrize(
    "use",
    [
        lambda place: Store(place).sweep(),
        lambda place: Store(place).put(OTHER, TRIAL, FrozenMap()),
        lambda place: Store(place).remove(KEY),
        lambda place: list(Store(place).keys()),
        lambda place: Store(place).unfinished(KEY),
    ],
)
def test_a_folder_of_somebody_else_stays_as_it_is(
    tmp_path: Path, make: Callable[[Path], None], use: Callable[[str], object]
) -> None:
    folder = tmp_path / "folder"
    make(folder)
    before = tree(tmp_path)
    with pytest.raises(UsageError, match="store"):
        use(str(folder))
    assert tree(tmp_path) == before


@pytest.mark.parametrize("place", ["", " ", "file://", "memory://", "s3:///"])
def test_an_empty_location_is_refused(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    old(tmp_path / "tmp" / ("0" * 32))
    with pytest.raises(UsageError, match="has no location"):
        Store(place)
    assert (tmp_path / "tmp" / ("0" * 32)).is_dir()


def test_a_store_is_marked_when_it_is_made_and_not_before(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert store.refusal() is None
    assert not (tmp_path / "store").exists()
    store.put(KEY, TRIAL, FrozenMap())
    assert json.loads((tmp_path / "store" / MARK).read_text("utf-8")) == {"store": "dpspec", "version": 1}
    (tmp_path / "store" / "notes.txt").write_text("mine", encoding="utf-8")  # beside a mark: left alone, and no reason
    (tmp_path / "store" / "damaged" / "mine").mkdir(parents=True)
    assert list(Store(tmp_path / "store").keys()) == [KEY]
    Store(tmp_path / "store").sweep()
    assert (tmp_path / "store" / "notes.txt").exists()
    assert (tmp_path / "store" / "damaged" / "mine").exists()


def test_a_store_of_the_version_before_goes_on(tmp_path: Path) -> None:
    Store(tmp_path).put(KEY, TRIAL, FrozenMap())
    (tmp_path / MARK).unlink()
    state = tmp_path / "unfinished" / OTHER
    state.mkdir(parents=True)
    (state / f"{uuid.uuid4().hex}.npz").write_bytes(b"1234")
    shutil.copytree(tmp_path / "trials" / KEY[:2] / KEY, tmp_path / "damaged" / KEY)
    old(tmp_path / "tmp" / uuid.uuid4().hex)
    kept = Store(tmp_path)
    assert kept.get(KEY) is not None
    assert kept.sweep() > 4
    assert not (tmp_path / MARK).exists()
    kept.put(OTHER, TRIAL, FrozenMap())
    assert (tmp_path / MARK).exists()
    assert sorted(Store(tmp_path).keys()) == [KEY, OTHER]


@pytest.fixture(params=["memory", "s3"])
def root(request: pytest.FixtureRequest) -> str:
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else str(request.getfixturevalue("bucket"))


def test_an_object_store_of_somebody_else_stays_as_it_is(root: str) -> None:
    files, prefix = fsspec.core.url_to_fs(root)
    for name in ("damaged/thesis.tex", "tmp/notes", "trials/data.csv"):
        files.pipe_file(f"{prefix}/{name}", b"years of work")
    for use in (
        lambda: Store(root).sweep(),
        lambda: Store(root).put(KEY, TRIAL, FrozenMap()),
        lambda: Store(root).remove(KEY),
        lambda: list(Store(root).keys()),
    ):
        with pytest.raises(UsageError, match="is not a store of trials"):
            use()
    assert "is not a store of trials" in str(Store(root).refusal())
    assert len(files.find(prefix)) == 3


def test_an_object_store_is_marked_and_one_of_the_version_before_goes_on(root: str) -> None:
    files, prefix = fsspec.core.url_to_fs(root)
    trial = Trial(index=0, evidence=FrozenMap(), arrays={})
    Store(root).put(KEY, trial, FrozenMap())
    files.rm_file(f"{prefix}/{MARK}")
    again = Store(root)
    assert again.refusal() is None
    assert list(again.keys()) == [KEY]
    again.put(OTHER, trial, FrozenMap())
    assert files.exists(f"{prefix}/{MARK}")
    files.pipe_file(f"{prefix}/damaged/thesis.tex", b"mine")
    Store(root).sweep()
    assert files.exists(f"{prefix}/damaged/thesis.tex")


def test_what_lies_behind_a_link_is_neither_read_nor_removed(tmp_path: Path) -> None:
    """A store that somebody planted, with the folder of another one's records for its own."""
    mine, planted = Store(tmp_path / "mine"), tmp_path / "planted"
    mine.put(KEY, TRIAL, FrozenMap())
    (planted / "trials").mkdir(parents=True)
    shutil.copy(tmp_path / "mine" / MARK, planted)
    (planted / "trials" / KEY[:2]).symlink_to(tmp_path / "mine" / "trials" / KEY[:2])
    before = tree(tmp_path / "mine")
    store = Store(planted)
    for what in (store.get, store.remove, store.size, lambda key: store.put(key, TRIAL, FrozenMap())):
        with pytest.raises(UsageError, match="symbolic link"):
            what(KEY)
    with pytest.raises(UsageError, match="symbolic link"):
        list(store.entries())
    assert tree(tmp_path / "mine") == before
    (planted / "unfinished").mkdir()
    (planted / "unfinished" / KEY).symlink_to(tmp_path / "mine")
    assert store.unfinished(KEY) is None
    assert store.unfinished(OTHER) is not None


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_writers_at_once_find_a_new_store_marked_by_one_of_them(tmp_path: Path, place: str) -> None:
    for attempt in range(40):
        location = str(tmp_path / str(attempt)) if place == "folder" else f"memory://{uuid.uuid4().hex}"
        stores, start = [Store(location) for _ in range(4)], Barrier(4)

        def write(store: Store, start: Barrier = start) -> bool:
            start.wait()
            return store.put(KEY, TRIAL, FrozenMap()).trial == TRIAL

        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(write, stores))
