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


@pytest.mark.ci
def test_known_edits_are_rejected(bench: campaign.Bench) -> None:
    key = bench.cases()[0].key
    cases = [campaign.Case(key=key, path=path, value=value) for path, value in KNOWN[bench.kind]]
    outcomes = {str(case): bench.finding(case) for case in cases}
    assert {what for what, _ in outcomes.values()} <= {"refused", "set aside"}, outcomes


@pytest.mark.family
def test_a_replaced_leaf_or_array_is_not_a_bug(bench: campaign.Bench) -> None:
    every, chance = bench.cases(), random.Random(3)
    arrays = [case for case in every if case.array]
    _, wrong = campaign.campaign(bench, [*chance.sample(every, 8), *chance.sample(arrays, min(4, len(arrays)))])
    assert {what: several for what, several in wrong.items() if not what.startswith("slow")} == {}
