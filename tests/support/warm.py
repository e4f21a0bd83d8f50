"""Commands of dpspec in processes of their own that need not import torch and scipy first: a warm one is forked.

    ended = warm.dpspec("run", "a.yaml", cwd=folder, env=environment)
    environment["PATH"] = os.pathsep.join([warm.programs(folder), environment["PATH"]])

The first is one command. The second is for shells: it makes ``dpspec`` and ``python SCRIPT.py`` there the same.

A server imports what commands import and runs nothing; each command is a fork of it, with its own folder, environment,
path of modules, descriptors and exit, by the way in of ``python -P -m dpspec``. What differs from a fresh interpreter:
modules are there before they are asked for, hashes of texts are those of the server, and variables that are read when
an interpreter or a library starts (``PYTHONWARNINGS``, ``OMP_NUM_THREADS``) hold as they were when the first command
ran. Tests of starting, of laziness and of signals start a fresh interpreter instead. Without ``fork`` all of them do.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__)

#: What the server imports: the heavy libraries first, then all that a command may.
_LIBRARIES = ("torch", "scipy.stats", "sklearn.datasets")
_PACKAGES = (
    "dpspec",
    "dpspec_group",
    "dpspec_rero",
    "dpspec_per_instance",
    "dpspec_preprocessing",
    "dpspec_modelmix",
)

#: What is run by its name; all else is a script.
_MODULES = ("dpspec", "pytest")

#: What needs an extra, which a test may hide, and what no command is made of.
_LEFT_OUT = ("dpspec.training.opacus_backend", "dpspec.testing")


def dpspec(
    *arguments: object, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command line of dpspec; what it ended with and wrote, as ``subprocess.run`` tells it."""
    return _run("dpspec", *arguments, cwd=cwd, env=env, timeout=timeout)


def pytest(
    *arguments: object, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command line of pytest, which the server has not imported, as little as ``dpspec.testing``."""
    return _run("pytest", *arguments, cwd=cwd, env=env, timeout=timeout)


def _run(
    module: str, *arguments: object, cwd: Path, env: Mapping[str, str] | None, timeout: float
) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ if env is None else env)
    command = [sys.executable, "-P", "-m", module, *map(str, arguments)]
    if not hasattr(os, "fork"):
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, timeout=timeout, encoding="utf-8")
    asked = {"arguments": command[3:], "cwd": str(cwd), "env": environment}
    with open(os.devnull, "rb") as nothing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = _ended(_server(), asked, [nothing.fileno(), out.fileno(), err.fileno()], timeout)
        if code is None:
            raise subprocess.TimeoutExpired(command, timeout)
        for written in (out, err):
            written.seek(0)
        return subprocess.CompletedProcess(command, code, *(each.read().decode("utf-8") for each in (out, err)))


def programs(folder: Path) -> str:
    """Write ``dpspec`` and ``python`` into a folder, which is made; the folder, for the front of a ``PATH``.

    ``python`` is a fork of the server where it is given a script, and this interpreter otherwise. Without ``fork`` both
    are fresh interpreters. They need a POSIX shell.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fresh = {"dpspec": f'exec "{sys.executable}" -m dpspec "$@"', "python": f'exec "{sys.executable}" "$@"'}
    if hasattr(os, "fork"):
        forked = f'exec "{sys.executable}" -I -S "{HERE}" "{_server()}"'
        script = f'case "$1" in *.py) {forked} "$@";; esac\n{fresh["python"]}'
        fresh = {"dpspec": f'{forked} dpspec "$@"', "python": script}
    for name, text in fresh.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        program.chmod(0o755)
    return str(folder)


def _ended(address: str, asked: Mapping[str, object], descriptors: list[int], timeout: float | None) -> int | None:
    """Have a command run with these descriptors; its exit code, negative for a signal, None where it took too long."""
    text = json.dumps(asked).encode("utf-8")
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        socket.send_fds(line, [len(text).to_bytes(8, "big")], descriptors)
        line.sendall(text)
        pid = int.from_bytes(_received(line, 8), "big")
        line.settimeout(timeout)
        try:
            return int.from_bytes(_received(line, 8), "big", signed=True)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            return None


@functools.cache
def _server() -> str:
    """Start the server of this test process; the address at which it listens."""
    folder = tempfile.mkdtemp(prefix="dpspec-warm-")
    address = os.path.join(folder, "socket")
    server = subprocess.Popen(
        [sys.executable, "-P", str(HERE), address],
        stdin=subprocess.PIPE,  # whose end tells it that nobody asks any more
        stdout=subprocess.PIPE,
        cwd=folder,
    )

    def end() -> None:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    assert server.stdout is not None
    if server.stdout.readline() != b"ready\n":
        raise RuntimeError("the server of warm commands did not start")
    return address


def _received(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = line.recv(size - len(found))
        if not part:
            raise ConnectionError("the server of warm commands is gone")
        found += part
    return found


def _serve(address: str) -> str:
    """Listen, and return in every process that is to be a command, with all set for it; what is to be run."""
    import_everything()
    gc.freeze()  # so that collections in commands do not copy what they share
    own = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who waits for a command is waited for by nobody
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:  # its end: nobody is left who could ask
            os._exit(0)
        line, _ = listener.accept()
        if os.fork():
            line.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        size, descriptors, _, _ = socket.recv_fds(line, 8, 3)
        asked = json.loads(_received(line, int.from_bytes(size, "big")))
        pid = os.fork()
        if pid:
            line.sendall(pid.to_bytes(8, "big"))
            _, status = os.waitpid(pid, 0)
            with contextlib.suppress(OSError):  # who asked lost patience
                line.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))
            os._exit(0)
        line.close()
        for own_number, (name, given) in enumerate(zip(("stdin", "stdout", "stderr"), descriptors, strict=True)):
            os.dup2(given, own_number)
            os.close(given)
            old = getattr(sys, name)  # which knows whether the server's own can seek
            how = {"encoding": old.encoding, "errors": old.errors, "closefd": False}
            mode, buffering = ("w" if own_number else "r"), (1 if name == "stderr" else -1)
            new = open(own_number, mode, buffering, **how)  # noqa: SIM115 - it stays open as long as the process
            setattr(sys, name, new)
            setattr(sys, f"__{name}__", new)
        return _become(asked, own)


def import_everything() -> None:
    """Import what commands import; running nothing of it."""
    import importlib
    import pkgutil

    for name in _LIBRARIES:
        importlib.import_module(name)
    for name in _PACKAGES:
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not found.name.startswith(_LEFT_OUT) and not found.name.endswith("__main__"):
                importlib.import_module(found.name)


def _become(asked: Mapping[str, Any], own: list[str]) -> str:
    """Make this process what a fresh interpreter would be with this folder, environment and command line."""
    import importlib

    program = str(asked["arguments"][0])

    os.chdir(str(asked["cwd"]))
    os.environ.clear()
    os.environ.update(asked["env"])
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if program not in _MODULES:  # a script, which finds modules beside it
        given.insert(0, os.path.dirname(os.path.abspath(program)))
    sys.path[:] = [*given, *(part for part in sys.path if part not in own)]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.argv = list(asked["arguments"])
    importlib.invalidate_caches()
    tempfile.tempdir = None  # found anew, in this environment
    time.tzset()
    return program


def _main() -> None:
    """With an address alone: serve. With a program and its arguments: ask the server there, and end as it ends."""
    address, *arguments = sys.argv[1:]
    if arguments:
        code = _ended(address, {"arguments": arguments, "cwd": os.getcwd(), "env": dict(os.environ)}, [0, 1, 2], None)
        assert code is not None
        sys.exit(code if code >= 0 else 128 - code)
    program = _serve(address)
    if program in _MODULES:
        import runpy

        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:  # as a fresh interpreter does: all of __main__ is the script's, and its name is absolute
        place = os.path.abspath(program)
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__file__ = place
        exec(compile(Path(place).read_bytes(), place, "exec", dont_inherit=True), vars(main))


if __name__ == "__main__":
    _main()
