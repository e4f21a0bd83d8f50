"""Stores that are shared: what was not sealed with the secret is not believed, whoever made its digest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from dpspec.contract import FrozenMap, Trial
from dpspec.contract.canonical import digest
from dpspec.engine.storage.trial_store import Store, is_sealed, read_key, seal_of
from dpspec.errors import UsageError

KEY, OTHER = b"k" * 32, b"o" * 32
PLACE = "ab" * 32
TRIAL = Trial(index=0, evidence=FrozenMap({"hits": 3}))


def record(folder: Path) -> Path:
    return folder / "trials" / PLACE[:2] / PLACE / "record.json"


@pytest.mark.parametrize(("wrote", "reads", "believed"), [
    (KEY, KEY, True), (KEY, None, True), (None, None, True), (KEY, OTHER, False), (None, KEY, False),
])  # fmt: skip
def test_only_what_the_key_sealed_is_believed(tmp_path: Path, wrote, reads, believed: bool) -> None:
    Store(tmp_path / "s", wrote).put(PLACE, TRIAL, FrozenMap())
    told: list[str] = []
    found = Store(tmp_path / "s", reads).get(PLACE, told.append)
    assert (found is not None) == believed
    assert bool(told) != believed
    again = Store(tmp_path / "s", reads).put(PLACE, TRIAL, FrozenMap())
    assert again.trial.evidence["hits"] == 3


def test_a_store_that_is_only_read_keeps_what_others_sealed(tmp_path: Path) -> None:
    Store(tmp_path / "s", KEY).put(PLACE, TRIAL, FrozenMap())
    assert Store(tmp_path / "s", OTHER, only_read=True).get(PLACE) is None
    assert Store(tmp_path / "s", KEY).get(PLACE) is not None


def test_evidence_that_was_changed_with_its_digest_is_not_believed(tmp_path: Path) -> None:
    Store(tmp_path / "s", KEY).put(PLACE, TRIAL, FrozenMap())
    file = record(tmp_path / "s")
    body = json.loads(file.read_text())
    seal = body.pop("seal")
    body.pop("digest")
    body["evidence"]["hits"] = 4
    forged = {**body, "digest": digest(body)}
    plain = hashlib.sha256(forged["digest"].encode()).hexdigest()
    for each in (seal, "", None, 3, "0" * 64, "é", plain, seal_of(OTHER, forged["digest"])):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**forged, "seal": each}))
        assert Store(tmp_path / "s", KEY).get(PLACE) is None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**forged, "seal": seal_of(KEY, forged["digest"])}))
    assert Store(tmp_path / "s", KEY).get(PLACE) is not None


def test_the_seal_is_hmac_sha256() -> None:
    inner = bytes(b ^ 0x36 for b in KEY.ljust(64, b"\0"))
    outer = bytes(b ^ 0x5C for b in KEY.ljust(64, b"\0"))
    message = b"dpspec/trial/v1\0" + b"d" * 64
    expected = hashlib.sha256(outer + hashlib.sha256(inner + message).digest()).hexdigest()
    assert seal_of(KEY, "d" * 64) == expected
    assert is_sealed(KEY, "d" * 64, expected)


def test_keys_are_secrets_in_files(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY + b"\n")
    assert read_key(tmp_path / "key") == KEY
    assert read_key(None) is None
    (tmp_path / "short").write_bytes(b"secret")
    (tmp_path / "long").write_bytes(b"x" * 5000)
    for name in ("short", "long", "nowhere", "."):
        with pytest.raises(UsageError):
            read_key(tmp_path / name)
