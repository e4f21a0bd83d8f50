"""A sample of the forger's edits; all edits by hand: ``python tests/campaigns/forge.py``."""

import json
import random
from collections import Counter

import pytest
from support.forger.bench import Bench, Subject
from support.forger.forge import edits_of, forge, forge_pages
from support.forger.leaves import Edit, put

from dpspec.results import codec

#: Edits of each subject in the sample.
EDITS = 24


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("forger"))


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["composition", "group", "per-instance", "preprocessing"])
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


@pytest.mark.ci
def test_exchanged_points_of_a_curve_are_found_beyond_rounding(bench: Bench) -> None:
    """A curve is recomputed from the spec, so that only points that are equal up to rounding can be exchanged."""
    document = json.loads(codec.dump(bench.result("composition", trained=False)))
    subject = Subject("composition", json.dumps(document))
    number, curve = next(
        (i, series["columns"]["true_positive_rate"])
        for i, series in enumerate(document["audits"][0]["series"])
        if series["name"] == "trade-off"
    )
    path, last = ("audits", 0, "series", number, "columns", "true_positive_rate"), len(curve) - 1
    exchanged = put(put(document, (*path, 0), curve[last]), (*path, last), curve[0])
    rounded = put(document, (*path, 0), curve[0] * (1.0 + 1e-10))
    assert [bench.ends(json.dumps(edited), "nowhere")[0] for edited in (exchanged, rounded)] == ["objected", "passed"]
    assert forge(bench, subject, [Edit("rounded", (path,), rounded)]).wrong == []
    lower = put(document, (*path, 0), curve[0] * (1.0 - 1e-6))
    assert bench.ends(json.dumps(lower), "nowhere")[0] == "objected"
