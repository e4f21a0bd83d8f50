from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpspec.contract import FrozenMap, Trial
from dpspec.contract.canonical import canonical_json, digest
from dpspec.engine.storage.trial_store import Store

KEY = "ab" * 32
TRIAL = Trial(index=3, evidence=FrozenMap({"scores": [0.5, -1.25], "coins": "01"}), arrays={"table": np.arange(6.0)})


def test_what_is_put_comes_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.get(KEY) is None
    put = store.put(KEY, TRIAL, FrozenMap({"device": "cpu"}))
    got = store.get(KEY)
    assert got is not None
    assert got.trial.index == 3
    assert got.trial.evidence == TRIAL.evidence == put.record.evidence
    assert np.array_equal(got.trial.arrays["table"], np.arange(6.0))
    assert not got.trial.arrays["table"].flags.writeable
    assert got.record.arrays["table"]["shape"] == (6,)
    assert got.record.recorded["device"] == "cpu"
    assert list(store.keys()) == [KEY]
    assert store.size(KEY) > 0


def test_a_record_is_written_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(KEY, TRIAL, FrozenMap())
    again = store.put(KEY, Trial(index=3, evidence=FrozenMap({"scores": "other"})), FrozenMap())
    assert again.trial.evidence == TRIAL.evidence


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "record.json").write_text("{"),
        lambda folder: (folder / "record.json").write_text("[]"),
        lambda folder: (folder / "record.json").unlink(),
        lambda folder: _edit(folder / "record.json"),
        lambda folder: (folder / "table.npy").write_bytes(b"junk"),
        lambda folder: (folder / "table.npy").unlink(),
    ],
)
def test_a_damaged_record_is_reported_set_aside_and_absent(tmp_path: Path, damage: object) -> None:
    store = Store(tmp_path)
    store.put(KEY, TRIAL, FrozenMap())
    damage(tmp_path / "trials" / KEY[:2] / KEY)  # type: ignore[operator]
    told: list[str] = []
    assert store.get(KEY, told.append) is None
    assert len(told) == 1
    assert "damaged" in told[0]
    assert (tmp_path / "damaged" / KEY).is_dir()
    store.put(KEY, TRIAL, FrozenMap())
    assert store.get(KEY) is not None


def _edit(record: Path) -> None:
    body = json.loads(record.read_text())
    body["evidence"]["scores"][0] = 99.0
    record.write_text(json.dumps(body))


def test_a_record_under_another_key_is_foreign(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(KEY, TRIAL, FrozenMap())
    other = "cd" * 32
    (tmp_path / "trials" / "cd").mkdir()
    (tmp_path / "trials" / KEY[:2] / KEY).rename(tmp_path / "trials" / "cd" / other)
    assert store.get(other) is None


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


def test_a_damaged_record_that_another_process_left_is_replaced(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(KEY, TRIAL, FrozenMap())
    (tmp_path / "trials" / KEY[:2] / KEY / "record.json").write_text("{")
    assert store.put(KEY, TRIAL, FrozenMap()).trial.evidence == TRIAL.evidence
    assert (tmp_path / "damaged" / KEY).is_dir()


def test_a_damaged_record_that_another_process_set_aside_first_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.put(KEY, TRIAL, FrozenMap())
    (tmp_path / "trials" / KEY[:2] / KEY / "record.json").write_text("{")

    def gone(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "rename", gone)
    assert store.get(KEY) is None


def test_removing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(KEY, TRIAL, FrozenMap())
    store.remove(KEY)
    store.remove(KEY)
    assert store.get(KEY) is None
    assert list(store.keys()) == []


def test_what_an_unfinished_trial_needs_goes_with_its_end(tmp_path: Path) -> None:
    store, other = Store(tmp_path), "cd" * 32
    for key in (KEY, other):
        store.unfinished(key).mkdir(parents=True)
        (store.unfinished(key) / "state.npz").write_bytes(b"12345")
    store.put(KEY, TRIAL, FrozenMap())
    assert not store.unfinished(KEY).exists()
    assert store.unfinished(other).is_dir()
    assert list(store.keys()) == [KEY]
    store.unfinished(KEY).mkdir()
    store.put(KEY, TRIAL, FrozenMap())  # of a process that was slower
    assert not store.unfinished(KEY).exists()
    assert store.sweep() == 5
    assert not store.unfinished(other).exists()
    assert store.sweep() == 0
    with pytest.raises(ValueError, match="not a trial key"):
        store.unfinished("../../etc")


@pytest.mark.parametrize("part", ["index", "evidence", "arrays", "recorded"])
def test_a_record_of_other_types_is_damaged_whatever_its_digest(tmp_path: Path, part: str) -> None:
    store = Store(tmp_path)
    store.put(KEY, TRIAL, FrozenMap())
    file = tmp_path / "trials" / "ab" / KEY / "record.json"
    body = {**json.loads(file.read_text(encoding="utf-8")), part: ["x"]}
    del body["digest"]
    file.write_text(canonical_json({**body, "digest": digest(body)}), encoding="utf-8")
    told: list[str] = []
    assert store.get(KEY, told.append) is None
    assert "damaged" in told[0]


def test_a_record_of_another_trial_is_damaged(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(KEY, TRIAL, FrozenMap())
    assert store.get(KEY, index=3) is not None
    told: list[str] = []
    assert store.get(KEY, told.append, index=5) is None
    assert "of trial 3, not of 5" in told[0]
