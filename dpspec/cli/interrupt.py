"""Handle Ctrl-C and SIGTERM from the first line of the program to its last.

During an import ``KeyboardInterrupt`` may become another error, for example of a C extension. The signal is recorded:
any later error is an interruption. A signal that is ignored from the start (``nohup``) stays ignored. While trials run
a signal requests a stop at the next safe point, where the state of the trials is saved. The program imports this module
first, so it has no slow imports.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

#: Seconds after which a requested stop interrupts the program at any point.
_GRACE = 15.0

_heard: signal.Signals | None = None


def listen() -> None:
    forget()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)


def heard() -> signal.Signals | None:
    """The signal that interrupts the program, if any."""
    return _heard


def forget() -> None:
    """Forget the signal after it was reported."""
    global _heard
    _heard = None


def leave() -> None:
    """The default handlers end the process immediately, also with 130 or 143 in a shell."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    global _heard
    _heard = signal.Signals(signum)
    raise KeyboardInterrupt


@contextmanager
def stop_requests() -> Iterator[Callable[[], str]]:
    """Let the first signal request a stop. Yields a function that returns the name of the signal, or an empty string.

    A second signal, or the end of the grace period, interrupts at any point. Ctrl-C interrupts at the end of the block;
    after SIGTERM the program continues with the finished trials.
    """
    requested: list[signal.Signals] = []

    def request(signum: int, frame: FrameType | None) -> None:
        if requested:
            _interrupt(requested[0] if signum == getattr(signal, "SIGALRM", None) else signum, frame)
        requested.append(signal.Signals(signum))
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, request)
            signal.setitimer(signal.ITIMER_REAL, _GRACE)
        with suppress(OSError):  # a buffered stream may be in use
            os.write(2, f"{name()}: stopping at the next safe point; a second signal stops immediately\n".encode())

    def name() -> str:
        return "" if not requested else "Ctrl-C" if requested[0] is signal.SIGINT else requested[0].name

    if threading.current_thread() is not threading.main_thread():
        yield name
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handled = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, request)
    try:
        yield name
    finally:
        if requested and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number in handled:
            # A library of an executor may have replaced the handler.
            python_default = before[number] in (signal.SIG_DFL, signal.default_int_handler)
            signal.signal(number, before[number] if python_default else _interrupt)
    if signal.SIGINT in requested:
        _interrupt(signal.SIGINT, None)
