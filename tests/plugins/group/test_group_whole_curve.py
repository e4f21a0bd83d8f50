"""mu, rates and the advantage of groups: closed forms of one step, and explicit data sets through executed code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri, ndtri_exp
from support import scope_oracle as oracle
from support.group_cases import gradients_within, mechanisms

from dpspec.accounting.gaussian import delta as gaussian_delta
from dpspec.contract import Claim, Finding
from dpspec_group import bounds
from dpspec_group.mechanism import GroupAudit

ONE = {"noise_multiplier": 1.3, "clip_norm": 2.0, "sampling": {"scheme": "poisson", "rate": 0.2}, "steps": 1}
FEW = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@pytest.fixture(autouse=True, scope="module")
def few_deltas() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "CURVE_DELTAS", (1e-4,))
        patch.setattr(bounds, "PROFILE_DELTAS", (1e-2,))
        yield


def found(phases: list[dict[str, Any]], claims: list[Claim], records: int = 100) -> list[Finding]:
    spec = oracle.spec_of("group", {"phases": phases, "baselines": ()}, claims)
    return [f for f in oracle.remembered_findings_of(GroupAudit(), spec, records) if f.quantity != "epsilon"]


def of(quantity: str, bound: str, findings: list[Finding]) -> float:
    (value,) = {f.value for f in findings if (f.quantity, f.bound) == (quantity, bound)}
    return value


@pytest.mark.parametrize(("scheme", "shift"), [("poisson", 3.0), ("full", 3.0), ("fixed", 6.0)])
def test_mu_is_that_of_the_largest_shifts(scheme: str, shift: float) -> None:
    sampling: dict[str, Any] = {"scheme": scheme}
    sampling |= {"poisson": {"rate": 0.2}, "fixed": {"batch_size": 5}, "full": {}}[scheme]
    phases = [{**ONE, "sampling": sampling, "steps": 4}, {**ONE, "noise_multiplier": 2.0, "sampling": sampling}]
    claims = [oracle.claim_of("gdp", group_size=3, mu=1.0)]
    findings = found(phases, claims)
    assert of("mu", "upper", findings) == pytest.approx(shift * math.sqrt(4 / 1.3**2 + 1 / 2.0**2), rel=1e-8)
    if scheme == "full":  # a Gaussian mechanism: both ends meet, but for the width of the certified epsilon
        assert of("mu", "lower", findings) == pytest.approx(of("mu", "upper", findings), rel=2e-3)


def test_no_smaller_mu_holds_for_all_deltas_of_a_sampled_step() -> None:
    """At level Phi(-z) the best test of one step has the power (1 - q) Phi(-z) + q Phi(mu - z)."""
    q, mu = 0.2, 1 / 1.3
    z = np.array([1.0, 3.0, 10.0, 100.0, 1000.0])
    power = np.logaddexp(math.log1p(-q) + log_ndtr(-z), math.log(q) + log_ndtr(mu - z))
    needed = ndtri_exp(power) + z
    assert np.all(np.diff(needed) > 0.0)
    assert needed[0] < 0.5 * mu
    assert 0.99 * mu < needed[-1] <= mu * (1 + 1e-9)
    findings = found([ONE], [oracle.claim_of("gdp", mu=1.0)])
    assert of("mu", "upper", findings) == pytest.approx(mu, rel=1e-8)
    assert 0.3 * mu < of("mu", "lower", findings) < mu  # nothing beyond delta 1e-4 is looked at


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("fpr", [1e-6, 0.01, 0.4])
def test_rates_are_those_of_the_best_test_of_one_step(size: int, fpr: float) -> None:
    """The likelihood ratio rises with the noisy sum: the best tests have thresholds."""
    chances = [math.comb(size, j) * 0.2**j * 0.8 ** (size - j) for j in range(size + 1)]

    def above(cut: float) -> float:
        return sum(p * float(ndtr((j - cut) / 1.3)) for j, p in enumerate(chances))

    def below(cut: float) -> float:
        return sum(p * float(ndtr((cut - j) / 1.3)) for j, p in enumerate(chances))

    present = above(-1.3 * float(ndtri(fpr)))
    absent = float(ndtr(brentq(lambda cut: below(cut) - fpr, -20.0, 20.0, xtol=1e-12) / 1.3))
    for direction, exact in (("remove", present), ("add", absent), ("both", max(present, absent))):
        findings = found([ONE], [oracle.claim_of("membership", direction, size, tpr=0.5, fpr=fpr)])
        low, high = of("tpr", "lower", findings), of("tpr", "upper", findings)
        assert low <= exact * (1 + 1e-9)
        assert exact <= high * (1 + 1e-9)
        assert high - low <= 2e-3 * high
    points = ({"fpr": fpr, "tpr": 0.5}, {"fpr": 0.0, "tpr": 0.5})
    findings = found([ONE], [oracle.claim_of("tradeoff", "both", size, points=points)])
    assert {f.at["fpr"] for f in findings} == {fpr}
    assert of("tpr", "upper", findings) >= max(present, absent)


def test_the_advantage_is_the_total_variation_of_one_step() -> None:
    exact = 0.2 * (2.0 * float(ndtr(0.5 / 1.3)) - 1.0)
    for direction in ("remove", "add", "both"):
        findings = found([ONE], [oracle.claim_of("membership", direction, advantage=0.5)])
        assert of("advantage", "lower", findings) <= exact <= of("advantage", "upper", findings) < exact * 1.002


def test_nothing_is_bounded_without_noise_and_nothing_is_said_that_nobody_asks() -> None:
    assert found([{**ONE, "noise_multiplier": 0.0}], [oracle.claim_of("gdp", mu=1.0)]) == []
    assert found([ONE], [oracle.claim_of("approx-dp", epsilon=1.0, delta=1e-4)]) == []


@settings(max_examples=20, **FEW)
@given(mechanisms(), st.sampled_from(("add", "remove", "both")), st.data())
def test_no_data_sets_in_scope_leak_more(case: dict[str, Any], direction: str, data: st.DataObject) -> None:
    claims = [
        oracle.claim_of("gdp", direction, case["size"], mu=1.0),
        oracle.claim_of("membership", direction, case["size"], advantage=0.5),
        oracle.claim_of("membership", direction, case["size"], tpr=0.5, fpr=0.05),
    ]
    uppers = [f for f in found(case["phases"], claims, case["records"]) if f.bound == "upper"]
    assert {f.quantity for f in uppers} == {"mu", "advantage", "tpr"}
    scope = data.draw(st.sampled_from(sorted({repr(f.scope) for f in uppers})))
    uppers = [f for f in uppers if repr(f.scope) == scope]
    planted, group = gradients_within(uppers[0], case, data.draw)
    absent, present = (
        oracle.laws_of(oracle.run_of(case["phases"], [], [], rows)) for rows in (planted, planted + group)
    )
    p, q = oracle.composed(list(zip(present, absent, strict=True)))
    pairs = [pair for way, pair in (("remove", (p, q)), ("add", (q, p))) if direction in (way, "both")]
    room = 1.0 + oracle.ROOM
    for finding in uppers:
        for one, other in pairs:
            if finding.quantity == "tpr":
                assert oracle.power(one, other, 0.05) <= finding.value * room
            elif finding.quantity == "advantage":
                assert oracle.delta(one, other, 0.0) <= finding.value * room
            else:
                for epsilon in (0.0, 0.3, 1.0, 3.0, 10.0):
                    allowed = float(gaussian_delta(epsilon, finding.value * room))
                    assert oracle.delta(one, other, epsilon) <= allowed * room + 1e-12
