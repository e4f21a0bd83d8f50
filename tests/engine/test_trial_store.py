"""Stores that are shared: what was not sealed with the secret is not believed, whoever made its digest."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from dpspec.contract import FrozenMap, Trial
from dpspec.contract.frozen import canonical_json, digest
from dpspec.engine.storage.trial_store import Store, read_key, seal_of
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
def test_a_record_of_other_types_or_of_another_trial_is_damaged(tmp_path: Path, part: str) -> None:
    store = Store(tmp_path)
    store.put(KEY, TRIAL, FrozenMap())
    assert store.get(KEY, index=3) is not None
    told: list[str] = []
    assert store.get(KEY, told.append, index=5) is None
    assert "of trial 3, not of 5" in told[0]
    store.put(KEY, TRIAL, FrozenMap())
    file = tmp_path / "trials" / "ab" / KEY / "record.json"
    body = {**json.loads(file.read_text(encoding="utf-8")), part: ["x"]}
    del body["digest"]
    file.write_text(canonical_json({**body, "digest": digest(body)}), encoding="utf-8")
    assert store.get(KEY, told.append) is None
    assert "damaged" in told[1]


KEY_1, OTHER = b"k" * 32, b"o" * 32


@pytest.mark.parametrize(("wrote", "reads", "believed"), [
    (KEY_1, KEY_1, True), (KEY_1, None, True), (None, None, True), (KEY_1, OTHER, False), (None, KEY_1, False),
])  # fmt: skip
def test_only_what_the_key_sealed_is_believed(tmp_path: Path, wrote, reads, believed: bool) -> None:
    Store(tmp_path / "s", wrote).put(KEY, TRIAL, FrozenMap())
    told: list[str] = []
    found = Store(tmp_path / "s", reads).get(KEY, told.append)
    assert (found is not None) == believed
    assert bool(told) != believed
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
