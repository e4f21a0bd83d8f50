"""Watch one case: its processor time and memory, its writes, and executed code.

Limits are on processor time, which does not depend on the load; the parent process limits the wall-clock time.
"""

import os
import resource
import signal
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Limits of a case.
SECONDS = 2.0
BYTES = 1 << 30

#: Limit of allocated memory, because the machine is shared.
_CEILING = 3 * BYTES

#: Audit events that no reader of files needs; findings show their first argument.
_FORBIDDEN = {
    *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.putenv", "os.kill"),
    *("pickle.find_class", "code.__new__", "ctypes.dlopen", "socket.connect", "socket.getaddrinfo"),
    *("subprocess.Popen", "webbrowser.open", "urllib.Request"),
}

#: Audit events that change the file system, only allowed inside the folder of the case.
_CHANGES = {
    *("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
    "shutil.rmtree",
}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Slow(BaseException):
    """A case exceeds its processor time; ``except Exception`` does not catch this."""


class Watch:
    """Audit hooks and limits of this process; install once, after all imports of the cases."""

    def __init__(self, allowed: Path) -> None:
        self._allowed = str(allowed.resolve()) + os.sep
        places = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        self._code = tuple({*places, *(p for p in sys.path if p), "<frozen"})
        self._on = False
        self._seen: list[str] = []
        sys.addaudithook(self._hook)
        signal.signal(signal.SIGPROF, self._slow)
        resource.setrlimit(resource.RLIMIT_DATA, (_CEILING, _CEILING))

    @contextmanager
    def case(self) -> Iterator[list[str]]:
        """Collect descriptions of the forbidden actions of one case."""
        self._seen, before = [], _seconds()
        self._late, self._on = False, True
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            yield self._seen
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._on = False
            took = _seconds() - before
            if self._late or took > SECONDS:
                self._seen.append(f"slow: {took:.1f} s of processor time")
            peak = _peak()
            if peak > BYTES:
                self._seen.append(f"memory: {peak >> 20} MiB")

    def _slow(self, signum: int, frame: object) -> None:
        self._late = True
        raise Slow

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if event in _FORBIDDEN:
            self._seen.append(f"{event}: {str(arguments[:1])[:200]}")
        elif event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES and not isinstance(path, int):
                self._require_inside(event, path)
        elif event in _CHANGES:
            for path in (a for a in arguments[:2] if isinstance(a, str | bytes | os.PathLike)):
                self._require_inside(event, path)
        elif event == "exec":
            name = getattr(arguments[0], "co_filename", "?")
            if not name.startswith(self._code) and name not in _MADE:
                self._seen.append(f"exec: {name}")

    def _require_inside(self, event: str, path: Any) -> None:
        try:
            place = os.path.realpath(os.fsdecode(path)) + os.sep
        except (OSError, ValueError):
            return  # no such name can be opened
        if not place.startswith(self._allowed) and place != os.devnull + os.sep:
            self._seen.append(f"{event}: writes {place[:-1]}")


#: File names of code that the standard library, attrs and jinja compile from their templates.
_MADE = frozenset({"<string>", "<template>", "<unknown>"})


def _peak() -> int:
    """Return the peak memory of this program in bytes; ``ru_maxrss`` includes the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
