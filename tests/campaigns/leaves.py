"""Results with one leaf replaced, in every report: ``python tests/campaigns/leaves.py --count 10000 --seed 1``.

A finding is: an exception other than the refusal of what was read, more than two seconds of processor time, more than
1 GiB, a report that its own format's parser does not read, and anything in it that a terminal or a runner obeys.
"""

from __future__ import annotations

import argparse
import collections
import csv
import io
import json
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.fuzzing.results import Results
from support.leaves import VALUES, leaves, replaced

from dpspec.engine.results.codec import load
from dpspec.errors import ResultError
from dpspec.registry.foreign_calls import renderer
from dpspec.text import harmless

#: Seconds of processor time and bytes that one report may take.
SECONDS, BYTES = 2.0, 1 << 30

PARSERS = {
    "json": load,
    "statement-json": json.loads,
    "sarif": json.loads,
    "junit": ET.fromstring,
    "registry": lambda text: list(yaml.safe_load_all(text)),
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
        self.render = {n: renderer(o) for n, o in sorted(reporters.items()) if o.distribution == "dpspec"}
        self.cases = [(i, path) for i, tree in enumerate(self.trees) for path in leaves(tree)]

    def findings(self, number: int, path: tuple[Any, ...], value: Any, formats: list[str]) -> Iterator[str]:
        """What is wrong with the reports of one case; raises ``ResultError`` where it is refused."""
        before = peak_bytes()
        result = load(json.dumps(replaced(self.trees[number], path, value)))
        for name in formats:
            began = time.process_time()
            try:
                text = self.render[name](result, internal=False)
                if name in PARSERS:
                    PARSERS[name](text)
            except Exception as error:
                last = [f for f in traceback.extract_tb(error.__traceback__) if "/dpspec/" in f.filename]
                place = f"{Path(last[-1].filename).name}:{last[-1].lineno}" if last else "?"
                yield f"{name}: {type(error).__name__} at {place}: {str(error)[:120]}"
                continue
            seconds = time.process_time() - began
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
    parser.add_argument("--count", type=int, default=1000, help="cases drawn by chance; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--formats", default="", help="separated by commas; all otherwise")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so many")
    asked = parser.parse_args()
    bench = Bench()
    formats = asked.formats.split(",") if asked.formats else list(bench.render)
    cases = [(number, path, value) for number, path in bench.cases for value in range(len(VALUES))]
    if asked.count:
        cases = random.Random(asked.seed).sample(cases, min(asked.count, len(cases)))
    counts: collections.Counter[str] = collections.Counter()
    found: dict[str, list[str]] = {}
    began = time.monotonic()
    for number, path, value in cases:
        if asked.seconds and time.monotonic() - began > asked.seconds:
            break
        counts["cases"] += 1
        try:
            wrong = list(bench.findings(number, path, VALUES[value], formats))
        except ResultError:
            counts["refused"] += 1
            continue
        except Exception as error:
            wrong = [f"load: {type(error).__name__}: {error}"]
        counts["renderings"] += len(formats)
        for what in wrong:
            counts["findings"] += 1
            place = ".".join(map(str, path))
            found.setdefault(what.partition(": ")[0] + what[:70], []).append(
                f"{what}  [result {number}, {place} = {VALUES[value]!r:.40}]"
            )
    for several in found.values():
        print(f"{len(several)} x {several[0]}")
    print(f"{dict(counts)}, seed {asked.seed}, {time.monotonic() - began:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
