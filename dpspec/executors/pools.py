"""Where the work of a run is done: tasks that any process can do, and the pools that do them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What one task takes while it runs.

    threads: CPU threads that it computes with.
    memory_bytes: of main memory; 0 where nobody knows.
    device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``; a task that computes on no device asks for ``cpu``.
    """

    threads: int = 1
    memory_bytes: int = 0
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What is going to be asked of a pool, as far as it is known when the pool is opened.

    tasks: how many tasks there are for now; seconds: what all of them together may take, one after the other.
    device: what tasks that need one ask for.
    workers: how many tasks at once; None leaves that to the pool.
    address: where a cluster listens, for executors that have one.
    """

    tasks: int
    seconds: float
    device: str = "auto"
    workers: int | None = None
    address: str | None = None


class Place(Protocol):
    """What a task finds where it runs."""

    @property
    def device(self) -> str:
        """The device to compute on, as a task may ask for one."""

    def tell(self, value: Any) -> None:
        """Pass on what the task has to say while it works; a pool may hold it back, or leave it out."""

    def stopped(self) -> bool:
        """Whether to stop at the next safe point."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A piece of work. It is pickled to travel, and so is what it yields.

    number: tells it from the other tasks of a run; name: what people call it.
    work: called where the task runs; yields each part of its outcome as soon as it is there.
    seconds: after so many, ``Place.stopped`` says so; None for never.
    """

    number: int
    name: str
    needs: Needs
    work: Callable[[Place], Iterator[Any]]
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class TaskProgress:
    """Something that a task tells while it works, usually an event."""

    task: int
    value: Any


@dataclass(frozen=True, kw_only=True)
class PartialResult:
    """A part of a task's outcome, passed on as soon as it is there."""

    task: int
    value: Any


@dataclass(frozen=True, kw_only=True)
class TaskFinished:
    """A task has ended, and all parts of its outcome have been passed on."""

    task: int


@dataclass(frozen=True, kw_only=True)
class TaskFailed:
    """A task raised; there is no point in running it again."""

    task: int
    error: BaseException


@dataclass(frozen=True, kw_only=True)
class WorkerLost:
    """What ran a task is gone: a process that was killed, a machine that was cut off. It can be run again."""

    task: int
    reason: str


Message: TypeAlias = TaskProgress | PartialResult | TaskFinished | TaskFailed | WorkerLost


class Pool(Protocol):
    """Runs tasks. Each that was started ends in exactly one ``TaskFinished``, ``TaskFailed`` or ``WorkerLost``."""

    @property
    def size(self) -> int:
        """How many tasks it runs at once, as far as it can say."""

    def room(self, needs: Needs) -> bool:
        """Whether a task with such needs can be started now; an idle pool has room for any that it can run at all."""

    def start(self, task: Task) -> None:
        """Begin a task for which there is room. Raises ``UsageError`` where it could never run."""

    def messages(self) -> Iterator[Message]:
        """What came of the tasks since it was last asked; waits for a moment where there is nothing yet."""

    def close(self) -> None:
        """Stop whatever runs, and give everything back."""
