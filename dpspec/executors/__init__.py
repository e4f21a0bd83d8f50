"""Tasks, messages and pools: trials run in this process, several local processes, or a Ray cluster.

A third-party executor imports tasks and messages from here. Plugins register it as a ``dpspec.contract.Executor``.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

#: The interface for third-party executors.
__all__ = [
    "Message",
    "PartialResult",
    "Pool",
    "PoolRequest",
    "Resources",
    "Task",
    "TaskContext",
    "TaskFailed",
    "TaskFinished",
    "TaskProgress",
    "WorkerLost",
]


@dataclass(frozen=True, kw_only=True)
class Resources:
    """``memory_bytes`` is 0 if unknown; ``device`` is ``auto``, ``cpu``, ``cuda`` or ``cuda:1``; ``cpu`` for tasks
    without one."""

    threads: int = 1
    memory_bytes: int = 0
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class PoolRequest:
    """Expected work of a pool at the time of its creation; ``seconds`` is the sequential duration.

    Without ``workers`` the pool decides. ``address`` is of a cluster, for executors that use one.
    """

    tasks: int
    seconds: float
    device: str = "auto"
    workers: int | None = None
    address: str | None = None


class TaskContext(Protocol):
    """Context of a running task."""

    @property
    def device(self) -> str:
        """The device of the task."""

    def tell(self, value: Any) -> None:
        """Report progress. A pool may delay or drop the report."""

    def stopped(self) -> bool:
        """True if the task should stop at the next safe point."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A unit of work. The task and its results are pickled.

    ``work`` yields parts of the result as they become available. ``seconds`` is the limit after which
    ``TaskContext.stopped`` returns True; None for none.
    """

    number: int
    name: str
    needs: Resources
    work: Callable[[TaskContext], Iterator[Any]]
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class TaskProgress:
    """A progress report of a running task, usually an event."""

    task: int
    value: Any


@dataclass(frozen=True, kw_only=True)
class PartialResult:
    """A part of a task's result."""

    task: int
    value: Any


@dataclass(frozen=True, kw_only=True)
class TaskFinished:
    """A task has finished, and all parts of its result were delivered."""

    task: int


@dataclass(frozen=True, kw_only=True)
class TaskFailed:
    """A task raised an error. It must not be repeated."""

    task: int
    error: BaseException


@dataclass(frozen=True, kw_only=True)
class WorkerLost:
    """The worker of a task was lost, for example killed or disconnected. The task can be repeated."""

    task: int
    reason: str


Message: TypeAlias = TaskProgress | PartialResult | TaskFinished | TaskFailed | WorkerLost


class Pool(Protocol):
    """Runs tasks. Each started task ends with exactly one ``TaskFinished``, ``TaskFailed`` or ``WorkerLost``."""

    @property
    def size(self) -> int:
        """Number of concurrent tasks."""

    def room(self, needs: Resources) -> bool:
        """True if a task with these needs can start now. An idle pool accepts every task that it can run."""

    def start(self, task: Task) -> None:
        """Start a task for which there is room. Raises ``UsageError`` if the pool can never run it."""

    def messages(self) -> Iterator[Message]:
        """Messages since the last call. Waits briefly for the first."""

    def stop(self) -> None:
        """Ask running tasks to stop at their next safe point. Each still ends with one message."""

    def close(self) -> None:
        """Stop all tasks and release all resources."""


class InlineContext:
    """``stop`` returns a true value if the task should stop, apart from its time limit of ``seconds``."""

    def __init__(
        self, device: str, seconds: float | None, tell: Callable[[Any], None], stop: Callable[[], object] | None = None
    ) -> None:
        self.device, self.tell, self._stop = device, tell, stop
        self._until = None if seconds is None else time.monotonic() + seconds

    def stopped(self) -> bool:
        late = self._until is not None and time.monotonic() > self._until
        return late or (self._stop is not None and bool(self._stop()))


class InlinePool:
    """A pool whose only worker is the caller: a task runs while the caller iterates over its messages.

    ``tell`` receives progress reports immediately; without it they are dropped. ``requested`` returns a true value if a
    running task should stop.
    """

    size = 1

    def __init__(self, tell: Callable[[TaskProgress], None] | None = None) -> None:
        self.tell = tell
        self.requested: Callable[[], object] | None = None
        self._task: Task | None = None

    def room(self, needs: Resources) -> bool:
        return self._task is None

    def start(self, task: Task) -> None:
        self._task = task

    def messages(self) -> Iterator[Message]:
        task = self._task
        if task is None:
            return
        number = task.number

        def tell(value: Any) -> None:
            if self.tell is not None:
                self.tell(TaskProgress(task=number, value=value))

        try:
            for value in task.work(InlineContext(task.needs.device, task.seconds, tell, self.requested)):
                yield PartialResult(task=number, value=value)
        except Exception as error:
            self._task = None
            yield TaskFailed(task=number, error=error)
        else:
            self._task = None
            yield TaskFinished(task=number)

    def stop(self) -> None:
        """Do nothing: the task asks ``requested`` itself."""

    def close(self) -> None:
        self._task = None
