"""What holds of every store, wherever it keeps its records."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from dpspec.contract import FrozenMap, Trial
from dpspec.engine.store import Store
from dpspec.errors import UsageError
from dpspec.stores.remote import RemoteShelf

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
    assert isinstance(got.trial.arrays["table"], np.memmap)
    assert not got.trial.arrays["table"].flags.writeable
    assert list(store.keys()) == [KEY]
    assert store.refusal() is None


def test_a_list_says_what_each_trial_is(store: Store, location: str) -> None:
    store.put(KEY, TRIAL, RECORDED)
    store.put(OTHER, TRIAL, FrozenMap())
    files, record = record_of(location, OTHER)
    files.pipe_file(record, b"{")
    first, second = store.entries()
    assert (first.key, first.spec, first.kind, first.made) == (KEY, "coin", "counting", RECORDED["made"])
    assert first.size > TABLE.nbytes
    assert (second.key, second.spec) == (OTHER, "")


def test_a_record_is_written_once(store: Store) -> None:
    store.put(KEY, TRIAL, RECORDED)
    again = store.put(KEY, Trial(index=3, evidence=FrozenMap({"scores": "other"})), FrozenMap())
    assert again.trial.evidence == TRIAL.evidence


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
    assert Store(location).get(KEY, told.append) is None
    assert "damaged" in told[0]
    files, root = files_of(location)
    assert files.exists(f"{root}/damaged/{KEY}/record.json")
    assert np.array_equal(store.put(KEY, TRIAL, RECORDED).trial.arrays["table"], TABLE)
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


def test_an_array_name_cannot_lead_out_of_a_record(store: Store, location: str, tmp_path: Path) -> None:
    from dpspec.contract.canonical import digest

    np.save(tmp_path / "secret.npy", TABLE)
    store.put(KEY, TRIAL, RECORDED)
    files, record = record_of(location)
    body = json.loads(files.cat_file(record))
    body["arrays"] = {f"../../../../../..{tmp_path}/secret": body["arrays"]["table"]}
    del body["digest"]
    files.pipe_file(record, json.dumps({**body, "digest": digest(body)}).encode())
    assert store.get(KEY) is None


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


def test_removing(store: Store) -> None:
    store.put(KEY, TRIAL, RECORDED)
    store.remove(KEY)
    store.remove(KEY)
    assert store.get(KEY) is None
    assert list(store.keys()) == []


def test_a_store_travels_to_another_process(store: Store) -> None:
    store.put(KEY, TRIAL, RECORDED)
    assert list(pickle.loads(pickle.dumps(store)).keys()) == [KEY]  # noqa: S301 - our own


@pytest.mark.parametrize("url", ["nonsense://x", "s4://x"])
def test_an_unknown_protocol_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match=f"cannot use the store {url}"):
        Store(url)


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    Store(f"file://{tmp_path}/store").put(KEY, TRIAL, RECORDED)
    assert list(Store(tmp_path / "store").keys()) == [KEY]


class _Refusing:
    """A file system that has gone away."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*arguments: Any, **options: Any) -> None:
            raise RuntimeError("no route\nto host")

        return refuse


def test_a_store_that_cannot_be_reached_is_not_taken_for_a_damaged_one() -> None:
    store = Store("memory://unreachable")
    store._shelf = RemoteShelf(_Refusing(), "root", "s3://root")
    with pytest.raises(UsageError, match="cannot use the store s3://root: no route to host"):
        store.get(KEY)
    with pytest.raises(UsageError, match="no route"):
        store.put(KEY, TRIAL, RECORDED)
    assert "no route" in (store.refusal() or "")
