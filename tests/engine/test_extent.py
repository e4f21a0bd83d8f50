"""What a run says of data sets of at least so many records, and of neighbours that miss the same entries."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.audits import HERE, MEASURED, attack, bound, check

from dpspec.contract import Audit, Facts, Scope
from dpspec.engine.preparing.prepare import Prepared
from dpspec.engine.preparing.prepare import check as problems
from dpspec.engine.running.conclude import with_extent
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

ALIKE = "same-missing-values"


def prepared(*, missing_allowed: bool = False, records_per_unit: int = 1, **data: Any) -> Prepared:
    import types

    found = object.__new__(Prepared)
    for name, value in {
        "facts": Facts(records=569, features=3, classes=2),
        "spec": types.SimpleNamespace(data=data, records_per_unit=records_per_unit),
        "missing": missing_allowed,
    }.items():
        object.__setattr__(found, name, value)
    return found


@pytest.mark.parametrize(
    ("scope", "group_size", "least"),
    [
        (HERE, 1, 568),
        (HERE, 8, 561),
        (dataclasses.replace(HERE, adjacency="replace-one"), 1, 569),
        (dataclasses.replace(HERE, adjacency="zero-out"), 4, 569),
        (dataclasses.replace(HERE, data="planted"), 8, 569),
        (dataclasses.replace(HERE, data="collection"), 1, 568),
        (dataclasses.replace(HERE, min_records=12), 1, 12),
        (dataclasses.replace(HERE, data="all"), 1, 0),
        (MEASURED, 1, 568),
        (Scope(data="this"), 1, 0),
    ],
)
def test_both_neighbours_of_an_attack_hold_so_many_records(scope: Scope, group_size: int, least: int) -> None:
    for outcome in (
        attack(9, 9, 9, scope=scope, group_size=group_size),
        bound(1.0, scope=scope, group_size=group_size),
    ):
        found: Any = with_extent(outcome, prepared())
        assert found.scope.min_records == least
        assert dataclasses.replace(found, scope=outcome.scope) == outcome


def test_a_user_may_leave_with_all_records() -> None:
    found = with_extent(attack(9, 9, 9, scope=HERE, group_size=2), prepared(records_per_unit=4))
    assert found.scope.min_records == 569 - 2 * 4


def test_neighbours_miss_the_same_entries_where_nobody_misses_any() -> None:
    planted = dataclasses.replace(HERE, data="planted")

    def neighbours(scope: Scope, data: Prepared) -> str:
        return with_extent(attack(9, 9, 9, scope=scope), data).scope.neighbours

    assert neighbours(HERE, prepared()) == neighbours(planted, prepared()) == ALIKE
    assert neighbours(HERE, prepared(missing_allowed=True)) == ALIKE
    # A planted record may miss values where the mechanism takes such records, and any may where the data says how.
    assert neighbours(planted, prepared(missing_allowed=True)) == "all"
    assert neighbours(HERE, prepared(missing_allowed=True, missing=["?"])) == "all"
    said = dataclasses.replace(planted, neighbours=ALIKE)
    assert neighbours(said, prepared(missing_allowed=True)) == ALIKE


def test_checks_have_no_scope() -> None:
    assert with_extent(check(0.5), prepared()) == check(0.5)


SPEC = """\
dpspec: 1
name: sized
mechanism: {kind: group, noise_multiplier: 0.3, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.5}, steps: 5}
data: {kind: synthetic, records: 120, features: 16, classes: 4}
model: {kind: linear}
claims:
  - {id: any, kind: approx-dp, epsilon: 0.01, delta: 1e-5, expect: refuted}
  - {id: large, kind: approx-dp, epsilon: 0.01, delta: 1e-5, min_records: 120, expect: refuted}
  - {id: alike, kind: approx-dp, epsilon: 0.01, delta: 1e-5, neighbours: same-missing-values, expect: refuted}
audit: {method: one-run, runs: 2, canary: {space: gradient, kind: orthogonal, count: 60}, seed: 1}
"""


def test_an_attack_on_a_data_set_of_that_size_refutes_a_claim_about_such_data_sets(tmp_path: Path) -> None:
    path = tmp_path / "sized.yaml"
    path.write_text(SPEC, encoding="utf-8")
    loaded = load_specs([path], load_catalog())
    assert loaded.ok, loaded.diagnostics
    result = run(loaded.specs, load_catalog(), store=Store(tmp_path / "store"), device="cpu")
    assert [v.verdict for v in result.audits[0].verdicts] == ["refuted"] * 3
    (evidence,) = [e for e in result.audits[0].evidence if e.quantity == "epsilon"]
    assert (evidence.scope.min_records, evidence.scope.neighbours) == (120, ALIKE)
    lower = [f for f in result.audits[0].findings if f.bound == "lower"]
    assert {f.scope.min_records for f in lower} == {120}


def test_a_claim_about_larger_data_sets_than_this_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sized.yaml"
    path.write_text(SPEC.replace("min_records: 120", "min_records: 121"), encoding="utf-8")
    loaded = load_specs([path], load_catalog())
    (found,) = problems(loaded.specs[0], load_catalog())
    assert (found.code, found.path) == ("bad-value", ("claims", 1, "min_records"))
    assert found.span is not None
    assert found.span.line == 8


def test_which_data_sets_are_spoken_of_decides_no_trial(tmp_path: Path) -> None:
    told = "threat_model: {min_records: 64, neighbours: same-missing-values}\n"
    inputs = []
    for text in (SPEC, SPEC + told):
        (tmp_path / "sized.yaml").write_text(text, encoding="utf-8")
        loaded = load_specs([tmp_path / "sized.yaml"], load_catalog())
        assert loaded.ok, loaded.diagnostics
        inputs.append(Audit.trial_inputs(_Bare(), loaded.specs[0]))
    assert inputs[0] == inputs[1]


class _Bare(Audit):
    def bound(self, spec: Any, context: Any) -> Any:
        return ()
