"""Results with one leaf replaced, in small; by hand: ``python tests/campaigns/leaves.py --count 10000``."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import leaves as campaign
from support.leaves import VALUES, replaced

from dpspec.errors import ResultError

#: Leaves that reports of version 0.1.0 fell over, with what stood there.
KNOWN = [
    (("audits", 0, "document", "claims", 0, "group_size"), None),
    (("audits", 0, "document", "claims", 0, "group_size"), "x"),
    (("audits", 0, "document", "claims", 0, "group_size"), {"x": 1}),
    (("audits", 0, "document", "claims", 0, "epsilon"), {"x": 1}),
    (("audits", 0, "document", "claims", 0, "epsilon"), "\ud800"),
    (("audits", 0, "document", "threat_model", "group_size"), 3),
    (("audits", 0, "document", "threat_model"), None),
    (("audits", 0, "series", 0, "plot", "y"), None),
    (("audits", 0, "places"), {"": {"file": 3, "line": 1, "column": 1}}),
    (("created",), "\ud800"),
    (("audits", 0, "digest"), "\ud800"),
    (("audits", 0, "digest"), "\x1b[2J\x07\u202e"),
    (("audits", 0, "verdicts", 0, "text"), "1" * 100_000),
    (("audits", 0, "name"), "\x1b[2J ##vso[task.x]y"),
]

#: All but pages with figures, which take seconds.
FAST = ["csv", "github", "json", "junit", "markdown", "registry", "sarif", "statement", "statement-json", "text"]


@pytest.fixture(scope="module")
def bench() -> campaign.Bench:
    return campaign.Bench()


def wrong(bench: campaign.Bench, number: int, path: tuple, value: object, formats: list[str]) -> list[str]:
    try:
        return list(bench.findings(replaced(bench.trees[number], path, value), formats))
    except ResultError:
        return []


@pytest.mark.parametrize(("path", "value"), KNOWN)
def test_what_reports_fell_over(bench: campaign.Bench, path: tuple, value: object) -> None:
    assert wrong(bench, 2, path, value, list(bench.render)) == []


def test_a_claim_without_a_number_is_no_guarantee(bench: campaign.Bench) -> None:
    path = ("audits", 0, "document", "claims", 0, "epsilon")
    assert wrong(bench, 1, path, None, ["registry", "statement"]) == []


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 40))])
def test_a_leaf_replaced_is_refused_or_shown(bench: campaign.Bench, seed: int) -> None:
    chance = random.Random(seed)
    number, path = chance.choice(bench.cases)
    value = chance.choice(VALUES)
    assert wrong(bench, number, path, value, FAST) == []
