"""Where what follows from the trials needs arrays that only the store holds, it is taken as recorded, and said so."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import counting

from dpspec.contract import FrozenMap, MissingArrayError
from dpspec.contract.catalog import Catalog
from dpspec.engine.differences import Mismatch
from dpspec.engine.results.result import Result
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import PluginError


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Result, Store]:
    """A run whose conclusions need an array of every trial."""
    trials, conclude = counting.CountingAudit.trials, counting.CountingAudit.conclude

    def with_arrays(*given: Any) -> Any:
        for trial in trials(*given):
            yield dataclasses.replace(trial, arrays={"answers": np.arange(3.0)})

    def needing_them(self: Any, spec: Any, made: Any) -> Any:
        for trial in made:
            if "answers" not in trial.arrays:
                raise MissingArrayError(f"the array 'answers' of trial {trial.index} is in the store")
        return conclude(self, spec, made)

    monkeypatch.setattr(counting.CountingAudit, "trials", with_arrays)
    monkeypatch.setattr(counting.CountingAudit, "conclude", needing_them)
    store = Store(tmp_path / "store")
    return run(counting.load(tmp_path), counting.catalog(), store=store, device="cpu"), store


def told(result: Result, store: Store | None = None) -> list[Mismatch]:
    return list(verify(result, counting.catalog(), store=store))


def edited(result: Result, **changes: Any) -> Result:
    return dataclasses.replace(result, audits=(dataclasses.replace(result.audits[0], **changes),))


def test_with_the_store_everything_follows(ran: tuple[Result, Store]) -> None:
    assert told(*ran) == []


def test_without_it_what_needs_arrays_is_named_and_the_rest_follows(ran: tuple[Result, Store]) -> None:
    result, _ = ran
    (one,) = told(result)
    assert (one.what, one.recorded, one.differs) == ("what follows from the trials", "5 trials", False)
    assert one.recomputed == "taken as recorded: the array 'answers' of trial 0 is in the store"


def test_bounds_and_verdicts_are_still_recomputed(ran: tuple[Result, Store]) -> None:
    result, _ = ran
    audit = result.audits[0]
    bound = dataclasses.replace(audit.findings[0], value=0.5)
    assert {m.what for m in told(edited(result, findings=(bound, *audit.findings[1:]))) if m.differs} == {
        "findings[0].value"
    }
    verdict = dataclasses.replace(audit.verdicts[1], verdict="proved")
    assert {m.what for m in told(edited(result, verdicts=(audit.verdicts[0], verdict))) if m.differs} == {
        "verdicts[1].verdict"
    }


def test_what_the_attacks_counted_still_decides(ran: tuple[Result, Store]) -> None:
    result, _ = ran
    (evidence,) = result.audits[0].evidence
    statistics = type(evidence.statistics)({**evidence.statistics, "true_positives": 0})
    changed = edited(result, evidence=(dataclasses.replace(evidence, statistics=statistics),))
    assert "verdicts[1].verdict" in {m.what for m in told(changed) if m.differs}


def test_a_plugin_that_is_gone_is_named_by_its_package(ran: tuple[Result, Store]) -> None:
    result, _ = ran
    plugins = {**result.environment["plugins"], "counting": "dpspec-counting 1.2"}
    environment = FrozenMap({**result.environment, "plugins": plugins})
    with pytest.raises(PluginError, match=r"mechanism kind 'counting'.*dpspec-counting 1\.2, not installed here"):
        verify(dataclasses.replace(result, environment=environment), Catalog())
