"""What is no longer asked for is not done again, and nobody is told that it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dpspec.contract import Ended, Event, Lost, Message, Needs, Noticed, Task, Yielded
from dpspec.engine.dispatch import Limits, Piece, work_off
from dpspec.engine.work import Made, Work


class Scripted:
    """A pool that says what it was told to, one message after the other, once all tasks have started."""

    size = 2

    def __init__(self, *said: Message) -> None:
        self.said, self.started = deque(said), 0

    def room(self, needs: Needs) -> bool:
        return self.started < self.size

    def start(self, task: Task) -> None:
        self.started += 1

    def messages(self) -> Iterator[Message]:
        yield self.said.popleft()

    def close(self) -> None:
        pass


def piece(name: str, missing: Sequence[int]) -> Piece:
    def make(indices: Sequence[int]) -> Work:
        return Work.__new__(Work)

    return Piece(audit=0, name=name, stage="trials", needs=Needs(), missing=list(missing), make=make)


def failed(_: Piece, error: BaseException) -> None:
    raise error


def made(index: int) -> Made:
    return Made(index=index, value=None, seconds=0.0)


@pytest.mark.parametrize("decided", [True, False])
def test_a_lost_piece_that_nobody_asks_for_is_let_go(decided: bool) -> None:
    first, second = piece("first", [0]), piece("second", [1])
    lost = Lost(task=2, reason="its process was killed")
    again: list[Message] = [] if decided else [Yielded(task=3, value=made(1)), Ended(task=3)]
    pool = Scripted(Yielded(task=1, value=made(0)), Ended(task=1), lost, *again)
    heard: list[int] = []
    told: list[Event] = []

    def hear(_: Piece, value: Any) -> None:
        heard.append(value.index)
        pool.started = 0
        if decided:
            second.missing.clear()

    work_off([first, second], pool, hear=hear, failed=failed, emit=told.append, limits=Limits())
    assert heard == ([0] if decided else [0, 1])
    assert not pool.said
    notices = [event.message for event in told if isinstance(event, Noticed)]
    assert notices == ([] if decided else ["a trial was lost, its process was killed: it is done again"])
