"""Tasks for tests of pools, importable in any process. Options come first (``functools.partial``), the context last."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpspec.contract import Cancelled
from dpspec.executors import Message, Pool, Resources, Task, TaskContext, TaskFailed, TaskFinished, WorkerLost


def task(number: int, work: Any, **needs: int) -> Task:
    return Task(number=number, name=f"task {number}", needs=Resources(**needs), work=work)


def until_end(pool: Pool, *numbers: int) -> dict[int, list[Message]]:
    """Collect the messages of all tasks until they end, by the number of the task."""
    messages: dict[int, list[Message]] = {number: [] for number in numbers}
    while not all(m and isinstance(m[-1], TaskFinished | TaskFailed | WorkerLost) for m in messages.values()):
        for message in pool.messages():
            messages[message.task].append(message)
    return messages


def count(number: int, place: TaskContext) -> Iterator[int]:
    yield from range(number)


def device(place: TaskContext) -> Iterator[str]:
    yield place.device


def say(word: str, place: TaskContext) -> Iterator[int]:
    place.tell(word)
    yield os.getpid()


def stop(place: TaskContext) -> Iterator[str]:
    while not place.stopped():
        time.sleep(0.01)
    yield "stopped"


def fail_on_purpose() -> None:
    raise ValueError("on purpose")


def fail(place: TaskContext) -> Iterator[int]:
    fail_on_purpose()
    yield 0


class OddError(Exception):
    """An exception that cannot be unpickled, because it passes on one of two arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def fail_oddly(place: TaskContext) -> Iterator[int]:
    raise OddError("odd", "even")
    yield 0


def kill(place: TaskContext) -> Iterator[int]:
    yield 1
    os.kill(os.getpid(), signal.SIGKILL)


def kill_beside_a_child(place: TaskContext) -> Iterator[int]:
    """Die while a started process holds the open descriptors."""
    child = os.fork()
    if not child:
        time.sleep(60.0)
        os._exit(0)
    yield child
    os.kill(os.getpid(), signal.SIGKILL)


def leave(place: TaskContext) -> Iterator[int]:
    os._exit(3)
    yield 0


def write_output(place: TaskContext) -> Iterator[int]:
    print("printed")
    os.system("echo printed by a child")
    yield 0


def wait(file: str, place: TaskContext) -> Iterator[int]:
    """Write the process id to a file, and send messages forever."""
    part = Path(f"{file}.part")
    part.write_text(str(os.getpid()), encoding="utf-8")
    part.rename(file)
    while True:
        place.tell("still")
        time.sleep(0.02)
    yield 0


def wait_for_stop(file: str, place: TaskContext) -> Iterator[int]:
    """Create a file, wait for the request to stop, and write to the file as a trial saves its state."""
    Path(file).touch()
    while not place.stopped():
        time.sleep(0.02)
    Path(file).write_text("saved", encoding="utf-8")
    raise Cancelled
    yield 0


def variable(name: str, place: TaskContext) -> Iterator[str | None]:
    yield os.environ.get(name)
