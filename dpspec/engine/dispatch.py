"""One queue for the work of a whole run: what waits is started as soon as there is room, what was lost starts again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dpspec.contract import (
    Cancelled,
    Ended,
    Event,
    Failed,
    Lost,
    Needs,
    Noticed,
    Pool,
    Progressed,
    Said,
    StageStarted,
    Task,
    Yielded,
)
from dpspec.engine.work import Made, Work

#: A piece of work that is lost so often is given up: perhaps it is what kills its workers.
TRIES = 3

_WORDS = {"bound": "its bounds were", "trials": "a trial was", "conclude": "its conclusions were"}


@dataclass
class Piece:
    """Some of the work on one audit.

    audit: its number; missing: the indices of what is still to be made; make: the work that makes some of them.
    """

    audit: int
    name: str
    stage: str
    needs: Needs
    missing: list[int]
    make: Callable[[Sequence[int]], Work]
    lost: int = 0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to start nothing more.

    seconds: what is left of the time, None for ever; also what started work is told.
    """

    seconds: Callable[[], float | None] = lambda: None

    def over(self) -> bool:
        """Whether the time is over."""
        left = self.seconds()
        return left is not None and left < 0.0


def work_off(
    pieces: Iterable[Piece],
    pool: Pool,
    *,
    hear: Callable[[Piece, Made], None],
    failed: Callable[[Piece, BaseException], None],
    emit: Callable[[Event], None],
    limits: Limits,
) -> None:
    """Do all pieces, in their order as far as there is room.

    hear: is given every part of an outcome as it arrives. failed: is told what a piece raised, and raises.
    A piece that is not finished when this returns still has ``missing`` indices; one that has none is not started.
    """
    waiting = deque(piece for piece in pieces if piece.missing)
    running: dict[int, Piece] = {}
    number = 0
    while waiting or running:
        while waiting and not limits.over() and pool.room(waiting[0].needs):
            if not waiting[0].missing:  # no longer asked for
                waiting.popleft()
                continue
            piece, number = waiting.popleft(), number + 1
            running[number] = piece
            emit(StageStarted(audit=piece.name, stage=piece.stage))
            work = piece.make(tuple(piece.missing))
            pool.start(Task(number=number, name=piece.name, needs=piece.needs, work=work, seconds=limits.seconds()))
        if not running:
            return
        for message in pool.messages():
            piece = running[message.task]
            match message:
                case Said(value=event):
                    if not (isinstance(event, Progressed) and len(running) > 1):  # of several, only the whole is told
                        emit(event)
                case Yielded(value=made):
                    if made.index in piece.missing:
                        piece.missing.remove(made.index)
                    hear(piece, made)
                case Ended():
                    del running[message.task]
                case Failed(error=error):
                    del running[message.task]
                    if not isinstance(error, Cancelled):
                        failed(piece, error)
                case Lost(reason=reason):
                    del running[message.task]
                    if not piece.missing:  # all that is asked for is there
                        continue
                    piece.lost += 1
                    again = piece.lost < TRIES
                    then = "it is done again" if again else f"given up after {TRIES} times"
                    emit(Noticed(audit=piece.name, message=f"{_WORDS[piece.stage]} lost, {reason}: {then}"))
                    if again:
                        waiting.appendleft(piece)
