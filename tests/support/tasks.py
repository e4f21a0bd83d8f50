"""Work that any process can do, for tests of pools."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpspec.executors import TaskContext


@dataclass(frozen=True)
class Counts:
    count: int

    def __call__(self, place: TaskContext) -> Iterator[int]:
        yield from range(self.count)


class Names:
    def __call__(self, place: TaskContext) -> Iterator[int]:
        time.sleep(0.2)
        yield os.getpid()


class Devices:
    def __call__(self, place: TaskContext) -> Iterator[str]:
        yield place.device


@dataclass(frozen=True)
class Says:
    word: str

    def __call__(self, place: TaskContext) -> Iterator[int]:
        place.tell(self.word)
        yield os.getpid()


class Stops:
    def __call__(self, place: TaskContext) -> Iterator[str]:
        while not place.stopped():
            time.sleep(0.01)
        yield "stopped"


def fail_on_purpose() -> None:
    raise ValueError("on purpose")


class Fails:
    def __call__(self, place: TaskContext) -> Iterator[int]:
        fail_on_purpose()
        yield 0


class OddError(Exception):
    """Cannot be pickled: it is made of two things, and passes on one."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


class FailsOddly:
    def __call__(self, place: TaskContext) -> Iterator[int]:
        raise OddError("odd", "even")
        yield 0


class Kills:
    def __call__(self, place: TaskContext) -> Iterator[int]:
        yield 1
        os.kill(os.getpid(), signal.SIGKILL)


class KillsBesideAChild:
    """Dies while a process that it has started holds what it held open."""

    def __call__(self, place: TaskContext) -> Iterator[int]:
        child = os.fork()
        if not child:
            time.sleep(30.0)
            os._exit(0)
        yield child
        os.kill(os.getpid(), signal.SIGKILL)


class Exits:
    def __call__(self, place: TaskContext) -> Iterator[int]:
        os._exit(3)
        yield 0


class Prints:
    def __call__(self, place: TaskContext) -> Iterator[int]:
        print("printed")
        os.system("echo printed by a child")
        yield 0


@dataclass(frozen=True)
class Waits:
    """Writes its process id to a file, and goes on for ever, telling that it does."""

    file: str

    def __call__(self, place: TaskContext) -> Iterator[int]:
        beside = Path(f"{self.file}.part")
        beside.write_text(str(os.getpid()), encoding="utf-8")
        beside.rename(self.file)
        while True:
            place.tell("still")
            time.sleep(0.02)
        yield 0


@dataclass(frozen=True)
class Asks:
    variable: str

    def __call__(self, place: TaskContext) -> Iterator[str | None]:
        yield os.environ.get(self.variable)
