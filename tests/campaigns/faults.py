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
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.fault_bench import Bench, Row
from support.faulty_machine import CLOCK, RAY, NotTriedError, children, is_alive, mounted, protect, ray_cluster
from support.victim import INTERRUPTED, ended, hurt, outcome


def killed(bench: Bench) -> Row:
    """SIGKILL to all processes of a run, at random moments."""
    row = Row(f"SIGKILL at {bench.times} random moments")
    for number, moment in enumerate(bench.moments()):
        victim = bench.victim(f"killed-{number}")
        process = victim.start()
        time.sleep(moment)
        hurt(process, signal.SIGKILL)
        done = ended(process)
        row.codes.append(done.code)
        if done.code not in (-signal.SIGKILL, 0):
            row.wrong.append(f"exit {done.code} at {moment:.2f} s: {done.err[-300:]}")
        bench.settle(row, victim)
        shutil.rmtree(victim.folder)
    row.saw = "(nothing: it is gone)"
    return row


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


def worker_killed(bench: Bench) -> Row:
    """SIGKILL to one of two worker processes."""
    row, victim = Row("SIGKILL to a worker process"), bench.victim("worker")
    process = victim.start("--workers", "2", "--report", "json=hurt.json")
    victim.wait_for(process, 1)
    found = children(process.pid)[-1:]
    for number in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    done = ended(process)
    if not found:
        row.wrong.append("there was nothing to kill")
    row.note(done, 0)
    if not (victim.folder / "hurt.json").is_file() or outcome(victim.folder / "hurt.json") != bench.whole:
        row.wrong.append("the run that lost a worker came to something else")
    row.saw = next((line for line in done.err.splitlines() if "again" in line or "lost" in line), row.saw)
    bench.settle(row, victim)
    return row


def ray_worker_killed(bench: Bench) -> Row:
    """SIGKILL to a worker process of a Ray cluster."""
    return _on_ray(bench, Row("SIGKILL to a Ray worker"), "worker", (0,))


def ray_head_killed(bench: Bench) -> Row:
    """SIGKILL to everything that makes the head of a Ray cluster."""
    return _on_ray(bench, Row("SIGKILL to the Ray head"), "head", (0, 6))


def _on_ray(bench: Bench, row: Row, what: str, codes: tuple[int, ...]) -> Row:
    victim = bench.victim(f"ray-{what}")
    with ray_cluster(victim) as (address, processes):
        options = ("--executor", "ray", "--ray-address", address, "--report", "json=hurt.json")
        process = victim.start(*options, environment=RAY)
        victim.wait_for(process, 1)
        found = processes(what)
        for number in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        done = ended(process)
    if not found:
        row.wrong.append("there was nothing to kill")
    row.note(done, *codes)
    row.saw = next((line for line in done.err.splitlines() if "lost" in line), row.saw)
    if done.code == 0 and outcome(victim.folder / "hurt.json") != bench.whole:
        row.wrong.append(f"the run that lost a Ray {what} came to something else")
    bench.settle(row, victim)
    return row


def ctrl_c_twice(bench: Bench) -> Row:
    """SIGINT at random moments, and again within a third of a second."""
    row, saw = Row(f"Ctrl-C twice, at {bench.times} random moments"), ""
    for number, moment in enumerate(bench.moments(least=0.3)):
        victim = bench.victim(f"interrupted-{number}")
        process = victim.start()
        time.sleep(moment)
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


def out_of_memory(bench: Bench) -> Row:
    """CUDA's error, raised in the middle of the second trial."""
    row, victim = Row("CUDA out of memory (simulated)"), bench.victim("memory")
    starved = victim.folder / "starved"
    starved.write_text("3", encoding="ascii")
    row.note(victim.run(), 6)
    starved.unlink()
    bench.settle(row, victim)
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


def data_changed_meanwhile(bench: Bench) -> Row:
    """The data file becomes another one while the run that reads it has begun, and not yet read it."""
    row, saw = Row("data file changed during a run"), ""
    for number, moment in enumerate(list(bench.moments(least=0.2 * bench.seconds))[:8]):
        victim = bench.victim(f"meanwhile-{number}")
        process = victim.start()
        time.sleep(moment)
        victim.rows(1)
        done = ended(process)
        row.note(done, 0, 3)
        saw = next((line for line in done.err.splitlines() if "data-unreadable" in line), saw)
        victim.rows(0)
        bench.settle(row, victim)
    row.saw = saw or row.saw
    return row


def two_at_once(bench: Bench) -> Row:
    """Two runs of one spec on one store, started together."""
    row, victim = Row("two runs on one store at once"), bench.victim("two")
    runs = [victim.start("--report", f"json=hurt-{i}.json") for i in range(2)]
    for number, process in enumerate(runs):
        row.note(ended(process), 0)
        report = victim.folder / f"hurt-{number}.json"
        if not report.is_file() or outcome(report) != bench.whole:
            row.wrong.append(f"run {number + 1} came to something else")
    bench.settle(row, victim)
    return row


def damaged(bench: Bench) -> Row:
    """One record is cut short, one has a bit flipped, and one is another's."""
    row, victim = Row("records truncated, corrupted, exchanged"), bench.victim("damaged")
    victim.run()
    records = sorted((victim.folder / ".dpspec/store/trials").glob("*/*/record.json"))
    first, second = (record.read_bytes() for record in records[:2])
    records[0].write_bytes(first[: len(first) // 2])
    records[1].write_bytes(second[:-40] + bytes([second[-40] ^ 1]) + second[-39:])
    records[2].write_bytes(first)
    done, again = victim.again()
    row.note(done, 0)
    row.saw = next((line for line in done.err.splitlines() if "damaged" in line), row.saw)
    if again != bench.whole or done.trained != 3:
        row.wrong.append(f"{done.trained} of 3 damaged trials were made again")
    bench.settle(row, victim)
    return row


FAULTS: dict[str, Callable[[Bench], Row]] = {
    "killed": killed,
    "parent": parent_killed,
    "worker": worker_killed,
    "ray-worker": ray_worker_killed,
    "ray-head": ray_head_killed,
    "ctrl-c": ctrl_c_twice,
    "full": disk_full,
    "full-report": report_disk_full,
    "read-only": read_only,
    "clock": clock_jumps,
    "nan": not_a_number,
    "memory": out_of_memory,
    "data": data_changed,
    "data-during": data_changed_meanwhile,
    "two": two_at_once,
    "damaged": damaged,
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
