"""The executor ``ray``: runs tasks on a Ray cluster with their declared CPUs, GPU and memory.

Workers need an importable dpspec of the same version and the data files of the specs, and import nothing from the
current folder. The common dispatcher repeats lost tasks (``max_retries=0``).
"""

import atexit
import os
import queue
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpspec.contract.events import Progressed
from dpspec.errors import ExitCode, UsageError
from dpspec.executors import (
    InlineContext,
    Message,
    PartialResult,
    Pool,
    PoolRequest,
    Resources,
    Task,
    TaskFailed,
    TaskFinished,
    TaskProgress,
    WorkerLost,
)
from dpspec.executors.processes import portable, safe_path

#: Number of submitted tasks per task that can run, so that no CPU waits for the next one.
_AHEAD = 2.0

#: Timeout of :meth:`Cluster.messages` in seconds.
_MOMENT = 0.5

#: Pattern of an address, and timeout of a connection in seconds.
_HOST_PORT, _PATIENCE = re.compile(r"\[?([^/\]]+)\]?:(\d{1,5})"), 10.0

#: Seconds between checks of the cluster's head, and number of failures after which it counts as lost.
_KNOCK, _MISSED = 5.0, 3

#: Minimum number of seconds between two reports of a task's progress.
_REPORT_EVERY = 2.0


def open_pool(demand: PoolRequest) -> Pool:
    """Connect to a cluster, or start a local one without an address (also not in ``RAY_ADDRESS``)."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning about tasks without a GPU
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"--executor ray needs Ray ({error}): pip install 'dpspec[ray]'") from None
    if "://" in (demand.address or ""):  # Ray Client delivers no result before the end of a task
        raise UsageError(f"--ray-address is auto or HOST:PORT, got {demand.address!r}")
    ours = not ray.is_initialized()
    if ours:
        try:
            _check_head(demand.address)
            with _empty_folder(), safe_path(), _own_sigterm():
                options = {} if demand.address else {"include_dashboard": False}
                ray.init(address=demand.address, log_to_driver=False, logging_level="error", **options)
        except (OSError, RuntimeError, ValueError) as error:
            hint = "a cluster with token authentication needs RAY_AUTH_MODE=token in the environment"
            raise UsageError(f"no Ray cluster at {demand.address!r}: {error} ({hint})") from None
    try:
        return Cluster(ray, demand, ours=ours)
    except UsageError:
        if ours:
            ray.shutdown()
        raise


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Context in which SIGTERM keeps its handler while Ray starts.

    Ray's handler in Python would end its processes within the signal, which takes seconds, and raise ``SystemExit``.
    Ray's handler in C++ sets an alarm that aborts the process 3 s after the signal.
    """
    handler, install = signal.getsignal(signal.SIGTERM), signal.signal
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return

    def install_others(number: int, new_handler: Any) -> Any:
        return handler if number == signal.SIGTERM else install(number, new_handler)

    setattr(signal, "signal", install_others)  # noqa: B010 - Ray has no option for it
    try:
        yield
    except KeyboardInterrupt:
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        raise
    finally:
        setattr(signal, "signal", install)  # noqa: B010
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def _empty_folder() -> Iterator[None]:
    """Context with an empty current folder, which Ray puts on its workers' module path."""
    empty = tempfile.mkdtemp(prefix="dpspec-ray-")
    atexit.register(shutil.rmtree, empty, ignore_errors=True)  # a local cluster keeps using it
    before = os.getcwd()
    os.chdir(empty)
    try:
        yield
    finally:
        os.chdir(before)


def _check_head(address: str | None) -> None:
    """Raise ``OSError`` if ``HOST:PORT`` does not answer. Ray would try for minutes and then end the process."""
    host_and_port = _HOST_PORT.fullmatch(address or "")
    if host_and_port:
        socket.create_connection((host_and_port[1], int(host_and_port[2])), timeout=_PATIENCE).close()


def _watch(head: str, over: threading.Event) -> None:
    """End the process if the cluster's head is lost: calls to it never return, and all received results are stored."""
    missed = 0
    while not over.wait(_KNOCK):
        try:
            _check_head(head)
            missed = 0
        except OSError:
            missed += 1
        if missed >= _MISSED:
            sys.stderr.write(
                f"error: the head of the Ray cluster at {head} is gone. Finished trials are stored: run the same "
                "command again to resume.\n"
            )
            sys.stderr.flush()
            os._exit(ExitCode.INCOMPLETE)


class Cluster:
    def __init__(self, ray: Any, demand: PoolRequest, *, ours: bool = False) -> None:
        self._ray, self._demand, self._ours = ray, demand, ours
        self._remote = ray.remote(_run)
        self._running: dict[Any, int] = {}
        self._arriving: dict[Any, Any] = {}
        has_gpu = ray.cluster_resources().get("GPU", 0) >= 1
        if demand.device.startswith("cuda") and not has_gpu:
            raise UsageError(f"device {demand.device!r} is not available: no node of the Ray cluster has a GPU")
        self._gpu = has_gpu and demand.device != "cpu"
        self._over = threading.Event()
        head = ray.get_runtime_context().gcs_address
        threading.Thread(target=_watch, args=(head, self._over), name="ray head", daemon=True).start()

    @property
    def size(self) -> int:
        return self._slots(Resources(device=self._demand.device))

    def room(self, needs: Resources) -> bool:
        return len(self._running) < self._slots(needs) * (_AHEAD if self._demand.workers is None else 1.0)

    def start(self, task: Task) -> None:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        gpu = self._gpu and task.needs.device != "cpu"
        fitting = [n for n in nodes if n.get("CPU", 0) >= task.needs.threads and (not gpu or n.get("GPU", 0) >= 1)]
        if not fitting:
            needed = f"{task.needs.threads} CPUs{' and a GPU' if gpu else ''}"
            raise UsageError(f"{task.name}: no node of the Ray cluster has {needed}; see --threads and --device")
        memory = min(task.needs.memory_bytes, max(int(n.get("memory", 0)) for n in fitting))
        generator = self._remote.options(
            name=task.name,
            num_cpus=task.needs.threads,
            num_gpus=1 if gpu else 0,
            memory=memory or None,
            num_returns="streaming",
            max_retries=0,
        ).remote(task, "cuda" if gpu else "cpu")
        self._running[generator] = task.number

    def messages(self) -> Iterator[Message]:
        yield from self._round(_MOMENT)
        yield from self._round(0.0)  # most announced results have arrived by now

    def stop(self) -> None:
        """Cancel all tasks: a stopped remote task keeps no state."""
        for generator in self._running:
            self._ray.cancel(generator, force=True)

    def close(self) -> None:
        self.stop()
        self._over.set()  # last, because calls to a lost head never return
        self._running.clear()
        self._arriving.clear()
        if self._ours:
            self._ray.shutdown()

    def _round(self, patience: float) -> Iterator[Message]:
        announced = set(self._arriving.values())
        expected = [*self._arriving, *(generator for generator in self._running if generator not in announced)]
        if not expected:
            return
        ready, _ = self._ray.wait(expected, num_returns=1, timeout=patience)
        if ready:
            ready, _ = self._ray.wait(expected, num_returns=len(expected), timeout=0)
        for item in ready:
            generator = self._arriving.pop(item, item)
            try:
                if generator is item:  # the task announced a result, which may never arrive
                    self._arriving[next(generator)] = generator
                    continue
                message = self._ray.get(item)
            except StopIteration:  # it ended without a final message
                yield WorkerLost(task=self._running.pop(generator), reason="its worker stopped responding")
            except self._ray.exceptions.RayError as error:
                number = self._running.pop(generator)
                if isinstance(error, self._ray.exceptions.RayTaskError):  # raised before dpspec's code started
                    text = " ".join(str(getattr(error, "cause", None) or error).split())
                    failed = UsageError(f"a Ray worker cannot run dpspec's tasks: {text}")
                    yield TaskFailed(task=number, error=failed)
                else:
                    yield WorkerLost(task=number, reason=f"{type(error).__name__}: {str(error).split('. ')[0]}")
            else:
                if isinstance(message, TaskFinished | TaskFailed):
                    del self._running[generator]
                yield message

    def _slots(self, needs: Resources) -> int:
        has = self._ray.cluster_resources()
        slots = int(has.get("CPU", 0) // needs.threads)
        if self._gpu and needs.device != "cpu":
            slots = min(slots, int(has.get("GPU", 0)))
        return max(1, slots if self._demand.workers is None else min(slots, self._demand.workers))


def _run(task: Task, device: str) -> Iterator[Message]:
    """Run a task in a thread, so that its progress reports arrive before its next result."""
    messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    next_report = 0.0

    def tell(value: Any) -> None:
        nonlocal next_report
        if isinstance(value, Progressed):
            if time.monotonic() < next_report:
                return
            next_report = time.monotonic() + _REPORT_EVERY
        messages.put(TaskProgress(task=task.number, value=value))

    def work() -> None:
        try:
            for value in task.work(InlineContext(device, task.seconds, tell)):
                messages.put(PartialResult(task=task.number, value=value))
            messages.put(TaskFinished(task=task.number))
        except Exception as error:
            messages.put(TaskFailed(task=task.number, error=portable(error)))
        finally:
            messages.put(None)

    threading.Thread(target=work, name=task.name, daemon=True).start()
    while (message := messages.get()) is not None:
        yield message
