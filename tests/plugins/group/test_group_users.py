"""Users: bounds of groups of at most k records and of sampled users, compared with tables that differ in a user.

The oracle writes two tables, one without a user, reads both by the data kind, and runs the native backend's step on
each, over all batches and, for users, all choices of their records (``support.scope_oracle``).
"""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import scope_oracle as oracle
from support.attacks import audited, diagnosed, spec_at, written
from support.specs import DECLARED

import dpspec
from dpspec.contract import Dataset, Facts, Finding, FrozenMap, Section, Series, Spec, TrainingJob
from dpspec.contract.results import AuditResult
from dpspec.data.table_files import Csv
from dpspec.kit.users import bounded, by_user, in_records
from dpspec.sampling.poisson import Poisson
from dpspec.training.loop import contributions, native
from dpspec.training.loop.native import parts_of
from dpspec_group import GroupAudit, RecordsAudit

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
    return users_spec(phase, unit, sizes, delta, {"records_per_user": most, **data})


def users_spec(phase: dict[str, Any], unit: str, sizes: tuple[int, ...], delta: float, data: dict[str, Any]) -> Spec:
    claims = [
        replace(oracle.claim_of("approx-dp", group_size=size, epsilon=1.0, delta=delta), unit=unit) for size in sizes
    ]
    made = oracle.spec_of("group", {"phases": (phase,), "baselines": ()}, claims)
    threat = replace(made.threat_model, unit="user", group_size=sizes)
    document = FrozenMap({"threat_model": {"unit": "user", "group_size": sizes}})
    section = Section("declared", FrozenMap({"records": 50, **data}))
    return replace(made, threat_model=threat, data=section, document=document)


def proofs(spec: Spec, records: int = 50) -> list[Finding]:
    return oracle.proofs(oracle.remembered_findings_of(GroupAudit(), spec, records))


Table = list[tuple[str, float, int]]


def read(folder: Path, table: Table, **options: Any) -> Dataset:
    lines = [f"{who},{x},{y}" for who, x, y in table]
    (folder / "t.csv").write_text("\n".join(["who,x,y", *lines]) + "\n", encoding="utf-8")
    return Csv(FrozenMap({"path": "t.csv", "label": "y", "classes": 2, "user": "who", **options}), folder).load()


def executed(folder: Path, table: Table, most: int) -> list[oracle.Law]:
    """Return the distribution of a step on a table that the data kind reads and truncates."""
    data = read(folder, table, max_records_per_user=most)
    return oracle.laws_of(oracle.run_of([POISSON], data.train_x[:, 0].tolist(), data.train_y.tolist()))


TABLES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from((-9.0, -1.0, 0.3, 5.0)), st.integers(0, 1)),
    min_size=3,
    max_size=8,
).filter(lambda rows: len({who for who, _, _ in rows}) > 1)


def leak_no_more(
    table: Table, data: st.DataObject, laws: Callable[[Table], list[oracle.Law]], spec: Callable[[float], Spec]
) -> None:
    gone = data.draw(st.sampled_from(sorted({who for who, _, _ in table})))
    delta = data.draw(st.sampled_from((0.3, 0.03, 1e-3)))
    present, absent = laws(table), laws([row for row in table if row[0] != gone])
    uppers = [finding for finding in proofs(spec(delta)) if finding.bound == "upper"]
    assert uppers
    for finding in uppers:
        found = oracle.worst_delta(finding, absent, present)
        assert found <= delta * (1.0 + oracle.ROOM) + 1e-12, (finding, table, gone)


@pytest.mark.ci
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TABLES, st.integers(1, 3), st.data())
def test_tables_that_differ_in_a_user_leak_no_more_than_the_bound(tmp_path, table, most, data):
    leak_no_more(
        table, data, lambda rows: executed(tmp_path, rows, most), lambda delta: spec_of(POISSON, most, 1, delta=delta)
    )


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_user_with_all_records_alike_attains_the_lower_end(tmp_path: Path, most: int) -> None:
    """A smaller claim is false for some tables of users with ``at most`` this number of records."""
    mine: Table = [("a", 9.0, 0)] * most
    other: Table = [("b", 0.0, 0)]
    present, absent = executed(tmp_path, mine + other, most), executed(tmp_path, other, most)
    (lower,) = [f for f in proofs(spec_of(POISSON, most, 1)) if f.bound == "lower"]
    assert oracle.worst_delta(lower, absent, present, more=-0.02 * lower.value) > 0.03
    if most > 1:  # a user with fewer does not
        fewer = executed(tmp_path, mine[1:] + other, most)
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
        assert one.scope == replace(other.scope, unit="user (at most 4 records)")
        least = {"poisson": 0, "fixed": 50 - other.at["group_size"]}[scheme]
        assert one.scope.min_records == (least if one.scope.data == "all" else 0)
        extra = (bounded(users),) if one.bound == "upper" else ()
        assert one.assumptions == (*other.assumptions, *extra)


def test_who_sees_to_the_bound_is_said() -> None:
    phase = POISSON
    assert bounded(spec_of(phase, 4, 1)).status == "declared"
    assert bounded(spec_of(phase, 4, 1, user="who")).text == (
        "no user has more than the declared number of records, 4: data with more is rejected; two spellings of a user "
        "count as two users"
    )
    dropping = bounded(spec_of(phase, 1, 1, user="who", max_records_per_user=1))
    assert (dropping.status, "records, 1: others are dropped" in dropping.text) == ("by-construction", True)


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
        (("threat_model.adjacency=replace-one",), []),
        (
            ("threat_model.adjacency=replace-one", "mechanism.sampling={scheme: fixed, batch_size: 10}"),
            ["unsupported threat_model.adjacency"],
        ),
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


def test_declared_data_of_users_is_judged_and_reported_by_user(tmp_path: Path) -> None:
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
    """The attack inserts one user's records as a group, independent of other users."""
    spec = spec_at(VISITS)
    inputs = GroupAudit().trial_inputs(spec)
    assert inputs["threat_model"]["group_size"] == (4,)
    assert "unit" not in inputs["threat_model"]
    facts = Facts(records=295, features=3, classes=2, shape=(3,), parameters=1538, digest="d")
    (power,) = GroupAudit().plan(spec, facts).power
    assert power.at["group_size"] == 1
    assert power.method.endswith("1500 canary groups of 4; a group is one user with 4 records")


@pytest.mark.ci
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


# --- users that are drawn

USERS = {"scheme": "poisson", "unit": "user", "rate": 0.4, "records_per_user": 2}
DRAWN_PHASE: dict[str, Any] = {"noise_multiplier": 1.0, "clip_norm": 1.0, "steps": 1, "sampling": USERS}


def drawn_spec(size: int = 1, delta: float = 0.03, **phase: Any) -> Spec:
    return users_spec(FrozenMap({**DRAWN_PHASE, **phase}), "user", (size,), delta, {})


def drawn_law(folder: Path, table: Table, most: int, *, whole: bool = False) -> oracle.Law:
    """Return the distribution of a step on a table: a mixture over batches of users and choices of their records.

    whole: treat each of a user's records as a separate contribution.
    """
    x, y = by_user(read(folder, table))
    phase = FrozenMap({**DRAWN_PHASE, "sampling": FrozenMap({**USERS, "records_per_user": most})})
    job = replace(oracle.run_of([phase], [0.0], [0]), x=x, y=y)
    parts = parts_of(job)
    (scheduled,) = parts.schedule.phases
    model, rows, labels = parts.contributions._model, torch.tensor(x), torch.tensor(y)  # type: ignore[attr-defined]
    every = []
    for user in range(len(x)):
        weights = contributions.all_choice_weights(int((labels[user] >= 0).sum()), most)
        count = weights.shape[1]
        here = rows[user : user + 1, :count], labels[user : user + 1, :count]
        if whole:
            every.append([sum(each(model, parts, *here, one) for one in torch.eye(count)[:most])])
        else:
            every.append([each(model, parts, *here, one) for one in weights])
    chances, means, everyone = [], [], []
    for chance, batch in oracle.batches(scheduled.sampler):
        for chosen in itertools.product(*(every[user] for user in batch)):
            chances.append(chance / math.prod(len(every[user]) for user in batch))
            means.append(sum(chosen))
            everyone.append(len(batch) == len(x))
    if not whole:  # the run's own contributions are among them
        own = float(parts.contributions(parts.initial, torch.arange(len(x)), 1.0).sum)
        assert min(abs(own - mean) for mean, all_drawn in zip(means, everyone, strict=True) if all_drawn) < 1e-5
    return oracle.Law(np.array(chances), np.array(means, dtype=float), scheduled.deviation)


def each(model: Any, parts: Any, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> float:
    return float(contributions.clipped_user_sum(model, parts.initial, x, y, weights[None, None], 1.0).sum)


@pytest.mark.ci
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TABLES, st.integers(1, 3), st.data())
def test_tables_that_differ_in_a_user_leak_no_more_than_one_contribution(tmp_path, table, most, data):
    leak_no_more(table, data, lambda rows: [drawn_law(tmp_path, rows, most)], lambda delta: drawn_spec(delta=delta))


def test_the_lower_end_is_attained_and_records_at_full_weight_break_the_bound(tmp_path: Path) -> None:
    """One contribution of a user with equal records is within the bound; two contributions exceed it."""
    table = [("a", 9.0, 0), ("a", 9.0, 0), ("b", 0.0, 0)]
    found = oracle.proofs(oracle.findings_of(GroupAudit(), drawn_spec(), 50))
    (lower,) = [finding for finding in found if finding.bound == "lower"]
    present, absent = drawn_law(tmp_path, table, 2), drawn_law(tmp_path, table[2:], 2)
    assert oracle.worst_delta(lower, [absent], [present], more=-0.02 * lower.value) > 0.03
    (upper, *_) = [finding for finding in found if finding.bound == "upper"]
    assert oracle.worst_delta(upper, [absent], [present]) <= 0.03 * (1 + oracle.ROOM)
    twice = drawn_law(tmp_path, table, 2, whole=True)
    assert oracle.worst_delta(upper, [absent], [twice]) > 2 * 0.03


@pytest.mark.parametrize("size", [1, 2])
def test_a_user_is_bounded_as_one_record_of_that_rate(size: int) -> None:
    records = drawn_spec(size, steps=7)
    records = replace(
        records,
        threat_model=replace(records.threat_model, unit="record"),
        claims=tuple(replace(claim, unit="record") for claim in records.claims),
    )
    said = oracle.findings_of(GroupAudit(), drawn_spec(size, steps=7), 50)
    known = oracle.findings_of(RecordsAudit(), records, 50)
    assert len(said) == len(known) > 0
    for one, other in zip(said, known, strict=True):
        assert (one.value, one.at, one.rigor) == (other.value, other.at, other.rigor)
        assert one.scope == replace(other.scope, unit="user")
        assert "users-drawn" in {a.name for a in one.assumptions} or one.bound == "lower"


DRAWN = "mechanism.sampling={scheme: poisson, unit: user, rate: 0.1, records_per_user: 2}"
CLAIM = "claims=[{id: patient, kind: approx-dp, epsilon: 2.8, delta: 1e-5}]"


FIXED = "mechanism.sampling={scheme: fixed, unit: user, batch_size: 5, records_per_user: 2}"
NINE_OF_20 = ("data.max_records_per_user=20", "mechanism.sampling.records_per_user=9")
NOBODY_S = "data={kind: synthetic, pattern: blobs, records: 100, features: 3, classes: 2}"
RECORD, OPACUS = "threat_model.unit=record", "training.backend=opacus"
MANY = "data.max_records_per_user=100000"


def errors(*overrides: str) -> list[str]:
    found = [d for d in diagnosed(VISITS, DRAWN, CLAIM, *overrides) if d.severity == "error"]
    return [f"{d.code} {'.'.join(map(str, d.path))}: {d.message}" for d in found]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ((), None),
        ((RECORD,), "unsupported mechanism.sampling.unit: users are drawn, so that bounds hold for"),
        ((FIXED,), "unsupported mechanism.sampling.scheme: users are drawn one by one"),
        (("mechanism.sampling={scheme: poisson, unit: user, rate: 0.1}",), "records_per_user"),
        (("mechanism.sampling={scheme: poisson, rate: 0.1, records_per_user: 2}",), "records_per_user"),
        ((OPACUS,), "missing-capability training.backend: backend 'opacus' draws records, not users"),
        (("audit.canary={space: input, kind: noise, count: 50}",), "unsupported audit.canary.space: canary users"),
        (("data.max_records_per_user=null",), "unsupported data: rows are laid out user by user"),
        (NINE_OF_20, "unsupported mechanism.sampling: 9 of 20 records can be chosen in more than 1000 ways"),
        (("mechanism.kind=per-instance", "audit=null"), "unsupported threat_model.unit"),
        ((MANY, "mechanism.sampling.records_per_user=1"), None),
        ((MANY, "mechanism.sampling.records_per_user=100000"), None),
        ((MANY, "mechanism.sampling.records_per_user=50000"), "can be chosen in more than 1000 ways"),
        ((NOBODY_S,), "users are drawn, and nothing says whose the records are"),
        (("data={kind: declared, records: 100}", "audit=null", "model=null"), None),
    ],
)
def test_what_cannot_be_drawn_is_refused(overrides: tuple[str, ...], says: str | None) -> None:
    found = errors(*overrides)
    assert any(says in one for one in found) if says is not None else found == []


class _ByRecord:
    def __init__(self, sampler: Poisson, counts: torch.Tensor) -> None:
        self._sampler, self._counts = sampler, counts
        self.records, self.inclusion = sampler.records, sampler.rate

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        chance = 1.0 - (1.0 - self._sampler.rate) ** self._counts
        coins = torch.rand(self.records, generator=generator, dtype=torch.float64)
        return (coins < chance).nonzero().squeeze(1)


class _Weightier:
    def __init__(self, right: Any) -> None:
        self._right = right

    def __call__(self, state: torch.Tensor, indices: torch.Tensor, clip: Any) -> Any:
        found = self._right(state, indices, clip)
        return replace(found, sum=2.0 * found.sum)


def _broken(fault: str, job: TrainingJob) -> Any:
    parts = RIGHT(job)
    if fault == "by-record":
        counts = (torch.tensor(job.y) >= 0).sum(1)
        counts = torch.cat([counts, torch.full((parts.schedule.phases[0].sampler.records - len(counts),), 4)])
        phases = tuple(replace(phase, sampler=_ByRecord(phase.sampler, counts)) for phase in parts.schedule.phases)
        return replace(parts, schedule=replace(parts.schedule, phases=phases))
    return replace(parts, contributions=_Weightier(parts.contributions))


RIGHT = native.parts_of


def visits(folder: Path, *overrides: str) -> AuditResult:
    (audit,) = dpspec.run(VISITS, overrides=overrides, store=folder / "store", device="cpu").audits
    return audit


@pytest.mark.ci
@pytest.mark.parametrize(
    ("fault", "deviating"), [("none", set()), ("by-record", {"sampling"}), ("twice", {"sensitivity"})]
)
def test_a_table_whose_users_are_drawn_is_bounded_attacked_and_judged(tmp_path, monkeypatch, fault, deviating):
    if fault != "none":
        monkeypatch.setattr(native, "parts_of", lambda job: _broken(fault, job))
    low = "{id: low, kind: approx-dp, epsilon: 0.1, delta: 1e-5, refuted_by: attack}"
    audit = visits(tmp_path, DRAWN, f"{CLAIM.removesuffix(']')}, {low}]")
    verdicts = {verdict.claim: verdict for verdict in audit.verdicts}
    rejected = {checked.assumption for checked in audit.checks if checked.p_value < 1e-6}
    assert deviating <= rejected
    assert audit.facts.users == 96
    if fault == "none":
        assert (audit.conformance.status, rejected) == ("no-deviation-found", set())
        assert verdicts["patient"].verdict == "proved"
        assert verdicts["low"].verdict == "refuted"
        (evidence,) = [one for one in audit.evidence if one.id == "one-run/k=1"]
        assert evidence.scope.unit == "user (at most 4 records)"
        assert any(finding.method.endswith("a group is one user") for finding in audit.findings)
        assert any("users of phase 1" in checked.note for checked in audit.checks)
    else:
        assert audit.conformance.status == "deviates"


@pytest.mark.ci
def test_many_runs_alternate_with_and_without_a_user(tmp_path: Path) -> None:
    audit = "audit={method: many-run, runs: 16, canary: {space: gradient}, seed: 1}"
    audited = visits(tmp_path, DRAWN, CLAIM, "mechanism.steps=4", "model.hidden=[8]", audit)
    assert audited.conformance.status == "no-deviation-found"
    (evidence,) = audited.evidence
    assert sum(evidence.statistics[name] for name in ("present", "absent")) == 16
