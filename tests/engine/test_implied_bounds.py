"""Bounds that exclude each other end a run as a bug, with an exact Gaussian mechanism as the oracle."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special
from support.audits import approx, bound, verdict

from dpspec.accounting import Interval, PrivacyLoss
from dpspec.cli.app import main
from dpspec.contract import Assumption, Finding, FrozenMap, Scope
from dpspec.engine.judging.implied_bounds import ContradictoryBoundsError, contradictions

#: Quantities with one condition, and values of it.
CONDITIONS = {
    "epsilon": ("delta", (1e-8, 1e-5, 0.01, 0.1)),
    "tpr": ("fpr", (0.001, 0.01, 0.1, 0.5)),
    "gamma": ("kappa", (0.001, 0.01, 0.1)),
    "advantage": ("", (0.0,)),
    "mu": ("", (0.0,)),
}


def gaussian(quantity: str, mu: float, at: float) -> float:
    """Exact values of a Gaussian mechanism, by the normal distribution alone."""
    if quantity == "mu":
        return mu
    if quantity == "advantage":
        return float(2.0 * special.ndtr(mu / 2.0) - 1.0)
    if quantity in ("tpr", "gamma"):
        return float(special.ndtr(mu + special.ndtri(at)))

    def excess(epsilon: float) -> float:
        other = math.exp(epsilon + float(special.log_ndtr(-mu / 2.0 - epsilon / mu)))
        return float(special.ndtr(mu / 2.0 - epsilon / mu)) - other - at

    return 0.0 if excess(0.0) <= 0.0 else float(optimize.brentq(excess, 0.0, 50.0 * mu + 50.0, xtol=1e-13))


def number(quantity: str, value: float, at: float = 0.0, **changes: Any) -> Finding:
    key = CONDITIONS[quantity][0]
    return bound(value, quantity=quantity, at=FrozenMap({key: at} if key else {}), **changes)


def curve(mu: float, **changes: Any) -> list[Finding]:
    deltas = [10.0 ** (-k / 4.0) for k in range(1, 49)]
    return [number("epsilon", gaussian("epsilon", mu, d) * (1 + 1e-9), d, **changes) for d in deltas]


quantities = st.sampled_from(sorted(CONDITIONS)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(CONDITIONS[name][1]))
)


@given(st.floats(0.05, 6.0), st.sampled_from(["points", "mu", "each"]), quantities)
def test_exact_values_never_contradict_and_raised_lower_bounds_do(mu, form, condition):
    quantity, at = condition
    value = gaussian(quantity, mu, at)
    uppers = {
        "points": curve(mu),
        "mu": [number("mu", mu)],
        "each": [number(q, gaussian(q, mu, a) * (1 + 1e-9), a) for q, (_, ats) in CONDITIONS.items() for a in ats],
    }[form]
    low = number(quantity, value * (1 - 1e-9), at, bound="lower")
    assert not list(contradictions([*uppers, low]))
    raised = min(1.0, value * 1.05 + 0.01) if quantity in ("tpr", "gamma", "advantage") else value * 1.05 + 0.01
    implied = {"each": True, "mu": quantity != "mu", "points": quantity == "epsilon"}[form]
    if raised > value + 0.009 and implied and not (quantity == "epsilon" and form == "mu" and at < 1e-6):
        assert list(contradictions([*uppers, number(quantity, raised, at, bound="lower")]))


LOW = bound(2.0, 1e-5, bound="lower")


@pytest.mark.parametrize(
    ("findings", "contradicts"),
    [
        ([bound(1.0, 1e-6), LOW], True),
        ([bound(1.0, 1e-6, group_size=8), LOW], True),
        ([bound(1.0, 1e-4), LOW], False),  # a larger delta allows less
        ([bound(1.0, 1e-6), bound(2.0, 1e-5, bound="lower", group_size=2)], False),
        ([bound(1.0, 1e-6, scope=Scope(access="final-model")), LOW], False),
        ([bound(1.0, 1e-6), bound(2.0, 1e-5, bound="lower", scope=Scope(access="final-model"))], True),
        ([bound(1.0, 1e-6, scope=Scope(adjacency="zero-out")), LOW], False),
        ([bound(1.0, 1e-6, scope=Scope(pipeline="executed")), LOW], False),
        ([bound(1.0, 1e-6, recorded=True), LOW], False),  # a recorded schedule that is not the declared one
        ([bound(1.0, 1e-6, rigor="theorem"), LOW], True),
        ([bound(1.0, 1e-6), bound(2.0, 1e-5, bound="lower", rigor="statistical")], False),  # an attack may err
        ([bound(1.0, 1e-6, assumptions=(Assumption(name="a", status="unchecked"),)), LOW], False),
        ([bound(2.1, 1e-6), LOW], False),
        ([bound(2.0, 1e-6), LOW], True),  # delta at epsilon 2 is at most 1e-6, and at least 1e-5 by continuity
        # An interval whose ends cross, and intervals of one method that are not monotone.
        ([bound(1.0, 1e-6, lower=1.1)], True),
        ([bound(1.0, 1e-6, lower=0.9), bound(2.0, 1e-5, lower=1.5)], True),
        ([bound(1.0, group_size=2, lower=0.9), bound(2.0, group_size=1, lower=1.5)], True),
        ([bound(1.0, 1e-6, lower=0.9), bound(2.0, 1e-5, lower=1.5, method="a looser formula")], False),
        # An advantage is (0, advantage)-DP, which refutes epsilon at any smaller delta.
        ([number("advantage", 1e-9), bound(1.0, 1e-6, bound="lower")], True),
        ([number("tpr", 0.05, 0.01), bound(3.0, 0.01, bound="lower")], False),
        ([number("tpr", 0.02, 0.01), number("advantage", 0.99, bound="lower")], True),
        ([bound(0.5, at=FrozenMap({"alpha": 2.0})), bound(30.0, 1e-5, bound="lower")], True),
        ([bound(0.5, at=FrozenMap({"alpha": 2.0})), bound(10.0, 1e-5, bound="lower")], False),
    ],
)
def test_which_bounds_exclude_each_other(findings: list[Finding], contradicts: bool) -> None:
    assert bool(list(contradictions(findings))) is contradicts
    if contradicts:
        with pytest.raises(ContradictoryBoundsError, match=r"audit 'demo': the lower bound .* exceeds"):
            verdict(approx(3.0), *findings)


SPEC = """\
dpspec: 1
name: release
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.01}, steps: 100}
data: {kind: declared, records: 50000, features: 8, classes: 2}
claims:
  - {id: strong, kind: membership, advantage: 0.01}
  - {id: weak, kind: approx-dp, epsilon: 0.1, delta: 1e-6}
"""


def test_a_false_proof_beside_a_refuted_weaker_claim_is_reported_as_a_bug(tmp_path, monkeypatch, capsys):
    """An advantage of 1e-9 would prove both claims; the certified lower bound on epsilon refutes the weaker one."""
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC, encoding="utf-8")
    command = ["run", str(path), "--store", str(tmp_path / "store"), "--remedy-seconds", "0"]
    assert main(command) == 1
    capsys.readouterr()
    monkeypatch.setattr(PrivacyLoss, "advantage", lambda self, **_: Interval(0.0, 1e-9).by("a false bound"))
    report = tmp_path / "report.json"
    assert main([*command, "--report", f"json={report}"]) == 70
    printed = capsys.readouterr()
    assert "PROVED" not in printed.out
    assert not report.exists()
    assert (
        "error: this is a bug in dpspec: dpspec.engine.judging.implied_bounds.ContradictoryBoundsError" in printed.err
    )
    assert "Please send this report to the dpspec issue tracker" in printed.err
    assert "audit 'release': the lower bound epsilon >= " in printed.err
