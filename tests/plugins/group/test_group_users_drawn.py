"""Users that are drawn: bounds of one contribution, on tables that differ in a user; what breaks them deviates.

The oracle reads two tables, one of them without a user, and runs the native backend's own step on either, every batch
of users and every choice of their records enumerated (``support.scope_oracle``).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import scope_oracle as oracle
from support.attacks import diagnosed

import dpspec
from dpspec.contract import FrozenMap, Section, Spec, TrainingJob
from dpspec.data.table_files import Csv
from dpspec.engine.results.result import AuditResult
from dpspec.kit.users import by_user
from dpspec.training.loop import contributions, native
from dpspec.training.loop.native import parts_of
from dpspec.training.loop.samplers import Poisson
from dpspec_group.mechanism import GroupAudit, RecordsAudit

pytestmark = pytest.mark.usefixtures("claimed_deltas_alone")

VISITS = Path(__file__).parents[3] / "specs" / "users" / "visits.yaml"
USERS = {"scheme": "poisson", "unit": "user", "rate": 0.4, "records_per_user": 2}
PHASE: dict[str, Any] = {"noise_multiplier": 1.0, "clip_norm": 1.0, "steps": 1, "sampling": USERS}


def spec_of(size: int = 1, delta: float = 0.03, **phase: Any) -> Spec:
    claim = replace(oracle.claim_of("approx-dp", group_size=size, epsilon=1.0, delta=delta), unit="user")
    made = oracle.spec_of("group", {"phases": (FrozenMap({**PHASE, **phase}),), "baselines": ()}, [claim])
    threat = replace(made.threat_model, unit="user", group_size=(size,))
    document = FrozenMap({"threat_model": {"unit": "user", "group_size": (size,)}})
    return replace(made, threat_model=threat, document=document, data=Section("declared", FrozenMap({"records": 50})))


def executed(folder: Path, table: list[tuple[str, float, int]], most: int, *, whole: bool = False) -> oracle.Law:
    """What a step shows of a table: a mixture over batches of users and over choices of their records.

    whole: as if each of a user's records were a contribution of its own.
    """
    lines = [f"{who},{x},{y}" for who, x, y in table]
    (folder / "t.csv").write_text("\n".join(["who,x,y", *lines]) + "\n", encoding="utf-8")
    read = Csv(FrozenMap({"path": "t.csv", "label": "y", "classes": 2, "user": "who"}), folder).load()
    x, y = by_user(read)
    phase = FrozenMap({**PHASE, "sampling": FrozenMap({**USERS, "records_per_user": most})})
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
    chances, means = [], []
    for chance, batch in oracle.batches(scheduled.sampler):
        for chosen in itertools.product(*(every[user] for user in batch)):
            chances.append(chance / math.prod(len(every[user]) for user in batch))
            means.append(sum(chosen))
    # The run's own contributions are among them.
    own = parts.contributions(parts.initial, torch.arange(len(x)), 1.0)
    if not whole:
        last = [
            mean for mean, (_, b) in zip(means, _expanded(scheduled.sampler, every), strict=True) if len(b) == len(x)
        ]
        assert min(abs(float(own.sum) - mean) for mean in last) < 1e-5
    return oracle.Law(np.array(chances), np.array(means, dtype=float), scheduled.deviation)


def each(model: Any, parts: Any, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> float:
    return float(contributions.clipped_user_sum(model, parts.initial, x, y, weights[None, None], 1.0).sum)


def _expanded(sampler: Any, every: list[list[float]]) -> Iterator[tuple[float, tuple[int, ...]]]:
    for chance, batch in oracle.batches(sampler):
        for _ in itertools.product(*(every[user] for user in batch)):
            yield chance, batch


TABLES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from((-9.0, -1.0, 0.3, 5.0)), st.integers(0, 1)),
    min_size=3,
    max_size=8,
).filter(lambda rows: len({who for who, _, _ in rows}) > 1)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TABLES, st.integers(1, 3), st.data())
def test_tables_that_differ_in_a_user_leak_no_more_than_one_contribution(tmp_path, table, most, data):
    gone = data.draw(st.sampled_from(sorted({who for who, _, _ in table})))
    delta = data.draw(st.sampled_from((0.3, 0.03, 1e-3)))
    present = executed(tmp_path, table, most)
    absent = executed(tmp_path, [row for row in table if row[0] != gone], most)
    proofs = oracle.proofs(oracle.remembered_findings_of(GroupAudit(), spec_of(delta=delta), 50))
    assert any(finding.bound == "upper" for finding in proofs)
    for finding in proofs:
        if finding.bound == "upper":
            found = oracle.worst_delta(finding, [absent], [present])
            assert found <= delta * (1.0 + oracle.ROOM) + 1e-12, (finding, table, gone)


def test_the_lower_end_is_attained_and_records_at_full_weight_break_the_bound(tmp_path: Path) -> None:
    """One contribution of a user whose records agree is all of it; two of them, each clipped, leak more than proved."""
    table = [("a", 9.0, 0), ("a", 9.0, 0), ("b", 0.0, 0)]
    found = oracle.proofs(oracle.findings_of(GroupAudit(), spec_of(), 50))
    (lower,) = [finding for finding in found if finding.bound == "lower"]
    present, absent = executed(tmp_path, table, 2), executed(tmp_path, table[2:], 2)
    assert oracle.worst_delta(lower, [absent], [present], more=-0.02 * lower.value) > 0.03
    (upper, *_) = [finding for finding in found if finding.bound == "upper"]
    assert oracle.worst_delta(upper, [absent], [present]) <= 0.03 * (1 + oracle.ROOM)
    twice = executed(tmp_path, table, 2, whole=True)
    assert oracle.worst_delta(upper, [absent], [twice]) > 2 * 0.03


@pytest.mark.parametrize("size", [1, 2])
def test_a_user_is_bounded_as_one_record_of_that_rate(size: int) -> None:
    records = spec_of(size, steps=7)
    records = replace(
        records,
        threat_model=replace(records.threat_model, unit="record"),
        claims=tuple(replace(claim, unit="record") for claim in records.claims),
    )
    said = oracle.findings_of(GroupAudit(), spec_of(size, steps=7), 50)
    known = oracle.findings_of(RecordsAudit(), records, 50)
    assert len(said) == len(known) > 0
    for one, other in zip(said, known, strict=True):
        assert (one.value, one.at, one.rigor) == (other.value, other.at, other.rigor)
        assert one.scope == dataclasses.replace(other.scope, unit="user")
        assert "users-drawn" in {a.name for a in one.assumptions} or one.bound == "lower"


DRAWN = "mechanism.sampling={scheme: poisson, unit: user, rate: 0.1, records_per_user: 2}"
CLAIM = "claims=[{id: patient, kind: approx-dp, epsilon: 2.8, delta: 1e-5}]"


MANY = "data.max_records_per_user=100000"


def errors(*overrides: str) -> list[str]:
    found = [d for d in diagnosed(VISITS, DRAWN, CLAIM, *overrides) if d.severity == "error"]
    return [f"{d.code} {'.'.join(map(str, d.path))}: {d.message}" for d in found]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ((), None),
        (
            ("threat_model.unit=record",),
            "unsupported mechanism.sampling.unit: users are drawn, so that bounds hold for",
        ),
        (
            ("mechanism.sampling={scheme: fixed, unit: user, batch_size: 5, records_per_user: 2}",),
            "unsupported mechanism.sampling.scheme: users are drawn one by one",
        ),
        (("mechanism.sampling={scheme: poisson, unit: user, rate: 0.1}",), "records_per_user"),
        (("mechanism.sampling={scheme: poisson, rate: 0.1, records_per_user: 2}",), "records_per_user"),
        (
            ("training.backend=opacus",),
            "missing-capability training.backend: backend 'opacus' draws records, not users",
        ),
        (("audit.canary={space: input, kind: noise, count: 50}",), "unsupported audit.canary.space: canary users"),
        (("data.max_records_per_user=null",), "unsupported data: rows are laid out user by user"),
        (
            ("data.max_records_per_user=20", "mechanism.sampling.records_per_user=9"),
            "unsupported mechanism.sampling: 9 of 20 records can be chosen in more than 1000 ways",
        ),
        (("mechanism.kind=per-instance", "audit=null"), "unsupported threat_model.unit"),
        ((MANY, "mechanism.sampling.records_per_user=1"), None),
        ((MANY, "mechanism.sampling.records_per_user=100000"), None),
        ((MANY, "mechanism.sampling.records_per_user=50000"), "can be chosen in more than 1000 ways"),
        (
            ("data={kind: synthetic, pattern: blobs, records: 100, features: 3, classes: 2}",),
            "users are drawn, and nothing says whose the records are",
        ),
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


def test_many_runs_with_and_without_a_user_are_looked_at_in_turn(tmp_path: Path) -> None:
    audit = "audit={method: many-run, runs: 16, canary: {space: gradient}, seed: 1}"
    audited = visits(tmp_path, DRAWN, CLAIM, "mechanism.steps=4", "model.hidden=[8]", audit)
    assert audited.conformance.status == "no-deviation-found"
    (evidence,) = audited.evidence
    assert sum(evidence.statistics[name] for name in ("present", "absent")) == 16
