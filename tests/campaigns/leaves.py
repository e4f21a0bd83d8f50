"""Results with one leaf replaced, in every report: ``python tests/campaigns/leaves.py --count 10000 --seed 1``.

A finding is: an exception other than the refusal of what was read, more than two seconds of processor time, more than
1 GiB, a report that its own format's parser does not read, and anything in it that a terminal or a runner obeys.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import io
import json
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.fuzzing.results import Results
from support.leaves import VALUES, leaves, replaced
from support.leaves import Path as Place
from support.remembering import remembering

from dpspec.engine.results.codec import load
from dpspec.errors import ResultError
from dpspec.registry.foreign_code import resolve
from dpspec.text import harmless

#: Seconds of processor time and bytes that one report may take.
SECONDS, BYTES = 2.0, 1 << 30

#: What takes most of the time, and follows from what most cases leave as it is.
PURE = ("dpspec.accounting.tradeoff:fit_gdp", "dpspec.reporters.drawing:svg")

#: Formats that take most of the rest: with ``--sampled``, of how many cases one is shown.
SLOW = {"html": 25, "json": 3, "registry": 3, "text": 3}

#: The number of a result, and edits of it: a place and the number of one of ``VALUES``.
Case = tuple[int, tuple[tuple[Place, int], ...]]

PARSERS = {
    "json": load,
    "statement-json": json.loads,
    "sarif": json.loads,
    "junit": ET.fromstring,
    "registry": lambda text: list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))),
    "csv": lambda text: list(csv.reader(io.StringIO(text), strict=True)),
}


class Bench:
    """The results to begin with, and every reporter."""

    def __init__(self) -> None:
        target = Results()
        with tempfile.TemporaryDirectory() as folder:
            target.warm(Path(folder))
        self.trees = target._trees
        reporters = target._catalog.reporters
        self.render = {
            n: resolve(o.provider.render) for n, o in sorted(reporters.items()) if o.distribution == "dpspec"
        }
        self.cases = [(i, path) for i, tree in enumerate(self.trees) for path in leaves(tree)]

    def drawn(self, count: int, chance: random.Random) -> Iterator[Case]:
        """So many cases, all different: single edits in a random order, and once these are used up two at once."""
        single = [(number, (path, value)) for number, path in self.cases for value in range(len(VALUES))]
        chance.shuffle(single)
        for number, edit in single[: count or None]:
            yield number, (edit,)
        of = [[edit for of_result, edit in single if of_result == number] for number in range(len(self.trees))]
        seen: set[Case] = set()
        while len(single) + len(seen) < count:
            number, first = chance.choice(single)
            case = number, (first, second := chance.choice(of[number]))
            if first[0] != second[0] and case not in seen:
                seen.add(case)
                yield case

    def edited(self, case: Case) -> Any:
        """The JSON of a case; where the first edit takes the place of the second away, of the first alone."""
        number, edits = case
        tree = self.trees[number]
        for path, value in edits:
            with contextlib.suppress(IndexError, KeyError, TypeError, ValueError):
                tree = replaced(tree, path, VALUES[value])
        return tree

    def findings(self, tree: Any, formats: Sequence[str]) -> Iterator[str]:
        """What is wrong with the reports of a result; raises ``ResultError`` where it is refused."""
        before, began = peak_bytes(), time.process_time()
        refused: ResultError | None = None
        try:
            result = load(json.dumps(tree))
        except ResultError as error:
            refused = error
        if (seconds := time.process_time() - began) > SECONDS:
            yield f"load: slow, {seconds:.1f} s"
            if refused is not None:
                return
        if refused is not None:
            raise refused
        for name in formats:
            began = time.process_time()
            try:
                text = self.render[name](result, internal=False)
                seconds = time.process_time() - began
                if name in PARSERS:
                    PARSERS[name](text)
            except Exception as error:
                last = [f for f in traceback.extract_tb(error.__traceback__) if "/dpspec/" in f.filename]
                place = f"{Path(last[-1].filename).name}:{last[-1].lineno}" if last else "?"
                yield f"{name}: {type(error).__name__} at {place}: {str(error)[:120]}"
                continue
            if seconds > SECONDS:
                yield f"{name}: slow, {seconds:.1f} s"
            safe = harmless(text, commands=name == "github")
            if safe != text:
                at = next(i for i, (a, b) in enumerate(zip(text, safe, strict=False)) if a != b)
                yield f"{name}: obeyed: {text[max(0, at - 30) : at + 20]!r}"
        if (more := peak_bytes() - before) > BYTES:
            yield f"memory: {more >> 20} MiB more than ever before"


def peak_bytes() -> int:
    """The most memory that this process ever had; other tests in it may have had more than a case takes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="cases: one edit, then two; 0: all of one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--formats", default="", help="separated by commas; all otherwise")
    parser.add_argument("--sampled", action="store_true", help=f"show only every so many in the slow formats: {SLOW}")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so many")
    asked = parser.parse_args()
    bench = Bench()
    formats = asked.formats.split(",") if asked.formats else list(bench.render)
    counts: collections.Counter[str] = collections.Counter()
    found: dict[str, list[str]] = {}
    began, used = time.monotonic(), time.process_time()
    with remembering(*PURE):
        for number, case in enumerate(bench.drawn(asked.count, random.Random(asked.seed))):
            if asked.seconds and time.monotonic() - began > asked.seconds:
                break
            counts["cases"] += 1
            chosen = [name for name in formats if not asked.sampled or number % SLOW.get(name, 1) == 0]
            try:
                wrong = list(bench.findings(bench.edited(case), chosen))
            except ResultError:
                counts["refused"] += 1
                continue
            except Exception as error:
                wrong = [f"load: {type(error).__name__}: {error}"]
            counts.update(chosen)
            for what in wrong:
                counts["findings"] += 1
                said = " and ".join(f"{'.'.join(map(str, path))} = {VALUES[value]!r:.40}" for path, value in case[1])
                found.setdefault(what.partition(": ")[0] + what[:70], []).append(f"{what}  [{case[0]}, {said}]")
    for several in found.values():
        print(f"{len(several)} x {several[0]}")
    print(f"{dict(counts)}, seed {asked.seed}, {time.process_time() - used:.0f} s of processor time")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
