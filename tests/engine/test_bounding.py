"""Bounds of many audits, shared out among workers: what is found, and what is said, is what one process would."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import counting, elsewhere, gpu_cases
from support.counting import notices
from support.elsewhere import State

from dpspec.contract import DataError, Finding, FrozenMap
from dpspec.contract.events import Event, Progressed, StageStarted
from dpspec.engine.preparing.prepare import Prepared
from dpspec.engine.results.result import Result
from dpspec.engine.running import bounding
from dpspec.engine.running.run_options import RunOptions
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import SpecError, UsageError
from dpspec.executors import processes
from dpspec.json_records import write
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

#: More than are told one by one.
EPSILONS = [round(0.25 * n, 2) for n in range(1, 10)]
CELLS = counting.EXAMPLE.replace("runs: 5", "runs: 1") + f"matrix: {{mechanism.epsilon: {EPSILONS}}}\n"
ELSEWHERE = RunOptions(executor="elsewhere")

Audited = Callable[..., Result]


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    """Every bound is worth a worker."""
    monkeypatch.setattr(bounding, "_WORTHWHILE", 0.0)
    yield elsewhere.reset()
    elsewhere.reset()


@pytest.fixture
def audited(tmp_path: Path) -> Audited:
    def audit(
        options: RunOptions | None = ELSEWHERE,
        *,
        store: str = "store",
        told: list[Event] | None = None,
        train: bool = True,
    ) -> Result:
        return run(
            counting.load(tmp_path, text=CELLS, known=elsewhere.catalog()),
            elsewhere.catalog(),
            store=Store(tmp_path / store),
            listeners=[] if told is None else [told.append],
            options=options,
            train=train,
        )

    return audit


def found(result: Result) -> object:
    """Everything but when, where and how fast."""
    audits = []
    for audit in result.audits:
        trials = tuple(dataclasses.replace(trial, recorded=FrozenMap()) for trial in audit.trials)
        audits.append(write(dataclasses.replace(audit, seconds=0.0, trials=trials)))
    return audits


def test_they_are_shared_out_once_the_first_ones_took_their_time(state: State, audited: Audited) -> None:
    shared = audited()
    assert state.here() == EPSILONS[:2]
    assert state.by_workers() == EPSILONS[2:]
    elsewhere.reset()
    alone = audited(None, store="other")
    assert state.by_workers() == []
    assert found(shared) == found(alone)


def test_one_pool_does_both_and_ends(state: State, audited: Audited) -> None:
    audited()
    (demand,) = state.opened
    assert demand.tasks >= len(EPSILONS) - 2
    assert state.closed == 1
    assert len(state.tasks) == len(EPSILONS) - 2 + len(EPSILONS)
    state.opened.clear()
    audited()  # all trials are stored
    assert (len(state.opened), state.closed) == (1, 2)


def test_what_is_computed_at_once_needs_no_workers(
    state: State, audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    audited(train=False)
    assert state.here() == EPSILONS
    assert not state.opened


def test_bounds_alone_are_shared_out_too_and_ask_for_no_device(state: State, audited: Audited) -> None:
    result = audited(dataclasses.replace(ELSEWHERE, device="cuda"), train=False)
    assert state.by_workers() == EPSILONS[2:]
    assert [demand.device for demand in state.opened] == ["cpu"]
    assert not any(audit.planned_trials for audit in result.audits)


def test_all_are_told_before_the_first_trial_and_counted(state: State, audited: Audited) -> None:
    told: list[Event] = []
    audited(told=told)
    stages = [event.stage for event in told if isinstance(event, StageStarted)]
    assert stages == [*["bound"] * 9, *["trials"] * 9, *["conclude"] * 9]
    done = [event.done for event in told if isinstance(event, Progressed) and event.what == "bound"]
    assert done == list(range(1, 10))
    assert not notices(told)


def test_the_first_spec_that_is_wrong_is_told_where_it_stands(state: State, audited: Audited) -> None:
    def bounds(epsilon: float, found: Finding) -> Finding:
        if epsilon in (EPSILONS[4], EPSILONS[5]):
            raise DataError(f"no bound for {epsilon}", key="kind")
        return found

    def errors(options: RunOptions | None) -> object:
        elsewhere.reset()
        state.bounds = bounds
        with pytest.raises(SpecError) as raised:
            audited(options)
        return raised.value.diagnostics

    alone = errors(None)
    assert errors(ELSEWHERE) == alone
    (diagnostic,) = errors(ELSEWHERE)  # type: ignore[misc]
    assert f"no bound for {EPSILONS[4]}" in diagnostic.message
    assert diagnostic.span is not None
    assert not counting.RAN
    assert EPSILONS[6] not in [epsilon for epsilon, _ in state.asked]  # what comes after it is not begun
    assert state.closed == 1


def test_what_cannot_travel_is_computed_here(state: State, audited: Audited) -> None:
    class Unknown(Finding):
        """Of a class that no other process can find."""

    def bounds(epsilon: float, found: Finding) -> Finding:
        return Unknown(**vars(found)) if epsilon == EPSILONS[7] else found

    state.bounds = bounds
    told: list[Event] = []
    shared = audited(told=told, train=False)
    assert state.here() == [*EPSILONS[:2], *EPSILONS[7:]][: len(state.here())]
    (notice,) = notices(told)
    assert "computed by the process that was started, as no worker could: " in notice
    assert "Unknown" in notice
    elsewhere.reset()
    assert found(shared) == found(audited(None, train=False))


@pytest.mark.parametrize(("lost", "here"), [(1, 1), (2, 2), (99, 7)])
def test_what_dies_with_its_worker_is_computed_here(state: State, audited: Audited, lost: int, here: int) -> None:
    state.lost = lost
    told: list[Event] = []
    result = audited(train=False, told=told)
    assert len(state.here()) == 2 + here
    assert len(state.tasks) == (7 if lost < 99 else 4)  # three are lost, and one runs beside the third
    assert set(notices(told)) == {
        "its bounds were computed by the process that was started, as no worker could: its process was killed"
    }
    elsewhere.reset()
    assert found(result) == found(audited(None, train=False))


@pytest.mark.parametrize("how", ["closed_to", "refusing"])
def test_workers_that_are_not_to_be_had_stop_no_bounds(state: State, audited: Audited, how: str) -> None:
    setattr(state, how, "no cluster answers")
    audited(train=False)
    assert state.here() == EPSILONS
    with pytest.raises(UsageError, match="no cluster answers"):
        audited()  # trials need it


def test_other_code_computes_no_bounds(state: State, audited: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounding, "_versions", lambda: {"dpspec": "theirs" if state.at_work else "ours"})
    told: list[Event] = []
    audited(told=told, train=False)
    assert state.here() == EPSILONS
    assert not state.by_workers()
    assert all("a worker has other versions" in notice for notice in notices(told))
    assert notices(told)


def test_an_interrupt_ends_the_workers(state: State, audited: Audited) -> None:
    def bounds(epsilon: float, found: Finding) -> Any:
        if state.at_work:
            raise KeyboardInterrupt
        return found

    state.bounds = bounds
    with pytest.raises(KeyboardInterrupt):
        audited()
    assert state.closed == 1


def test_a_selection_is_bounded_where_its_cells_are_known(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = load_catalog()
    offered = elsewhere.catalog().executors["elsewhere"]
    catalog = dataclasses.replace(catalog, executors={"elsewhere": offered})
    specs = load_specs([Path(__file__).parents[2] / "specs" / "tuning.yaml"], catalog).specs
    names = [spec.name for spec in specs if spec.mechanism.kind == "selection"]
    assert names
    here: list[str] = []
    bound = bounding.bound

    def counted(prepared: Prepared, *given: Any, **options: Any) -> Any:
        here.append(prepared.spec.name)
        return bound(prepared, *given, **options)

    monkeypatch.setattr(bounding, "bound", counted)
    run(specs, catalog, store=Store(tmp_path), options=ELSEWHERE, train=False)
    assert set(names) <= set(here)
    assert not set(names) & set(state.tasks)
    assert state.tasks


@pytest.mark.ci
def test_processes_find_for_every_mechanism_what_this_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounding, "_WORTHWHILE", 0.0)
    monkeypatch.setattr(processes, "_WORTHWHILE", 0.0)
    catalog, files = load_catalog(), []
    for name in ("group", "modelmix", "per-instance", "preprocessing", "rero"):
        folder = tmp_path / name
        folder.mkdir()
        files.append(gpu_cases.write_case(name, folder, steps=2))
        with files[-1].open("a", encoding="utf-8") as file:
            file.write("matrix: {audit.seed: [1, 2]}\n")
    specs = load_specs(files, catalog).specs
    by_workers: list[str] = []
    queued = bounding.QueuedChunk

    def sent(**parts: Any) -> Any:
        by_workers.append(parts["name"])
        return queued(**parts)

    monkeypatch.setattr(bounding, "QueuedChunk", sent)
    results = []
    for workers in (1, 2):
        options = RunOptions(executor="local", workers=workers, device="cpu")
        results.append(run(specs, catalog, store=Store(tmp_path / str(workers)), options=options))
    assert by_workers.count(specs[-1].name) == 1
    assert len(by_workers) == len(specs) - 2
    assert found(results[0]) == found(results[1])
