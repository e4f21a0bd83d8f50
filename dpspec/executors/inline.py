"""Runs tasks one by one in this process, without startup or serialization. Ctrl-C stops immediately."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from dpspec.executors import Message, PartialResult, Resources, Task, TaskFailed, TaskFinished, TaskProgress


class InlineContext:
    """Context of a task in this process."""

    def __init__(self, device: str, seconds: float | None, tell: Callable[[Any], None]) -> None:
        self._device, self._tell = device, tell
        self._until = None if seconds is None else time.monotonic() + seconds

    @property
    def device(self) -> str:
        """The given device."""
        return self._device

    def tell(self, value: Any) -> None:
        """Forward ``value`` immediately."""
        self._tell(value)

    def stopped(self) -> bool:
        """True if the time limit has passed."""
        return self._until is not None and time.monotonic() > self._until


class InlinePool:
    """A pool whose only worker is the caller: a task runs while the caller iterates over its messages.

    ``tell`` receives progress reports immediately; without it they are dropped.
    """

    size = 1

    def __init__(self, tell: Callable[[TaskProgress], None] | None = None) -> None:
        self.tell = tell
        self._task: Task | None = None

    def room(self, needs: Resources) -> bool:
        """True if no task is pending."""
        return self._task is None

    def start(self, task: Task) -> None:
        """Store the task until :meth:`messages` runs it."""
        self._task = task

    def messages(self) -> Iterator[Message]:
        """Run the task to its end."""
        task = self._task
        if task is None:
            return
        number = task.number

        def tell(value: Any) -> None:
            if self.tell is not None:
                self.tell(TaskProgress(task=number, value=value))

        try:
            for value in task.work(InlineContext(task.needs.device, task.seconds, tell)):
                yield PartialResult(task=number, value=value)
        except Exception as error:
            self._task = None
            yield TaskFailed(task=number, error=error)
        else:
            self._task = None
            yield TaskFinished(task=number)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""
        self._task = None
