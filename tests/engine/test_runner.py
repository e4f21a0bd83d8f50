"""An audit from its spec to its verdicts."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import counting

from dpspec.contract import DataError, Diagnostic, Facts, Finding, FrozenMap, LoadedData, Resumable, Spec
from dpspec.contract.events import Event, TrialFinished, TrialsPlanned
from dpspec.contract.results import Result
from dpspec.engine.preparing import prepare as prepare_module
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.running import runner
from dpspec.engine.running.runner import measure_bounds, run
from dpspec.engine.running.train import BESIDE, LEAST, MOST
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import ExitCode, PluginError, SpecError
from dpspec.language.load import from_document
from dpspec.registry.loader import load_catalog
from dpspec.results.diff import diff
from dpspec.training.gradients import memory


@pytest.fixture
def load(tmp_path: Path) -> Any:
    return functools.partial(counting.load, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def audited(specs: tuple[Spec, ...], store: Store, **options: object) -> Result:
    return run(specs, counting.catalog(), store=store, **options)  # type: ignore[arg-type]


def test_an_audit_from_spec_to_verdicts(load: Any, store: Store) -> None:
    events: list[Event] = []
    result = audited(load(), store, listeners=[events.append])
    (audit,) = result.audits
    assert [(v.claim, v.verdict, v.expected) for v in audit.verdicts] == [
        ("held", "proved", True),
        ("broken", "refuted", True),
    ]
    assert audit.conformance.status == "no-deviation-found"
    assert counting.RAN == [0, 1, 2, 3, 4]
    assert result.exit_code == ExitCode.OK
    assert [e for e in events if isinstance(e, TrialsPlanned)] == [
        TrialsPlanned(audit="coin", total=5, stored=0, seconds=pytest.approx(3.5e-6))  # to load ten numbers
    ]
    assert [e.index for e in events if isinstance(e, TrialFinished)] == [0, 1, 2, 3, 4]
    counting.RAN.clear()
    again = audited(load(), store)
    assert counting.RAN == []
    assert diff(result, again) == ()
    assert again.audits[0].trials == audit.trials


@pytest.mark.parametrize(
    ("override", "trained"),
    [
        ("claims.held.epsilon=1.2", []),
        ("audit.confidence=0.99", []),
        ("description=other", []),
        ("claims.broken.expect=open", []),
        ("audit.runs=7", [5, 6]),
        ("audit.seed=4", [0, 1, 2, 3, 4]),
        ("mechanism.epsilon=1.1", [0, 1, 2, 3, 4]),
    ],
)
def test_what_trials_read_decides_which_are_trained_again(load, store, override, trained):
    audited(load(), store)
    counting.RAN.clear()
    audited(load(override), store)
    assert trained == counting.RAN


def test_a_kind_that_is_gone_is_a_plugin_error(load: Any, store: Store) -> None:
    specs = load()
    from dpspec.contract.catalog import Catalog

    with pytest.raises(PluginError, match="counting"):
        run(specs, Catalog(), store=store)


def test_errors_of_all_specs_are_reported_before_any_work(load, store, monkeypatch):

    def refuse(self: object, spec: Spec, facts: object) -> list[Diagnostic]:
        return [Diagnostic(code="bad-value", message="no", path=("mechanism", "epsilon"))]

    monkeypatch.setattr(counting.CountingAudit, "check", refuse)
    with pytest.raises(SpecError) as caught:
        audited(load() + load("name=other"), store)
    assert [d.span is not None and d.span.line for d in caught.value.diagnostics] == [3, 3]
    assert counting.RAN == []


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def context(tmp_path: Path, events: list[Event]) -> RunContext:
    catalog = counting.catalog()
    (spec,) = counting.load(tmp_path)
    return RunContext(prepare(spec, catalog), catalog, FrozenMap(), emit=events.append)


def test_a_trial_has_a_place_for_its_state_only_where_it_will_be_stored(context: RunContext, tmp_path: Path) -> None:
    assert context.resumable(3) is None
    context.state_folder = lambda index: tmp_path / str(index)
    assert context.resumable(3) == Resumable(folder=tmp_path / "3")
    assert not (tmp_path / "3").exists()


def test_rows_that_do_not_fit_into_memory_are_not_loaded(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = context.prepared.loading_bytes
    plan = context.prepared.audit.plan(context.prepared.spec, context.facts)
    assert needed == 16 * 10
    assert context.prepared.plan().memory_bytes == plan.memory_bytes + needed
    monkeypatch.setattr(prepare_module, "_UNCHECKED_BYTES", needed)
    for free, message in ((needed - 1, "audit take up to 160 B of memory, and 159 B are free"), (needed, "no trial")):
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free)
        with pytest.raises((MemoryError, AssertionError), match=message):
            _ = context.data


def test_data_that_changed_after_the_run_began_are_not_taken_for_those_that_it_began_with(tmp_path, monkeypatch):
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


@pytest.mark.family
@pytest.mark.parametrize(
    ("records", "columns", "steps", "seconds", "mebibytes"),
    [
        (200_000, 10, 3, 1.1, 44.0),
        (2_000_000, 1, 3, 10.3, 375.0),
        (2_000_000, 1, 8, 19.4, 381.0),
        (20_000, 100, 3, 0.1, 6.0),
        pytest.param(20_000_000, 1, 1, 49.7, 1853.0, marks=pytest.mark.ci),
    ],
)
def test_plans_count_records_and_numbers(
    tmp_path: Path, records: int, columns: int, steps: int, seconds: float, mebibytes: float
) -> None:
    """The processor time and memory that runs on Parquet tables took, beyond those of a small one."""
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    table = pa.table({**{f"a{i}": pa.repeat(0.0, records) for i in range(columns)}, "y": pa.repeat("a", records)})
    pq.write_table(table, tmp_path / "d.parquet")
    document = {
        "dpspec": 1,
        "name": "p",
        "mechanism": {
            "kind": "group",
            "noise_multiplier": 1.5,
            "clip_norm": 1.0,
            "sampling": {"scheme": "poisson", "rate": 0.5},
            "steps": steps,
        },
        "data": {"kind": "parquet", "path": "d.parquet", "label": "y", "classes": ["a", "b"]},
        "model": {"kind": "mlp", "hidden": [2]},
        "training": {"learning_rate": 1.0},
        "claims": [{"id": "one", "kind": "approx-dp", "epsilon": 30, "delta": 1e-2}],
        "audit": {"method": "one-run", "canary": {"space": "gradient", "kind": "orthogonal", "count": 8}, "seed": 7},
    }
    catalog = load_catalog()
    plan = prepare(from_document(document, catalog, str(tmp_path)), catalog).plan()
    assert LEAST * plan.seconds - BESIDE <= seconds <= MOST * plan.seconds + BESIDE
    assert mebibytes <= plan.memory_bytes / 2**20 <= 3 * mebibytes + 100


def test_the_time_of_bounds_is_estimated_from_some_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = counting.EXAMPLE + f"matrix: {{mechanism.epsilon: {[1 + i / 100 for i in range(50)]}}}\n"
    prepared = [prepare(spec, counting.catalog()) for spec in counting.load(tmp_path, text=text)]
    clock = itertools.count()
    monkeypatch.setattr(runner.time, "process_time", lambda: 0.25 * next(clock))
    assert measure_bounds(prepared, counting.catalog()) == (50 * 0.25, 8)

    def needs_rows(self: object, spec: Spec, context: RunContext) -> Iterator[Finding]:
        yield from context.data  # type: ignore[misc]

    monkeypatch.setattr(counting.CountingAudit, "bound", needs_rows)
    assert measure_bounds(prepared, counting.catalog()) == (0.0, 0)
