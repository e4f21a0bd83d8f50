"""A queue for the chunks of all audits: each starts once the pool has room, and again if its worker is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dpspec.contract import Cancelled
from dpspec.contract.events import Event, Noticed, Progressed, StageStarted
from dpspec.engine.running.tasks import AuditTask
from dpspec.engine.storage.stored_trials import NewTrial
from dpspec.executors import (
    Message,
    PartialResult,
    Pool,
    Resources,
    Task,
    TaskFailed,
    TaskFinished,
    TaskProgress,
    WorkerLost,
)

#: Number of lost workers after which a chunk is given up.
TRIES = 3


@dataclass
class QueuedChunk:
    """The missing trials of a chunk of an audit, and the number of workers lost with it."""

    audit: int
    name: str
    needs: Resources
    missing: list[int]
    task: Callable[[Sequence[int]], AuditTask]
    losses: int = 0


class Dispatcher:
    """Runs chunks on a pool, in their order while there is room.

    ``on_trial`` receives every trial as it arrives. ``on_error`` receives the error of a chunk and raises.
    ``seconds_left`` is the time until the deadline; after it nothing starts, and running tasks are stopped.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        on_trial: Callable[[QueuedChunk, NewTrial], None],
        on_error: Callable[[QueuedChunk, BaseException], None],
        emit: Callable[[Event], None],
        seconds_left: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._pool, self._emit, self._seconds_left = pool, emit, seconds_left
        self._on_trial, self._on_error = on_trial, on_error
        self._waiting: deque[QueuedChunk] = deque()
        self._running: dict[int, QueuedChunk] = {}
        self._started = 0

    def run(self, chunks: Iterable[QueuedChunk]) -> None:
        self._waiting.extend(chunks)
        while self._waiting or self._running:
            self._start_waiting()
            if not self._running:
                return
            for message in self._pool.messages():
                self._handle(message)

    def _start_waiting(self) -> None:
        while self._waiting:
            left = self._seconds_left()
            if left is not None and left < 0.0:
                return
            if not self._waiting[0].missing:  # no longer needed
                self._waiting.popleft()
                continue
            if not self._pool.room(self._waiting[0].needs):
                return
            chunk = self._waiting.popleft()
            self._started += 1
            self._running[self._started] = chunk
            self._emit(StageStarted(audit=chunk.name, stage="trials"))
            work = chunk.task(tuple(chunk.missing))
            task = Task(number=self._started, name=chunk.name, needs=chunk.needs, work=work, seconds=left)
            self._pool.start(task)

    def _handle(self, message: Message) -> None:
        chunk = self._running[message.task]
        match message:
            case TaskProgress(value=event):
                # While several chunks run, only their joint progress is shown.
                if not (isinstance(event, Progressed) and len(self._running) > 1):
                    self._emit(event)
            case PartialResult(value=new):
                if new.index in chunk.missing:
                    chunk.missing.remove(new.index)
                self._on_trial(chunk, new)
            case TaskFinished():
                del self._running[message.task]
            case TaskFailed(error=error):
                del self._running[message.task]
                if not isinstance(error, Cancelled):
                    self._on_error(chunk, error)
            case WorkerLost(reason=reason):
                del self._running[message.task]
                self._retry(chunk, reason)

    def _retry(self, chunk: QueuedChunk, reason: str) -> None:
        if not chunk.missing:  # all that is needed of it is there
            return
        chunk.losses += 1
        again = chunk.losses < TRIES
        outcome = "retrying" if again else f"given up after {TRIES} times"
        self._emit(Noticed(audit=chunk.name, message=f"worker lost during a trial ({reason}); {outcome}"))
        if again:
            self._waiting.appendleft(chunk)
