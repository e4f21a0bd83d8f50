"""What is found if canaries are independent: bounds of names of their own, their assumptions, and no verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.attacks import attacked

from dpspec.contract import Finding, FrozenMap, Scope
from dpspec.engine.judging.judge import judge
from dpspec.engine.judging.judge_input import Concluded
from dpspec.stats.attacks import gaussian_fit
from dpspec.stats.independence import order_statistics
from dpspec.stats.independence.independent_bounds import independent_bounds

AT = FrozenMap({"delta": 1e-5, "group_size": 1})


def ranked(mu: float, canaries: int, seed: int) -> str:
    source = np.random.default_rng(seed)
    coins = source.integers(0, 2, canaries)
    return "".join(map(str, coins[np.argsort(source.standard_normal(canaries) + mu * coins)]))


def response(canaries: int, seed: int) -> str:
    source = np.random.default_rng(seed)
    coins = source.integers(0, 2, canaries)
    told = np.where(source.random(canaries) < 1.0 / (1.0 + math.exp(-1.0)), coins, 1 - coins)
    return "".join(map(str, coins[np.argsort(told, kind="stable")]))


def found_in(*outcomes: str) -> Sequence[Finding]:
    return list(independent_bounds(outcomes, AT, Scope(), "an attack", 0.95, ()))


def status(finding: Finding, name: str) -> str:
    (assumption,) = (one for one in finding.assumptions if one.name == name)
    return assumption.status


def test_one_run_bounds_mu_and_epsilon_under_an_assumption_that_nobody_checked() -> None:
    coins = ranked(1.0, 1000, 0)
    mu, epsilon = found_in(coins)
    run = order_statistics.design(1000)
    assert (mu.quantity, mu.bound, mu.rigor, mu.at) == (
        "mu-if-independent",
        "lower",
        "statistical",
        FrozenMap({"group_size": 1}),
    )
    assert mu.value == order_statistics.mu_lower([run], order_statistics.right(coins, run), 0.95) > 0.6
    assert mu.method.startswith("if canaries are independent (unchecked), decides no claim: an attack, 640 guesses")
    assert status(mu, "independent-canaries") == "unchecked"
    assert (epsilon.quantity, epsilon.at) == ("epsilon-if-independent", AT)
    assert epsilon.value == gaussian_fit.epsilon(mu.value, 1e-5)
    assert status(epsilon, "gaussian-curve") == "not-rejected"


def test_several_runs_are_tested_for_luck_that_canaries_share() -> None:
    mu, _ = found_in(*(ranked(1.0, 1000, seed) for seed in range(3)))
    assert status(mu, "independent-canaries") == "not-rejected"
    (alone,) = found_in(*(ranked(shift, 1000, 7) for shift in (1.0, 0.0, 1.0)))
    assert status(alone, "independent-canaries") == "false"
    assert alone.quantity == "mu-if-independent"


def test_no_epsilon_follows_where_the_curve_is_not_gaussian_or_few_canaries_show_it() -> None:
    """Randomised response of epsilon 1 is mu-GDP for mu = 1.23, the least."""
    (mu,) = found_in(response(2000, 0))
    assert 0.6 < mu.value < 1.24
    assert mu.method.endswith("no epsilon, as the curve is not Gaussian")
    (few,) = found_in(ranked(1.0, 200, 0))
    assert few.method.endswith("no epsilon, as fewer than 500 canaries show no shape")
    assert found_in("011", "") == []


@pytest.mark.parametrize("kind", ["gdp", "approx-dp"])
def test_a_claim_that_only_this_bound_contradicts_is_not_refuted(kind: str, tmp_path: Path) -> None:
    spec = attacked(tmp_path, "threat_model.group_size=[1]", "claims.four.group_size=1")
    options = {"mu": 0.01} if kind == "gdp" else {"epsilon": 0.01, "delta": 1e-5}
    claim = replace(spec.claims[0], id="small", kind=kind, options=FrozenMap(options), expect=("open",))
    spec = replace(spec, claims=(claim,))
    findings = tuple(found_in(*(ranked(1.5, 1000, seed) for seed in range(2))))
    assert all(one.value > 1.0 for one in findings)
    (judged,) = judge([Concluded(spec=spec, findings=findings, trials=1, needed=1)])
    (verdict,) = judged.verdicts
    assert verdict.verdict == "open"
    assert verdict.lower is None or verdict.lower == 0.0
