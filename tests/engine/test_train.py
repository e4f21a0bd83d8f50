"""Many audits in one queue: results equal those of one process, also if workers die."""

import functools
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import counting, fragile, gpu_cases
from support.counting import notices

from dpspec.contract import Plan, Spec
from dpspec.contract.events import Event, Progressed, TrialFinished
from dpspec.contract.results import Result
from dpspec.engine.preparing.prepare import Prepared, prepare
from dpspec.engine.running import trial_work
from dpspec.engine.running.runner import run
from dpspec.engine.running.train import RunOptions, _at_most, _Chunk
from dpspec.engine.storage.stored_trials import NewTrial
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import ExitCode, PluginError, SpecError, UsageError
from dpspec.executors import InlineContext, Resources, processes
from dpspec.json_records import write
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

PAIR = RunOptions(executor="pair")
CELLS = counting.EXAMPLE + "matrix: {mechanism.epsilon: [0.5, 0.75, 1.0, 1.25]}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "control"
    folder.mkdir()
    monkeypatch.setenv(fragile.FOLDER, str(folder))
    return folder


@pytest.fixture
def load(tmp_path: Path, folder: Path) -> Callable[..., tuple[Spec, ...]]:
    return functools.partial(counting.load, tmp_path, known=fragile.catalog())


def audited(
    specs: tuple[Spec, ...], store: Path, options: RunOptions | None = None, events: list[Event] | None = None
) -> Result:
    listeners = [] if events is None else [events.append]
    return run(specs, fragile.catalog(), store=Store(store), listeners=listeners, options=options)


def found(result: Result) -> object:
    return [
        {
            name: write(getattr(audit, name))
            for name in ("name", "findings", "series", "checks", "evidence", "verdicts", "conformance")
        }
        | {"trials": [(trial.key, write(trial.evidence)) for trial in audit.trials]}
        for audit in result.audits
    ]


def test_one_count_covers_the_bounds_and_the_trials_of_all_audits(load, tmp_path, monkeypatch):
    train_trials, bound_claims = counting.CountingAudit.trials, counting.CountingAudit.bound

    def trials(self: Any, inputs: Any, context: Any, indices: Any) -> Any:
        context.progress(2, 2, "training")
        yield from train_trials(self, inputs, context, indices)

    def bound(self: Any, spec: Any, context: Any) -> Any:
        context.progress(1, 1, "accounting")
        yield from bound_claims(self, spec, context)

    monkeypatch.setattr("dpspec.engine.preparing.context._EVERY", 0.0)
    monkeypatch.setattr(counting.CountingAudit, "trials", trials)
    monkeypatch.setattr(counting.CountingAudit, "bound", bound)
    events: list[Event] = []
    audited(load(text=CELLS), tmp_path / "store", events=events)
    reported = [event for event in events if isinstance(event, Progressed)]
    bounds = [event.overall for event in reported if event.what == "accounting"]
    assert bounds == [0.25, 0.5, 0.75, 1.0]
    training = [event.overall for event in reported if event.what in ("training", "trials")]
    assert training == pytest.approx([(i + 2) // 2 / 20 for i in range(40)])


@pytest.mark.ci
def test_processes_find_what_one_process_finds(load: Any, tmp_path: Path, folder: Path) -> None:
    specs, events = load(text=CELLS), []  # type: ignore[var-annotated]
    here = audited(specs, tmp_path / "here")
    apart = audited(specs, tmp_path / "apart", PAIR, events)
    assert found(apart) == found(here)
    assert len([event for event in events if isinstance(event, TrialFinished)]) == 20
    whole = [event for event in events if isinstance(event, Progressed)]
    assert (whole[-1].audit, whole[-1].what, whole[-1].done, whole[-1].total) == ("4 audits", "trials", 20, 20)
    parts = [event.overall or 0.0 for event in whole if event.what == "trials"]
    assert parts == sorted(parts)
    assert (whole[0].what, parts[0], parts[-1]) == ("bound", 0.0, 1.0)
    pids = {path.name.rpartition("-")[2] for path in folder.iterdir()}
    assert len(pids) == 3  # this one, and two workers


@pytest.mark.ci
def test_a_killed_worker_costs_nothing_but_time(load: Any, tmp_path: Path, folder: Path) -> None:
    specs, events = load(text=CELLS), []  # type: ignore[var-annotated]
    expected = found(audited(specs, tmp_path / "here"))
    for index in (0, 2, 4):
        (folder / f"kill-{index}").touch()
    result = audited(specs, tmp_path / "apart", PAIR, events)
    assert found(result) == expected
    assert result.exit_code == ExitCode.OK
    assert len(notices(events)) == 3
    assert all(
        n.startswith("worker lost") and "killed by SIGKILL" in n and n.endswith("retrying") for n in notices(events)
    )


@pytest.mark.ci
def test_a_trial_that_kills_every_worker_is_given_up(load: Any, tmp_path: Path, folder: Path) -> None:
    (folder / "always-kill-2").touch()
    events: list[Event] = []
    result = audited(load(), tmp_path / "store", PAIR, events)
    assert result.exit_code == ExitCode.INCOMPLETE
    assert [trial.index for trial in result.audits[0].trials] == [0, 1, 3, 4]
    assert notices(events)[-1].endswith("given up after 3 times")
    assert sum(notice.startswith("worker lost") for notice in notices(events)) == 3
    (folder / "always-kill-2").unlink()
    assert found(audited(load(), tmp_path / "store", PAIR)) == found(audited(load(), tmp_path / "here"))


@pytest.mark.parametrize(
    "options", [pytest.param(None, id="here"), pytest.param(PAIR, id="workers", marks=pytest.mark.ci)]
)
def test_unreadable_data_is_reported_alike_by_all_executors(options, load, tmp_path, folder):
    (folder / "fail-1").touch()
    with pytest.raises(SpecError) as caught:
        audited(load(), tmp_path / "store", options)
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.message) == ("data-unreadable", "its rows are gone")
    assert diagnostic.span is not None


@pytest.mark.ci
def test_the_time_limit_reaches_workers(load: Any, tmp_path: Path, folder: Path) -> None:
    for index in range(5):
        (folder / f"wait-{index}").touch()
    events: list[Event] = []
    result = audited(load(), tmp_path / "store", RunOptions(executor="pair", deadline=time.monotonic() + 3.0), events)
    assert result.exit_code == ExitCode.INCOMPLETE
    assert notices(events) == ["stopped at the time limit; running the same command again continues"]


def test_so_many_trials_and_no_more(load: Any, tmp_path: Path) -> None:
    events: list[Event] = []
    result = audited(load(), tmp_path / "store", RunOptions(max_trials=3), events)
    assert [trial.index for trial in result.audits[0].trials] == [0, 1, 2]
    assert result.exit_code == ExitCode.INCOMPLETE
    assert notices(events) == ["stopped after 3 trials; running the same command again continues"]
    assert found(audited(load(), tmp_path / "store")) == found(audited(load(), tmp_path / "whole"))


def test_an_unknown_executor(load: Any, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"executor 'moon' \(installed: pair\)"):
        audited(load(), tmp_path / "store", RunOptions(executor="moon"))


@pytest.mark.parametrize(
    ("chunks", "seconds", "threads"), [(1, 59.0, 1), (1, 61.0, 8), (4, 400.0, 2), (16, 4000.0, 1), (4, 200.0, 1)]
)
def test_threads_follow_from_the_plan_alone(monkeypatch, chunks, seconds, threads):
    monkeypatch.setattr(processes, "cores", lambda: 8)
    plan = Plan(chunks=tuple((i,) for i in range(chunks)), seconds=seconds, memory_bytes=0)
    assert RunOptions().threads_of(plan) == threads
    assert RunOptions(threads=3).threads_of(plan) == 3


@pytest.mark.ci
def test_processes_find_for_several_mechanisms_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_WORTHWHILE", 0.0)
    catalog, files = load_catalog(), []
    for name in ("group", "per-instance", "preprocessing"):
        folder = tmp_path / name
        folder.mkdir()
        files.append(gpu_cases.write_case(name, folder, steps=2))
    specs = load_specs(files, catalog).specs
    results = []
    for workers in (1, 2):
        options = RunOptions(executor="local", workers=workers, device="cpu")
        results.append(run(specs, catalog, store=Store(tmp_path / str(workers)), options=options))
    assert found(results[0]) == found(results[1])


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    (spec,) = counting.load(tmp_path)
    return prepare(spec, counting.catalog())


@pytest.fixture
def sent(prepared: Prepared) -> bytes:
    task = trial_work.TrainTrials(spec=prepared.spec, catalog=counting.catalog(), facts=prepared.facts, indices=(0, 3))
    return pickle.dumps(task)


def made(sent: bytes) -> list[NewTrial]:
    return list(pickle.loads(sent)(InlineContext("cpu", None, lambda said: None)))  # noqa: S301 - of a moment ago


def test_work_is_done_where_it_arrives(sent: bytes) -> None:
    assert [new.index for new in made(sent)] == [0, 3]


def test_work_of_another_version_is_refused(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_work, "version_of", lambda name: "0.0.1" if name == "dpspec" else None)
    with pytest.raises(UsageError, match=r"a worker has dpspec 0\.0\.1, .* but the run was started by dpspec "):
        made(sent)


def test_folders_are_the_same_from_wherever_the_work_is_done(prepared: Prepared) -> None:
    folders = {0: Path("store") / "unfinished", 1: None}
    training = trial_work.TrainTrials(
        spec=prepared.spec, catalog=counting.catalog(), facts=prepared.facts, indices=(0, 1), folders=folders
    )
    arrived = pickle.loads(pickle.dumps(training))  # noqa: S301 - of a moment ago
    assert arrived.folders == {0: Path.cwd() / "store" / "unfinished", 1: None}


def test_trials_that_are_trained_together_are_not_split() -> None:
    """A chunk of ten, of which --max-trials 3 made ten: none is made, and the message names the number."""

    def chunk(count: int, *, independent: bool) -> _Chunk:
        plan = Plan(chunks=(tuple(range(count)),), seconds=1.0, memory_bytes=0, independent=independent)
        audit: Any = SimpleNamespace(state=SimpleNamespace(plan=plan))
        return _Chunk(audit=audit, needs=Resources(), missing=list(range(count)))

    together, alone = chunk(10, independent=False), chunk(10, independent=True)
    assert _at_most([together], 3) == []
    assert [len(part.missing) for part in _at_most([together, together], 10)] == [10]
    assert [len(part.missing) for part in _at_most([alone, alone], 13)] == [10, 3]
    assert [len(part.missing) for part in _at_most([alone, together], 3)] == [3]
    assert len(alone.missing) == 10
