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
    PartialResult,
    Pool,
    Resources,
    Task,
    TaskFailed,
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


def dispatch(
    pool: Pool,
    chunks: Iterable[QueuedChunk],
    *,
    on_trial: Callable[[QueuedChunk, NewTrial], None],
    on_error: Callable[[QueuedChunk, BaseException], None],
    emit: Callable[[Event], None],
    seconds_left: Callable[[], float | None] = lambda: None,
) -> None:
    """Run all chunks that have ``missing`` trials on a pool, in their order while there is room.

    A chunk that does not finish keeps some. ``on_trial`` receives every trial as it arrives. ``on_error`` receives the
    error of a chunk and raises. ``seconds_left`` is the time until the deadline; after it nothing starts, and running
    tasks are stopped.
    """
    waiting, running, started = deque(chunks), dict[int, QueuedChunk](), 0
    while waiting or running:
        while waiting:
            left = seconds_left()
            if left is not None and left < 0.0:
                break
            if not waiting[0].missing:  # no longer needed
                waiting.popleft()
                continue
            if not pool.room(waiting[0].needs):
                break
            chunk = waiting.popleft()
            started += 1
            running[started] = chunk
            emit(StageStarted(audit=chunk.name, stage="trials"))
            work = chunk.task(tuple(chunk.missing))
            pool.start(Task(number=started, name=chunk.name, needs=chunk.needs, work=work, seconds=left))
        if not running:
            return
        for message in pool.messages():
            chunk = running[message.task]
            if not isinstance(message, TaskProgress | PartialResult):
                del running[message.task]
            match message:
                case TaskProgress(value=event):
                    # While several chunks run, only their joint progress is shown.
                    if not (isinstance(event, Progressed) and len(running) > 1):
                        emit(event)
                case PartialResult(value=new):
                    if new.index in chunk.missing:
                        chunk.missing.remove(new.index)
                    on_trial(chunk, new)
                case TaskFailed(error=error) if not isinstance(error, Cancelled):
                    on_error(chunk, error)
                case WorkerLost(reason=reason) if chunk.missing:
                    chunk.losses += 1
                    again = chunk.losses < TRIES
                    outcome = "retrying" if again else f"given up after {TRIES} times"
                    emit(Noticed(audit=chunk.name, message=f"worker lost during a trial ({reason}); {outcome}"))
                    if again:
                        waiting.appendleft(chunk)
