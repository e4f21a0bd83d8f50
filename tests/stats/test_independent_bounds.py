"""What is found if canaries are independent: bounds of names of their own, their assumptions, and no verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from scipy import stats
from support.attacks import attacked, outcomes_of, trials_of
from support.ranked_coins import gaussian, ranked

from dpspec.accounting import PrivacyLoss
from dpspec.contract import Finding, FrozenMap, Scope
from dpspec.engine.judging.claim_tests import Concluded
from dpspec.engine.judging.judge import judge
from dpspec.stats.attacks import curve_lines, independence
from dpspec.stats.attacks import independent_bounds as independent
from dpspec.stats.attacks.independent_bounds import dependence_of_size, layers_share
from dpspec.stats.conformance import noise_tests
from dpspec.stats.conformance.canary_contributions import StepDependence

AT = FrozenMap({"delta": 1e-5, "group_size": 1})


def response(canaries: int, seed: int) -> str:
    source = np.random.default_rng(seed)
    coins = source.integers(0, 2, canaries)
    told = np.where(source.random(canaries) < 1.0 / (1.0 + math.exp(-1.0)), coins, 1 - coins)
    return ranked(told, coins)


def found_in(
    *outcomes: str,
    curve: Literal["declared", "unchecked"] | None = "declared",
    luck: Sequence[StepDependence] = (),
    layers: float | None = None,
) -> Sequence[Finding]:
    return list(independent.independent_bounds(outcomes, AT, Scope(), "an attack", 0.95, (), luck, layers, curve=curve))


def status(finding: Finding, name: str) -> str:
    (assumption,) = (one for one in finding.assumptions if one.name == name)
    return assumption.status


def test_one_run_bounds_mu_and_epsilon_under_an_assumption_that_nobody_checked() -> None:
    coins = gaussian(1.0, 1000, 0)
    mu, with_luck, epsilon = found_in(coins)
    run = independence.design(1000)
    assert (mu.quantity, mu.bound, mu.rigor, mu.at) == (
        "mu-if-independent",
        "lower",
        "statistical",
        FrozenMap({"group_size": 1}),
    )
    assert mu.value == independence.mu_lower([run], independence.right(coins, run), 0.95) > 0.6
    assert mu.method.startswith("if canaries are independent (unchecked), decides no claim: an attack, 640 guesses")
    assert status(mu, "independent-canaries") == "unchecked"
    assert (epsilon.quantity, epsilon.at) == ("epsilon-if-independent", AT)
    assert epsilon.value == curve_lines.gaussian_epsilon(mu.value, 1e-5)
    assert status(epsilon, "gaussian-curve") == status(with_luck, "gaussian-curve") == "declared"
    assert status(epsilon, "no-shared-randomness") == "unchecked"
    assert (with_luck.quantity, with_luck.at) == ("epsilon-if-conditionally-independent", AT)
    assert with_luck.value == independent.epsilon_lower([run], [independence.right(coins, run)], 1e-5, 0.95)
    assert 1.0 < with_luck.value < epsilon.value
    assert with_luck.method.endswith("whatever luck they share for the run, on a Gaussian curve (declared)")


def test_several_runs_are_tested_for_luck_that_canaries_share() -> None:
    *_, epsilon = found_in(*(gaussian(1.0, 1000, seed) for seed in range(3)))
    assert status(epsilon, "no-shared-randomness") == "not-rejected"
    mu, with_luck = found_in(*(gaussian(shift, 1000, 7) for shift in (1.0, 0.0, 1.0)))
    assert (mu.quantity, with_luck.quantity) == ("mu-if-independent", "epsilon-if-conditionally-independent")
    assert with_luck.value == 0.0  # of the least lucky run


#: Statistics of 99 degrees: 99 is the mean, 160 has a probability of 1e-4.
QUIET, LOUD = StepDependence(1, 0, 500, 99, 99.0, 90.0), StepDependence(1, 0, 500, 99, 99.0, 160.0)


@pytest.mark.parametrize(
    ("luck", "layers", "expected", "text"),
    [
        ([QUIET], None, "not-rejected", "a correlation of 0.00"),
        ([LOUD], None, "false", "a correlation of 0.00"),
        ([], 1e-9, "false", "layers share their noise"),
        ([], 0.002, "unchecked", ""),  # the test of layers has a thousandth of the level
        ([QUIET], 1.0, "not-rejected", "a correlation of 0.00"),
    ],
)
def test_shared_randomness_of_steps_and_layers_is_the_status_of_the_assumption(
    luck: list[StepDependence], layers: float | None, expected: str, text: str
) -> None:
    found = found_in(gaussian(1.0, 1000, 0), luck=luck, layers=layers)
    assert len(found) == (1 if expected == "false" else 3)
    assert {status(one, "independent-canaries") for one in found} == {expected}
    assert text in found[0].assumptions[0].text
    steps = "chi-square tests of means and spreads over the steps"
    tests = [steps] * bool(luck) + [noise_tests.LAYERS_TEST] * (layers is not None)
    assert found[0].assumptions[0].test == (None if expected == "unchecked" else "; ".join(tests))


def test_a_trial_keeps_what_its_canaries_share_within_steps_and_old_trials_do_not(tmp_path: Path) -> None:
    small = ("threat_model.group_size=[1]", "claims.four.group_size=1", "audit.canary.count=210")
    spec = attacked(tmp_path, *small)
    (trial,) = trials_of(spec, 0)
    coins = dict(trial.evidence["outcomes"])[1]
    kept = dependence_of_size([trial.evidence], 1)
    large = [count for count in (coins.count("0"), coins.count("1")) if count >= 100]
    assert [(one.count, one.degrees) for one in kept] == [(count, 9) for count in large]
    assert dependence_of_size([trial.evidence], 4) == []
    (first, *_) = (one for one in outcomes_of(spec, [trial]) if getattr(one, "quantity", "") == independent.MU)
    assert status(first, "independent-canaries") == "not-rejected"
    internal = dict(trial.evidence["internal"])
    assert layers_share([trial.evidence]) == 1.0
    internal["signal"] = FrozenMap({key: value for key, value in internal["signal"].items() if key != "luck"})
    internal["measured"] = FrozenMap({key: value for key, value in internal["measured"].items() if key != "shared"})
    old = replace(trial, evidence=FrozenMap({**trial.evidence, "internal": FrozenMap(internal)}))
    (first, *_) = (one for one in outcomes_of(spec, [old]) if getattr(one, "quantity", "") == independent.MU)
    assert status(first, "independent-canaries") == "unchecked"
    assert layers_share([old.evidence]) is None
    for wrong in ([1, 0, 7, 9, 1.0, 1.0], [2, 0, kept[0].count, 9, 1.0, 1.0], [1, 0, kept[0].count, 0, 1.0, 1.0]):
        internal["signal"] = FrozenMap({**internal["signal"], "luck": (tuple(wrong),)})
        with pytest.raises(ValueError, match=r"internal\.signal"):
            dependence_of_size([FrozenMap({**trial.evidence, "internal": FrozenMap(internal)})], 1)
    private = attacked(tmp_path, *small, "data.public=false")
    (first, *_) = (one for one in outcomes_of(private, [trial]) if getattr(one, "quantity", "") == independent.MU)
    assert status(first, "independent-canaries") == "unchecked"


def test_no_epsilon_follows_where_the_curve_is_not_gaussian_or_few_canaries_show_it() -> None:
    """Randomised response of epsilon 1 is mu-GDP for mu = 1.23, the least."""
    (mu,) = found_in(response(2000, 0))
    assert 0.6 < mu.value < 1.24
    assert mu.method.endswith("no epsilon, as the curve is not Gaussian")
    (few,) = found_in(gaussian(1.0, 200, 0))
    assert few.method.endswith("no epsilon, as fewer than 500 canaries show no shape")
    assert found_in("011", "") == []


def laplace_composed(canaries: int, seed: int) -> str:
    """Eight Laplace releases of epsilon 0.5 each: epsilon is at most 4 at any delta."""
    source = np.random.default_rng(seed)
    coins = source.integers(0, 2, canaries)
    seen = source.laplace(0.0, 2.0, (8, canaries)) + coins
    return ranked((np.abs(seen) - np.abs(seen - 1.0)).sum(0), coins)


def clipped(canaries: int, seed: int) -> str:
    """N(coin, 1) with the output clipped to [-2, 3]: epsilon is at most 2.83, ln(P/Q) of the end points."""
    source = np.random.default_rng(seed)
    coins = source.integers(0, 2, canaries)
    seen = np.clip(source.normal(coins, 1.0), -2.0, 3.0) + 1e-9 * source.random(canaries)
    return ranked(seen, coins)


@pytest.mark.parametrize(("draw", "truth"), [(laplace_composed, 4.0), (clipped, 2.83)])
def test_no_test_supports_a_gaussian_curve_at_rates_that_no_run_shows(
    draw: Callable[[int, int], str], truth: float
) -> None:
    """Read as Gaussian, nearly every run says more than the truth. So only a declaration makes an epsilon."""
    runs = [draw(1000, seed) for seed in range(10)]
    for coins in runs:
        (mu,) = found_in(coins, curve=None)
        assert mu.quantity == "mu-if-independent"
        assert mu.method.endswith("no epsilon, as nothing says that the curve is Gaussian")
    read = [
        found for coins in runs for found in found_in(coins, curve="unchecked") if found.quantity == independent.EPSILON
    ]
    assert len([found for found in read if found.value > truth]) >= 8
    assert {status(found, "gaussian-curve") for found in read} == {"unchecked"}
    assert all("cannot support that below" in found.assumptions[2].text for found in read)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), "declared"),
        (("threat_model.direction=remove",), "declared"),
        (("threat_model.direction=add",), None),
        (("audit.canary.space=input", "audit.canary.kind=mislabelled"), "unchecked"),
    ],
)
def test_the_spec_decides_whether_the_curve_is_gaussian(
    changes: Sequence[str], expected: str | None, tmp_path: Path
) -> None:
    """Below the sampling rate the absence of a record shows less than a Gaussian curve says."""
    from dpspec_group.evidence import one_run_outcomes

    spec = attacked(tmp_path, "threat_model.group_size=[1]", "claims.four.group_size=1", *changes)
    found = {
        one.quantity: one
        for one in one_run_outcomes(spec, 100, 1, [gaussian(1.0, 1000, 0)])
        if isinstance(one, Finding)
    }
    assert (independent.EPSILON in found) == (expected is not None)
    if expected:
        assert status(found[independent.EPSILON], "gaussian-curve") == expected


@pytest.mark.parametrize("kind", ["gdp", "approx-dp"])
def test_a_claim_that_only_this_bound_contradicts_is_not_refuted(kind: str, tmp_path: Path) -> None:
    spec = attacked(tmp_path, "threat_model.group_size=[1]", "claims.four.group_size=1")
    options = {"mu": 0.01} if kind == "gdp" else {"epsilon": 0.01, "delta": 1e-5}
    claim = replace(spec.claims[0], id="small", kind=kind, options=FrozenMap(options), expect=("open",))
    spec = replace(spec, claims=(claim,))
    findings = tuple(found_in(*(gaussian(1.5, 1000, seed) for seed in range(2))))
    assert all(one.value > 1.0 for one in findings)
    (judged,) = judge([Concluded(spec=spec, findings=findings, trials=1, needed=1)])
    (verdict,) = judged.verdicts
    assert verdict.verdict == "open"
    assert verdict.lower is None or verdict.lower == 0.0


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize(("chance", "lucky", "quiet"), [(0.5, 1.0, 0.0), (0.04, 1.5, 0.5), (0.25, 1.0, 0.0)])
def test_it_holds_under_luck_of_any_kind(runs: int, chance: float, lucky: float, quiet: float) -> None:
    """Seeds 0 to 199: at most the 99.9% quantile of Bin(200, 0.05) above the truth, from the mixture of two curves."""
    delta, low, high = 1e-5, 0.0, 20.0
    curves = [PrivacyLoss.gaussian(1.0 / mu) if mu else None for mu in (lucky, quiet)]
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        told = [0.0 if curve is None else curve.delta(middle).upper for curve in curves]
        low, high = (middle, high) if chance * told[0] + (1.0 - chance) * told[1] > delta else (low, middle)
    design, above = independence.design(1000), 0
    first, last = 0, design.low + design.high  # how many right guesses in each run are needed to be above
    while last - first > 1:
        count = (first + last) // 2
        shown = independent.epsilon_lower([design] * runs, [count] * runs, delta, 0.95)
        first, last = (first, count) if shown > high else (count, last)
    for seed in range(200):
        source = np.random.default_rng(seed)
        luck = source.random(runs) < chance
        ordered = [gaussian(lucky if one else quiet, 1000, source) for one in luck]
        above += min(independence.right(coins, design) for coins in ordered) >= last
    assert above <= stats.binom.ppf(0.999, 200, 0.05)


def test_it_shows_most_of_what_independence_alone_would() -> None:
    for canaries, share in ((1000, 0.6), (10_000, 0.74)):
        run = independence.design(canaries)
        right = round(independence.guess_moments(run, 0.925)[0])
        true = curve_lines.gaussian_epsilon(0.925, 1e-5)
        one = independent.epsilon_lower([run], [right], 1e-5, 0.95)
        five = independent.epsilon_lower([run] * 5, [right] * 5, 1e-5, 0.95)
        assert share * true < one < five < true
        mu = independence.mu_lower([run], right, 1.0 - 0.0125)
        assert one == pytest.approx(curve_lines.gaussian_epsilon(mu, 1e-5 / 0.0375), rel=1e-9)


def test_a_delta_above_what_is_left_to_luck_shows_nothing() -> None:
    assert independent.epsilon_lower([independence.design(300)], [190], 0.04, 0.95) == 0.0
