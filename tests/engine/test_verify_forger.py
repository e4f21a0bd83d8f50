"""A sample of the forger's edits; all edits by hand: ``python tests/campaigns/forge.py``."""

import random
from collections import Counter

import pytest
from support.forger.bench import Bench
from support.forger.forge import edits_of, forge, forge_pages

#: Edits of each subject in the sample.
EDITS = 24


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("forger"))


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["group", "per-instance", "preprocessing"])
def test_no_edit_of_a_result_passes(bench: Bench, kind: str) -> None:
    """``verify`` objects, refuses or cannot recompute; only unverified values pass."""
    counts: Counter[str] = Counter()
    for subject in bench.subjects(kind):
        chance = random.Random(f"1 {subject.name}")
        edits = [edit for edit in edits_of(subject, chance, 1, 1) if not all("document" in path for path in edit.paths)]
        outcome = forge(bench, subject, chance.sample(edits, EDITS // (1 if "bounds" in subject.name else 3)))
        assert outcome.wrong == []
        counts.update(outcome.counts)
    assert counts["objected"] + counts["refused"] + counts["not recomputed"] > 2 * counts["passed"]


@pytest.mark.ci
def test_no_edit_of_a_page_passes(bench: Bench) -> None:
    for subject in bench.pages("group"):
        outcome = forge_pages(bench, subject, random.Random(1), 2)
        assert outcome.wrong == []
        assert sum(outcome.counts.values()) > 60
