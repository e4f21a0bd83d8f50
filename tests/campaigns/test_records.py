"""A few stored records with one leaf replaced; by hand: ``python tests/campaigns/records.py``."""

import random
from typing import Any

import pytest
from campaigns import records as campaign

#: Leaves and values that earlier versions believed or failed on.
KNOWN: dict[str, list[tuple[tuple[str | int, ...], Any]]] = {
    "group": [(("evidence", "internal", "accuracy"), "1" * 100), (("evidence", "outcomes"), [])],
    "modelmix": [(("evidence", "internal", "gap", "least"), -1), (("evidence", "internal", "gap", "below"), True)],
    "per-instance": [
        (("evidence", "sizes"), [30]),
        (("evidence", "sizes", 0), 2**62),
        (("arrays", "ratios", "shape"), [1]),
    ],
    "preprocessing": [(("evidence", "noise", "count"), True), (("evidence", "executed"), -1)],
    "rero": [
        (("evidence", "noise", "degrees"), "0" * 300),
        (("evidence", "noise", "degrees"), 1e308),
        (("evidence", "included"), [1, 1]),
    ],
}


@pytest.fixture(scope="module", params=sorted(KNOWN))
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> campaign.Bench:
    return campaign.Bench(request.param, tmp_path_factory.mktemp("records"))


def test_known_edits_are_rejected(bench: campaign.Bench) -> None:
    key = bench.cases()[0].key
    cases = [campaign.Case(key=key, path=path, value=value) for path, value in KNOWN[bench.kind]]
    outcomes = {str(case): bench.finding(case) for case in cases}
    assert {what for what, _ in outcomes.values()} <= {"refused", "set aside"}, outcomes


def test_a_replaced_leaf_is_not_a_bug(bench: campaign.Bench) -> None:
    cases = random.Random(3).sample(bench.cases(), 8)
    _, wrong = campaign.campaign(bench, cases)
    assert {what: several for what, several in wrong.items() if not what.startswith("slow")} == {}


def test_a_replaced_array_is_not_a_bug(bench: campaign.Bench) -> None:
    cases = [case for case in bench.cases() if case.array]
    for case in random.Random(4).sample(cases, min(4, len(cases))):
        outcome, wrong = bench.finding(case)
        assert outcome != "crash", f"{case}: {wrong}"
