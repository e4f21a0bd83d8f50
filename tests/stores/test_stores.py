"""What holds of every store, wherever it keeps its records."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from support import counting

from dpspec.contract import FrozenMap, Trial
from dpspec.contract.frozen import digest
from dpspec.engine.results.result import Result
from dpspec.engine.running.runner import run
from dpspec.engine.storage import trial_store as store_module
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import UsageError
from dpspec.stores.folder import shown
from dpspec.stores.remote import RemoteStorage

KEY, OTHER = "ab" * 32, "cd" * 32
TABLE = np.arange(6.0)
TRIAL = Trial(index=3, evidence=FrozenMap({"scores": [0.5, -1.25]}), arrays={"table": TABLE})
RECORDED = FrozenMap({"device": "cpu", "spec": "coin", "kind": "counting", "made": "2026-01-02T03:04:05+00:00"})

Files = Any


def files_of(location: str) -> tuple[Files, str]:
    """The file system behind a store, and its root there."""
    return fsspec.core.url_to_fs(location, use_listings_cache=False)


def record_of(location: str, key: str = KEY) -> tuple[Files, str]:
    files, root = files_of(location)
    return files, f"{root}/trials/{key[:2]}/{key}/record.json"


def test_what_is_put_comes_back(store: Store) -> None:
    assert store.get(KEY) is None
    assert list(store.keys()) == []
    put = store.put(KEY, TRIAL, RECORDED)
    got = store.get(KEY)
    assert got is not None
    assert got.trial.evidence == TRIAL.evidence == put.trial.evidence
    assert np.array_equal(got.trial.arrays["table"], TABLE)
    assert not got.trial.arrays["table"].flags.writeable
    assert list(store.keys()) == [KEY]
    assert store.refusal() is None
    again = store.put(KEY, Trial(index=3, evidence=FrozenMap({"scores": "other"})), FrozenMap())
    assert again.trial.evidence == TRIAL.evidence  # a record is written once
    for _ in range(2):
        store.remove(KEY)
    assert store.get(KEY) is None
    assert list(store.keys()) == []


def test_large_arrays_stay_where_they_are(store: Store) -> None:
    large = np.arange(40_000.0)
    kept = store.put(KEY, Trial(index=0, evidence=FrozenMap(), arrays={"large": large, "none": large[:0]}), RECORDED)
    assert isinstance(kept.trial.arrays["large"], np.memmap)
    assert np.array_equal(kept.trial.arrays["large"], large)
    assert kept.trial.arrays["none"].shape == (0,)


def test_many_trials_need_few_open_files(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    store = Store(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = max(map(int, os.listdir("/dev/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 20, limits[1]))
    try:
        kept = [store.put(f"{n:064x}", TRIAL, RECORDED) for n in range(60)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert all(np.array_equal(each.trial.arrays["table"], TABLE) for each in kept)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.ENOMEM])
def test_what_cannot_be_read_now_is_not_damaged(store: Store, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(KEY, TRIAL, RECORDED)

    def refuse(file: Path, *_: object) -> np.ndarray:
        raise OSError(number, os.strerror(number), str(file))

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "read_array", refuse)
        with pytest.raises(UsageError, match=f"cannot read trial {KEY[:12]} in .*: {os.strerror(number)}"):
            store.get(KEY)
    assert store.get(KEY) is not None


def test_a_list_says_what_each_trial_is(store: Store, location: str) -> None:
    store.put(KEY, TRIAL, RECORDED)
    store.put(OTHER, TRIAL, FrozenMap())
    files, record = record_of(location, OTHER)
    files.pipe_file(record, b"{")
    first, second = store.entries()
    assert (first.key, first.spec, first.kind, first.made) == (KEY, "coin", "counting", RECORDED["made"])
    assert first.size > TABLE.nbytes
    assert (second.key, second.spec) == (OTHER, "")


def _truncate(files: Files, path: str) -> None:
    content = files.cat_file(path)
    files.pipe_file(path, content[: len(content) // 2])


def _edit(files: Files, path: str) -> None:
    body = json.loads(files.cat_file(path))
    body["evidence"]["scores"][0] = 99.0
    files.pipe_file(path, json.dumps(body).encode())


def _array(change: Callable[[Files, str], None]) -> Callable[[Files, str], None]:
    def damage(files: Files, record: str) -> None:
        (array,) = files.glob(record.replace("record.json", "*table.npy"))
        change(files, array)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _edit,
        lambda files, record: files.pipe_file(record, b""),
        lambda files, record: files.pipe_file(record, b"[" * 100_000),
        _array(_truncate),
        _array(lambda files, array: files.pipe_file(array, files.cat_file(array)[:-1] + b"!")),
        _array(lambda files, array: files.rm_file(array)),
    ],
)
def test_a_damaged_record_is_reported_and_made_again(
    store: Store, location: str, damage: Callable[[Files, str], None]
) -> None:
    store.put(KEY, TRIAL, RECORDED)
    damage(*record_of(location))
    told: list[str] = []
    fresh = Store(location)
    assert fresh.get(KEY, told.append) is None
    assert "damaged" in told[0]
    files, root = files_of(location)
    assert files.exists(f"{root}/damaged/{KEY}/record.json")
    for again in (fresh, store):
        assert np.array_equal(again.put(KEY, TRIAL, RECORDED).trial.arrays["table"], TABLE)
    store.remove(KEY)
    assert not files.exists(f"{root}/damaged/{KEY}/record.json")


def test_a_record_under_another_key_is_foreign(store: Store, location: str) -> None:
    store.put(KEY, TRIAL, RECORDED)
    files, record = record_of(location)
    _, foreign = record_of(location, OTHER)
    files.makedirs(foreign.rpartition("/")[0], exist_ok=True)
    files.pipe_file(foreign, files.cat_file(record))
    told: list[str] = []
    assert store.get(OTHER, told.append) is None
    assert "damaged" in told[0]


@pytest.mark.parametrize("part", ["name", "digest"])
def test_neither_name_nor_digest_of_an_array_lead_out_of_a_record(store: Store, location: str, part: str) -> None:
    store.put(KEY, TRIAL, RECORDED)
    files, record = record_of(location)
    body = json.loads(files.cat_file(record))
    if part == "name":
        body["arrays"] = {"../../../../../../tmp/secret": body["arrays"]["table"]}
    else:
        body["arrays"]["table"]["digest"] = "../../../outside"
        files.pipe_file(record.replace("record.json", "outside.table.npy"), b"of somebody else")
    del body["digest"]
    files.pipe_file(record, json.dumps({**body, "digest": digest(body)}).encode())
    before = set(Path(tempfile.gettempdir()).iterdir())
    assert store.get(KEY) is None
    assert not [path for path in set(Path(tempfile.gettempdir()).iterdir()) - before if "outside" in path.name]


def test_what_is_no_record_is_left_out_and_swept(store: Store, location: str) -> None:
    store.put(KEY, TRIAL, RECORDED)
    files, root = files_of(location)
    for foreign in ("ab/notes", f"zz/{OTHER}", "record"):
        files.makedirs(f"{root}/trials/{foreign}", exist_ok=True)
        files.pipe_file(f"{root}/trials/{foreign}/record.json", b"{}")
    assert list(store.keys()) == [KEY]
    assert [entry.key for entry in store.entries()] == [KEY]
    store.put(OTHER, TRIAL, RECORDED)
    files.pipe_file(record_of(location, OTHER)[1], b"{")
    assert store.get(OTHER) is None
    assert store.sweep() > 0
    assert store.sweep() == 0
    assert not files.exists(f"{root}/damaged/{OTHER}/record.json")
    assert store.get(KEY) is not None


def test_arrays_without_a_record_are_swept_after_a_day(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before that they may belong to a commit of another process, which puts its record last."""
    if "://" not in location:
        pytest.skip("a folder's records arrive by one rename")
    store = Store(location)
    store.put(KEY, TRIAL, RECORDED)
    files, root = files_of(location)
    files.rm_file(record_of(location)[1])
    files.pipe_file(f"{root}/tmp/dpspec-store-probe", b"")
    left = [path for path in files.find(root) if "/trials/" in path or "/tmp/" in path]
    assert len(left) == 2
    assert store.sweep() == 0
    assert all(map(files.exists, left))
    now = time.time()
    monkeypatch.setattr("dpspec.stores.remote.time.time", lambda: now + 90_000.0)
    assert store.sweep() > 0
    assert not any(map(files.exists, left))


def test_writers_at_once_leave_one_whole_record(store: Store, location: str) -> None:
    trials = [Trial(index=0, evidence=FrozenMap({"of": n}), arrays={"table": TABLE + n}) for n in range(6)]
    kept: list[Any] = []

    def write(trial: Trial) -> None:
        kept.append(Store(location).put(KEY, trial, FrozenMap()).trial)

    threads = [threading.Thread(target=write, args=(trial,)) for trial in trials]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = store.get(KEY)
    assert last is not None
    assert [trial.evidence for trial in kept] == [last.trial.evidence] * 6
    assert np.array_equal(last.trial.arrays["table"], TABLE + last.trial.evidence["of"])


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    Store(f"file://{tmp_path}/store").put(KEY, TRIAL, RECORDED)
    assert list(Store(tmp_path / "store").keys()) == [KEY]


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("s3://bucket/audits", "s3://bucket/audits"),
        ("ftp://me:p@ss:word@host:21/a@b:c", "ftp://me:***@host:21/a@b:c"),
        ("abfs://box@account/audits?sig=abc&x=1", "abfs://box@account/audits?***"),
        ("C:\\audits?", "C:\\audits?"),
    ],
)
def test_secrets_of_a_url_are_not_shown(url: str, seen: str) -> None:
    assert shown(url) == seen


def test_no_error_shows_a_secret() -> None:
    with pytest.raises(UsageError, match="cannot use the store nonsense://") as raised:
        Store("nonsense://me:secret@host/audits")
    assert "secret" not in str(raised.value)
    store = Store("memory://unreachable")
    store._storage = RemoteStorage(_Refusing(), "root", "ftp://me:secret@host/x")
    assert store.location == "ftp://me:***@host/x"
    for use in (lambda: store.get(KEY), lambda: store.put(KEY, TRIAL, RECORDED)):
        with pytest.raises(UsageError, match=r"cannot use the store .*: no route to ftp://me:\*\*\*@host/x"):
            use()
    assert "no route" in (store.refusal() or "")


def test_a_record_that_two_put_at_once_is_put_again(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "://" not in location:
        pytest.skip("a folder")
    store = Store(location)
    files, refusals = store._storage._files, [1, 2]  # type: ignore[attr-defined]
    create = files.pipe_file

    def refuse(path: str, content: bytes, **options: Any) -> None:
        if refusals and options:
            refusals.pop()
            raise RuntimeError("conflict")
        create(path, content, **options)

    monkeypatch.setattr(files, "pipe_file", refuse)
    monkeypatch.setattr("dpspec.stores.remote._PAUSES", (0.0, 0.0))
    store.put(KEY, TRIAL, RECORDED)
    assert refusals == []
    refusals.extend([1, 2, 3])
    with pytest.raises(UsageError, match="conflict"):
        store.put(OTHER, TRIAL, RECORDED)


class _Refusing:
    """A file system that has gone away."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*arguments: Any, **options: Any) -> None:
            raise RuntimeError("no route\nto ftp://me:secret@host/x")

        return refuse


def test_a_record_that_is_set_aside_while_it_is_put_is_put_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename
    refused: list[Path] = []

    def once(path: Path, target: Path) -> Path:
        """There was a record, and when one looks, another process has taken it away."""
        if target.name == KEY and not refused:
            refused.append(path)
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", once)
    assert Store(tmp_path).put(KEY, TRIAL, RECORDED).record.key == KEY
    assert len(refused) == 1
    assert list(Store(tmp_path).keys()) == [KEY]


def test_a_run_that_was_killed_goes_on(tmp_path: Path, location: str) -> None:
    specs = counting.load(tmp_path)

    def audited() -> Result:
        return run(specs, counting.catalog(), store=Store(location))

    def die(index: int) -> None:
        if index == 3:
            raise KeyboardInterrupt

    counting.HOOKS.append(die)
    with pytest.raises(KeyboardInterrupt):
        audited()
    counting.HOOKS.clear()
    result = audited()
    assert counting.RAN == [0, 1, 2, 3, 4]
    assert verify(result, counting.catalog(), store=Store(location)) == ()
    again = audited()
    assert counting.RAN == [0, 1, 2, 3, 4]
    assert again.audits[0].trials == result.audits[0].trials
    assert {entry.spec for entry in Store(location).entries()} == {"coin"}
    assert {entry.kind for entry in Store(location).entries()} == {"counting"}
