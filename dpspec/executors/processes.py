"""Runs tasks in local processes. A worker that dies loses only its current task.

Each worker is a new interpreter (``spawn``, because forking a process with threads or a GPU can hang) with a pipe. It
ends when the pipe closes, so no worker outlives the caller. Its module path lacks the current folder, where a foreign
file ``multiprocessing.py`` would run before dpspec.
"""

import atexit
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from dpspec.contract import Cancelled
from dpspec.executors import (
    InlineContext,
    InlinePool,
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

_VARIABLE = "PYTHONSAFEPATH"


@contextmanager
def safe_path() -> Iterator[None]:
    """Context in which new Python processes start with the option ``-P`` (no current folder on the path)."""
    untyped_util: Any = util  # typeshed lacks the function that spawn uses
    options = getattr(untyped_util, "_args_from_interpreter_flags", None)
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    if options is not None:  # children of ``python -E`` ignore the variable
        untyped_util._args_from_interpreter_flags = lambda: [*options(), "-P"]
    try:
        yield
    finally:
        if options is not None:
            untyped_util._args_from_interpreter_flags = options
        restore(before)


def restore(value: str | None) -> None:
    """Restore the variable, so that scripts started by a backend see the user's environment."""
    if value is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = value


#: Timeout of :meth:`Processes.messages` in seconds.
_MOMENT = 0.5

#: Seconds before a worker that does not end is killed.
_GRACE = 5.0


class _GoneError(Exception):
    """The other end of the pipe is closed."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    device: str | None = None
    task: Task | None = None


class Processes:
    """A pool of local processes on ``devices``, with the memory of all tasks and of an ``idle`` process in bytes."""

    def __init__(self, devices: Sequence[str], most: int, threads: int, budget: int, idle: int = 0) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._devices, self._most, self._threads = tuple(devices), most, threads
        self._budget, self._idle = budget, idle
        self._workers: list[_Worker] = []
        atexit.register(self.close)  # otherwise the interpreter and the workers would wait for each other

    @property
    def size(self) -> int:
        return self._most

    def room(self, needs: Resources) -> bool:
        running = [needs, *(worker.task.needs for worker in self._workers if worker.task is not None)]
        processes = max(len(running), len(self._workers))
        return len(running) == 1 or (
            len(running) <= self._most
            and sum(demand.threads for demand in running) <= self._threads
            and sum(demand.memory_bytes for demand in running) + processes * self._idle <= self._budget
        )

    def start(self, task: Task) -> None:
        """Start the task in an idle worker, preferably one that already uses its GPU, or in a new worker."""
        busy = [worker.device for worker in self._workers if worker.task is not None]
        device = min(self._devices, key=busy.count) if task.needs.device != "cpu" else "cpu"
        idle = [worker for worker in self._workers if worker.task is None]
        fitting = [worker for worker in idle if device == "cpu" or worker.device in (device, None)]
        worker = max(fitting, key=lambda worker: worker.device == device, default=None)
        if worker is None:
            ours, theirs = self._context.Pipe()
            arguments = (theirs, os.environ.get(_VARIABLE))
            process = self._context.Process(target=_serve, args=arguments, name="dpspec-worker")
            with safe_path():
                process.start()
            theirs.close()  # the worker's death then closes the pipe
            worker = _Worker(process=process, pipe=ours)
            self._workers.append(worker)
        worker.task = task
        if device != "cpu":
            worker.device = device
        with suppress(OSError):  # a dead worker is detected when reading from its pipe
            worker.pipe.send((task, device))

    def messages(self) -> Iterator[Message]:
        busy = [worker for worker in self._workers if worker.task is not None]
        heard = wait([source for worker in busy for source in (worker.pipe, worker.process.sentinel)], timeout=_MOMENT)
        for worker in busy:
            # A child of a dead worker may keep the pipe and the sentinel open.
            if worker.pipe in heard or worker.process.sentinel in heard or not worker.process.is_alive():
                yield self._heard(worker)

    def stop(self) -> None:
        for worker in self._workers:
            if worker.task is not None:
                worker.process.terminate()

    def close(self) -> None:
        self.stop()
        for worker in self._workers:
            worker.pipe.close()
        until = time.monotonic() + _GRACE
        for worker in self._workers:
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()
        atexit.unregister(self.close)

    def _heard(self, worker: _Worker) -> Message:
        task = worker.task
        assert task is not None
        try:
            if not worker.pipe.poll():
                raise EOFError
            message: Message = pickle.loads(worker.pipe.recv_bytes())  # noqa: S301 - from our own worker
        except (EOFError, OSError):
            self._workers.remove(worker)
            worker.process.join(_GRACE)
            worker.pipe.close()
            code = worker.process.exitcode
            reason = f"its process ended with exit code {code}"
            if code is not None and code < 0:
                name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
                hint = "; the system may have run out of memory" if name == "SIGKILL" else ""
                reason = f"its process was killed by {name}{hint}"
            return WorkerLost(task=task.number, reason=reason)
        if isinstance(message, TaskFinished | TaskFailed):
            worker.task = None
        return message


#: Whether a worker was asked to end by SIGTERM, and whether it runs a task, which then ends at a safe point.
_terminated = _running = False


def _terminate(signum: int, frame: FrameType | None) -> None:
    global _terminated
    _terminated = True
    if not _running:
        raise SystemExit(128 + signum)


def _serve(pipe: Connection, path: str | None) -> None:
    restore(path)
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the caller handles it
    os.dup2(2, 1)  # only the caller writes to stdout
    sys.stdout = sys.stderr
    try:
        while True:
            task, device = pipe.recv()
            _run(task, device, pipe)
    except (_GoneError, EOFError, OSError):
        pass


def _run(task: Task, device: str, pipe: Connection) -> None:
    global _running
    number = task.number

    def send(message: Message) -> None:
        content = pickle.dumps(message)
        try:
            pipe.send_bytes(content)
        except OSError as error:
            raise _GoneError from error

    try:
        _running = True

        def tell(value: Any) -> None:
            send(TaskProgress(task=number, value=value))

        for value in task.work(InlineContext(device, task.seconds, tell, lambda: _terminated)):
            send(PartialResult(task=number, value=value))
    except _GoneError:
        raise
    except Cancelled as error:
        if _terminated:  # the caller counts the worker as lost
            raise SystemExit(128 + signal.SIGTERM) from error
        send(TaskFailed(task=number, error=portable(error)))
    except Exception as error:
        send(TaskFailed(task=number, error=portable(error)))
    else:
        send(TaskFinished(task=number))
    finally:
        _running = False


def portable(error: BaseException) -> BaseException:
    """The error with its traceback as a note, converted to a picklable one if necessary."""
    story = f"in a worker:\n{''.join(traceback.format_exception(error))}"
    error.add_note(story)
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own object
    except Exception:  # pickling may raise any error
        marks = {name: value for name, value in error.__dict__.items() if isinstance(value, str)}
        error = RuntimeError(f"{type(error).__name__}: {error}")
        error.__dict__.update(marks)  # the distribution whose code raised it
        error.add_note(story)
    return error


#: Sequential seconds below which starting workers does not pay off.
_WORTHWHILE = 20.0

#: Fraction of the free memory for tasks, and bytes of a process without a task.
_SHARE, PROCESS_BYTES = 0.8, 400 * 2**20


def cores() -> int:
    """Count the CPU cores of the process's affinity, container and ``OMP_NUM_THREADS``, at least 1."""
    from joblib import cpu_count

    available = int(cpu_count())
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(available, int(threads))) if threads.isdecimal() else available


def open_pool(demand: PoolRequest) -> Pool:
    """One process per GPU if there are several, otherwise as many as cores and memory allow; for one, the caller."""
    workers = demand.workers
    if workers == 1 or demand.tasks <= 1 or (workers is None and demand.seconds < _WORTHWHILE):
        return InlinePool()
    available = cores()
    if demand.device == "cpu" and workers is None and available == 1:  # avoids importing torch
        return InlinePool()
    from dpspec.training.device import devices
    from dpspec.training.gradients.memory import free_bytes

    device_names = devices(demand.device)
    free = _SHARE * free_bytes("cpu")
    gpus = 0 if device_names == ("cpu",) else len(device_names)
    most = workers or min(gpus or available, max(1, int(free // PROCESS_BYTES)))
    if most == 1:
        return InlinePool()
    threads = max(available, workers or gpus)  # each GPU needs a thread
    return Processes(device_names, most, threads, int(free), PROCESS_BYTES)
