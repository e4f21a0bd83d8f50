"""Local pools: results, reports of dead workers, and admission by resources."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from support import tasks
from support.tasks import task, until_end

from dpspec.executors import (
    InlinePool,
    PartialResult,
    PoolRequest,
    Resources,
    Task,
    TaskFailed,
    TaskFinished,
    TaskProgress,
    WorkerLost,
    processes,
)
from dpspec.executors.processes import Processes


@pytest.fixture(scope="module")
def shared() -> Iterator[Processes]:
    """A pool whose workers serve several tests."""
    with closing(Processes(["cpu"], most=2, threads=2, budget=1000)) as pool:
        yield pool


@pytest.fixture
def pool() -> Iterator[Processes]:
    """A pool that the test may close."""
    with closing(Processes(["cpu"], most=2, threads=2, budget=1000)) as pool:
        yield pool


def test_what_a_task_yields_comes_back_in_order(shared: Processes) -> None:
    shared.start(task(1, partial(tasks.count, 3)))
    by_task = until_end(shared, 1)[1]
    assert by_task == [*(PartialResult(task=1, value=i) for i in range(3)), TaskFinished(task=1)]
    shared.start(task(2, partial(tasks.say, "half")))
    assert TaskProgress(task=2, value="half") in until_end(shared, 2)[2]


def test_errors_travel_with_their_story_or_by_another_error(shared: Processes) -> None:
    shared.start(task(1, tasks.fail))
    shared.start(task(2, tasks.fail_oddly))
    by_task = until_end(shared, 1, 2)
    (failed,), (odd,) = by_task[1], by_task[2]
    assert isinstance(failed, TaskFailed)
    assert isinstance(failed.error, ValueError)
    assert "in fail_on_purpose" in "".join(failed.error.__notes__)
    assert isinstance(odd, TaskFailed)
    assert "OddError: odd" in str(odd.error)


def test_a_killed_worker_loses_its_task_alone(shared: Processes) -> None:
    shared.start(task(1, tasks.kill))
    shared.start(task(2, partial(tasks.count, 2)))
    by_task = until_end(shared, 1, 2)
    lost = by_task[1][-1]
    assert isinstance(lost, WorkerLost)
    assert lost.reason == "its process was killed by SIGKILL; the system may have run out of memory"
    assert by_task[2][-1] == TaskFinished(task=2)
    shared.start(task(3, tasks.leave))
    assert until_end(shared, 3)[3] == [WorkerLost(task=3, reason="its process ended with exit code 3")]
    shared.start(task(4, partial(tasks.count, 1)))
    assert until_end(shared, 4)[4][-1] == TaskFinished(task=4)


@pytest.mark.ci
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no such processes here")
def test_a_worker_is_lost_though_its_child_lives(shared: Processes) -> None:
    begun = time.monotonic()
    shared.start(task(1, tasks.kill_beside_a_child))
    child, lost = until_end(shared, 1)[1]
    assert isinstance(child, PartialResult)
    os.kill(child.value, signal.SIGKILL)
    assert isinstance(lost, WorkerLost)
    assert time.monotonic() - begun < 50.0  # the child sleeps for 60 s


def test_what_is_printed_stays_off_stdout(pool: Processes, capfd: pytest.CaptureFixture[str]) -> None:
    pool.start(task(1, tasks.write_output))
    until_end(pool, 1)
    pool.close()
    out, err = capfd.readouterr()
    assert out == ""
    assert "printed" in err


def test_room_is_for_tasks_and_processes() -> None:
    with closing(Processes(["cpu"], most=2, threads=2, budget=1000)) as pool:
        assert pool.room(Resources(threads=64, memory_bytes=10**12))  # a single task always fits
        pool.start(task(1, partial(tasks.count, 1), memory_bytes=400))
        assert pool.room(Resources(memory_bytes=600))
        assert not pool.room(Resources(memory_bytes=601))
        assert not pool.room(Resources(threads=2))
    pool = Processes(["cpu"], most=3, threads=3, budget=1000, idle=400)
    pool.start(task(1, partial(tasks.count, 1)))
    assert pool.room(Resources(memory_bytes=200))
    assert not pool.room(Resources(memory_bytes=201))
    pool.start(task(2, partial(tasks.count, 1)))
    assert not pool.room(Resources())  # three processes are too many
    until_end(pool, 1, 2)
    pool.start(task(3, partial(tasks.count, 1)))
    assert not pool.room(Resources(memory_bytes=201))  # two processes exist
    assert pool.room(Resources(memory_bytes=200))
    pool.close()


@pytest.mark.ci
def test_gpus_are_shared_out_one_by_one() -> None:
    pool = Processes(["cuda:0", "cuda:1"], most=2, threads=2, budget=1000)
    for number in (1, 2):
        pool.start(Task(number=number, name="", needs=Resources(device="auto"), work=tasks.device))
    by_task = until_end(pool, 1, 2)
    assert {m.value for messages in by_task.values() for m in messages if isinstance(m, PartialResult)} == {
        "cuda:0",
        "cuda:1",
    }
    pool.close()


def test_closing_stops_what_runs(pool: Processes, tmp_path: Path) -> None:
    pool.start(task(1, partial(tasks.wait, str(tmp_path / "running"))))
    while not (tmp_path / "running").exists():
        time.sleep(0.01)
    pid = int((tmp_path / "running").read_text() or 0)
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.family
@pytest.mark.parametrize("how", ["stop", "close", "a signal to the worker"])
def test_a_stopped_task_saves_its_state(pool: Processes, tmp_path: Path, how: str) -> None:
    file = tmp_path / "state"
    pool.start(task(1, partial(tasks.wait_for_stop, str(file))))
    while not file.exists():
        time.sleep(0.01)
    if how == "close":
        pool.close()
    elif how == "stop":
        pool.stop()
    else:
        os.kill(pool._workers[0].process.pid or 0, signal.SIGTERM)
    if how != "close":
        assert until_end(pool, 1)[1] == [WorkerLost(task=1, reason="its process ended with exit code 143")]
    assert file.read_text(encoding="utf-8") == "saved"


def test_workers_end_when_their_caller_is_killed(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import sys
        from functools import partial
        sys.path[:] = {sys.path!r}
        from support import tasks
        from dpspec.executors import Resources, Task
        from dpspec.executors.processes import Processes
        if __name__ == "__main__":
            pool = Processes(["cpu"], most=1, threads=1, budget=1)
            work = partial(tasks.wait, {str(tmp_path / "running")!r})
            pool.start(Task(number=1, name="", needs=Resources(), work=work))
            while True:
                list(pool.messages())
        """
    )
    (tmp_path / "caller.py").write_text(script, encoding="utf-8")
    caller = subprocess.Popen([sys.executable, str(tmp_path / "caller.py")])
    while not (tmp_path / "running").exists():
        time.sleep(0.01)
    pid = int((tmp_path / "running").read_text())
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    for _ in range(3000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("the worker outlived its caller")


def test_inline_runs_in_this_process_and_reports_at_once() -> None:
    said: list[object] = []
    pool = InlinePool(said.append)
    assert pool.room(Resources())
    pool.start(task(1, partial(tasks.say, "half")))
    assert not pool.room(Resources())
    messages = iter(pool.messages())
    assert next(messages) == PartialResult(task=1, value=os.getpid())
    assert said == [TaskProgress(task=1, value="half")]
    assert list(messages) == [TaskFinished(task=1)]
    pool.start(task(2, tasks.fail))
    (failed,) = pool.messages()
    assert isinstance(failed, TaskFailed)
    assert list(pool.messages()) == []


def test_a_task_is_stopped_after_its_time_limit(shared: Processes) -> None:
    for each in (shared, InlinePool()):
        each.start(Task(number=1, name="", needs=Resources(), work=tasks.stop, seconds=0.05))
        assert until_end(each, 1)[1] == [PartialResult(task=1, value="stopped"), TaskFinished(task=1)]


GPUS = ("cuda:0", "cuda:1", "cuda:2")


@pytest.mark.parametrize(
    ("demand", "cores", "devices", "free", "size"),
    [
        (PoolRequest(tasks=1, seconds=1e6, device="cpu"), 2, None, None, 0),
        (PoolRequest(tasks=9, seconds=1.0, device="cpu"), 2, None, None, 0),
        (PoolRequest(tasks=9, seconds=1e6, device="cpu", workers=1), 2, None, None, 0),
        (PoolRequest(tasks=9, seconds=1e6, device="cpu"), 1, None, None, 0),
        (PoolRequest(tasks=9, seconds=1e6, device="cpu"), 2, None, 600 * 2**20, 0),
        (PoolRequest(tasks=9, seconds=1e6, device="cpu"), 2, None, None, 2),
        (PoolRequest(tasks=9, seconds=1.0, device="cpu", workers=3), 2, None, None, 3),
        (PoolRequest(tasks=9, seconds=1e6), 1, GPUS[:2], None, 2),  # few threads leave no GPU without work
        (PoolRequest(tasks=9, seconds=1e6, device="cpu", workers=3), 2, None, 2**30, 3),
    ],
)
def test_what_is_small_stays_here_and_the_rest_takes_what_there_is(monkeypatch, demand, cores, devices, free, size):
    monkeypatch.setattr(processes, "cores", lambda: cores)
    if devices is not None:
        monkeypatch.setattr("dpspec.training.device.devices", lambda name: devices)
    if free is not None:
        monkeypatch.setattr("dpspec.training.gradients.memory.free_bytes", lambda device: free)
    pool = processes.open_pool(demand)
    assert isinstance(pool, InlinePool) == (size == 0)
    assert pool.size == max(size, 1)
    if size > 2 or devices is not None:
        pool.start(task(1, partial(tasks.count, 1), memory_bytes=2**20))
        assert pool.room(Resources(memory_bytes=2**20))
    pool.close()


@pytest.mark.parametrize(("threads", "found"), [("", 6), ("x", 6), ("2", 2), ("0", 1), ("64", 6)])
def test_omp_num_threads_limits_the_cores(monkeypatch: pytest.MonkeyPatch, threads: str, found: int) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert processes.cores() == found
