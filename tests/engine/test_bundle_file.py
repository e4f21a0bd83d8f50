"""Bundles: one file for the records of up to 256 trials, with the same safety as single records."""

import hashlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from support import counting
from support.record_files import record_files, unbundle

from dpspec.contract import FrozenMap, Trial
from dpspec.contract.results import Result
from dpspec.engine.running.runner import run
from dpspec.engine.storage import bundle_file, trial_store
from dpspec.engine.storage import stored_trials as trials_of_plans
from dpspec.engine.storage.array_files import DamageError
from dpspec.engine.storage.bundle_file import TRIALS, read_bundle
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import stored_trials, verify
from dpspec.stores import BUNDLE, FolderStorage

KEYS = {index: hashlib.sha256(str(index).encode()).hexdigest() for index in range(12)}
NAME = KEYS[0]


def trial(index: int) -> Trial:
    arrays = {"table": np.arange(6.0) + index, "large": np.arange(40_000.0)[: 40_000 * (index == 3)]}
    return Trial(index=index, evidence=FrozenMap({"of": index}), arrays=arrays)


def kept(location: str, key: bytes | None = None) -> Store:
    """A store with one bundle."""
    store = Store(location, key)
    store.bundle([store.put(KEYS[index], trial(index), FrozenMap()) for index in KEYS])
    return store


@pytest.fixture(params=["folder", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "folder" else f"memory://{uuid.uuid4().hex}"


def many(folder: Path, runs: int) -> Callable[..., Result]:
    specs = counting.load(folder, text=counting.EXAMPLE.replace("runs: 5", f"runs: {runs}"))
    return lambda store=None: run(specs, counting.catalog(), store=store or Store(folder / "store"))


def place(folder: Path) -> Path:
    return folder / "trials" / NAME[:2] / f"{NAME}{BUNDLE}"


def is_intact(found: dict[int, Any], indices: set[int]) -> bool:
    return found.keys() == indices and all(
        np.array_equal(found[index].trial.arrays[name], array)
        for index in indices
        for name, array in trial(index).arrays.items()
    )


@pytest.mark.ci
@pytest.mark.parametrize("limit", [24, pytest.param(TRIALS, marks=pytest.mark.ci)])
def test_an_audit_of_many_trials_needs_one_file_for_each_limit(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (bundle_file, trials_of_plans, trial_store):
        monkeypatch.setattr(module, "TRIALS", limit)
    audited = many(tmp_path, limit + 6)
    result = audited()
    files = [file for file in (tmp_path / "store").rglob("*") if file.is_file()]
    assert sorted(file.suffix for file in files) == [BUNDLE, BUNDLE, ".json"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    again = audited()
    assert again.audits[0].stored_trials == limit + 6 == len(counting.RAN)
    assert again.audits[0].trials == result.audits[0].trials
    store = Store(tmp_path / "store", only_read=True)
    assert verify(again, counting.catalog(), store=store) == ()
    assert stored_trials(again, store) == (limit + 6, 0)
    more = many(tmp_path, 2 * limit + 1)()
    assert more.audits[0].stored_trials == limit + 6
    assert many(tmp_path, 2 * limit + 1)().audits[0].trials == more.audits[0].trials


def test_bundled_trials_are_those_that_were_put(location: str) -> None:
    kept(location)
    store = Store(location)
    found = store.get_all(KEYS)
    assert is_intact(found, set(KEYS))
    assert isinstance(found[3].trial.arrays["large"], np.memmap)
    assert store.get(KEYS[1]) is None  # a single record is not needed
    some = {index: KEYS[index] for index in (2, 5)}
    assert store.get_all(some) == {}
    assert is_intact(store.get_all(some, planned=KEYS), {2, 5})
    again = store.put(KEYS[2], Trial(index=2, evidence=FrozenMap({"of": "another"})), FrozenMap(), NAME)
    assert again.trial.evidence["of"] == 2
    store.bundle(list(found.values()))
    assert store.get(KEYS[2]) is None


@pytest.mark.ci
@pytest.mark.parametrize("count", [8, pytest.param(12, marks=pytest.mark.ci)])
def test_each_flipped_bit_costs_the_trials_that_it_hits(count: int, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    kept(str(folder))
    whole = place(folder).read_bytes()
    records = read_bundle(place(folder)).records
    head = min(start for files in records.values() for start, _ in files.values())
    for at in [*range(0, head, head // 6), head - 1, *range(head, len(whole), len(whole) // count)]:
        hit = {
            index
            for index, key in KEYS.items()
            for start, size in records[key].values()
            if at < head or start <= at < start + size
        }
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        shutil.rmtree(folder / "trials")
        place(folder).parent.mkdir(parents=True)
        place(folder).write_bytes(changed)
        if at < head and not _is_read(place(folder)):
            assert hit == set(KEYS)
        elif at < head:  # padding
            hit = set()
        only_read = Store(folder, only_read=True)
        assert is_intact(only_read.get_all(KEYS), set(KEYS) - hit)
        assert only_read.damaged == {KEYS[index] for index in hit}
        assert place(folder).read_bytes() == changed
        notes: list[str] = []
        store = Store(folder)
        assert is_intact(store.get_all(KEYS, notes.append), set(KEYS) - hit)
        assert len(notes) == len(hit)
        assert place(folder).exists() == (not hit)
        store.bundle([store.put(KEYS[index], trial(index), FrozenMap(), NAME) for index in KEYS])
        assert is_intact(Store(folder).get_all(KEYS), set(KEYS))


def _is_read(file: Path) -> bool:
    try:
        read_bundle(file)
    except DamageError:
        return False
    return True


@pytest.mark.family
@pytest.mark.parametrize("cut", [0, 10, 200, 2000, 9000])
def test_a_truncated_bundle_keeps_the_records_before_its_end(location: str, cut: int) -> None:
    store = kept(location)
    files, root = (None, location) if "://" not in location else (store._storage._files, store._storage._root)
    if files is None:
        os.truncate(place(Path(location)), cut)
    else:
        path = f"{root}/trials/{NAME[:2]}/{NAME}{BUNDLE}"
        files.pipe_file(path, files.cat_file(path)[:cut])
    notes: list[str] = []
    fresh = Store(location)
    found = fresh.get_all(KEYS, notes.append)
    assert is_intact(found, set(found))
    assert len(found) + len(notes) == len(KEYS)
    assert (len(found) > 0) == (cut == 9000)
    assert is_intact(Store(location).get_all(KEYS), set(found))


@pytest.mark.family
@pytest.mark.parametrize(
    "stop", ["write_bundle", "read_bundle", "commit_bundle", "remove"], ids=lambda where: f"in {where}"
)
def test_a_kill_while_trials_are_bundled_loses_none(tmp_path: Path, stop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    audited = many(tmp_path, 5)
    with monkeypatch.context() as patch:
        patch.setattr(FolderStorage if hasattr(FolderStorage, stop) else trial_store, stop, die)
        with pytest.raises(KeyboardInterrupt):
            audited()
    assert counting.RAN == [0, 1, 2, 3, 4]
    assert audited().audits[0].stored_trials == 5
    assert not list((tmp_path / "store" / "tmp").rglob("*.json"))
    assert len(record_files(tmp_path / "store")) == 5


def test_trials_that_another_process_bundles_meanwhile_are_found(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(location)
    trials = [store.put(KEYS[index], trial(index), FrozenMap()) for index in KEYS]
    reader, single = Store(location), Store._get_single

    def bundled_first(self: Store, keys: Any, *options: Any) -> Any:
        if self is reader:
            store.bundle(trials)
        return single(self, keys, *options)

    monkeypatch.setattr(Store, "_get_single", bundled_first)
    notes: list[str] = []
    assert is_intact(reader.get_all(KEYS, notes.append), set(KEYS))
    assert notes == []


def test_writers_at_once_keep_the_same_trials(location: str) -> None:
    Store(location)._storage.mark()

    def write(writer: int) -> list[Any]:
        store = Store(location)
        found = []
        for index in KEYS:
            own = Trial(index=index, evidence=FrozenMap({"of": index, "by": writer}))
            found.append(store.put(KEYS[index], own, FrozenMap(), NAME))
        store.bundle(found)
        return [stored.trial.evidence for stored in found]

    with ThreadPoolExecutor(4) as threads:
        written = list(threads.map(write, range(4)))
    stored = Store(location).get_all(KEYS)
    assert written == 4 * [[stored[index].trial.evidence for index in KEYS]]


def test_only_sealed_records_of_a_bundle_are_read(tmp_path: Path) -> None:
    kept(str(tmp_path / "store"), b"k" * 32)
    assert len(Store(tmp_path / "store", b"k" * 32).get_all(KEYS)) == len(KEYS)
    assert Store(tmp_path / "store", b"o" * 32, only_read=True).get_all(KEYS) == {}
    assert len(Store(tmp_path / "store").get_all(KEYS)) == len(KEYS)


@pytest.fixture
def synchronized(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors of each ``fsync``."""
    descriptors: list[int] = []
    monkeypatch.setattr(os, "fsync", descriptors.append)
    return descriptors


def test_fast_trials_are_synchronized_with_their_bundle(tmp_path: Path, synchronized: list[int]) -> None:
    many(tmp_path, 40)()
    assert 2 <= len(synchronized) <= 4  # the bundle and its folder


def test_each_slow_trial_is_synchronized(
    tmp_path: Path, synchronized: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpspec.engine.storage.stored_trials._DURABLE_SECONDS", 0.0)
    many(tmp_path, 40)()
    assert len(synchronized) >= 40 * 2  # each record has a file and a folder


def test_a_bundle_has_a_maximum_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_file, "MAX_BYTES", 20_000)
    store = kept(str(tmp_path / "store"))
    assert not place(tmp_path / "store").exists()
    assert is_intact(store.get_all(KEYS), set(KEYS))


HOSTILE = {
    "a start before the files": {NAME: {"record.json": [-200, 20]}},
    "a negative size": {NAME: {"record.json": [0, -1]}},
    "a size of 2 EB": {NAME: {"record.json": [0, 1 << 61]}},
    "a fraction": {NAME: {"record.json": [0.0, 20]}},
    "text": {NAME: {"record.json": "ab"}},
    "three numbers": {NAME: {"record.json": [0, 1, 2]}},
    "a path as key": {"../../../etc/passwd": {"record.json": [0, 20]}},
    "a list": [NAME],
    "too many records": {f"{n:064x}": {} for n in range(TRIALS + 1)},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_an_impossible_index_is_damage(tmp_path: Path, what: str) -> None:
    write(tmp_path / "x", HOSTILE[what])
    with pytest.raises(DamageError, match="its bundle's index"):
        read_bundle(tmp_path / "x")


def write(file: Path, index: object, content: bytes = b"") -> None:
    encoded = json.dumps(index).encode()
    line = f"dpspec/trials/v1 {len(encoded)} {hashlib.sha256(encoded).hexdigest()}\n".encode()
    file.write_bytes((line + encoded).ljust(-(-(len(line) + len(encoded)) // 64) * 64, b"\n") + content)


def test_a_forged_name_leads_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    kept(str(folder))
    bundle = read_bundle(place(folder))
    start = min(start for files in bundle.records.values() for start, _ in files.values())
    index = {
        key: {name: [part[0] - start, part[1]] for name, part in files.items()} for key, files in bundle.records.items()
    }
    index[KEYS[1]]["../../../../outside"] = [0, 20]
    del index[KEYS[2]]["record.json"]
    write(place(folder), index, place(folder).read_bytes()[start:])
    found = Store(folder).get_all(KEYS)
    assert is_intact(found, set(KEYS) - {2})
    assert not list(tmp_path.rglob("outside*"))
    assert is_intact(Store(folder).get_all(KEYS), set(KEYS) - {2})


@pytest.mark.skipif(os.name != "posix", reason="needs pipes")
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_set_aside(tmp_path: Path, make: Callable[[Path], object]) -> None:
    folder = tmp_path / "store"
    store = kept(str(folder))
    place(folder).unlink()
    make(place(folder))
    notes: list[str] = []
    assert store.get_all(KEYS, notes.append) == {}
    assert len(notes) == len(KEYS)
    assert is_intact({0: store.put(KEYS[0], trial(0), FrozenMap(), NAME)}, {0})


def test_single_records_of_earlier_versions_stay_readable(tmp_path: Path) -> None:
    audited = many(tmp_path, 7)
    result = audited()
    unbundle(tmp_path / "store")
    assert len(list((tmp_path / "store").rglob("record.json"))) == 7
    assert audited().audits[0].trials == result.audits[0].trials
    assert len(counting.RAN) == 7


_ENGINE = os.path.join("dpspec", "engine", "")


def calls(of: Callable[[], object]) -> int:
    """The number of calls in the engine; those of attack tests depend on the numbers that trials drew."""
    made = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal made
        made += event in ("call", "c_call") and _ENGINE in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        of()
    finally:
        sys.setprofile(None)
    return made


@pytest.mark.ci
def test_time_is_linear_in_the_number_of_trials(tmp_path: Path) -> None:
    counts: dict[str, list[int]] = {"found": [], "verified": [], "single": []}
    for runs in (2, 20, 40, 80):  # the first one imports what the others use
        (tmp_path / str(runs)).mkdir()
        audited = many(tmp_path / str(runs), runs)
        result, store = audited(), Store(tmp_path / str(runs) / "store")
        counts["found"].append(calls(audited))
        counts["verified"].append(calls(partial(verify, result, counting.catalog(), store=store)))
        unbundle(tmp_path / str(runs) / "store")
        counts["single"].append(calls(audited))
    for _, first, second, third in counts.values():
        assert third - second == pytest.approx(2 * (second - first), rel=0.05)
