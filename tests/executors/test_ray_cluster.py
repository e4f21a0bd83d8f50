"""The executor ``ray`` on a cluster of this machine, where Ray is installed."""

import dataclasses
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import counting, fragile, tasks
from support.tasks import task, until_end

from dpspec.contract.events import Event, Noticed, Progressed
from dpspec.engine.running.runner import run
from dpspec.engine.running.train import RunOptions
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import UsageError
from dpspec.executors import PartialResult, PoolRequest, Resources, TaskFailed, TaskFinished, TaskProgress, WorkerLost
from dpspec.executors.ray_cluster import Cluster, open_pool
from dpspec.json_records import write
from dpspec.language.load import load_specs
from dpspec.registry.builtin import EXECUTORS

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    patch.setenv(fragile.FOLDER, str(tmp_path_factory.mktemp("control")))
    patch.setenv("PYTHONPATH", str(Path(tasks.__file__).parents[1]))  # workers import the tasks
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    yield ray
    ray.shutdown()
    patch.undo()


@pytest.fixture
def pool(ray: Any) -> Iterator[Cluster]:
    pool = open_pool(PoolRequest(tasks=9, seconds=1e6))
    assert isinstance(pool, Cluster)
    yield pool
    pool.close()


def test_addresses_that_are_refused() -> None:
    pytest.importorskip("ray")
    with pytest.raises(UsageError, match="--ray-address is auto or HOST:PORT, got 'ray://127"):
        open_pool(PoolRequest(tasks=1, seconds=1.0, address="ray://127.0.0.1:10001"))
    with pytest.raises(UsageError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        open_pool(PoolRequest(tasks=1, seconds=1.0, address="127.0.0.1:1"))


def test_sigterm_while_ray_starts_reaches_the_handler_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own handler raises SystemExit."""

    class StoppedError(Exception):
        pass

    def stop(number: int, frame: Any) -> None:
        raise StoppedError

    def init(**_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(StoppedError):
            open_pool(PoolRequest(tasks=1, seconds=1.0))
        assert signal.getsignal(signal.SIGTERM) is stop
    finally:
        signal.signal(signal.SIGTERM, before)


def test_results_of_tasks_and_reasons_of_deaths_are_reported(pool: Cluster) -> None:
    assert pool.size == 2
    progress = Progressed(audit="a", what="training", done=1, total=2)
    reports = [partial(tasks.say, value) for value in ("half", progress)]
    for number, work in enumerate((partial(tasks.count, 3), tasks.fail, tasks.kill, *reports)):
        pool.start(task(number, work))
    assert not pool.room(Resources())
    by_task = until_end(pool, 0, 1, 2, 3, 4)
    assert by_task[0] == [*(PartialResult(task=0, value=i) for i in range(3)), TaskFinished(task=0)]
    (failed,) = by_task[1]
    assert isinstance(failed, TaskFailed)
    assert "in fail_on_purpose" in "".join(failed.error.__notes__)
    assert isinstance(by_task[2][-1], WorkerLost)
    assert "WorkerCrashedError" in by_task[2][-1].reason
    assert TaskProgress(task=3, value="half") in by_task[3]
    assert TaskProgress(task=4, value=progress) in by_task[4]
    assert pool.room(Resources())


def test_what_no_node_has_is_refused(pool: Cluster) -> None:
    with pytest.raises(UsageError, match="task 1: no node of the Ray cluster has 64 CPUs; see --threads"):
        pool.start(task(1, partial(tasks.count, 1), threads=64))
    pool.start(task(2, partial(tasks.count, 1), memory_bytes=10**18))  # as much as there is
    assert until_end(pool, 2)[2][-1] == TaskFinished(task=2)
    with pytest.raises(UsageError, match="no node of the Ray cluster has a GPU"):
        open_pool(PoolRequest(tasks=1, seconds=1.0, device="cuda"))


def test_a_run_on_ray_finds_what_a_run_here_finds(ray: Any, tmp_path: Path) -> None:
    import os

    catalog = fragile.catalog()
    offered = catalog.executors["pair"]
    catalog = dataclasses.replace(
        catalog, executors={e.kind: dataclasses.replace(offered, provider=e) for e in EXECUTORS}
    )
    (tmp_path / "coin.yaml").write_text(
        counting.EXAMPLE + "matrix: {mechanism.epsilon: [0.5, 1.0]}\n", encoding="utf-8"
    )
    specs = load_specs([tmp_path / "coin.yaml"], catalog).specs
    events: list[Event] = []
    results = []
    for executor in (None, "ray"):
        store = Store(tmp_path / str(executor))
        if executor is not None:
            (Path(os.environ[fragile.FOLDER]) / "kill-3").touch()
        options = RunOptions(executor=executor, device="cpu")
        results.append(run(specs, catalog, store=store, listeners=[events.append], options=options))
    here, there = ([(write(a.findings), write(a.verdicts), write(a.evidence)) for a in r.audits] for r in results)
    assert here == there
    assert sum(isinstance(event, Noticed) and event.message.startswith("worker lost") for event in events) == 1
    counts = [(event.done, event.total) for event in events if isinstance(event, Progressed) and event.unit == "trials"]
    assert (0, 10) in counts  # before the first trial ends
    assert counts[-1] == (10, 10)
