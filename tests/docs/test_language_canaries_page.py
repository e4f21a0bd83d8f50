"""The table and the figure of the guide to language models follow from the stored runs of the benchmark."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import language_canaries as benchmark

ROOT = Path(__file__).parents[2]
RUNS = json.loads((ROOT / "tests" / "benchmarks" / "language_canaries.json").read_text())


def test_the_page_shows_the_stored_runs():
    assert benchmark.table(RUNS) in (ROOT / "docs" / "how-to" / "audit-a-language-model.md").read_text()
    assert benchmark.figure(RUNS) == (ROOT / "docs" / "pictures" / "language-canaries.svg").read_text()


def test_every_run_is_proved_and_no_bound_is_above_the_certified_one():
    assert {(r["verdict"], r["lower"] <= r["upper"]) for r in RUNS} == {("proved", True)}
    cells = benchmark.groups(RUNS)
    assert set(map(len, cells.values())) == {20}
    assert len(cells) == len(benchmark.NOISE) * len(benchmark.COUNTS) * len(benchmark.KINDS)
