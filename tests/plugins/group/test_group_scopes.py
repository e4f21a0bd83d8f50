"""Explicit datasets within the scopes of group bounds, run by the native backend: none exceeds its bound."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import scope_oracle as oracle
from support.group_cases import gradients_within, mechanisms, sizes_within

from dpspec.contract import Finding
from dpspec_group import GroupAudit

pytestmark = pytest.mark.usefixtures("claimed_deltas_alone")

#: Of certified intervals, relative to 1 + epsilon.
WIDTH = 1e-3


def findings_of(case: dict[str, Any], delta: float, direction: str = "both", **training: Any) -> list[Finding]:
    claim = oracle.claim_of("approx-dp", direction, case["size"], epsilon=1.0, delta=delta)
    spec = oracle.spec_of("group", {"phases": case["phases"], "baselines": ()}, [claim], training)
    return [
        f
        for f in oracle.proofs(oracle.remembered_findings_of(GroupAudit(), spec, case["records"]))
        if f.at["group_size"] == case["size"]
    ]


@st.composite
def a_bound(draw: st.DrawFn) -> tuple[dict[str, Any], float, Finding]:
    case = draw(mechanisms())
    delta = draw(st.sampled_from((0.3, 0.03, 1e-3, 1e-5)))
    found = [f for f in findings_of(case, delta) if f.bound == "upper"]
    return case, delta, draw(st.sampled_from(found))


def check_given_gradients(chosen: tuple[dict[str, Any], float, Finding], data: st.DataObject) -> None:
    case, _, finding = chosen
    planted, group = gradients_within(finding, case, data.draw)
    absent, present = (
        oracle.laws_of(oracle.run_of(case["phases"], [], [], rows)) for rows in (planted, planted + group)
    )
    found = oracle.worst_delta(finding, absent, present)
    assert found <= finding.at["delta"] * (1.0 + oracle.ROOM) + 1e-12, (finding, planted, group)


def check_real_records(data: st.DataObject) -> None:
    """One step on records whose gradients the model decides, huge and missing features among them."""
    case = data.draw(mechanisms())
    case["phases"] = [{**case["phases"][0], "steps": 1}]
    finding = data.draw(st.sampled_from([f for f in findings_of(case, 1e-3) if f.bound == "upper"]))
    others, members = sizes_within(finding, case, data.draw)
    features = st.sampled_from((0.0, 1e-6, 0.5, -1.0, 40.0, -1e4, 1e30, float("nan")))
    x = data.draw(st.lists(features, min_size=others + members, max_size=others + members))
    y = data.draw(st.lists(st.integers(0, 1), min_size=others + members, max_size=others + members))
    start = data.draw(st.sampled_from((0.0, 0.3, -2.0)))
    absent, present = (
        oracle.laws_of(oracle.run_of(case["phases"], x[:size], y[:size], start=start))
        for size in (others, others + members)
    )
    assert oracle.worst_delta(finding, absent, present) <= 1e-3 * (1.0 + oracle.ROOM)


def check_attained(data: st.DataObject) -> None:
    """The datasets of the proof attain the lower ends, up to the rounding of released models."""
    case = data.draw(mechanisms())
    delta = data.draw(st.sampled_from((0.1, 1e-2, 1e-3)))
    attained(case, delta, data.draw(st.sampled_from(("add", "remove", "both"))))


def attained(case: dict[str, Any], delta: float, direction: str) -> None:
    fixed = case["phases"][0]["sampling"]["scheme"] == "fixed"
    clip = max(float(phase["clip_norm"]) for phase in case["phases"])
    for finding in findings_of(case, delta, direction):
        if finding.bound == "upper":
            continue
        others = [(-2.0 if fixed else 0.0) * clip] * (case["records"] - case["size"])
        absent, present = (
            oracle.laws_of(oracle.run_of(case["phases"], [], [], rows))
            for rows in (others, others + [2.0 * clip] * case["size"])
        )
        assert len(others) >= finding.scope.min_records
        steps = sum(int(phase["steps"]) for phase in case["phases"])
        coarse = {1: 1e-3, 2: 0.02, 3: 0.3}[steps]  # the cells' loss in a composition
        found = oracle.worst_delta(finding, absent, present)
        if found < delta * (1.0 - coarse):  # a rare large loss that shares a cell with common ones
            found = oracle.worst_delta(finding, absent, present, finer=5)
        assert found >= delta * (1.0 - coarse), finding
        room = WIDTH * (1.0 + finding.value)  # the interval's, of epsilon
        assert oracle.worst_delta(finding, absent, present, more=room) <= delta * (1.0 + 1e-2)


FEW = {"suppress_health_check": list(HealthCheck)}


@pytest.mark.ci
@settings(**FEW)
@given(mechanisms(("fixed",)), st.sampled_from((0.03, 1e-3)))
def test_nor_do_the_smallest_data_sets_in_scope(case: dict[str, Any], delta: float) -> None:
    need = max(int(phase["sampling"]["batch_size"]) for phase in case["phases"])
    clip = max(float(phase["clip_norm"]) for phase in case["phases"])
    for finding in findings_of(case, delta):
        if finding.bound == "upper" and finding.scope.data == "all":
            others = [-2.0 * clip] * max(need, finding.scope.min_records)
            absent, present = (
                oracle.laws_of(oracle.run_of(case["phases"], [], [], rows))
                for rows in (others, others + [2.0 * clip] * case["size"])
            )
            assert oracle.worst_delta(finding, absent, present) <= delta * (1.0 + oracle.ROOM) + 1e-12, finding


test_no_data_sets_in_scope_leak_more = settings(**FEW)(given(a_bound(), st.data())(check_given_gradients))
test_nor_do_real_records = settings(**FEW)(given(st.data())(check_real_records))
test_lower_bounds_are_attained = settings(**FEW)(given(st.data())(check_attained))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("case", "delta", "direction"),
    [
        ({"rate": 0.01, "scheme": "poisson", "records": 4, "size": 1, "steps": (1, 2)}, 1e-3, "remove"),
        ({"rate": 0.1, "scheme": "poisson", "records": 4, "size": 2, "steps": (1, 2)}, 1e-3, "remove"),
        ({"batch_size": 2, "scheme": "fixed", "records": 5, "size": 2, "steps": (2,)}, 1e-2, "add"),
    ],
)
def test_lower_bounds_of_rare_losses_are_attained(case: dict[str, Any], delta: float, direction: str) -> None:
    sampling = {key: value for key, value in case.items() if key in ("rate", "scheme", "batch_size")}
    phases = [
        {"noise_multiplier": 0.4, "clip_norm": 1e-3, "sampling": sampling, "steps": count} for count in case["steps"]
    ]
    attained({"phases": phases, "records": case["records"], "size": case["size"]}, delta, direction)


MANY = settings(max_examples=10_000, suppress_health_check=list(HealthCheck))

test_ten_thousand_pairs = pytest.mark.slow(MANY(given(a_bound(), st.data())(check_given_gradients)))
test_ten_thousand_pairs_of_real_records = pytest.mark.slow(MANY(given(st.data())(check_real_records)))
test_ten_thousand_attained_bounds = pytest.mark.slow(MANY(given(st.data())(check_attained)))
