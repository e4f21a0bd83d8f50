"""Tasks one by one in this very process: nothing to start, nothing to send, and Ctrl-C stops at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from dpspec.executors import Message, Needs, PartialResult, Task, TaskFailed, TaskFinished, TaskProgress


class Here:
    """The place of a task in this process."""

    def __init__(self, device: str, seconds: float | None, tell: Callable[[Any], None]) -> None:
        self._device, self._tell = device, tell
        self._until = None if seconds is None else time.monotonic() + seconds

    @property
    def device(self) -> str:
        """The device that it was given."""
        return self._device

    def tell(self, value: Any) -> None:
        """Passed on at once."""
        self._tell(value)

    def stopped(self) -> bool:
        """Whether its time is over."""
        return self._until is not None and time.monotonic() > self._until


class Inline:
    """A pool of one, whose only worker is the caller: a task runs while its messages are asked for.

    ``tell`` hears what tasks say at the moment they say it; without it that is left out.
    """

    size = 1

    def __init__(self, tell: Callable[[TaskProgress], None] | None = None) -> None:
        self.tell = tell
        self._task: Task | None = None

    def room(self, needs: Needs) -> bool:
        """One task at a time."""
        return self._task is None

    def start(self, task: Task) -> None:
        """Keep it until its messages are asked for."""
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
            for value in task.work(Here(task.needs.device, task.seconds, tell)):
                yield PartialResult(task=number, value=value)
        except Exception as error:
            self._task = None
            yield TaskFailed(task=number, error=error)
        else:
            self._task = None
            yield TaskFinished(task=number)

    def close(self) -> None:
        """There is nothing to give back."""
        self._task = None
