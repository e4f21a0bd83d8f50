"""The executor ``ray``: tasks of a Ray cluster, each with the CPUs, the GPU and the memory that it declares.

Ray places tasks and says when it lost one; what to do then is decided where all executors' losses are
(``max_retries=0``). Workers need nothing but an importable dpspec of the same version, and the data files that specs
name: what a task yields travels back to the caller, who keeps it. They import nothing from the current folder.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpspec.contract.events import Progressed
from dpspec.errors import ExitCode, UsageError
from dpspec.executors import (
    Demand,
    Message,
    Needs,
    PartialResult,
    Pool,
    Task,
    TaskFailed,
    TaskFinished,
    TaskProgress,
    WorkerLost,
)
from dpspec.executors.inline import Here
from dpspec.executors.processes import portable, safe_path

#: Tasks that are sent ahead, per task that can run: so that no CPU waits for the next one, and no more.
_AHEAD = 2.0

#: Seconds after which :meth:`Cluster.messages` returns although nothing was said.
_MOMENT = 0.5

#: An address that names a machine, and the seconds that it is given to answer.
_HOST_PORT, _PATIENCE = re.compile(r"\[?([^/\]]+)\]?:(\d{1,5})"), 10.0

#: The head of a cluster is asked after every so many seconds, and gone when it has not answered so often.
_KNOCK, _MISSED = 5.0, 3

#: What a task may say between two parts of its outcome; older words are left out, and so is how far it has come:
#: nothing is sent before the next part is.
_WORDS = 16


def open_pool(demand: Demand) -> Pool:
    """Connect to a cluster, or start one on this machine where no address is given (nor in ``RAY_ADDRESS``).

    Raises ``UsageError`` where Ray is not installed or no cluster answers.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # quiet: tasks without a GPU see none
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"--executor ray needs Ray ({error}): pip install 'dpspec[ray]'") from None
    if "://" in (demand.address or ""):  # Ray Client's sends no outcome before the task has ended
        raise UsageError(f"--ray-address is auto or HOST:PORT, got {demand.address!r}")
    ours = not ray.is_initialized()
    if ours:
        try:
            _knock(demand.address)
            with _elsewhere(), safe_path():
                ray.init(
                    address=demand.address,
                    log_to_driver=False,
                    logging_level="error",
                    **({} if demand.address else {"include_dashboard": False}),
                )
        except (OSError, RuntimeError, ValueError) as error:
            hint = "a cluster that asks for a token needs RAY_AUTH_MODE=token in the environment"
            raise UsageError(f"no Ray cluster at {demand.address!r}: {error} ({hint})") from None
    try:
        return Cluster(ray, demand, ours=ours)
    except UsageError:
        if ours:
            ray.shutdown()
        raise


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Within it, the current folder is one where nothing lies: Ray makes it a place for its workers to import from."""
    empty = tempfile.mkdtemp(prefix="dpspec-ray-")
    atexit.register(shutil.rmtree, empty, ignore_errors=True)  # a cluster of this machine goes on working in it
    before = os.getcwd()
    os.chdir(empty)
    try:
        yield
    finally:
        os.chdir(before)


def _knock(address: str | None) -> None:
    """Raise ``OSError`` where nobody listens at ``HOST:PORT``: Ray itself asks for minutes, and ends the process."""
    found = _HOST_PORT.fullmatch(address or "")
    if found:
        socket.create_connection((found[1], int(found[2])), timeout=_PATIENCE).close()


def _watch(head: str, over: threading.Event) -> None:
    """End the process where the head of the cluster is gone: Ray would, after a minute, with the code of a bad verdict.

    What was yielded is kept by then. Nothing less will do: calls to a head that is gone do not come back.
    """
    missed = 0
    while not over.wait(_KNOCK):
        try:
            _knock(head)
            missed = 0
        except OSError:
            missed += 1
        if missed >= _MISSED:
            sys.stderr.write(
                f"error: the head of the Ray cluster at {head} is gone. Trials that ended are stored: running the same "
                "command again resumes from there.\n"
            )
            sys.stderr.flush()
            os._exit(ExitCode.INCOMPLETE)


class Cluster:
    """A pool whose workers are those of a Ray cluster, however many it has at the moment."""

    def __init__(self, ray: Any, demand: Demand, *, ours: bool = False) -> None:
        """``ours``: whether the connection ends with the pool."""
        self._ray, self._demand, self._ours = ray, demand, ours
        self._remote = ray.remote(_run)
        self._running: dict[Any, int] = {}
        self._arriving: dict[Any, Any] = {}
        self._gpu = self._wants_gpu(demand.device)
        self._over = threading.Event()
        head = ray.get_runtime_context().gcs_address
        threading.Thread(target=_watch, args=(head, self._over), name="ray head", daemon=True).start()

    @property
    def size(self) -> int:
        """How many tasks of one thread have room on all nodes together."""
        return self._slots(Needs(device=self._demand.device))

    def room(self, needs: Needs) -> bool:
        """Whether fewer tasks are sent than can run, and some ahead; what runs where is Ray's to decide."""
        return len(self._running) < self._slots(needs) * (_AHEAD if self._demand.workers is None else 1.0)

    def start(self, task: Task) -> None:
        """Send it with what it needs; raises ``UsageError`` where no node has that."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        gpu = self._gpu and task.needs.device != "cpu"
        fitting = [n for n in nodes if n.get("CPU", 0) >= task.needs.threads and (not gpu or n.get("GPU", 0) >= 1)]
        if not fitting:
            what = f"{task.needs.threads} CPUs{' and a GPU' if gpu else ''}"
            raise UsageError(f"{task.name}: no node of the Ray cluster has {what}; see --threads and --device")
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
        """What came back, and which tasks are gone with their worker or node."""
        yield from self._round(_MOMENT)
        yield from self._round(0.0)  # what was announced a moment ago has mostly arrived

    def close(self) -> None:
        """Stop what runs; a cluster that was started here ends."""
        for generator in self._running:
            self._ray.cancel(generator, force=True)
        self._over.set()  # not before: calls to a head that is gone do not come back
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
            if item in self._arriving:
                yield from self._arrived(item)
            else:
                yield from self._announced(item)

    def _announced(self, generator: Any) -> Iterator[Message]:
        """A task has yielded: what, is still to come from its node, which may never happen."""
        try:
            self._arriving[next(generator)] = generator
        except StopIteration:  # it ended without saying so
            yield WorkerLost(task=self._running.pop(generator), reason="its worker stopped responding")
        except self._ray.exceptions.RayError as error:
            yield self._gone(generator, error)

    def _arrived(self, reference: Any) -> Iterator[Message]:
        generator = self._arriving.pop(reference)
        try:
            message = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            yield self._gone(generator, error)
        else:
            if isinstance(message, TaskFinished | TaskFailed):
                del self._running[generator]
            yield message

    def _gone(self, generator: Any, error: Exception) -> Message:
        number = self._running.pop(generator)
        if isinstance(error, self._ray.exceptions.RayTaskError):  # before our own code had begun
            text = " ".join(str(getattr(error, "cause", None) or error).split())
            return TaskFailed(task=number, error=UsageError(f"a Ray worker cannot run dpspec's tasks: {text}"))
        return WorkerLost(task=number, reason=f"{type(error).__name__}: {str(error).split('. ')[0]}")

    def _slots(self, needs: Needs) -> int:
        has = self._ray.cluster_resources()
        slots = int(has.get("CPU", 0) // needs.threads)
        if self._gpu and needs.device != "cpu":
            slots = min(slots, int(has.get("GPU", 0)))
        return max(1, slots if self._demand.workers is None else min(slots, self._demand.workers))

    def _wants_gpu(self, device: str) -> bool:
        has = self._ray.cluster_resources().get("GPU", 0) >= 1
        if device.startswith("cuda") and not has:
            raise UsageError(f"device {device!r} was asked for, but no node of the Ray cluster has a GPU")
        if device == "mps":
            raise UsageError("device 'mps' was asked for: on a Ray cluster it is auto, cpu or cuda")
        return bool(has) and device != "cpu"


def _run(task: Task, device: str) -> Iterator[Message]:
    """A task on its worker."""
    said: deque[Any] = deque(maxlen=_WORDS)

    def tell(value: Any) -> None:
        if not isinstance(value, Progressed):
            said.append(value)

    def words() -> Iterator[TaskProgress]:
        while said:
            yield TaskProgress(task=task.number, value=said.popleft())

    try:
        for value in task.work(Here(device, task.seconds, tell)):
            yield from words()
            yield PartialResult(task=task.number, value=value)
    except Exception as error:
        yield from words()
        yield TaskFailed(task=task.number, error=portable(error))
    else:
        yield from words()
        yield TaskFinished(task=task.number)
