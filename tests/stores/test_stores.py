"""What holds of every store, wherever it keeps its records."""

import errno
import json
import os
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Barrier
from typing import Any, ClassVar

import fsspec
import fsspec.implementations.memory
import numpy as np
import pytest
from support import counting

from dpspec import stores
from dpspec.contract import FrozenMap, Trial
from dpspec.contract.frozen import digest
from dpspec.contract.results import Result
from dpspec.engine.running.runner import run
from dpspec.engine.storage import trial_store as store_module
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import UsageError
from dpspec.stores import MARK, RemoteStorage, shown

KEY, OTHER = "ab" * 32, "cd" * 32
TABLE = np.arange(6.0)
TRIAL = Trial(index=3, evidence=FrozenMap({"scores": [0.5, -1.25]}), arrays={"table": TABLE})
RECORDED = FrozenMap({"device": "cpu", "spec": "coin", "kind": "counting", "made": "2026-01-02T03:04:05+00:00"})

Files = Any


def files_of(location: str) -> tuple[Files, str]:
    return fsspec.core.url_to_fs(location, use_listings_cache=False)


def record_of(location: str, key: str = KEY) -> tuple[Files, str]:
    files, root = files_of(location)
    return files, f"{root}/trials/{key[:2]}/{key}/record.json"


def test_what_is_put_comes_back(store: Store) -> None:
    assert store.get(KEY) is None
    put = store.put(KEY, TRIAL, RECORDED)
    got = store.get(KEY)
    assert got is not None
    assert got.trial.evidence == TRIAL.evidence == put.trial.evidence
    assert np.array_equal(got.trial.arrays["table"], TABLE)
    assert not got.trial.arrays["table"].flags.writeable
    assert store.refusal() is None
    again = store.put(KEY, Trial(index=3, evidence=FrozenMap({"scores": "other"})), FrozenMap())
    assert again.trial.evidence == TRIAL.evidence  # a record is written once


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
        lambda files, record: files.pipe_file(record, b"[" * 100_000),
        _array(_truncate),
        _array(lambda files, array: files.rm_file(array)),
    ],
)
def test_a_damaged_record_is_reported_and_made_again(store, location, damage):
    store.put(KEY, TRIAL, RECORDED)
    damage(*record_of(location))
    notes: list[str] = []
    fresh = Store(location)
    assert fresh.get(KEY, notes.append) is None
    assert "damaged" in notes[0]
    files, root = files_of(location)
    assert files.exists(f"{root}/damaged/{KEY}/record.json")
    for again in (fresh, store):
        assert np.array_equal(again.put(KEY, TRIAL, RECORDED).trial.arrays["table"], TABLE)


def test_a_record_under_another_key_is_foreign(store: Store, location: str) -> None:
    store.put(KEY, TRIAL, RECORDED)
    files, record = record_of(location)
    _, foreign = record_of(location, OTHER)
    files.makedirs(foreign.rpartition("/")[0], exist_ok=True)
    files.pipe_file(foreign, files.cat_file(record))
    notes: list[str] = []
    assert store.get(OTHER, notes.append) is None
    assert "damaged" in notes[0]


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


def test_writers_at_once_leave_one_whole_record(store: Store, location: str) -> None:
    trials = [Trial(index=0, evidence=FrozenMap({"of": n}), arrays={"table": TABLE + n}) for n in range(4)]
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
    assert [trial.evidence for trial in kept] == [last.trial.evidence] * 4
    assert np.array_equal(last.trial.arrays["table"], TABLE + last.trial.evidence["of"])


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    Store(f"file://{tmp_path}/store").put(KEY, TRIAL, RECORDED)
    assert Store(tmp_path / "store").get(KEY) is not None


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
    monkeypatch.setattr("dpspec.stores._PAUSES", (0.0, 0.0))
    store.put(KEY, TRIAL, RECORDED)
    assert refusals == []
    refusals.extend([1, 2, 3])
    with pytest.raises(UsageError, match="conflict"):
        store.put(OTHER, TRIAL, RECORDED)


class _Refusing:
    def __getattr__(self, name: str) -> Any:
        def refuse(*arguments: Any, **options: Any) -> None:
            raise RuntimeError("no route\nto ftp://me:secret@host/x")

        return refuse


def test_a_record_that_is_set_aside_while_it_is_put_is_put_again(tmp_path, monkeypatch):
    rename = Path.rename
    refused: list[Path] = []

    def once(path: Path, target: Path) -> Path:
        if target.name == KEY and not refused:
            refused.append(path)
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", once)
    assert Store(tmp_path).put(KEY, TRIAL, RECORDED).record.key == KEY
    assert len(refused) == 1
    assert Store(tmp_path).get(KEY) is not None


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


BARE = Trial(index=0, evidence=FrozenMap({"x": 1}))


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def old(path: Path) -> None:
    path.mkdir(parents=True)
    os.utime(path, (0, 0))


def project(folder: Path) -> None:
    for part in ("unfinished", "damaged", "trials"):
        (folder / part).mkdir(parents=True)
        (folder / part / "thesis.tex").write_text("years of work", encoding="utf-8")
    old(folder / "tmp" / "notes")


def deep(folder: Path) -> None:
    Store(folder).put(KEY, BARE, FrozenMap())
    (folder / MARK).unlink()
    (folder / "trials" / KEY[:2] / KEY / "mine.txt").write_text("mine", encoding="utf-8")


def misplaced(folder: Path) -> None:
    (folder / "trials" / "00" / KEY).mkdir(parents=True)


def linked(folder: Path) -> None:
    elsewhere = folder.with_name("elsewhere")
    elsewhere.mkdir()
    folder.mkdir()
    (folder / "trials").symlink_to(elsewhere)


def marked(folder: Path, store: str, version: int) -> None:
    folder.mkdir()
    (folder / MARK).write_text(json.dumps({"store": store, "version": version}), encoding="utf-8")


wrong_mark, later = partial(marked, store="of shoes", version=1), partial(marked, store="dpspec", version=2)


@pytest.mark.parametrize("make", [project, deep, misplaced, linked, wrong_mark, later])
@pytest.mark.parametrize(
    "use",
    [
        lambda place: Store(place).put(OTHER, BARE, FrozenMap()),
        lambda place: Store(place).get(KEY),
        lambda place: Store(place).unfinished(KEY),
    ],
)
def test_a_foreign_folder_is_not_changed(tmp_path, make, use):
    folder = tmp_path / "folder"
    make(folder)
    before = tree(tmp_path)
    with pytest.raises(UsageError, match="store"):
        use(str(folder))
    assert tree(tmp_path) == before


@pytest.mark.parametrize("place", ["", "file://", "memory://"])
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
    store.put(KEY, BARE, FrozenMap())
    assert json.loads((tmp_path / "store" / MARK).read_text("utf-8")) == {"store": "dpspec", "version": 1}
    (tmp_path / "store" / "notes.txt").write_text("mine", encoding="utf-8")  # beside a mark: left alone, and no reason
    assert Store(tmp_path / "store").get(KEY) is not None
    assert (tmp_path / "store" / "notes.txt").exists()


@pytest.fixture(params=["memory", "s3"])
def root(request: pytest.FixtureRequest) -> str:
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else str(request.getfixturevalue("bucket"))


def test_a_foreign_object_store_is_not_changed(root: str) -> None:
    files, prefix = fsspec.core.url_to_fs(root)
    for name in ("damaged/thesis.tex", "tmp/notes", "trials/data.csv"):
        files.pipe_file(f"{prefix}/{name}", b"years of work")
    for use in (lambda: Store(root).put(KEY, BARE, FrozenMap()), lambda: Store(root).get(KEY)):
        with pytest.raises(UsageError, match="is not a store of trials"):
            use()
    assert "is not a store of trials" in str(Store(root).refusal())
    assert len(files.find(prefix)) == 3


def test_what_lies_behind_a_link_is_neither_read_nor_removed(tmp_path: Path) -> None:
    mine, planted = Store(tmp_path / "mine"), tmp_path / "planted"
    mine.put(KEY, BARE, FrozenMap())
    (planted / "trials").mkdir(parents=True)
    shutil.copy(tmp_path / "mine" / MARK, planted)
    (planted / "trials" / KEY[:2]).symlink_to(tmp_path / "mine" / "trials" / KEY[:2])
    before = tree(tmp_path / "mine")
    store = Store(planted)
    for what in (store.get, lambda key: store.put(key, BARE, FrozenMap())):
        with pytest.raises(UsageError, match="symbolic link"):
            what(KEY)
    assert tree(tmp_path / "mine") == before
    (planted / "unfinished").mkdir()
    (planted / "unfinished" / KEY).symlink_to(tmp_path / "mine")
    assert store.unfinished(KEY) is None
    assert store.unfinished(OTHER) is not None


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_writers_at_once_find_a_new_store_marked_by_one_of_them(tmp_path: Path, place: str) -> None:
    for attempt in range(15):
        location = str(tmp_path / str(attempt)) if place == "folder" else f"memory://{uuid.uuid4().hex}"
        stores, start = [Store(location) for _ in range(4)], Barrier(4)

        def write(store: Store, start: Barrier = start) -> bool:
            start.wait()
            return store.put(KEY, BARE, FrozenMap()).trial == BARE

        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(write, stores))


class NoBucket(fsspec.implementations.memory.MemoryFileSystem):
    """An object store without the bucket: reads find nothing, and writes fail as those of s3fs do."""

    protocol = "nobucket"

    def find(self, path: str, *options: Any, **named: Any) -> list[str]:
        raise FileNotFoundError(path)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **named: Any) -> None:
        raise FileNotFoundError("The specified bucket does not exist")


class Forbidden(NoBucket):
    protocol = "forbidden"

    def cat_file(self, *given: Any, **named: Any) -> bytes:
        raise PermissionError("Access Denied")


@pytest.mark.parametrize(
    ("files", "says"), [(NoBucket, "the bucket 'lost-bucket' does not exist"), (Forbidden, "Access Denied")]
)
def test_a_missing_bucket_is_named(files: type, says: str) -> None:
    fsspec.register_implementation(files.protocol, files, clobber=True)
    location = f"{files.protocol}://lost-bucket/store"
    store = Store(location)
    refusal = store.refusal()
    assert refusal is not None
    assert says in refusal
    with pytest.raises(UsageError, match=says):
        store.put(KEY, TRIAL, RECORDED)
    assert Store(location).exists()
    if files is NoBucket:
        assert store.get(KEY) is None


def test_stored_trials_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    previous = os.umask(0o022)
    try:
        Store(tmp_path / "new" / "store").put(KEY, TRIAL, RECORDED)
    finally:
        os.umask(previous)
    paths = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert len(paths) > 5
    assert {(path.is_dir(), path.stat().st_mode & 0o777) for path in paths} == {(True, 0o700), (False, 0o600)}


def test_a_flipped_bit_in_the_mark_is_named_and_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "store"
    Store(folder).put(KEY, TRIAL, RECORDED)
    whole = (folder / MARK).read_bytes()
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        (folder / MARK).write_bytes(changed)
        if whole[bit // 8 : bit // 8 + 1] == b"1" and bytes(changed[bit // 8 : bit // 8 + 1]).isdigit():
            with pytest.raises(UsageError, match=r"dpspec-store\.json says version .* is damaged: write"):
                Store(folder)
            continue
        store = Store(folder)
        assert f"{folder / MARK} is damaged (1 bytes differ)" in capsys.readouterr().err
        assert store.get(KEY) is not None
    (folder / MARK).write_bytes(b"#" + whole[1:])
    Store(folder).put(OTHER, TRIAL, RECORDED)
    assert (folder / MARK).read_bytes() == whole
    assert Store(folder).get(KEY) is not None


def test_a_mark_of_which_little_is_left_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    Store(folder).put(KEY, TRIAL, RECORDED)
    (folder / MARK).write_bytes(b"{\n")
    with pytest.raises(UsageError, match="Else give --store another folder") as failed:
        Store(folder)
    advice = re.search(r"write (\{.*\}) and a line end into it; its trials stay usable", str(failed.value))
    assert advice is not None
    (folder / MARK).write_text(f"{advice[1]}\n")
    assert Store(folder).get(KEY) is not None


class Unanswered(BaseHTTPRequestHandler):
    """An S3 without objects whose PUTs get no answer."""

    asked: ClassVar[list[str]] = []
    over: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        listing = b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>'
        found = "list-type" in self.path
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(listing) if found else 0))
        self.end_headers()
        self.wfile.write(listing if found else b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.asked.append(self.path)
        self.over.wait(30)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def unanswered(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a store on an S3 that never answers a PUT, with short limits."""
    pytest.importorskip("s3fs")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Unanswered)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stores, "_READ_SECONDS", 0.5)
    monkeypatch.setattr(stores, "_CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(stores, "_SILENT_SECONDS", 0.2)
    Unanswered.asked.clear()
    Unanswered.over.clear()
    fsspec.filesystem("s3").clear_instance_cache()
    yield "s3://bucket/store"
    Unanswered.over.set()
    server.shutdown()
    server.server_close()


def test_a_store_that_never_answers_is_given_up(unanswered: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"cannot use the store s3://bucket/store: .*[Tt]imeout"):
        Store(unanswered).put(KEY, TRIAL, RECORDED)
    assert 1 <= len(Unanswered.asked) <= 2
    assert "s3://bucket/store has not answered for 0.2 s" in capfd.readouterr().err


@pytest.mark.parametrize("size", [6, 10_000])
def test_an_array_without_an_answer_is_given_up(
    unanswered: str, monkeypatch: pytest.MonkeyPatch, size: int, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RemoteStorage, "mark", lambda self: None)  # the first PUT is that of an array
    array = Trial(index=3, evidence=FrozenMap(), arrays={"table": np.arange(float(size))})
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"cannot use the store s3://bucket/store: .*[Tt]imeout"):
        Store(unanswered).put(KEY, array, RECORDED)
    assert time.monotonic() - began < 20.0  # seconds; without a limit the server answers after 30
    assert "table.npy" in Unanswered.asked[0]
    assert "s3://bucket/store has not answered for 0.2 s" in capfd.readouterr().err


class Silent(fsspec.implementations.memory.MemoryFileSystem):
    """A store that receives nothing while ``silent``."""

    protocol = "silent"
    silent: ClassVar[bool] = True

    def pipe_file(self, *given: Any, **named: Any) -> None:
        if self.silent:
            raise TimeoutError("no answer")
        super().pipe_file(*given, **named)


def test_what_a_store_did_not_receive_is_kept_and_sent_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.register_implementation("silent", Silent, clobber=True)
    specs, url = counting.load(tmp_path), f"silent://{uuid.uuid4().hex}/store"
    unsent = str(tmp_path / ".dpspec" / "unsent")
    with pytest.raises(UsageError) as raised:
        run(specs, counting.catalog(), store=Store(url))
    assert f"no answer; trial {raised.value.args[0].split('trial ')[1][:12]} is kept in {unsent}" in str(raised.value)
    assert "the same command sends it next time" in str(raised.value)
    assert counting.RAN == [0]
    monkeypatch.setattr(Silent, "silent", False)
    store = Store(url)
    result = run(specs, counting.catalog(), store=store)
    assert counting.RAN == [0, 1, 2, 3, 4]
    assert result.audits[0].stored_trials == 1
    assert not list((tmp_path / ".dpspec").rglob("record.json"))
    assert verify(result, counting.catalog(), store=Store(url)) == ()
