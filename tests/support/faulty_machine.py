"""What a machine can do to a run: a cluster that dies, a disk that is full or read-only, a clock that jumps."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from support.victim import Victim


class NotTriedError(Exception):
    """This machine cannot show a fault; the text says why."""


#: A cluster of this machine asks for no token.
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

#: A library that stands between a program and the clock on the wall.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
static long jump(void) { static long n; return (n++ & 1) ? 94608000L : -94608000L; }
int clock_gettime(clockid_t id, struct timespec *at) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, at);
    if (id == CLOCK_REALTIME) at->tv_sec += jump();
    return code;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


@contextlib.contextmanager
def ray_cluster(victim: Victim) -> Iterator[tuple[str, Callable[[str], list[int]]]]:
    """A Ray cluster of one node with two CPUs: its address, and the numbers of its ``worker`` or ``head`` processes."""
    ray = Path(sys.executable).with_name("ray")
    if not ray.is_file():
        raise NotTriedError("Ray is not installed")
    folder, port = tempfile.mkdtemp(prefix="ray-"), 20000 + os.getpid() % 20000
    start = [str(ray), "start", "--head", f"--port={port}", "--num-cpus=2", "--include-dashboard=false"]
    environment = victim.environment(RAY_USAGE_STATS_ENABLED="0", **RAY)
    started = subprocess.run([*start, f"--temp-dir={folder}"], env=environment, capture_output=True, text=True)
    if started.returncode:
        raise NotTriedError(f"no Ray cluster starts here: {started.stderr.strip().splitlines()[-1]}")

    def processes(what: str) -> list[int]:
        heads = processes_mentioning(folder)
        return heads if what == "head" else [child for head in heads for child in children(head, "ray::victim")][:1]

    try:
        yield f"127.0.0.1:{port}", processes
    finally:
        for number in processes_mentioning(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def processes_mentioning(text: str) -> list[int]:
    """The processes whose command line mentions a text that nobody else's does."""
    listed = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True).stdout
    rows = [line.strip().partition(" ") for line in listed.splitlines()]
    return [int(number) for number, _, command in rows if text in command]


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[Callable[[str], None] | None]:
    """A disk of its own at ``place``, and what changes its options; None where this user may not mount one."""
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True).returncode
    ):
        yield None
        return

    def change(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)

    try:
        yield change
    finally:
        subprocess.run(["umount", place], check=False)


def protect(store: Path, mount: Callable[[str], None] | None, on: bool) -> None:
    if mount is not None:
        mount("ro" if on else "rw")
    else:
        store.chmod(0o555 if on else 0o755)


def children(process: int, title: str = "") -> list[int]:
    """The processes that a process has started, of a system that tells, and whose command line begins so."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(process)], capture_output=True, text=True)
    rows = [line.strip().partition(" ") for line in listed.stdout.splitlines()]
    return [int(number) for number, _, command in rows if command.startswith(title)]


def is_alive(process: int) -> bool:
    """Whether a process runs; one that nobody has buried yet does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")
