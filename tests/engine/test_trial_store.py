"""Shared stores: records without a valid seal are rejected, even with a valid digest."""

import dataclasses
import hashlib
import io
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support import counting
from support.record_files import unbundle

from dpspec.contract import FrozenMap, Trial
from dpspec.contract.catalog import Catalog
from dpspec.contract.frozen import canonical_json, digest
from dpspec.contract.results import Result
from dpspec.engine.running.runner import run
from dpspec.engine.storage.array_files import DamageError, file_digest, read_array
from dpspec.engine.storage.trial_store import Store, read_key, seal_of
from dpspec.engine.verify import verify
from dpspec.errors import UsageError

KEY = "ab" * 32
TRIAL = Trial(index=3, evidence=FrozenMap({"scores": [0.5, -1.25], "coins": "01"}), arrays={"table": np.arange(6.0)})


def test_nothing_half_written_is_ever_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", die)
    with pytest.raises(KeyboardInterrupt):
        store.put(KEY, TRIAL, FrozenMap())
    monkeypatch.undo()
    assert store.get(KEY) is None
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("evidence", [{"x": float("nan")}, {"x": float("inf")}, {"x": "y" * (1 << 20)}])
def test_evidence_is_finite_json_of_at_most_a_mebibyte(tmp_path: Path, evidence: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"JSON|bytes"):
        Store(tmp_path).put(KEY, Trial(index=0, evidence=FrozenMap(evidence)), FrozenMap())


@pytest.mark.parametrize("key", ["", "../../etc", "AB" * 32, "ab" * 31])
def test_keys_cannot_leave_the_store(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="not a trial key"):
        Store(tmp_path).get(key)


def test_a_damaged_record_that_another_process_set_aside_first_is_absent(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.put(KEY, TRIAL, FrozenMap())
    (tmp_path / "trials" / KEY[:2] / KEY / "record.json").write_text("{")

    def gone(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "rename", gone)
    assert store.get(KEY) is None


def test_what_an_unfinished_trial_needs_goes_with_its_end(tmp_path: Path) -> None:
    store, other = Store(tmp_path), "cd" * 32
    for key in (KEY, other):
        store.unfinished(key).mkdir(parents=True)
        (store.unfinished(key) / "state.npz").write_bytes(b"12345")
    store.put(KEY, TRIAL, FrozenMap())
    assert not store.unfinished(KEY).exists()
    assert store.unfinished(other).is_dir()
    store.unfinished(KEY).mkdir()
    store.put(KEY, TRIAL, FrozenMap())  # of a process that was slower
    assert not store.unfinished(KEY).exists()
    with pytest.raises(ValueError, match="not a trial key"):
        store.unfinished("../../etc")


@pytest.mark.parametrize("part", ["index", "evidence", "arrays", "recorded"])
def test_a_record_of_other_types_or_of_another_trial_is_damaged(tmp_path: Path, part: str) -> None:
    store = Store(tmp_path)
    store.put(KEY, TRIAL, FrozenMap())
    assert store.get(KEY, index=3) is not None
    notes: list[str] = []
    assert store.get(KEY, notes.append, index=5) is None
    assert "of trial 3, not of 5" in notes[0]
    store.put(KEY, TRIAL, FrozenMap())
    file = tmp_path / "trials" / "ab" / KEY / "record.json"
    body = {**json.loads(file.read_text(encoding="utf-8")), part: ["x"]}
    del body["digest"]
    file.write_text(canonical_json({**body, "digest": digest(body)}), encoding="utf-8")
    assert store.get(KEY, notes.append) is None
    assert "damaged" in notes[1]


KEY_1, OTHER = b"k" * 32, b"o" * 32


@pytest.mark.parametrize(("wrote", "reads", "believed"), [
    (KEY_1, KEY_1, True), (KEY_1, None, True), (None, None, True), (KEY_1, OTHER, False), (None, KEY_1, False),
])  # fmt: skip
def test_only_what_the_key_sealed_is_believed(tmp_path: Path, wrote, reads, believed: bool) -> None:
    Store(tmp_path / "s", wrote).put(KEY, TRIAL, FrozenMap())
    notes: list[str] = []
    found = Store(tmp_path / "s", reads).get(KEY, notes.append)
    assert (found is not None) == believed
    assert bool(notes) != believed
    again = Store(tmp_path / "s", reads).put(KEY, TRIAL, FrozenMap())
    assert again.trial.evidence["coins"] == "01"


def test_a_store_that_is_only_read_keeps_what_others_sealed(tmp_path: Path) -> None:
    Store(tmp_path / "s", KEY_1).put(KEY, TRIAL, FrozenMap())
    assert Store(tmp_path / "s", OTHER, only_read=True).get(KEY) is None
    assert Store(tmp_path / "s", KEY_1).get(KEY) is not None


def test_evidence_that_was_changed_with_its_digest_is_not_believed(tmp_path: Path) -> None:
    Store(tmp_path / "s", KEY_1).put(KEY, dataclasses.replace(TRIAL, arrays={}), FrozenMap())
    file = tmp_path / "s" / "trials" / KEY[:2] / KEY / "record.json"
    body = json.loads(file.read_text())
    seal = body.pop("seal")
    body.pop("digest")
    body["evidence"]["coins"] = "11"
    forged = {**body, "digest": digest(body)}
    plain = hashlib.sha256(forged["digest"].encode()).hexdigest()
    for each in (seal, "", None, 3, "0" * 64, "é", plain, seal_of(OTHER, forged["digest"])):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**forged, "seal": each}))
        assert Store(tmp_path / "s", KEY_1).get(KEY) is None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**forged, "seal": seal_of(KEY_1, forged["digest"])}))
    assert Store(tmp_path / "s", KEY_1).get(KEY) is not None


def test_the_seal_is_hmac_sha256() -> None:
    inner = bytes(b ^ 0x36 for b in KEY_1.ljust(64, b"\0"))
    outer = bytes(b ^ 0x5C for b in KEY_1.ljust(64, b"\0"))
    message = b"dpspec/trial/v1\0" + b"d" * 64
    expected = hashlib.sha256(outer + hashlib.sha256(inner + message).digest()).hexdigest()
    assert seal_of(KEY_1, "d" * 64) == expected


def test_keys_are_secrets_in_files(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY_1 + b"\n")
    assert read_key(tmp_path / "key") == KEY_1
    assert read_key(None) is None
    (tmp_path / "short").write_bytes(b"secret")
    (tmp_path / "long").write_bytes(b"x" * 5000)
    for name in ("short", "long", "nowhere", "."):
        with pytest.raises(UsageError):
            read_key(tmp_path / name)


def revised(**revisions: int) -> Catalog:
    catalog = counting.catalog()
    for family, revision in revisions.items():
        offers = getattr(catalog, family)
        changed = {
            name: dataclasses.replace(one, provider=dataclasses.replace(one.provider, trial_revision=revision))
            for name, one in offers.items()
        }
        catalog = dataclasses.replace(catalog, **{family: FrozenMap(changed)})
    return catalog


@pytest.fixture
def made_1(tmp_path: Path) -> Callable[[Catalog], Result]:
    return lambda catalog: run(counting.load(tmp_path, known=catalog), catalog, store=Store(tmp_path / "store"))


def test_a_line_for_every_plugin_that_was_revised(made_1) -> None:
    backend, mechanism = verify(made_1(revised(mechanisms=2, backends=3)), revised(mechanisms=3, backends=1))
    for line, part, before, after in ((mechanism, "mechanism", 2, 3), (backend, "backend", 3, 1)):
        assert line.what.startswith(f"5 trials, {part} ")
        assert line.differs
        assert f"revision {before}" in line.before
        assert f"revision {after}" in line.after


@pytest.mark.parametrize(("now", "lines"), [(1, []), (2, ["5 trials, key"])])
def test_a_record_that_names_no_revision_is_compared_with_what_is_installed(made_1, now: int, lines: list[str]) -> None:
    result = made_1(counting.catalog())
    (audit,) = result.audits
    old = tuple(
        dataclasses.replace(trial, recorded=FrozenMap({k: v for k, v in trial.recorded.items() if k != "by"}))
        for trial in audit.trials
    )
    edited = dataclasses.replace(result, audits=(dataclasses.replace(audit, trials=old),))
    assert [one.what for one in verify(edited, revised(mechanisms=now)) if one.differs] == lines


def test_an_error_from_trials_of_the_store_names_it(tmp_path: Path) -> None:
    specs, catalog, store = counting.load(tmp_path), counting.catalog(), tmp_path / "store"
    result = run(specs, catalog, store=Store(store))
    unbundle(store)
    for file in store.rglob("record.json"):
        body = json.loads(file.read_text(encoding="utf-8"))
        del body["digest"]
        body["evidence"]["hits"] = "many"
        file.write_text(canonical_json({**body, "digest": digest(body)}), encoding="utf-8")
    with pytest.raises(UsageError, match=r"^coin: nothing follows from its trials .*5 of its trials are from"):
        run(specs, catalog, store=Store(store))
    shutil.rmtree(store)
    assert run(specs, catalog, store=Store(store)).audits[0].verdicts == result.audits[0].verdicts


ARRAYS = Trial(index=0, evidence=FrozenMap({"hits": 3}), arrays={"x": np.arange(9.0)})

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs pipes and links")


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(500)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


IN_THE_WAY = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a file of 20 GB": lambda place: (place.touch(), os.truncate(place, 20 << 30)),
    "a link to itself": lambda place: place.symlink_to(place.name),
    "a link to /dev/zero": lambda place: place.symlink_to("/dev/zero"),
    "an empty file": Path.touch,
}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "store")
    store.put(KEY, ARRAYS, FrozenMap({"spec": "s"}))
    return store


@pytest.mark.parametrize("name", ["record.json", "x.npy", ""])
@pytest.mark.parametrize("what", IN_THE_WAY)
def test_what_is_no_file_is_set_aside_and_made_again(store: Store, name: str, what: str) -> None:
    folder = Path(store.location) / "trials" / KEY[:2] / KEY
    place = folder / name if name else folder
    if name:
        place.unlink()
    else:
        folder.rename(folder.parent / "elsewhere")
    IN_THE_WAY[what](place)
    notes: list[str] = []
    assert store.get(KEY, notes.append) is None
    assert notes
    assert store.put(KEY, ARRAYS, FrozenMap()).trial.arrays["x"].sum() == 36.0


def saved(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def with_header(text: str, body: bytes = b"\0" * 72, version: int = 1) -> bytes:
    width = 2 if version == 1 else 4
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(width, "little") + text.encode() + body


HEADER = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }          \n"
FALSE_HEADERS = {
    "a huge shape": with_header(HEADER % ("<f8", "(1099511627776,)")),
    "an open bracket": with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (9,), "),
    "nested brackets": with_header("(" * 3000 + ")" * 3000),
    "a longer header than file": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "Python objects": with_header(HEADER % ("|O", "(9,)")),
    "texts": saved(np.array(["a"] * 9)),
    "complex numbers": saved(np.arange(9) + 1j),
    "fewer numbers": with_header(HEADER % ("<f8", "(9,)"), b"\0" * 71),
    "more numbers": with_header(HEADER % ("<f8", "(9,)"), b"\0" * 73),
    "a call": with_header("__import__('os').system('touch owned')"),
}


@pytest.mark.parametrize("what", FALSE_HEADERS)
@pytest.mark.parametrize("vouched", [False, True])
def test_false_headers_are_rejected(store: Store, what: str, vouched: bool) -> None:
    """``vouched``: the record repeats type and shape of the forged header."""
    folder = Path(store.location) / "trials" / KEY[:2] / KEY
    (folder / "x.npy").write_bytes(FALSE_HEADERS[what])
    body = json.loads((folder / "record.json").read_bytes())
    body.pop("digest")
    body["arrays"]["x"]["digest"] = file_digest(folder / "x.npy")
    if vouched:
        shape = [2**40] if what == "a huge shape" else [9]
        dtype = {"texts": "<U1", "complex numbers": "complex128"}
        body["arrays"]["x"] |= {"shape": shape, "dtype": dtype.get(what, "float64")}
    (folder / "record.json").write_text(json.dumps({**body, "digest": digest(body)}))
    assert store.get(KEY) is None
    assert not Path("owned").exists()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(9.0),
        np.arange(6, dtype=np.int8).reshape(2, 3),
        np.zeros((0, 4), dtype=np.float32),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(4, dtype=">u2"),
    ],
)
def test_arrays_come_back_as_numpy_reads_them(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", array)
    file = tmp_path / "x.npy"
    read = read_array(file, str(array.dtype), list(array.shape), file_digest(file))
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, np.load(file))
    with pytest.raises(ValueError, match="read-only"):
        read[...] = 0
    for dtype, shape in (("complex128", list(array.shape)), (str(array.dtype), [*array.shape, 1])):
        with pytest.raises(DamageError):
            read_array(file, dtype, shape, file_digest(file))


@pytest.mark.parametrize("array", [np.arange(3) + 1j, np.array(["a"]), np.array(["2020"], dtype="M8[Y]")])
def test_what_would_not_be_read_is_not_written(store: Store, array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="not complex"):
        store.put("cd" * 32, Trial(index=0, evidence=FrozenMap({}), arrays={"x": array}), FrozenMap())
