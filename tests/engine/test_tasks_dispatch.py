"""What is no longer asked for is not done again, and nobody is told that it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import pytest

from dpspec.engine.running.tasks import QueuedChunk, TrainTrials, dispatch
from dpspec.executors import Message, PartialResult, Resources, Task, TaskFinished, WorkerLost


class Scripted:
    """A pool that says what it was told to, one message after the other, once all tasks have started."""

    size = 2

    def __init__(self, *said: Message) -> None:
        self.said, self.started = deque(said), 0

    def room(self, needs: Resources) -> bool:
        return self.started < self.size

    def start(self, task: Task) -> None:
        self.started += 1

    def messages(self) -> Iterator[Message]:
        yield self.said.popleft()

    def close(self) -> None:
        pass


def queued(name: str, missing: Sequence[int]) -> QueuedChunk:
    def task(indices: Sequence[int]) -> TrainTrials:
        return TrainTrials.__new__(TrainTrials)

    return QueuedChunk(audit=0, name=name, needs=Resources(), missing=list(missing), task=task)


def failed(_: QueuedChunk, error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("decided", [True, False])
def test_a_lost_piece_that_nobody_asks_for_is_let_go(decided: bool) -> None:
    first, second = queued("first", [0]), queued("second", [1])
    lost = WorkerLost(task=2, reason="its process was killed")
    again: list[Message] = [] if decided else [PartialResult(task=3, value=1), TaskFinished(task=3)]
    pool = Scripted(PartialResult(task=1, value=0), TaskFinished(task=1), lost, *again)
    heard: list[int] = []
    reasons: list[str] = []

    def hear(chunk: QueuedChunk, index: int) -> None:
        chunk.missing.remove(index)
        heard.append(index)
        pool.started = 0
        if decided:
            second.missing.clear()

    def retried(chunk: QueuedChunk, reason: str) -> bool:
        reasons.append(f"{chunk.name}: {reason}")
        return True

    emit = lambda event: None  # noqa: E731
    dispatch(pool, [first, second], emit, on_trial=hear, on_error=failed, on_loss=retried, seconds_left=lambda: None)
    assert heard == ([0] if decided else [0, 1])
    assert not pool.said
    assert reasons == ([] if decided else ["second: its process was killed"])
