"""Work that travels: what arrives with other versions of the code is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from support import counting

from dpspec.engine.preparing.prepare import Prepared, prepare
from dpspec.engine.running import tasks
from dpspec.engine.storage.stored_trials import NewTrial
from dpspec.errors import UsageError
from dpspec.executors import InlineContext


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    (spec,) = counting.load(tmp_path)
    return prepare(spec, counting.catalog())


@pytest.fixture
def sent(prepared: Prepared) -> bytes:
    """Two trials of an audit, as they travel."""
    task = tasks.TrainTrials(spec=prepared.spec, catalog=counting.catalog(), facts=prepared.facts, indices=(0, 3))
    return pickle.dumps(task)


def made(sent: bytes) -> list[NewTrial]:
    return list(pickle.loads(sent)(InlineContext("cpu", None, lambda said: None)))  # noqa: S301 - of a moment ago


def test_work_is_done_where_it_arrives(sent: bytes) -> None:
    assert [new.index for new in made(sent)] == [0, 3]


def test_work_of_another_version_is_refused(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "version_of", lambda name: "0.0.1" if name == "dpspec" else None)
    with pytest.raises(UsageError, match=r"a worker has dpspec 0\.0\.1, .* but the run was started by dpspec "):
        made(sent)


def test_folders_are_the_same_from_wherever_the_work_is_done(prepared: Prepared) -> None:
    folders = {0: Path("store") / "unfinished", 1: None}
    training = tasks.TrainTrials(
        spec=prepared.spec, catalog=counting.catalog(), facts=prepared.facts, indices=(0, 1), folders=folders
    )
    arrived = pickle.loads(pickle.dumps(training))  # noqa: S301 - of a moment ago
    assert arrived.folders == {0: Path.cwd() / "store" / "unfinished", 1: None}
