"""Sees what a piece of code touches beside its arguments: generators, files, processes, the network, modules."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

#: Interpreter audit events that code without side effects does not raise.
_EVENTS = frozenset(
    {
        "open",
        "os.listdir",
        "os.mkdir",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.scandir",
        "os.system",
        "os.putenv",
        "shutil.rmtree",
        "socket.connect",
        "socket.getaddrinfo",
        "subprocess.Popen",
        "tempfile.mkdtemp",
        "tempfile.mkstemp",
    }
)
_watching: dict[int, list[str]] = {}
_installed = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event in _EVENTS:
        seen = _watching.get(threading.get_ident())
        if seen is not None:
            seen.append(f"{event} {arguments[0]!r}" if arguments else event)


@contextmanager
def watched() -> Iterator[list[str]]:
    """Collect what this thread does to files, processes and the network. Audit hooks stay for good: one is enough."""
    global _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    seen: list[str] = []
    _watching[threading.get_ident()] = seen
    try:
        yield seen
    finally:
        del _watching[threading.get_ident()]


def global_randomness() -> dict[str, Any]:
    """The states of the global random generators, comparable by ``==``; torch's only where torch is imported."""
    import numpy as np

    legacy: Any = np.random.get_state(legacy=False)
    inner = legacy.pop("state")
    state: dict[str, Any] = {"random": random.getstate(), "numpy": (legacy, inner["pos"], inner["key"].tolist())}
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state().tolist()
    return state


def stir() -> None:
    """Move the global random generators on, so that code which reads them gives another answer."""
    import numpy as np

    random.random()
    np.random.random()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.rand(1)


def impurities(function: Callable[[], T]) -> tuple[T, list[str]]:
    """Call the function and return its answer with everything that it touched, in words."""
    before = global_randomness()
    with watched() as seen:
        answer = function()
    after = global_randomness()
    moved = [f"it draws from the global generator of {name}" for name in before if before[name] != after[name]]
    return answer, moved + [f"it touches the outside: {event}" for event in seen]


_MARK = "modules found:"


def imported_by(statements: str, modules: Sequence[str]) -> list[str]:
    """Which of ``modules`` the statements import; fails when they raise, or print to stdout."""
    script = "\n".join(
        [
            "import sys",
            f"sys.path[:] = {sys.path!r}",
            textwrap.dedent(statements),
            f"print({_MARK!r}, *[m for m in {list(modules)!r} if m in sys.modules])",
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise AssertionError(f"failed in a fresh interpreter:\n{done.stderr}")
    before, _, found = done.stdout.rpartition(_MARK)
    if before:
        raise AssertionError(f"prints to stdout, which belongs to results: {before[:200]!r}")
    return found.split()
