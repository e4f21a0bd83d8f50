"""What lies in a store in place of a record's files: pipes, devices, links, files without an end, headers that lie."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dpspec.contract import FrozenMap, Trial
from dpspec.contract.frozen import digest
from dpspec.engine.storage.trial_store import ArrayError, Store, file_digest, read_array

KEY = "ab" * 32
TRIAL = Trial(index=0, evidence=FrozenMap({"hits": 3}), arrays={"x": np.arange(9.0)})

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs pipes and links")


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """What hangs fails."""

    def late(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(500)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def sparse(place: Path) -> None:
    with place.open("wb") as out:
        out.truncate(20 << 30)


IN_THE_WAY = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a file of 20 GB": sparse,
    "a link to itself": lambda place: place.symlink_to(place.name),
    "a broken link": lambda place: place.symlink_to("nowhere"),
    "a link to /dev/zero": lambda place: place.symlink_to("/dev/zero"),
    "an empty file": Path.touch,
}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "store")
    store.put(KEY, TRIAL, FrozenMap({"spec": "s"}))
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
    list(store.keys())
    list(store.entries())
    told: list[str] = []
    assert store.get(KEY, told.append) is None
    assert told
    assert store.put(KEY, TRIAL, FrozenMap()).trial.arrays["x"].sum() == 36.0
    store.remove(KEY)
    store.sweep()


def saved(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def with_header(text: str, body: bytes = b"\0" * 72, version: int = 1) -> bytes:
    width = 2 if version == 1 else 4
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(width, "little") + text.encode() + body


HEADER = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }          \n"
LIES = {
    "a huge shape": with_header(HEADER % ("<f8", "(1099511627776,)")),
    "2^64 numbers": with_header(HEADER % ("<f8", f"({2**64},)")),
    "many dimensions": with_header(HEADER % ("<f8", f"({'2, ' * 64})")),
    "an open bracket": with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (9,), "),
    "an open type": with_header(HEADER % ("f8,(", "(9,)")),
    "nested brackets": with_header("(" * 3000 + ")" * 3000),
    "a longer header than file": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "no header": b"\x93NUMPY\x01\x00",
    "Python objects": with_header(HEADER % ("|O", "(9,)")),
    "texts": saved(np.array(["a"] * 9)),
    "dates": saved(np.array(["2020-01-01"] * 9, dtype="M8[D]")),
    "complex numbers": saved(np.arange(9) + 1j),
    "bytes": saved(np.array([b"x"] * 9)),
    "a structure": saved(np.zeros(9, dtype=[("a", "f8")])),
    "fewer numbers": with_header(HEADER % ("<f8", "(9,)"), b"\0" * 71),
    "more numbers": with_header(HEADER % ("<f8", "(9,)"), b"\0" * 73),
    "a call": with_header("__import__('os').system('touch owned')"),
}


@pytest.mark.parametrize("what", LIES)
@pytest.mark.parametrize("vouched", [False, True])
def test_headers_that_lie_are_not_believed(store: Store, what: str, vouched: bool) -> None:
    """``vouched``: the record says the same of type and shape as the header, as whoever writes one can."""
    folder = Path(store.location) / "trials" / KEY[:2] / KEY
    (folder / "x.npy").write_bytes(LIES[what])
    body = json.loads((folder / "record.json").read_bytes())
    body.pop("digest")
    body["arrays"]["x"]["digest"] = file_digest(folder / "x.npy")
    if vouched:
        shape = {"a huge shape": [2**40], "2^64 numbers": [2**64], "many dimensions": [2] * 64}.get(what, [9])
        dtype = {"texts": "<U1", "dates": "datetime64[D]", "complex numbers": "complex128", "bytes": "|S1"}
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
        np.array([True, False]),
        np.arange(1 << 16, dtype=np.float64),
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
        with pytest.raises(ArrayError):
            read_array(file, dtype, shape, file_digest(file))


@pytest.mark.parametrize("array", [np.arange(3) + 1j, np.array(["a"]), np.array(["2020"], dtype="M8[Y]")])
def test_what_would_not_be_read_is_not_written(store: Store, array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="not complex"):
        store.put("cd" * 32, Trial(index=0, evidence=FrozenMap({}), arrays={"x": array}), FrozenMap())
