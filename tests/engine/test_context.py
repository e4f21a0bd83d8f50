"""What audits are handed: progress that says what is counted, and a place for the state of a trial in work."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from support import counting

from dpspec.contract import DataError, Facts, FrozenMap, LoadedData, Resumable
from dpspec.contract.events import Event
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def context(tmp_path: Path, told: list[Event]) -> RunContext:
    catalog = counting.catalog()
    (spec,) = counting.load(tmp_path)
    return RunContext(prepare(spec, catalog), catalog, FrozenMap(), emit=told.append)


def test_a_trial_has_a_place_for_its_state_only_where_it_will_be_stored(context: RunContext, tmp_path: Path) -> None:
    assert context.resumable(3) is None
    context.state_folder = lambda index: tmp_path / str(index)
    assert context.resumable(3) == Resumable(folder=tmp_path / "3")
    assert not (tmp_path / "3").exists()


def test_data_that_changed_after_the_run_began_are_not_taken_for_those_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = counting.catalog()
    (spec,) = counting.load(tmp_path)
    digests = iter(["before"] * 3 + ["after"])
    x, y = np.zeros((10, 1), np.float32), np.arange(10) % 2
    rows = LoadedData(train_x=x, train_y=y, test_x=x[:0], test_y=y[:0])
    monkeypatch.setattr(counting.Nothing, "load", lambda self: rows)
    facts = Facts(records=10, features=1, classes=2, shape=(1,))
    monkeypatch.setattr(counting.Nothing, "facts", lambda self: dataclasses.replace(facts, digest=next(digests)))
    first, second = (RunContext(prepare(spec, catalog), catalog, FrozenMap()) for _ in range(2))
    assert first.data is rows
    with pytest.raises(DataError, match="the data changed during the run: a file differs from its state"):
        second.data  # noqa: B018
