"""Feed dpspec hostile input: ``python tests/campaigns/fuzz.py --count 100000 --seed 1``.

Generates and mutates specs, results, pages and data files. A finding is an unexpected exception, the end of the
process, more than 2 seconds of processor time or 1 GiB of memory, a file outside the folder of the case, executed
code, a started process, or a connection.

The seed, the target and the number determine a case: ``--target specs --only 4711`` repeats and prints it.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.fuzzing import TARGETS
from support.fuzzing.watch import Watch

#: Seconds without a result after which a worker counts as hung.
PATIENCE = 60.0

#: Shares of the cases.
SHARES = {"specs": 16, "results": 4, "csv": 16, "npz": 14, "idx": 14, "parquet": 18}

Findings = list[tuple[int, str]]


class Bench:
    def __init__(self, name: str, root: Path, seed: int) -> None:
        self.folder, home, warm, self._working = (root / each for each in ("case", "home", "warm", "working"))
        for folder in (self.folder, home, warm, self._working):
            folder.mkdir()
        os.chdir(self._working)
        os.environ.update(HOME=str(home))
        self._name, self._seed, self.target = name, seed, TARGETS[name]()
        self.target.warm(warm)
        self._watch = Watch(self.folder)

    def case(self, number: int) -> Any:
        return self.target.case(random.Random(f"{self._seed} {self._name} {number}"))

    def try_(self, case: Any) -> tuple[str, list[str]]:
        outcome = "failed"
        with self._watch.case() as seen:
            try:
                outcome = self.target.feed(case, self.folder)
            except BaseException as error:
                where = traceback.extract_tb(error.__traceback__)
                ours = [f for f in where if "/dpspec" in f.filename] or list(where)
                place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}" if ours else "?"
                seen.append(f"{type(error).__name__} at {place}: {str(error)[:200]}")
        seen += [f"left {path.name} in the working folder" for path in self._working.iterdir()]
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)
        return outcome, seen


def work(name: str, root: Path, seed: int, numbers: range, sender: Connection) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    bench = Bench(name, root, seed)
    sender.send("ready")
    for number in numbers:
        sender.send(bench.try_(bench.case(number)))


def campaign(name: str, seed: int, count: int) -> tuple[Counter[str], Findings]:
    """Feed all cases of one target, in workers that are replaced when they end or hang."""
    outcome: Counter[str] = Counter()
    findings: Findings = []
    number = 0
    while number < count:
        with tempfile.TemporaryDirectory(prefix=f"dpspec-fuzz-{name}-") as root:
            results, sender = multiprocessing.Pipe(duplex=False)
            given = (name, Path(root), seed, range(number, count), sender)
            process = multiprocessing.Process(target=work, args=given)
            process.start()
            sender.close()
            results.recv()  # EOFError: the worker does not start
            try:
                while number < count:
                    if not results.poll(PATIENCE):
                        findings.append((number, f"hangs: nothing for {PATIENCE:.0f} s"))
                        break
                    word, seen = results.recv()
                    outcome[word] += 1
                    findings += [(number, what) for what in seen]
                    number += 1
            except EOFError:
                process.join()
                findings.append((number, f"ends the process with {process.exitcode}"))
            process.kill()
            process.join()
        number += 1
    return outcome, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="the number of cases of all targets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=sorted(TARGETS), help="one kind of input instead of all")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="repeat one case of --target and print it")
    given = parser.parse_args()
    if given.only is not None:
        if given.target is None:
            parser.error("name a --target")
        with tempfile.TemporaryDirectory() as root:
            bench = Bench(given.target, Path(root), given.seed)
            case = bench.case(given.only)
            print(case)
            print(*bench.try_(case))
        return 0
    shares = {given.target: 1} if given.target else SHARES
    total, bad, began = 0, 0, time.monotonic()
    for name, share in shares.items():
        count = -(-given.count * share // sum(shares.values()))
        outcome, findings = campaign(name, given.seed, count)
        total, bad = total + count, bad + len(findings)
        print(f"{name:9} {count:7} cases: {', '.join(f'{n} {word}' for word, n in outcome.most_common())}", flush=True)
        groups: dict[str, Findings] = defaultdict(list)
        for number, what in findings:
            groups[what.partition(":")[0] + what.partition(": ")[2][:40]].append((number, what))
        for found in groups.values():
            number, what = found[0]
            print(f"    {len(found)} x {what}\n        --target {name} --seed {given.seed} --only {number}", flush=True)
    print(f"{total} cases, seed {given.seed}, {bad} findings, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
