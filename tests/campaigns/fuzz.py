"""Feeds dpspec what nobody should: ``python tests/campaigns/fuzz.py --count 100000 --seed 1``.

Specs, results, reports, stored trials and data files, made and changed by chance. What counts as a finding:
an exception that dpspec does not raise on purpose, a process that ends, more than 2 seconds of processor time or 1 GiB
of memory, a file written outside the folder of the case, code or a process run, a connection made.

A case is made from the seed, the name of its target and its number alone: ``--target specs --only 4711`` makes it
again and shows it.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.fuzzing import TARGETS, Target
from support.fuzzing.watch import Watch

#: Seconds by the clock without a case ending, after which a worker is taken for hung.
PATIENCE = 60.0

#: Shares of the cases, by what there is to break.
SHARES = {
    "specs": 16,
    "results": 4,
    "records": 3,
    "csv": 16,
    "npz": 14,
    "idx": 14,
    "parquet": 14,
    "images": 4,
}


def chance_of(seed: int, target: str, number: int) -> random.Random:
    return random.Random(f"{seed} {target} {number}")


class Bench:
    """A target ready to be fed, in a folder of its own."""

    def __init__(self, name: str) -> None:
        self.root = Path(tempfile.mkdtemp(prefix=f"dpspec-fuzz-{name}-"))
        self.folder, home, self._elsewhere = (self.root / name for name in ("case", "home", "elsewhere"))
        for folder in (self.folder, home, self._elsewhere):
            folder.mkdir()
        os.chdir(self._elsewhere)
        os.environ.update(HOME=str(home), XDG_CACHE_HOME=str(home), DPSPEC_DATA=str(home / "data"))
        self.target: Target = TARGETS[name]()
        warm = self.root / "warm"
        warm.mkdir()
        self.target.warm(warm)
        self.watch = Watch(self.folder)

    def try_(self, case: Any) -> tuple[str, list[str]]:
        """Feed one case: what became of it, and what it should not have done."""
        became = "failed"
        with self.watch.case() as seen:
            try:
                became = self.target.feed(case, self.folder)
            except BaseException as error:  # whatever escapes is what we are looking for
                where = traceback.extract_tb(error.__traceback__)
                ours = [f for f in where if "/dpspec" in f.filename] or list(where)
                place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}" if ours else "?"
                seen.append(f"{type(error).__name__} at {place}: {str(error)[:200]}")
        for path in self._elsewhere.iterdir():
            seen.append(f"left {path.name} in the working folder")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)
        return became, seen


def work(name: str, seed: int, first: int, last: int, journal: Path) -> None:
    """A worker: cases ``first`` to ``last - 1``; a line for each in the journal, before it and after it."""
    bench = Bench(name)
    with journal.open("w", buffering=1, encoding="utf-8") as out:
        for number in range(first, last):
            out.write(f"{number}\n")
            became, seen = bench.try_(bench.target.case(chance_of(seed, name, number)))
            out.write(json.dumps([became, seen]) + "\n")


def campaign(name: str, seed: int, count: int) -> tuple[collections.Counter[str], list[tuple[int, str]]]:
    """All cases of one target, in workers that are replaced when they die or hang."""
    became: collections.Counter[str] = collections.Counter()
    findings: list[tuple[int, str]] = []
    first = 0
    while first < count:
        first = _worker(name, seed, first, count, became, findings)
    return became, findings


def _worker(
    name: str, seed: int, first: int, count: int, became: collections.Counter[str], findings: list[tuple[int, str]]
) -> int:
    """One worker as far as it gets; the number to go on with."""
    command = [
        sys.executable,
        __file__,
        "--worker",
        name,
        "--seed",
        str(seed),
        "--from",
        str(first),
        "--count",
        str(count),
    ]
    with tempfile.TemporaryDirectory(prefix="dpspec-fuzz-") as folder:
        journal, errors = Path(folder) / "journal", Path(folder) / "errors"
        journal.touch()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": folder, "FUZZ_JOURNAL": str(journal)}
        with errors.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        hung = not _wait(process, journal)
        number = first - 1
        for line in journal.read_text(encoding="utf-8").splitlines():
            if line.startswith("["):
                word, seen = json.loads(line)
                became[word] += 1
                findings += [(number, what) for what in seen]
            else:
                number = int(line)
        text = errors.read_text(errors="replace")[-1500:]
    if number < first:
        raise SystemExit(f"the worker for {name} does not start:\n{text}")
    if hung:
        findings.append((number, f"hangs: nothing for {PATIENCE:.0f} s"))
    elif process.returncode:
        findings.append((number, f"ends the process with {process.returncode}: {text[-300:]}"))
    return number + 1


def _wait(process: subprocess.Popen[bytes], journal: Path) -> bool:
    """Wait for a worker; False where its journal stood still and it was killed."""
    size, grown = 0, time.monotonic()
    while True:
        try:
            process.wait(timeout=0.2)
            return True
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if journal.stat().st_size > size:
                size, grown = journal.stat().st_size, now
            elif now - grown > PATIENCE:
                process.kill()
                process.wait()
                return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="cases of all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=sorted(TARGETS), help="one kind of input; all otherwise")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="make one case of --target again, and show it")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--from", type=int, default=0, dest="first", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker, given.seed, given.first, given.count, Path(os.environ["FUZZ_JOURNAL"]))
        return 0
    if given.only is not None:
        if given.target is None:
            parser.error("name a --target")
        bench = Bench(given.target)
        case = bench.target.case(chance_of(given.seed, given.target, given.only))
        print(case)
        print(*bench.try_(case))
        return 0
    shares = {given.target: 1} if given.target else SHARES
    total, bad = 0, 0
    began = time.monotonic()
    for name, share in shares.items():
        count = -(-given.count * share // sum(shares.values()))
        became, findings = campaign(name, given.seed, count)
        total, bad = total + count, bad + len(findings)
        print(f"{name:9} {count:7} cases: {', '.join(f'{n} {word}' for word, n in became.most_common())}", flush=True)
        for what, numbers in _grouped(findings).items():
            print(
                f"    {len(numbers)} x {what}\n        --target {name} --seed {given.seed} --only {numbers[0]}",
                flush=True,
            )
    print(f"{total} cases, seed {given.seed}, {bad} findings, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


def _grouped(findings: list[tuple[int, str]]) -> dict[str, list[int]]:
    groups: dict[str, tuple[str, list[int]]] = {}
    for number, what in findings:
        groups.setdefault(what.partition(":")[0] + what.partition(": ")[2][:40], (what, []))[1].append(number)
    return dict(groups.values())


if __name__ == "__main__":
    sys.exit(main())
