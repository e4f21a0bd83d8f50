"""Users with at most k records: bounds of groups of k, told of users; tables that differ in a user leak no more.

The oracle writes two tables, one of them without a user, has the data kind read both and drop what is more than k, and
runs the native backend's own step on either, every batch enumerated (``support.scope_oracle``).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import scope_oracle as oracle
from support.attacks import audited, diagnosed, spec_at, written

import dpspec
from dpspec.contract import Facts, Finding, FrozenMap, Section, Series, Spec
from dpspec.data.table_files import Csv
from dpspec.engine.judging.evidence_weight import claim_scope, covers
from dpspec.kit.users import bounded, in_records
from dpspec_group.mechanism import GroupAudit, RecordsAudit

pytestmark = pytest.mark.usefixtures("claimed_deltas_alone")

VISITS = Path(__file__).parents[3] / "specs" / "users" / "visits.yaml"

POISSON: dict[str, Any] = {
    "noise_multiplier": 1.0,
    "clip_norm": 1.0,
    "steps": 1,
    "sampling": {"scheme": "poisson", "rate": 0.4},
}


def spec_of(phase: dict[str, Any], most: int, *sizes: int, delta: float = 0.03, **data: Any) -> Spec:
    unit = f"user (at most {most} record{'s' * (most > 1)})"
    claims = [
        dataclasses.replace(oracle.claim_of("approx-dp", group_size=size, epsilon=1.0, delta=delta), unit=unit)
        for size in sizes
    ]
    made = oracle.spec_of("group", {"phases": (phase,), "baselines": ()}, claims)
    threat = dataclasses.replace(made.threat_model, unit="user", group_size=sizes)
    options = FrozenMap({"records": 50, "records_per_user": most, **data})
    document = FrozenMap({"threat_model": {"unit": "user", "group_size": sizes}})
    return dataclasses.replace(made, threat_model=threat, data=Section("declared", options), document=document)


def proofs(spec: Spec, records: int = 50) -> list[Finding]:
    return oracle.proofs(oracle.remembered_findings_of(GroupAudit(), spec, records))


def executed(folder: Path, owners: list[str], rows: list[tuple[float, int]], most: int) -> list[oracle.Law]:
    """What a step shows of a table, read and cut by the data kind."""
    lines = [f"{who},{x},{y}" for who, (x, y) in zip(owners, rows, strict=True)]
    (folder / "t.csv").write_text("\n".join(["who,x,y", *lines]) + "\n", encoding="utf-8")
    options = {"path": "t.csv", "label": "y", "classes": 2, "user": "who", "max_records_per_user": most}
    read = Csv(FrozenMap(options), folder).load()
    return oracle.laws_of(oracle.run_of([POISSON], read.train_x[:, 0].tolist(), read.train_y.tolist()))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from((-9.0, -1.0, 0.3, 5.0)), st.integers(0, 1)),
        min_size=4,
        max_size=9,
    ).filter(lambda rows: len({who for who, _, _ in rows}) > 1),
    st.integers(1, 3),
    st.data(),
)
def test_tables_that_differ_in_a_user_leak_no_more_than_the_bound(tmp_path, table, most, data):
    gone = data.draw(st.sampled_from(sorted({who for who, _, _ in table})))
    delta = data.draw(st.sampled_from((0.3, 0.03, 1e-3)))
    others = [row for row in table if row[0] != gone]
    present, absent = (
        executed(tmp_path, [who for who, *_ in rows], [(x, y) for _, x, y in rows], most) for rows in (table, others)
    )
    for finding in proofs(spec_of(POISSON, most, 1, delta=delta)):
        if finding.bound == "upper":
            found = oracle.worst_delta(finding, absent, present)
            assert found <= delta * (1.0 + oracle.ROOM) + 1e-12, (finding, table, gone)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_user_with_all_records_alike_attains_the_lower_end(tmp_path: Path, most: int) -> None:
    """So that a claim that is smaller is false of some tables of such users: of one that says ``at most`` as many."""
    rows = [(9.0, 0)] * most
    present = executed(tmp_path, ["a"] * most + ["b"], [*rows, (0.0, 0)], most)
    absent = executed(tmp_path, ["b"], [(0.0, 0)], most)
    (lower,) = [f for f in proofs(spec_of(POISSON, most, 1)) if f.bound == "lower"]
    assert oracle.worst_delta(lower, absent, present, more=-0.02 * lower.value) > 0.03
    if most > 1:  # a user with fewer does not
        fewer = executed(tmp_path, ["a"] * (most - 1) + ["b"], [*rows[1:], (0.0, 0)], most)
        assert oracle.worst_delta(lower, absent, fewer, more=-0.02 * lower.value) < 0.03


@pytest.mark.parametrize("scheme", ["poisson", "fixed"])
def test_what_is_said_of_users_is_said_of_groups_of_their_records(scheme: str) -> None:
    sampling = {"scheme": "poisson", "rate": 0.1} if scheme == "poisson" else {"scheme": "fixed", "batch_size": 5}
    phase = {**POISSON, "sampling": sampling, "steps": 7}
    users, groups = spec_of(phase, 4, 1, 2), in_records(spec_of(phase, 4, 1, 2))
    assert [claim.group_size for claim in groups.claims] == [4, 8]
    said = oracle.findings_of(GroupAudit(), users, 50)
    known = oracle.findings_of(RecordsAudit(), groups, 50)
    assert len(said) == len(known) > 0
    for one, other in zip(said, known, strict=True):
        assert (one.value, one.lower, one.bound, one.rigor) == (other.value, other.lower, other.bound, other.rigor)
        assert one.at == {**other.at, "group_size": other.at["group_size"] // 4}
        assert one.scope == dataclasses.replace(other.scope, unit="user (at most 4 records)")
        least = {"poisson": 0, "fixed": 50 - other.at["group_size"]}[scheme]
        assert one.scope.min_records == (least if one.scope.data == "all" else 0)
        extra = (bounded(users),) if one.bound == "upper" else ()
        assert one.assumptions == (*other.assumptions, *extra)


def test_no_bound_of_other_units_counts_for_a_claim() -> None:
    spec = spec_of(POISSON, 4, 1)
    scope = claim_scope(spec, spec.claims[0])
    assert any(covers(f.scope, scope) for f in proofs(spec) if f.bound == "upper")
    for unit in ("record", "user", "user (at most 3 records)", "user (at most 5 records)"):
        assert not covers(dataclasses.replace(scope, unit=unit), scope)


def test_who_sees_to_the_bound_is_said() -> None:
    phase = POISSON
    assert bounded(spec_of(phase, 4, 1)).status == "declared"
    assert bounded(spec_of(phase, 4, 1, user="who")).text == (
        "no user has more than the declared number of records, 4: data with more is rejected; two spellings of a user "
        "count as two users"
    )
    dropping = bounded(spec_of(phase, 1, 1, user="who", max_records_per_user=1))
    assert (dropping.status, "records, 1: others are dropped" in dropping.text) == ("by-construction", True)


DECLARED = """\
dpspec: 1
name: users
mechanism: {kind: group, noise_multiplier: 4, clip_norm: 1, sampling: {scheme: poisson, rate: 0.01}, steps: 50}
data: {kind: declared, records: 1000, records_per_user: 5}
threat_model: {unit: user, group_size: [1, 2]}
claims:
  - {id: user, kind: approx-dp, epsilon: 9, delta: 1e-5}
  - {id: pair, kind: membership, advantage: 0.9, group_size: 2}
  - {id: one-mu, kind: gdp, mu: 20}
"""


ONE = "claims=[{id: user, kind: approx-dp, epsilon: 9, delta: 1e-5}]"
SCORES = "audit={method: one-run, scores: {path: s.csv, score: s, coin: m}}"


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        ((), []),
        (("data={kind: declared, records: 1000}",), ["unsupported threat_model.unit"]),
        (("threat_model.unit=household",), ["unsupported threat_model.unit"]),
        (("threat_model.unit=record",), []),
        (("mechanism.kind=per-instance", ONE), ["unsupported threat_model.unit"]),
        (("threat_model.adjacency=replace-one",), ["unsupported threat_model.adjacency"]),
        ((SCORES,), ["unsupported audit.scores"]),
        (("claims.user.record=3",), ["unsupported claims.0.record"]),
    ],
)
def test_what_is_not_covered_is_refused(tmp_path: Path, overrides: tuple[str, ...], found: list[str]) -> None:
    problems = [f"{d.code} {'.'.join(map(str, d.path))}" for d in diagnosed(written(tmp_path, DECLARED), *overrides)]
    assert [one for one in problems if one.startswith("unsupported")][:1] == found


def test_dropping_by_user_is_refused_of_claims_about_records(tmp_path: Path) -> None:
    (wrong,) = [d for d in diagnosed(VISITS, "threat_model.unit=record") if d.severity == "error"]
    assert (wrong.code, wrong.path) == ("unsupported", ("data", "max_records_per_user"))


def test_declared_data_of_users_is_judged_and_told_of_users(tmp_path: Path) -> None:
    audit = audited(tmp_path, text=DECLARED)
    verdicts = {verdict.claim: verdict for verdict in audit.verdicts}
    assert {verdict.verdict for verdict in verdicts.values()} == {"proved"}
    assert verdicts["user"].text.endswith("for one user (at most 5 records)")
    assert verdicts["pair"].text.endswith("for 2 users (at most 5 records each)")
    assert {finding.scope.unit for finding in audit.findings} == {"user (at most 5 records)"}
    (table,) = [series for series in audit.series if series.name == "epsilon-by-group-size"]
    assert (table.columns["group_size"], table.units["group_size"]) == ((1, 2), "users")
    assert table.title.endswith("user (at most 5 records)")


def test_trials_of_users_are_those_of_groups(tmp_path: Path) -> None:
    """The attack plants the records of one user as a group, and what it draws knows of no user."""
    spec = spec_at(VISITS)
    inputs = GroupAudit().trial_inputs(spec)
    assert inputs["threat_model"]["group_size"] == (4,)
    assert "unit" not in inputs["threat_model"]
    facts = Facts(records=295, features=3, classes=2, shape=(3,), parameters=1538, digest="d")
    (power,) = GroupAudit().plan(spec, facts).power
    assert power.at["group_size"] == 1
    assert power.method.endswith("1500 canary groups of 4; a group is one user with 4 records")


def test_a_table_of_users_is_bounded_attacked_and_judged(tmp_path: Path) -> None:
    result = dpspec.run(VISITS, store=tmp_path / "store", device="cpu")
    (audit,) = result.audits
    assert [(v.claim, v.verdict) for v in audit.verdicts] == [
        ("patient", "proved"),
        ("as-of-a-visit", "refuted"),
        ("useful", "supported"),
    ]
    assert audit.conformance.status == "no-deviation-found"
    assert audit.verdicts[1].text == "epsilon <= 2.757 at delta = 1e-5 for one user (at most 4 records)"
    assert "one user (at most 4 records)" in audit.verdicts[1].reason
    assert {e.scope.unit for e in audit.evidence} == {f.scope.unit for f in audit.findings} - {"record"}
    assert all(e.at.get("group_size", 1) == 1 for e in audit.evidence)
    assert not [s for s in audit.series if isinstance(s, Series) and "records" in s.units.values()]
    attacks = [f for f in audit.findings if f.bound == "lower" and f.rigor == "statistical"]
    assert attacks
    assert all("a group is one user with 4 records" in f.method for f in attacks)
    assert "62 of 427" not in json.dumps([v.reason for v in audit.verdicts])


TUNED = """\
dpspec: 1
name: tuned
mechanism: {kind: group, noise_multiplier: 4.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.02}, steps: 50}
data: {kind: declared, records: 1000, features: 4, classes: 2}
matrix: {mechanism.noise_multiplier: [4.0, 6.0]}
claims:
  - {id: best, kind: approx-dp, epsilon: 6.0, delta: 1e-5, over: matrix}
"""


def test_the_best_of_several_runs_loses_of_a_user_what_it_loses_of_a_group(tmp_path: Path) -> None:
    users = ("data.records_per_user=3", "threat_model={unit: user}")
    groups = ("claims.best.group_size=3", "threat_model={group_size: 3}")
    found = []
    for overrides in (users, groups):
        audit = audited(tmp_path, *overrides, text=TUNED)
        assert [verdict.verdict for verdict in audit.verdicts] == ["proved"]
        found.append(audit.findings[0])
    of_user, of_group = found
    assert of_user.value == of_group.value
    assert of_user.scope.unit == "user (at most 3 records)"
    assert of_user.at == {"delta": 1e-5, "group_size": 1}
    assert {a.name for a in of_user.assumptions} - {a.name for a in of_group.assumptions} == {"records-per-user"}
