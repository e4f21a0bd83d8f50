"""Forges results and pages of every plugin: ``python tests/campaigns/forge.py --most 6 --values 2 --seed 1``.

Every field is edited, alone and with those that belong to it, and ``dpspec verify`` must object, or say that it could
not recompute. Printed are the counts for every subject, the places whose edits passed, and what should not have passed.
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
    """Forge, and tell; ends with 1 where something passed that should not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=KINDS, help="the plugins whose results are forged")
    parser.add_argument("--most", type=int, default=6, help="places edited of each pattern")
    parser.add_argument("--values", type=int, default=2, help="values tried in a place")
    parser.add_argument("--share", type=float, default=1.0, help="the share of all edits that is made, by chance")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="subjects whose name holds this")
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
                told = forge_pages(bench, subject, chance, max(1, int(8 * given.most * given.share)))
            else:
                edits = list(edits_of(subject, chance, given.most, given.values))
                told = forge(bench, subject, chance.sample(edits, int(len(edits) * given.share)))
            ended = ", ".join(f"{count} {ended}" for ended, count in sorted(told.counts.items()))
            seconds = time.process_time() - start
            print(f"{subject.name}: {told.counts.total()} edits, {ended} ({seconds:.0f} s)", flush=True)
            for one in told.wrong:
                print(f"  WRONG {one}", flush=True)
            counts, passed, wrong = counts + told.counts, passed + told.passed, wrong + len(told.wrong)
    print(f"\nall: {dict(counts)}")
    print("passed, by place:")
    for place, count in sorted(passed.items()):
        print(f"  {count:5} {place}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
