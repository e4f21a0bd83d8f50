"""Forge results and pages of every plugin: ``python tests/campaigns/forge.py --most 6 --values 2 --seed 1``.

Edits every field, alone and with related fields. ``dpspec verify`` must object or report that it could not recompute.
Prints the counts of every subject, the fields whose edits passed, and the edits that must not pass.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.forger.bench import Bench
from support.forger.forge import edits_of, forge, forge_pages
from support.forger.specs import KINDS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=KINDS, help="the plugins")
    parser.add_argument("--most", type=int, default=6, help="the number of edited fields of each pattern")
    parser.add_argument("--values", type=int, default=2, help="the number of values for each field")
    parser.add_argument("--share", type=float, default=1.0, help="the share of all edits, drawn at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only subjects whose name contains this")
    given = parser.parse_args()
    counts, passed, wrong = Counter[str](), Counter[str](), 0
    folder = Path(tempfile.mkdtemp(prefix="dpspec-forge-"))
    os.chdir(folder)
    for kind in given.kinds:
        bench = Bench(folder)
        for subject in (*bench.subjects(kind), *bench.pages(kind)):
            if given.only not in subject.name:
                continue
            start, chance = time.process_time(), random.Random(f"{given.seed} {subject.name}")
            if ", a page" in subject.name:
                outcome = forge_pages(bench, subject, chance, max(1, int(8 * given.most * given.share)))
            else:
                edits = list(edits_of(subject, chance, given.most, given.values))
                outcome = forge(bench, subject, chance.sample(edits, int(len(edits) * given.share)))
            ended = ", ".join(f"{count} {ended}" for ended, count in sorted(outcome.counts.items()))
            seconds = time.process_time() - start
            print(f"{subject.name}: {outcome.counts.total()} edits, {ended} ({seconds:.0f} s)", flush=True)
            for one in outcome.wrong:
                print(f"  WRONG {one}", flush=True)
            counts, passed, wrong = counts + outcome.counts, passed + outcome.passed, wrong + len(outcome.wrong)
    print(f"\nall: {dict(counts)}")
    print("passed, by field:")
    for place, count in sorted(passed.items()):
        print(f"  {count:5} {place}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
