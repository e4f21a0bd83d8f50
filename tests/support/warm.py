"""Run dpspec commands as forks of a warm server, which has imported torch and scipy.

    ended = warm.dpspec("run", "a.yaml", cwd=folder, env=environment)
    environment["PATH"] = os.pathsep.join([warm.programs(folder), environment["PATH"]])

The first line runs one command. The second gives shells such a ``dpspec`` and a ``python`` for scripts.

Each command is a fork with its own folder, environment, module path, descriptors and exit code. Unlike in a fresh
interpreter, modules are imported before they are needed, hashes of strings are the server's, and variables that an
interpreter or a library reads when it starts (``PYTHONWARNINGS``, ``OMP_NUM_THREADS``) are those of the first command.
Tests of starting, of laziness and of signals start a fresh interpreter instead.
"""

import atexit
import functools
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

_LIBRARIES = ("torch", "scipy.stats", "sklearn.datasets")
_PLUGINS = (
    "dpspec_group",
    "dpspec_rero",
    "dpspec_per_instance",
    "dpspec_preprocessing",
    "dpspec_modelmix",
    "dpspec_composition",
    "dpspec_matrix",
    "dpspec_recording",
    "dpspec_papers",
)

#: Programs that are modules. All other programs are scripts.
_MODULES = ("dpspec", "pytest")

#: Modules that commands do not import, whose import begins to record, or whose extra a test may hide.
_LEFT_OUT = (
    "dpspec.auto",
    "dpspec.training.opacus_backend",
    "dpspec.testing",
    "dpspec.integrations",
    "dpspec_recording.integrations",
)


def _run(
    program: str, *arguments: object, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command line as ``subprocess.run`` does, and capture its output."""
    return subprocess.run(
        [*_client(), program, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env=env,
        capture_output=True,
        timeout=timeout,
        encoding="utf-8",
    )


dpspec = functools.partial(_run, "dpspec")
# modules of the pytest plugin's distribution are imported before pytest could rewrite their asserts
pytest = functools.partial(_run, "pytest", "-W", "ignore::pytest.PytestAssertRewriteWarning")


def programs(folder: Path) -> str:
    """Write ``dpspec`` and ``python`` into a folder for the front of a ``PATH``, and return it.

    ``python`` forks the server if its first argument is a script, and is this interpreter otherwise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    forked = " ".join(f'"{part}"' for part in _client())
    script = f'case "$1" in *.py) exec {forked} "$@";; esac\nexec "{sys.executable}" "$@"'
    for name, text in {"dpspec": f'exec {forked} dpspec "$@"', "python": script}.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        program.chmod(0o755)
    return str(folder)


@functools.cache
def _client() -> tuple[str, ...]:
    """Start the server of this test process, and return the command that runs a program there."""
    folder = tempfile.mkdtemp(prefix="dpspec-warm-")
    address = os.path.join(folder, "socket")
    server = subprocess.Popen(
        [sys.executable, "-P", __file__, address],
        stdin=subprocess.PIPE,  # its end ends the server
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
    return sys.executable, "-I", "-S", __file__, address


def import_everything() -> None:
    for name in _LIBRARIES:
        importlib.import_module(name)
    for name in ("dpspec", *filter(importlib.util.find_spec, _PLUGINS)):
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not found.name.startswith(_LEFT_OUT) and not found.name.endswith("__main__"):
                importlib.import_module(found.name)


def _ask(address: str, arguments: list[str]) -> int:
    """Run a program in the server with our descriptors, folder and environment, and return its exit code."""
    text = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode("utf-8")
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        socket.send_fds(line, [b"."], [0, 1, 2])
        with line.makefile("rwb") as file:
            file.write(text + b"\n")
            file.flush()
            code = int(file.readline())
    return code if code >= 0 else 128 - code


def _serve(address: str) -> list[str]:
    """Fork for each command, and return the program and its arguments in the child."""
    import_everything()
    gc.freeze()  # collections in commands do not copy what they share
    own = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)
        line, _ = listener.accept()
        if not os.fork():
            break
        line.close()
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, descriptors, _, _ = socket.recv_fds(line, 1, 3)
    with line.makefile("rwb") as file:
        arguments, folder, environment = json.loads(file.readline())
        if pid := os.fork():
            ended = os.pidfd_open(pid)
            if ended not in select.select([line, ended], [], [])[0]:  # the client was killed
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            file.write(b"%d\n" % os.waitstatus_to_exitcode(status))
            file.flush()
            os._exit(0)
    line.close()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(descriptors[number], number)
        os.close(descriptors[number])
        how = {"encoding": "utf-8", "errors": getattr(sys, name).errors, "closefd": False}
        stream = open(number, "w" if number else "r", 1 if name == "stderr" else -1, **how)  # noqa: SIM115
        setattr(sys, name, stream)  # the server's stream knows whether its own descriptor can seek
        setattr(sys, f"__{name}__", stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if arguments[0] not in _MODULES:  # a script finds modules in its folder
        given.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
    sys.path[:] = [*given, *(part for part in sys.path if part not in own)]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.argv = list(arguments)
    importlib.invalidate_caches()
    tempfile.tempdir = None
    time.tzset()
    return arguments


if __name__ == "__main__":
    if sys.argv[2:]:
        sys.exit(_ask(sys.argv[1], sys.argv[2:]))
    program, *_ = _serve(sys.argv[1])
    if program in _MODULES:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(os.path.abspath(program), run_name="__main__")
