"""Mechanisms of the kit: findings and checks from a bound and an attack, and from broken ones."""

import hashlib
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import stats
from support import results as factory
from support.votes import Votes
from support.votes_suite import registry

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Interval, PrivacyLoss
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.kit import mechanisms
from dpspec.language.load import load_specs
from dpspec.reporters import risk
from dpspec.stats.attacks import evidence_tests


class Count(kit.AttackedMechanism):
    kind = "count"
    schema: ClassVar = {"scale": kit.number("Scale.", above=0)}
    source = "textbook"
    example = ""
    noise = "laplace"
    factor = 1.0

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return group_size / float(spec.mechanism["scale"])

    def release(self, inputs: Any, context: Any, index: int, group_size: int, coins: Any) -> kit.Releases:
        random = np.random.default_rng(context.seed(index, "noise", str(group_size)))
        scale = inputs["mechanism"]["scale"]
        noise = random.laplace(0.0, 1.0, len(coins))
        released = group_size * coins + self.factor * scale * noise
        ratio = np.abs(released) - np.abs(released - group_size)
        return kit.Releases(scores=ratio, noise=self.factor * noise)


class Quiet(Count):
    factor = 0.1


def inputs(releases: int = 2000, sizes: tuple[int, ...] = (1,), scale: float = 2.0) -> Any:
    return dps.freeze(
        {"mechanism": {"scale": scale}, "audit": {"releases": releases}, "threat_model": {"group_size": list(sizes)}}
    )


def spec(releases: int = 2000, runs: int = 2, sizes: tuple[int, ...] = (1,), scale: float = 2.0) -> Any:
    return SimpleNamespace(
        audit=SimpleNamespace(runs=runs, confidence=0.95, options={"releases": releases}),
        threat_model=SimpleNamespace(group_size=sizes, adjacency="add-remove"),
        unit="record",
        claims=(),
        mechanism={"scale": scale},
    )


def context(seed: int = 0) -> Any:
    def seeded(index: int, *purpose: str) -> int:
        return int.from_bytes(hashlib.sha256(repr((seed, index, purpose)).encode()).digest()[:7], "big")

    return SimpleNamespace(cancelled=lambda: False, seed=seeded)


def outcomes(mechanism: kit.AttackedMechanism, *, runs: int = 2, seed: int = 0, scale: float = 2.0) -> list[Any]:
    trials = list(mechanism.trials(inputs(scale=scale), context(seed), range(runs)))
    return list(mechanism.conclude(spec(runs=runs, scale=scale), trials))


def test_a_lower_bound_stands_below_the_truth_and_the_noise_conforms() -> None:
    evidence, lower, check = outcomes(Count())
    assert 0.2 < lower.value <= 0.5
    assert evidence_tests.p_value(evidence, 0.5, 0.0) > 0.05
    assert evidence_tests.p_value(evidence, 0.1, 0.0) < 1e-4
    assert check.p_value > 1e-3
    assert 0.9 < check.measured < 1.1


def test_a_tenth_of_the_noise_is_seen_by_the_attack_and_by_the_check() -> None:
    evidence, lower, check = outcomes(Quiet())
    assert lower.value > 2.0
    assert evidence_tests.p_value(evidence, 0.5, 0.0) < 1e-6
    assert check.p_value < 1e-6


def test_lower_bounds_exceed_the_truth_no_more_often_than_they_say() -> None:
    above = sum(outcomes(Count(), runs=1, seed=seed)[1].value > 0.5 for seed in range(40))
    assert above <= stats.binom.ppf(0.9999, 40, 0.05)


def test_coins_decide_nothing_where_scores_are_no_numbers() -> None:
    scores = np.array([np.nan, 1.0, np.nan, -np.inf, np.inf, 0.0])
    coins = np.array([1, 1, 0, 1, 0, 0])
    levels = mechanisms._levels(scores, coins)
    assert levels[0] == [-mechanisms._TOP, 1, 2]
    assert levels[-1] == [mechanisms._TOP, 1, 0]
    assert mechanisms._outcomes([{"levels": levels}]) == "110010"


def test_equal_levels_are_ordered_against_the_attack() -> None:
    levels = mechanisms._levels(np.zeros(5), np.array([0, 1, 0, 1, 0]))
    assert levels == [[0, 3, 2]]
    assert mechanisms._outcomes([{"levels": levels}]) == "11000"


@pytest.mark.parametrize(("law", "draw"), [("laplace", stats.laplace), ("gaussian", stats.norm)])
def test_the_check_of_the_noise_is_as_rare_as_it_says(law: str, draw: Any) -> None:
    random = np.random.default_rng(5)
    p_values = []
    for _ in range(400):
        x = draw.rvs(size=200, random_state=random)
        sums = {"count": 200, "absolute": float(np.abs(x).sum()), "squared": float((x**2).sum())}
        p_values.append(mechanisms._noise_check(law, [sums]).p_value)
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_scores_of_another_number_than_coins_are_the_plugins_error() -> None:
    class Short(Count):
        def release(self, *given: Any) -> kit.Releases:
            return kit.Releases(scores=np.zeros(3), noise=np.zeros(3))

    with pytest.raises(ValueError, match=r"count: release\(\) gave scores of shape \(3,\) for 2000 coins"):
        list(Short().trials(inputs(), context(), [0]))


def test_bounds_are_at_zero_and_at_the_claimed_deltas_of_each_group_size() -> None:
    asked = spec(sizes=(1, 4))
    asked.claims = (SimpleNamespace(group_size=4, options={"delta": 0.1}),)
    found = [one for one in Count().bound(asked, None) if isinstance(one, dps.Finding)]  # type: ignore[arg-type]
    at = [(one.value, one.at["group_size"], one.at["delta"]) for one in found]
    assert at == [(0.5, 1, 0.0), (2.0, 4, 0.0), (2.0, 4, 0.1)]
    assert {(one.rigor, one.method) for one in found} == {("theorem", "count")}


@pytest.mark.parametrize("certified", [True, False])
def test_the_risk_is_that_of_the_whole_curve(certified: bool) -> None:
    """Oracle: the rates of a Gaussian with mu = 1 are 9.24 % and 38.92 %; (epsilon, 1e-6) alone would allow 79.7 %."""

    class Gaussian(Count):
        rigor = "certified" if certified else "theorem"

        def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> Interval | float:
            if delta == 0.0:
                return math.inf
            found = PrivacyLoss.gaussian(1.0 / group_size).epsilon(delta)
            return found if certified else found.upper

    asked = spec()
    asked.claims = (SimpleNamespace(group_size=1, options={"delta": 1e-6}),)
    outcomes = list(Gaussian().bound(asked, None))  # type: ignore[arg-type]
    series = tuple(one for one in outcomes if isinstance(one, dps.Series))
    findings = tuple(one for one in outcomes if isinstance(one, dps.Finding))
    (rate,) = risk.rates(factory.audit(findings=findings, series=series))
    for power, true in zip(rate.powers, (0.092362, 0.389144), strict=True):
        assert true <= power <= 1.01 * true
    assert not any(isinstance(one, dps.Series) for one in Count().bound(spec(), None))  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "bounds"), [(np.nan, []), (np.inf, [np.inf]), (0.5, [0.5])])
def test_no_number_is_no_bound(value: float, bounds: list[float]) -> None:
    class Given(Count):
        def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
            return value

    assert [finding.value for finding in Given().bound(spec(), None)] == bounds  # type: ignore[arg-type]


class Telling(Count):
    """A count whose releases report their number, which a check requires to be even."""

    def release(self, inputs: Any, context: Any, index: int, group_size: int, coins: Any) -> kit.Releases:
        made = super().release(inputs, context, index, group_size, coins)
        return kit.Releases(scores=made.scores, noise=made.noise, told={"made": len(coins), "half": 0.5})

    def noise_numbers(self, spec: dps.Spec, facts: dps.Facts) -> int:
        return 100

    def further_checks(self, spec: dps.Spec, told: Any) -> Any:
        seen = None if told is None else told["made"]
        odd = seen is not None and seen % 2
        yield dps.Check(
            assumption="even", test="parity", p_value=0.0 if odd else 1.0, observed="reported", measured=seen
        )


def test_reported_numbers_are_summed_over_trials_and_group_sizes_for_custom_checks() -> None:
    trials = list(Telling().trials(inputs(101, (1, 2)), context(), range(3)))
    assert trials[0].evidence["groups"][0]["told"] == {"made": 101.0, "half": 0.5}
    found = list(Telling().conclude(spec(101, 3, (1, 2)), trials))
    assert (found[-1].assumption, found[-1].measured, found[-1].p_value) == ("even", 606.0, 1.0)
    one = list(Telling().conclude(spec(101, 1, (1,)), list(Telling().trials(inputs(101), context(), range(1)))))
    assert one[-1].p_value == 0.0


def test_a_plan_promises_these_checks_and_the_amount_of_reported_noise() -> None:
    plan, usual = Telling().plan(spec(), None), Count().plan(spec(), None)  # type: ignore[arg-type]
    assert [check.assumption for check in plan.checks] == ["noise-scale", "even"]
    assert plan.checks[1].measured is None
    assert [check.assumption for check in usual.checks] == ["noise-scale"]
    assert 5 < usual.checks[0].detectable / plan.checks[0].detectable < 20  # a tenth, for a hundred times as much


@pytest.mark.parametrize("value", ["1", None, float("inf"), True])
def test_impossible_reported_numbers_are_rejected(value: Any) -> None:
    (trial,) = Telling().trials(inputs(10), context(), range(1))
    group = {**trial.evidence["groups"][0], "told": {"made": value}}
    changed = SimpleNamespace(evidence={"groups": [group]})
    with pytest.raises(ValueError, match=r"told\.made must be a finite number"):
        list(Telling().conclude(spec(10, 1), [changed]))  # type: ignore[list-item]


def test_a_certified_bound_rests_on_the_accuracy_of_libraries_too() -> None:
    from dpspec.accounting import Interval

    class Certified(Count):
        rigor = "certified"
        assumptions: ClassVar = (dps.Assumption(name="noise-scale", status="declared"),)

        def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> Interval:
            return Interval(0.4, 0.5)

    (found,) = Certified().bound(spec(), None)  # type: ignore[arg-type]
    assert [assumption.name for assumption in found.assumptions] == ["noise-scale", "library-accuracy"]
    assert (found.lower, found.value) == (0.4, 0.5)
    (theorem,) = Count().bound(spec(), None)  # type: ignore[arg-type]
    assert theorem.assumptions == ()


def test_a_mechanism_yields_evidence_of_another_kind_from_the_same_releases(tmp_path: Path) -> None:
    class TwoKinds(Votes):
        def further_evidence(self, spec, group_size, scores):
            guesses = sum(absent + present for _, absent, present in scores)
            correct = sum(present if score > 0.0 else absent for score, absent, present in scores)
            assert [score for score, *_ in scores] == sorted(score for score, *_ in scores)
            yield dps.Evidence(
                id=f"guesses-{group_size}",
                kind="one-run",
                statistics=dps.FrozenMap({"canaries": guesses, "guesses": guesses, "correct": correct}),
                at=dps.FrozenMap({"group_size": group_size}),
                method="sign of the score",
                source="here",
                scope=kit.executed_scope(spec, adversary="record", access="final-model"),
            )

    module = sys.modules[__name__]
    module.TwoKinds = TwoKinds  # type: ignore[attr-defined]
    TwoKinds.__qualname__ = "TwoKinds"
    (tmp_path / "spec.yaml").write_text(TwoKinds.example)
    catalog = registry(TwoKinds).catalog
    loaded = load_specs([tmp_path / "spec.yaml"], catalog)
    (audit,) = run(loaded.specs, catalog, store=Store(tmp_path / "store"), device="cpu").audits
    assert [evidence.kind for evidence in audit.evidence] == ["many-run-ranked", "one-run"] * 2
    assert {f.method for f in audit.findings if f.bound == "lower"} == {"sign of the score", "scores of real releases"}


def test_a_block_without_a_text_is_an_error() -> None:
    with pytest.raises(TypeError, match="give the keys by name"):
        kit.block({"radius": {"type": "number"}})  # type: ignore[arg-type]
