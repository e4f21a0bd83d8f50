"""Stored trials that no conclusions follow from, though their digests are right: told, set aside, made again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import counting, fragile
from support.counting import notices

from dpspec.contract import Outcome, Spec, Trial
from dpspec.contract.events import Event
from dpspec.contract.frozen import canonical_json, digest
from dpspec.engine.results.result import Result
from dpspec.engine.running.run_options import RunOptions
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.json_records import write


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    monkeypatch.setenv(fragile.FOLDER, str(tmp_path))
    return counting.load(tmp_path, known=fragile.catalog())[0]


def audited(spec: Spec, store: Path, told: list[Event] | None = None, options: RunOptions | None = None) -> Result:
    listeners = [] if told is None else [told.append]
    return run([spec], fragile.catalog(), store=Store(store), listeners=listeners, options=options)


def found(result: Result) -> Any:
    (audit,) = result.audits
    names = ("findings", "series", "checks", "evidence", "verdicts", "conformance")
    return {name: write(getattr(audit, name)) for name in names}, [(t.key, t.evidence) for t in audit.trials]


def forge(store: Path, change: Callable[[dict[str, Any]], None], indices: Sequence[int]) -> None:
    """Change what stored trials say, and make their digests anew."""
    for file in store.rglob("record.json"):
        body = json.loads(file.read_text(encoding="utf-8"))
        if body["index"] in indices and "trials" in file.parts:
            del body["digest"]
            change(body["evidence"])
            file.chmod(0o644)
            file.write_text(canonical_json({**body, "digest": digest(body)}), encoding="utf-8")


@pytest.mark.parametrize("indices", [(0, 3), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("value", ["many", None, {"a": 1}, 10**9])
def test_a_trial_that_nothing_follows_from_is_made_again(
    spec: Spec, tmp_path: Path, value: Any, indices: tuple[int, ...]
) -> None:
    store, told = tmp_path / "store", []  # type: ignore[var-annotated]
    honest = audited(spec, store)
    forge(store, lambda evidence: evidence.update(hits=value), indices)
    counting.RAN.clear()
    again = audited(spec, store, told)
    assert sorted(counting.RAN) == list(indices)
    assert found(again) == found(honest)
    said = [message for message in notices(told) if "again" in message]
    assert len(said) == len(indices)
    assert all("cannot be evaluated" in message for message in said)
    assert len(list((store / "damaged").iterdir())) == len(indices)
    (audit,) = again.audits
    assert audit.stored_trials == 5 - len(indices)
    counting.RAN.clear()
    assert found(audited(spec, store)) == found(honest)
    assert counting.RAN == []


def test_trials_that_do_not_fit_together(spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = counting.CountingAudit.conclude

    def conclude(self: counting.CountingAudit, spec: Spec, trials: Sequence[Trial]) -> Iterable[Outcome]:
        if len({type(trial.evidence["hits"]) for trial in trials}) > 1:
            raise TypeError("trials of two sorts")
        return plain(self, spec, trials)

    monkeypatch.setattr(counting.CountingAudit, "conclude", conclude)
    store = tmp_path / "store"
    honest = audited(spec, store)
    forge(store, lambda evidence: evidence.update(hits=float(evidence["hits"])), (3,))
    counting.RAN.clear()
    assert found(audited(spec, store)) == found(honest)
    assert counting.RAN == [3]


def test_what_fails_with_trials_as_they_were_stored_is_no_damage(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    honest = audited(spec, store)
    counting.RAN.clear()
    with monkeypatch.context() as patch:
        patch.setattr(counting.CountingAudit, "conclude", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            audited(spec, store)
    assert counting.RAN == [0]  # made again once, and it came out the same
    assert found(audited(spec, store)) == found(honest)
    assert counting.RAN == [0]


def test_without_a_stored_trial_there_is_nothing_to_doubt(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting.CountingAudit, "conclude", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        audited(spec, tmp_path / "store")
    assert counting.RAN == [0, 1, 2, 3, 4]
