"""Data of the Hugging Face Hub: facts as declared, rows checked against them, and messages without a network.

No test reaches the network: a stand-in replaces the function that fetches.
"""

import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from support.refused import refused

from dpspec.contract import DataError, DataSource
from dpspec.data import huggingface

Make = Callable[..., DataSource]

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TABLE: dict[str, Any] = {
    "name": "owner/set",
    "revision": COMMIT,
    "records": 3,
    "features": 2,
    "label": "y",
    "classes": 2,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPSPEC_DATA", str(tmp_path / "cache"))

    def shut(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", shut)
    return tmp_path / "cache"


def test_the_environment_chooses_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert huggingface.cache() == tmp_path / "cache"
    monkeypatch.delenv("DPSPEC_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert huggingface.cache() == tmp_path / "dpspec" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert huggingface.cache() == Path.home() / ".cache" / "dpspec" / "data"


def _schema_accepts(**options: Any) -> bool:
    try:
        jsonschema.validate({**TABLE, **options}, dict(huggingface.DATASET.schema))
    except jsonschema.ValidationError:
        return False
    return True


def test_huggingface_names_and_commits() -> None:
    assert _schema_accepts(config="plain", test_split="validation.matched", test_records=3)
    for wrong in ("set", "../set", "owner/..", "a/b/c", "/etc/passwd", "csv"):
        assert not _schema_accepts(name=wrong)
    for wrong in ("main", "v1.0", COMMIT[:39], COMMIT.upper()):
        assert not _schema_accepts(revision=wrong)
    for wrong in ("train[:10%]", "train+test", ""):
        assert not _schema_accepts(train_split=wrong)
    assert not _schema_accepts(trust_remote_code=True)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    pa = pytest.importorskip("pyarrow")
    found = SimpleNamespace(
        train=pa.table({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "y": [0, 1, 1]}),
        test=pa.table({"a": [4], "b": [5.5], "y": [0]}),
        asked=[],
    )

    def fetched(options: Any, split: str, folder: Path) -> Any:
        found.asked.append((split, folder))
        return getattr(found, split)

    monkeypatch.setattr(huggingface, "fetched", fetched)
    return found


def test_huggingface_tables(hub: SimpleNamespace, source: Make, folder: Path) -> None:
    made = source("huggingface", **TABLE, test_split="test", test_records=1)
    facts = made.facts()
    assert (facts.records, facts.test_records, facts.shape) == (3, 1, (2,))
    assert not hub.asked
    rows = made.load()
    assert hub.asked == [("train", folder), ("test", folder)]
    assert rows.train_x.tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert rows.train_y.tolist() == [0, 1, 1]
    assert rows.test_x.tolist() == [[4, 5.5]]
    refused(source("huggingface", **{**TABLE, "records": 4}), "huggingface owner/set (train): 3 records of 2")
    refused(
        source("huggingface", **TABLE, test_split="test", test_records=2),
        "huggingface owner/set (test): 1 records of 2 features, but the spec declares 2 of 2",
    )
    refused(source("huggingface", **TABLE, test_split="test"), "test_split and test_records require each other")


def test_huggingface_digests(source: Make) -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"config": "other"},
        {"revision": COMMIT[::-1]},
        {"train_split": "other"},
        {"classes": ["1", "0"]},
        {"columns": ["b", "a"]},
        {"features": [1, 1, 2]},
    ]
    assert len({source("huggingface", **{**TABLE, **v}).facts().digest for v in variants}) == len(variants)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    info = SimpleNamespace(download_size=None, dataset_size=None)

    class Builder(SimpleNamespace):
        def as_dataset(self, split: str) -> Any:
            return SimpleNamespace(with_format=lambda form: [(split, form)])

    def load_dataset_builder(*named: Any, **options: Any) -> Any:
        calls.append((named, options))
        return Builder(info=info, download_and_prepare=lambda: calls.append("prepared"))

    calls: list[Any] = []
    fake = SimpleNamespace(
        __version__="4.1.0",
        disable_progress_bars=lambda: None,
        load_dataset_builder=load_dataset_builder,
        info=info,
        calls=calls,
    )
    monkeypatch.setattr(huggingface, "import_optional", lambda *_: fake)
    return fake


def test_huggingface_is_asked_for_one_commit_of_bounded_size_and_runs_no_script(
    package: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch() -> Any:
        return huggingface.fetched({"name": "a/b", "revision": COMMIT}, "train", tmp_path)

    assert fetch() == [("train", "arrow")]
    options = {"revision": COMMIT, "cache_dir": str(tmp_path / "huggingface")}
    assert package.calls == [(("a/b", None), options), "prepared"]
    package.calls.clear()
    package.info.dataset_size = 2**40
    with pytest.raises(DataError, match="1099511627776 bytes; at most"):
        fetch()
    assert "prepared" not in package.calls
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="a local file or folder of this name"):
        fetch()
    package.__version__ = "3.6.0"
    with pytest.raises(DataError, match=r"needs datasets 4 or later, found 3\.6\.0"):
        fetch()
    assert len(package.calls) == 1


def test_huggingface_without_the_package(source: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    made = source("huggingface", **TABLE)
    assert made.facts().records == 3
    refused(made, "needs datasets", "pip install 'dpspec[huggingface]'")


@pytest.mark.filterwarnings("default")
def test_huggingface_without_a_network(source: Make, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package itself is asked, and finds nobody."""
    pytest.importorskip("datasets")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    made = source("huggingface", **TABLE)
    refused(made, "huggingface owner/set (train): could not be fetched (", f"the cache in {folder} ($DPSPEC_DATA)")
