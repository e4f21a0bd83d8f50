"""Tasks in processes of this machine. One that dies takes nothing with it but the task that it had.

Each worker is a fresh interpreter (``spawn``: a fork of a process that has threads, or a GPU, may hang) at the other
end of a pipe. It ends when its pipe does, so that none is left behind, however the caller ended. It looks for modules
where the caller does, and never in the current folder.

That may be a stranger's: ``python -c`` puts the current folder first on the path where modules are looked for, and that
is how ``multiprocessing`` starts workers: a file ``multiprocessing.py`` lying there would run before anything of ours.

The executor ``local`` is this process, or several of this machine where that is worth while.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

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
from dpspec.executors.inline import Here, Inline

_VARIABLE = "PYTHONSAFEPATH"


@contextmanager
def safe_path() -> Iterator[None]:
    """Within it, Python processes are started as by ``python -P``, whatever options this one was started with."""
    known: Any = util  # typeshed leaves out what spawn asks for options
    options = getattr(known, "_args_from_interpreter_flags", None)
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    if options is not None:  # the variable means nothing to children of ``python -E``
        known._args_from_interpreter_flags = lambda: [*options(), "-P"]
    try:
        yield
    finally:
        if options is not None:
            known._args_from_interpreter_flags = options
        restore(before)


def asked() -> str | None:
    """What the environment says of the path, for :func:`restore` in a process that was started here."""
    return os.environ.get(_VARIABLE)


def restore(value: str | None) -> None:
    """Let processes that this one starts be as they would without us: a backend may run scripts that import others."""
    if value is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = value


#: Seconds after which :meth:`Processes.messages` returns although nothing was said.
_MOMENT = 0.5

#: Seconds that a worker is given to end by itself.
_GRACE = 5.0


class _GoneError(Exception):
    """Nobody is at the other end of the pipe any more."""


@dataclass
class _Worker:
    """``device``: the GPU that it has come to hold, if any."""

    process: BaseProcess
    pipe: Connection
    device: str | None = None
    task: Task | None = None


class Processes:
    """At most ``most`` tasks at once, which compute with ``threads`` CPU threads and need ``budget`` bytes together.

    devices: what tasks that need a device are spread over, evenly; several GPUs, or one device for all.
    idle: the bytes of the budget that each process takes, with a task or without.
    """

    def __init__(self, devices: Sequence[str], most: int, threads: int, budget: int, idle: int = 0) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._devices, self._most, self._threads = tuple(devices), most, threads
        self._budget, self._idle = budget, idle
        self._workers: list[_Worker] = []
        atexit.register(self.close)  # or the interpreter would wait for workers that wait for it

    @property
    def size(self) -> int:
        """As many as it may run at most."""
        return self._most

    def room(self, needs: Needs) -> bool:
        """Whether threads and memory that are not spoken for are enough; a lone task always fits."""
        running = [needs, *(worker.task.needs for worker in self._workers if worker.task is not None)]
        processes = max(len(running), len(self._workers))
        return len(running) == 1 or (
            len(running) <= self._most
            and sum(each.threads for each in running) <= self._threads
            and sum(each.memory_bytes for each in running) + processes * self._idle <= self._budget
        )

    def start(self, task: Task) -> None:
        """Give it to an idle worker, to one that already holds its GPU if there is one, or to a new one."""
        device = self._least_busy() if task.needs.device != "cpu" else "cpu"
        idle = [worker for worker in self._workers if worker.task is None]
        if device == "cpu":
            worker = next(iter(idle), None)
        else:
            worker = next((w for w in idle if w.device == device), None) or next(
                (w for w in idle if not w.device), None
            )
        worker = worker or self._hire()
        worker.task = task
        if device != "cpu":
            worker.device = device
        with suppress(OSError):  # it has died, which reading from it will tell
            worker.pipe.send((task, device))

    def messages(self) -> Iterator[Message]:
        """What the workers said, and which of them died."""
        busy = [worker for worker in self._workers if worker.task is not None]
        # A process that a task has started may hold the pipe open when the worker is dead: so both are waited for.
        heard = wait([thing for worker in busy for thing in (worker.pipe, worker.process.sentinel)], timeout=_MOMENT)
        for worker in busy:
            if worker.pipe in heard or worker.process.sentinel in heard:
                yield self._heard(worker)

    def close(self) -> None:
        """Idle workers end when their pipe closes, busy ones are stopped."""
        for worker in self._workers:
            if worker.task is not None:
                worker.process.terminate()
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(_GRACE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()
        atexit.unregister(self.close)

    def _heard(self, worker: _Worker) -> Message:
        """What a worker said, or that it is dead."""
        task = worker.task
        assert task is not None
        try:
            if not worker.pipe.poll():
                raise EOFError
            message: Message = pickle.loads(worker.pipe.recv_bytes())  # noqa: S301 - of a process that we started
        except (EOFError, OSError):
            self._workers.remove(worker)
            worker.process.join(_GRACE)
            worker.pipe.close()
            return WorkerLost(task=task.number, reason=_death(worker.process.exitcode))
        if isinstance(message, TaskFinished | TaskFailed):
            worker.task = None
        return message

    def _least_busy(self) -> str:
        busy = [worker.device for worker in self._workers if worker.task is not None]
        return min(self._devices, key=busy.count)

    def _hire(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, asked()), name="dpspec-worker")
        with safe_path():
            process.start()
        theirs.close()  # so that the worker's death closes the pipe
        worker = _Worker(process=process, pipe=ours)
        self._workers.append(worker)
        return worker


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
        hint = "; the system may have run out of memory" if name == "SIGKILL" else ""
        return f"its process was killed by {name}{hint}"
    return f"its process ended with exit code {code}"


def _serve(pipe: Connection, path: str | None) -> None:
    """The whole life of a worker; ``path``: what the caller's environment says of safe paths."""
    restore(path)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the caller decides
    os.dup2(2, 1)  # results go to the caller's stdout, and nothing else does
    sys.stdout = sys.stderr
    try:
        while True:
            task, device = pipe.recv()
            _run(task, device, pipe)
    except (_GoneError, EOFError, OSError):
        pass


def _run(task: Task, device: str, pipe: Connection) -> None:
    number = task.number

    def send(message: Message) -> None:
        content = pickle.dumps(message)
        try:
            pipe.send_bytes(content)
        except OSError as error:
            raise _GoneError from error

    try:
        for value in task.work(Here(device, task.seconds, lambda said: send(TaskProgress(task=number, value=said)))):
            send(PartialResult(task=number, value=value))
    except _GoneError:
        raise
    except Exception as error:
        send(TaskFailed(task=number, error=portable(error)))
    else:
        send(TaskFinished(task=number))


def portable(error: BaseException) -> BaseException:
    """The error with the story of where it was raised; another one that tells the same where it cannot be pickled."""
    story = f"in a worker:\n{''.join(traceback.format_exception(error))}"
    error.add_note(story)
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own, of a moment ago
    except Exception:  # whatever pickling may raise
        marks = {name: value for name, value in error.__dict__.items() if isinstance(value, str)}
        error = RuntimeError(f"{type(error).__name__}: {error}")
        error.__dict__.update(marks)  # whose code it came out of
        error.add_note(story)
    return error


#: Work that takes fewer seconds than this on one core is done before workers have started.
_WORTHWHILE = 20.0

#: The share of the free memory that tasks may need, and the bytes that a process takes before it has one.
_SHARE, _PROCESS = 0.8, 400 * 2**20


def cores() -> int:
    """Count the CPU cores that this process may use, at least 1.

    The affinity of the process, the quota of its container and ``OMP_NUM_THREADS`` limit the number.
    """
    from joblib import cpu_count

    available = int(cpu_count())
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(available, int(threads))) if threads.isdecimal() else available


def open_pool(demand: Demand) -> Pool:
    """One process per GPU where there are several, else as many as cores and free memory allow.

    A single worker is the caller's own process. Raises ``UsageError`` where the device does not exist here.
    """
    wanted = demand.workers
    if wanted == 1 or demand.tasks <= 1 or (wanted is None and demand.seconds < _WORTHWHILE):
        return Inline()
    available = cores()
    if demand.device == "cpu" and wanted is None and available == 1:  # told without importing torch
        return Inline()
    from dpspec.training.device import devices
    from dpspec.training.gradients.memory import free_bytes

    places = devices(demand.device)
    free = _SHARE * free_bytes("cpu")
    most = wanted or min(available if places == ("cpu",) else len(places), max(1, int(free // _PROCESS)))
    if most == 1:
        return Inline()
    threads = max(available, wanted or (0 if places == ("cpu",) else len(places)))  # a GPU waits for one thread
    return Processes(places, most, threads, int(free), _PROCESS)
