"""A queue for work of all audits, trials or bounds: each chunk starts once the pool has room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dpspec.contract import Cancelled
from dpspec.contract.events import Event, Progressed, StageStarted
from dpspec.engine.running.tasks import AuditTask
from dpspec.errors import UsageError
from dpspec.executors import PartialResult, Pool, Resources, Task, TaskFailed, TaskProgress, WorkerLost


@dataclass
class QueuedChunk:
    """Work on an audit: the ``missing`` trials of a chunk, or its bounds.

    A chunk without ``missing`` parts does not start. ``losses`` is the number of workers lost with it.
    """

    audit: int
    name: str
    needs: Resources
    missing: list[int]
    task: Callable[[Sequence[int]], AuditTask]
    losses: int = 0


def dispatch(
    pool: Pool,
    chunks: Iterable[QueuedChunk],
    stage: str,
    emit: Callable[[Event], None],
    *,
    on_part: Callable[[QueuedChunk, Any], None],
    on_error: Callable[[QueuedChunk, BaseException], None],
    on_loss: Callable[[QueuedChunk, str], bool],
    seconds_left: Callable[[], float | None] = lambda: None,
) -> None:
    """Run all chunks with ``missing`` parts on a pool, in their order while there is room.

    ``on_part`` receives every part of a result as it arrives, ``on_error`` the error of a chunk. ``on_loss`` receives
    the reason why a worker is lost, and returns whether the chunk starts again. ``seconds_left`` is the time until the
    deadline; after it nothing starts, and running tasks are stopped.
    """
    waiting, running, started = deque(chunks), dict[int, QueuedChunk](), 0
    while waiting or running:
        while (left := seconds_left()) is None or left >= 0.0:
            while waiting and not waiting[0].missing:
                waiting.popleft()
            if not waiting or not pool.room(waiting[0].needs):
                break
            chunk = waiting.popleft()
            started += 1
            emit(StageStarted(audit=chunk.name, stage=stage))
            work = chunk.task(tuple(chunk.missing))
            try:
                pool.start(Task(number=started, name=chunk.name, needs=chunk.needs, work=work, seconds=left))
            except UsageError as error:
                on_error(chunk, error)
            else:
                running[started] = chunk
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
                case PartialResult(value=part):
                    on_part(chunk, part)
                case TaskFailed(error=raised) if not isinstance(raised, Cancelled):
                    on_error(chunk, raised)
                case WorkerLost(reason=reason) if chunk.missing and on_loss(chunk, reason):
                    waiting.appendleft(chunk)
