"""Breaks runs in every way that runs break: ``python tests/campaigns/faults.py``, or with the names of some faults.

Each fault is put to an audit that trains; what the user saw, how it exited, and how many trials were kept is told,
then the same command is run again with nothing in its way: it must make only what is missing, and the result must be
that of a run that nothing happened to, byte for byte but for times and places. ``--times`` says how often faults at
random moments are tried, ``--seed`` decides the moments.

Root may mount, so that a full and a read-only disk are real ones; others see a limit on file sizes and rights instead.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.victim import INTERRUPTED, Ended, Victim, ended, hurt, outcome


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
def ray_cluster(victim: Victim) -> Iterator[tuple[str, Callable[[], list[int]]]]:
    """A Ray cluster of one node with two CPUs: its address, and the numbers of its head's processes."""
    ray = Path(sys.executable).with_name("ray")
    if not ray.is_file():
        raise NotTriedError("Ray is not installed")
    folder, port = tempfile.mkdtemp(prefix="ray-"), 20000 + os.getpid() % 20000
    start = [str(ray), "start", "--head", f"--port={port}", "--num-cpus=2", "--include-dashboard=false"]
    environment = victim.environment(RAY_USAGE_STATS_ENABLED="0", **RAY)
    started = subprocess.run([*start, f"--temp-dir={folder}"], env=environment, capture_output=True, text=True)
    if started.returncode:
        raise NotTriedError(f"no Ray cluster starts here: {started.stderr.strip().splitlines()[-1]}")

    try:
        yield f"127.0.0.1:{port}", lambda: processes_mentioning(folder)
    finally:
        for number in processes_mentioning(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def processes_mentioning(text: str) -> list[int]:
    """The processes whose command line mentions a text that nobody else's does."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True).stdout
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


def children(process: int) -> list[int]:
    """The processes that a process has started, of a system that tells."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True)
    return [int(number) for number in listed.stdout.split()]


def is_alive(process: int) -> bool:
    """Whether a process runs; one that nobody has buried yet does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


@dataclass
class Row:
    """What came of one fault. ``wrong`` holds everything that should not be so."""

    fault: str
    saw: str = ""
    codes: list[int] = field(default_factory=list)
    kept: str = ""
    again: str = ""
    counts: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def note(self, done: Ended, *codes: int) -> None:
        """Take down how a hurt run ended, and that it should have ended with one of some codes."""
        self.saw, self.codes = done.said or self.saw, [*self.codes, done.code]
        if done.code not in codes:
            self.wrong.append(f"exit {done.code}, expected {' or '.join(map(str, codes))}: {done.err[-300:]}")
        if not done.clean:
            self.wrong.append(f"it tells a traceback: {done.err[-500:]}")


class Bench:
    """Where faults are put to runs: a folder, how long trials are, and what an undisturbed run comes to."""

    def __init__(self, root: Path, *, steps: int, runs: int, times: int, seed: int, warm: bool = True) -> None:
        """``warm``: whether the undisturbed run is made twice, so that its duration is that of later ones."""
        self.root, self.times, self._size = root, times, {"steps": steps, "runs": runs}
        self.chance = random.Random(seed)
        self.seconds = float("inf")
        for store in ("warming-up", ".dpspec/store") if warm else (".dpspec/store",):
            victim, began = self.victim("undisturbed"), time.monotonic()
            done, whole = victim.again("--store", store, fresh=True)
            self.seconds = min(self.seconds, time.monotonic() - began)
        if done.code or whole is None:
            raise SystemExit(f"the undisturbed run ends with {done.code}:\n{done.err}")
        self.whole = whole

    def victim(self, name: str, **changes: Any) -> Victim:
        """A fresh folder to run in."""
        return Victim(self.root / name, **self._size, **changes)

    def settle(self, row: Row, victim: Victim, store: str = ".dpspec/store", whole: Any = None) -> None:
        """Run again: only what is missing is made, and the result is that of a run that nothing happened to."""
        kept = victim.stored(store)
        done, again = victim.again("--store", store)
        same = again == (self.whole if whole is None else whole)
        row.counts.append(kept)
        row.kept = f"{min(row.counts)} to {max(row.counts)} of {victim.runs}"
        if min(row.counts) == max(row.counts):
            row.kept = f"{kept} of {victim.runs}"
        row.again = f"exit {done.code}, {'identical' if same else 'DIFFERENT'}"
        if done.code or not same:
            row.wrong.append(f"run again: {row.again}: {done.err[-300:]}")
        if done.trained != victim.runs - kept:
            row.wrong.append(f"run again: {done.trained} trials made, {victim.runs - kept} were missing")


def parent_killed(bench: Bench) -> Row:
    """SIGKILL to the process that was started: its workers must end by themselves, and lose nobody anything."""
    row, victim = Row("SIGKILL to the run, not to its two workers"), bench.victim("parent")
    process = victim.start("--workers", "2")
    victim.wait_for(process, 1)
    left = children(process.pid)
    process.kill()
    row.codes, row.saw = [process.wait()], "(nothing: it is gone)"
    patience = time.monotonic() + 120.0
    while any(map(is_alive, left)) and time.monotonic() < patience:
        time.sleep(0.1)
    if not left:
        row.wrong.append("there were no workers")
    if staying := [number for number in left if is_alive(number)]:
        row.wrong.append(f"{len(staying)} workers stay for more than two minutes")
    hurt(process, signal.SIGKILL)
    ended(process)
    bench.settle(row, victim)
    return row


def ray_head_killed(bench: Bench) -> Row:
    """SIGKILL to everything that makes the head of a Ray cluster."""
    row, victim = Row("SIGKILL to the Ray head"), bench.victim("ray-head")
    with ray_cluster(victim) as (address, heads):
        process = victim.start("--executor", "ray", "--ray-address", address, environment=RAY)
        victim.wait_for(process, 1)
        found = heads()
        for number in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        done = ended(process)
    if not found:
        row.wrong.append("there was nothing to kill")
    row.note(done, 0, 6)
    row.saw = next((line for line in done.err.splitlines() if "lost" in line), row.saw)
    bench.settle(row, victim)
    return row


def ctrl_c_twice(bench: Bench) -> Row:
    """SIGINT at random moments, and again within a third of a second."""
    row, saw = Row(f"Ctrl-C twice, at {bench.times} random moments"), ""
    for number in range(bench.times):
        victim = bench.victim(f"interrupted-{number}")
        process = victim.start()
        time.sleep(bench.chance.uniform(0.3, bench.seconds))
        hurt(process, signal.SIGINT)
        time.sleep(bench.chance.uniform(0.0, 0.3))
        hurt(process, signal.SIGINT)
        done = ended(process)
        row.note(done, 0, *INTERRUPTED)
        saw = done.said if "Interrupted" in done.said else saw
        bench.settle(row, victim)
        shutil.rmtree(victim.folder)
    row.saw = saw or row.saw
    return row


def disk_full(bench: Bench) -> Row:
    """No room for the second trial; then there is room."""
    row, victim = Row("disk full"), bench.victim("full")
    size = sum(p.stat().st_size for p in (bench.root / "undisturbed/.dpspec").rglob("*") if p.is_file())
    store = victim.folder / "store"
    store.mkdir()
    with mounted(store, f"size={max(16, size * 3 // 5 // 1024)}k") as mount:
        if mount is None:
            limit = size // victim.runs // 2
            done = victim.run(
                "--store", "store", before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            )
            row.fault += " (a limit on file sizes)"
        else:
            done = victim.forked("--store", "store")
        row.note(done, 2)
        if mount is not None:
            mount("size=64m")
        bench.settle(row, victim, "store")
    return row


def report_disk_full(bench: Bench) -> Row:
    """No room for the report, after all was trained."""
    row, victim = Row("disk full when the report is written"), bench.victim("report")
    full = victim.folder / "full"
    full.mkdir()
    with mounted(full, "size=4k") as mount:
        if mount is None:
            raise NotTriedError("a full disk needs root, who may mount one")
        row.note(victim.run("--report", "json=full/r.json"), 2)
        if any(full.iterdir()):
            row.wrong.append("half a report was left")
        bench.settle(row, victim)
    return row


def read_only(bench: Bench) -> Row:
    """A store that nothing can be written to: refused at once, unless it holds all there is to know."""
    row, victim = Row("read-only store"), bench.victim("read-only")
    store = victim.folder / "store"
    store.mkdir()
    with mounted(store, "size=64m") as mount:
        if mount is None and os.geteuid() == 0:
            raise NotTriedError("root may write anywhere, and may not mount here")
        protect(store, mount, True)
        row.note(victim.run("--store", "store"), 2)
        protect(store, mount, False)
        bench.settle(row, victim, "store")
        protect(store, mount, True)
        done, again = victim.again("--store", "store")
        if done.code or again != bench.whole:
            row.wrong.append(f"a full store that is read-only is not read: exit {done.code}")
        protect(store, mount, False)
    return row


def clock_jumps(bench: Bench) -> Row:
    """The wall clock jumps by three years, back and forth, at every look."""
    row, victim = Row("clock jumps by three years"), bench.victim("clock")
    library = victim.folder / "clock.so"
    source = victim.folder / "clock.c"
    source.write_text(CLOCK, encoding="ascii")
    if (
        shutil.which("cc") is None
        or subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"]).returncode
    ):
        raise NotTriedError("a clock that jumps needs a C compiler")
    done = victim.run("--report", "json=hurt.json", environment={"LD_PRELOAD": str(library)})
    row.note(done, 0)
    if done.code == 0 and outcome(victim.folder / "hurt.json") != bench.whole:
        row.wrong.append("the run under a jumping clock came to something else")
    bench.settle(row, victim)
    return row


def not_a_number(bench: Bench) -> Row:
    """Features so large that every gradient overflows to NaN: each counts as nothing, as no record may weigh more."""
    changes = {"changes": ["data.standardise={std: 1e-37}"]}
    row, victim = Row("NaN in gradients"), bench.victim("nan", **changes)
    done, first = victim.again()
    row.note(done, 0)
    elsewhere, whole = bench.victim("nan-again", **changes).again()
    if elsewhere.code or first != whole:
        row.wrong.append("two runs with NaN in their gradients differ")
    bench.settle(row, victim, whole=whole)
    return row


def data_changed(bench: Bench) -> Row:
    """The data file is another one, and then the first again."""
    row, victim = Row("data file changed between runs"), bench.victim("data")
    done, first = victim.again()
    victim.rows(1)
    other, second = victim.again()
    row.note(other, 0)
    if other.trained != victim.runs:
        row.wrong.append(f"{other.trained} trials were made for other data, {victim.runs} are needed")
    if second is None or first is None or second["audits"][0]["facts"] == first["audits"][0]["facts"]:
        row.wrong.append("the result does not say that the data are others")
    victim.rows(0)
    done, again = victim.again()
    row.kept = f"{victim.stored()} of {2 * victim.runs}"
    row.again = f"exit {done.code}, {'identical' if again == bench.whole else 'DIFFERENT'}"
    if done.code or again != bench.whole or done.trained:
        row.wrong.append(f"with the first data again: {row.again}, {done.trained} trials made")
    return row


FAULTS: dict[str, Callable[[Bench], Row]] = {
    "parent": parent_killed,
    "ray-head": ray_head_killed,
    "ctrl-c": ctrl_c_twice,
    "full": disk_full,
    "full-report": report_disk_full,
    "read-only": read_only,
    "clock": clock_jumps,
    "nan": not_a_number,
    "data": data_changed,
}


def table(rows: Sequence[tuple[str, Row | str]]) -> str:
    """What came of all faults, as Markdown, with the command that reproduces each."""
    lines = ["| fault | what the user sees | exit | kept | run again | command |", "|---|---|---|---|---|---|"]
    for name, row in rows:
        command = f"`python tests/campaigns/faults.py {name}`"
        if isinstance(row, str):
            lines.append(f"| {name} | not tried: {row} | | | | {command} |")
            continue
        codes = ", ".join(str(code) for code in sorted(set(row.codes)))
        lines.append(f"| {row.fault} | {row.saw[:150]} | {codes} | {row.kept} | {row.again} | {command} |")
    return "\n".join(lines)


def campaign(bench: Bench, names: Sequence[str], tell: Callable[[str], None]) -> list[tuple[str, Row | str]]:
    """Put some faults to runs."""
    rows: list[tuple[str, Row | str]] = []
    for name in names:
        try:
            rows.append((name, FAULTS[name](bench)))
        except NotTriedError as reason:
            rows.append((name, str(reason)))
        row = rows[-1][1]
        tell(f"{name}: {'not tried' if isinstance(row, str) else '; '.join(row.wrong) or 'survived'}")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"some of: {', '.join(FAULTS)}; all otherwise")
    parser.add_argument("--times", type=int, default=20, help="how many random moments are tried")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=150, help="of each training")
    parser.add_argument("--runs", type=int, default=6, help="trials of each audit")
    given = parser.parse_args()
    if unknown := set(given.faults) - set(FAULTS):
        parser.error(f"no fault is called {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="dpspec-faults-") as root:
        bench = Bench(Path(root), steps=given.steps, runs=given.runs, times=given.times, seed=given.seed)
        rows = campaign(bench, given.faults or list(FAULTS), lambda text: print(text, file=sys.stderr, flush=True))
    print(table(rows))
    failed = [name for name, row in rows if isinstance(row, Row) and row.wrong]
    print(f"\n{len(rows) - len(failed)} of {len(rows)} survived" + f"; not {', '.join(failed)}" * bool(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
