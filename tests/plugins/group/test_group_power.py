"""Attacks on correct pipelines: bounds close to the promise of ``plan``, and rarely above the true value."""

import itertools
import math
import re
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from support.attacks import attacked, audited, moments, outcomes_of, spec_at, trials_of

from dpspec.accounting import Mixture
from dpspec.contract import Finding, Outcome, Spec
from dpspec.engine.preparing.prepare import prepare
from dpspec.registry.loader import load_catalog
from dpspec.stats.attacks import curve_lines, guess_counts, one_run, thresholds
from dpspec.training.canaries import CanaryGroups, Intermittent, SignBlocks
from dpspec_group import scores, theory
from dpspec_group.scores import ScoreDistribution, blind, design, end_to_end, score_distribution, threshold

ATTACKS = Path(__file__).parents[3] / "specs" / "attacks"

#: Fewer records train faster, and change neither the truth for Poisson batches nor the canaries' bounds.
SMALL = "data.size=200"


def lower(found: list[Outcome], quantity: str = "epsilon") -> dict[int, float]:
    return {
        o.at["group_size"]: o.value
        for o in found
        if isinstance(o, Finding) and (o.bound, o.quantity) == ("lower", quantity)
    }


def lower_of(spec: Spec, *indices: int) -> dict[int, float]:
    return lower(outcomes_of(spec, trials_of(spec, *(indices or (0,)))))


def truth(spec: Spec, size: int = 1) -> float:
    delta = scores.attack_delta(spec, size)
    records = prepare(spec, load_catalog()).facts.records
    return max(theory.group_epsilons(spec.phases, size, records, [delta], side)[0].lower for side in ("remove", "add"))


def expected(spec: Spec, size: int = 1) -> float:
    count = int(spec.audit.options["canary"]["count"]) // len(spec.threat_model.group_size)
    return scores.one_run_design(spec, prepare(spec, load_catalog()).facts.records, count, size).expected_epsilon


@pytest.mark.parametrize(("mu", "canaries"), [(0.0, 40), (0.7, 300), (1.5, 2_000), (6.0, 500)])
def test_no_guess_counts_are_expected_to_show_more_than_those_designed(mu: float, canaries: int) -> None:
    law, delta, confidence = ScoreDistribution.normal(0.0, 1.0, mu, 1.0), 1e-5, 0.95

    def worth(rung: guess_counts.Rung) -> tuple[float, float]:
        guesses, right = sum(rung), law.correct(*rung, canaries)
        unlucky = max(0, math.floor(right - math.sqrt(right * max(0.0, 1.0 - right / guesses))))
        shown = one_run.epsilon_lower(canaries, guesses, unlucky, delta, confidence)
        return shown, (right - 0.5 * guesses) / math.sqrt(guesses)

    sides = sorted({0, *(round(share * canaries) for share in scores._SHARES), canaries // 2})
    best = max((rung for rung in itertools.product(sides, sides) if sum(rung) >= min(8, canaries)), key=worth)
    assert scores.design(law, canaries, delta, confidence).rungs == guess_counts.around(*best, canaries)


@pytest.mark.ci
def test_what_is_shown_rises_with_the_group_as_the_bound_does() -> None:
    spec = spec_at(ATTACKS / "families.yaml", SMALL)
    assert spec.audit.options["canary"]["spread"] == 0.1
    shown = lower_of(spec)
    assert list(shown) == [1, 2, 4, 8]
    assert 0.0 < shown[1] < shown[2] < shown[4] < shown[8]
    for size, value in shown.items():
        assert 0.6 * expected(spec, size) < value < truth(spec, size)
    assert shown[8] > truth(spec, 1)


@pytest.mark.ci
def test_small_audits_exceed_the_truth_hardly_ever(tmp_path: Path) -> None:
    """Seeds 0 to 11, fixed in advance: at most the 99.9% binomial quantile of 12 at 5%, 4, for either size."""
    specs = [attacked(tmp_path, f"audit.seed={seed}", "mechanism.noise_multiplier=6.0") for seed in range(12)]
    above, true = {1: 0, 4: 0}, {size: truth(specs[0], size) for size in (1, 4)}  # of the mechanism, for every seed
    for spec in specs:
        for size, value in lower_of(spec).items():
            above[size] += value > true[size]
    assert max(above.values()) <= binom.ppf(0.999, 12, 0.05)


@pytest.mark.ci
def test_plan_promises_what_the_design_does(tmp_path: Path) -> None:
    for text in ("audit.runs=2", "audit={method: many-run, canary: {space: gradient}, runs: 100}"):
        spec = attacked(tmp_path, text)
        power = prepare(spec, load_catalog()).plan().power
        assert [p.at["group_size"] for p in power] == [1, 4]
        assert all("expected if the pipeline is as declared" in p.note for p in power)
        assert all(p.epsilon > float(p.note.split()[1]) for p in power)


def test_plan_of_records_quotes_measured_values_and_computes_those_of_gradients() -> None:
    spec = spec_at(ATTACKS / "planted-records.yaml", SMALL)
    records = prepare(spec, load_catalog()).facts.records
    instead = ("audit.canary.space=gradient", "audit.canary.kind=orthogonal")
    gradients = spec_at(ATTACKS / "planted-records.yaml", SMALL, *instead)
    for power in scores.power(spec, records):
        size = power.at["group_size"]
        computed = scores.one_run_design(gradients, records, 100, size).expected_epsilon
        assert "500 mislabelled canaries and all iterates: a median of 0.13 of a proved epsilon of 2.06" in power.note
        assert power.note.endswith(f"and all iterates: about {computed:.2f}")
        assert 0.0 <= computed < power.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [2, 4, 8])
def test_over_two_hundred_seeds(epsilon: int) -> None:
    """Seeds 0 to 199, fixed in advance: at most 21 above the truth at 95% (99.9% binomial quantile).

    These mechanisms are nearly Gaussian at delta 1e-5: epsilon from mu exceeds the truth in at most 10 of them, and
    its median is at least .66 of it. Measured: none, and .69.
    """
    shown, of_mu = [], []
    for seed in range(200):
        spec = spec_at(ATTACKS / f"epsilon-{epsilon}.yaml", SMALL, f"audit.seed={seed}")
        found = outcomes_of(spec, trials_of(spec, 0))
        shown += lower(found).values()
        of_mu += [curve_lines.gaussian_epsilon(mu, 1e-5) for mu in lower(found, quantity="mu").values()]
    assert abs(truth(spec) - epsilon) < 0.015 * epsilon
    assert sum(value > truth(spec) for value in shown) <= 21
    assert sum(value < 0.8 * expected(spec) for value in shown) <= 10
    assert sum(value > truth(spec) for value in of_mu) <= 10
    assert median(of_mu) > 0.66 * truth(spec)
    if epsilon == 4:
        assert median(shown) > 0.5 * epsilon
        assert sum(value < 0.5 * truth(spec) for value in shown) <= 30


def simulated(mixture: Mixture, size: int, rate: float, steps: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    noise = mixture.noise_multiplier * rng.standard_normal((2, steps, count))
    drawn = rng.binomial(size, rate, size=(steps, count))
    return mixture.log_ratio(noise[0]).sum(axis=0), mixture.log_ratio(drawn + noise[1]).sum(axis=0)


@pytest.mark.parametrize(("size", "rate", "sigma", "steps"), [(3, 0.2, 1.3, 25), (1, 0.05, 0.8, 60), (2, 1.0, 5.0, 4)])
def test_score_law_against_simulation(size: int, rate: float, sigma: float, steps: int) -> None:
    """Moments of 4000 simulated scores within five standard errors, the distributions within 99.9% of Kolmogorov's."""
    mixture = Mixture.poisson(size, rate, sigma)
    law = score_distribution([(mixture, steps)])
    assert law.absent.sum() == pytest.approx(1.0)
    assert law.present.sum() == pytest.approx(1.0)
    assert np.all(np.diff(law.scores) > 0)
    expected = moments(law)
    scores = simulated(mixture, size, rate, steps, 4000)
    for found, masses, mean, std in zip(scores, (law.absent, law.present), expected[::2], expected[1::2], strict=True):
        assert abs(found.mean() - mean) < 5 * std / 4000**0.5
        assert abs(found.std() / std - 1) < 0.1
        cumulative = np.interp(np.sort(found), law.scores, np.cumsum(masses))
        assert np.max(np.abs(cumulative - (np.arange(4000) + 0.5) / 4000)) < 1.95 / 4000**0.5


def test_the_ratio_of_one_gaussian_step_is_known_in_closed_form() -> None:
    """mu = 2: the ratio is N(-2, 4) or N(2, 4)."""
    assert moments(score_distribution([(Mixture.full(2, 1.0), 1)])) == pytest.approx((-2.0, 2.0, 2.0, 2.0), rel=1e-4)


def test_end_to_end_law_against_simulation() -> None:
    rng = np.random.default_rng(1)
    pairs = [(Mixture.poisson(3, 0.2, 1.3), 25), (Mixture.poisson(3, 0.2, 2.0), 10)]
    found = end_to_end(pairs, [0.5, 2.0])
    sums = [np.zeros(8000), np.zeros(8000)]
    for (mixture, steps), clip in zip(pairs, (0.5, 2.0), strict=True):
        for present in (0, 1):
            drawn = present * rng.binomial(3, 0.2, size=(steps, 8000))
            sums[present] += clip * (drawn + mixture.noise_multiplier * rng.standard_normal((steps, 8000))).sum(axis=0)
    expected = moments(found.law())
    for along, mean, std in zip(sums, expected[::2], expected[1::2], strict=True):
        ratios = found.log_ratio(along)
        assert abs(ratios.mean() - mean) < 5 * std / 8000**0.5
        assert abs(ratios.std() / std - 1) < 0.05


def test_right_guesses_against_simulation() -> None:
    rng = np.random.default_rng(2)
    law = ScoreDistribution.normal(-1.0, 1.0, 1.5, 2.0)
    coins = rng.integers(0, 2, 200_000)
    scores = np.where(coins, 1.5 + 2.0 * rng.standard_normal(200_000), -1.0 + rng.standard_normal(200_000))
    order = np.argsort(scores)
    for low, high in ((1_000, 1_000), (0, 5_000), (20_000, 300), (100_000, 100_000)):
        right = (coins[order[:low]] == 0).sum() + (coins[order[200_000 - high :]] == 1).sum()
        assert abs(right - law.correct(low, high, 200_000)) < 5 * (low + high) ** 0.5
    for score in (-2.0, 0.0, 3.0):
        tpr, fpr = law.rates(score)
        assert abs((scores[coins == 1] >= score).mean() - tpr) < 0.01
        assert abs((scores[coins == 0] >= score).mean() - fpr) < 0.01


def test_without_a_law_counts_rise_to_all_canaries() -> None:
    assert blind(100, 1e-5, 0.95).rungs == ((8, 8), (24, 24), (50, 50))
    assert blind(15, 1e-5, 0.95).rungs == ((8, 7),)
    assert blind(100, 1e-5, 0.95, all_only=True).rungs == ((50, 50),)
    assert math.isnan(blind(100, 1e-5, 0.95).expected_epsilon)


def test_a_threshold_is_where_the_expected_counts_show_most() -> None:
    law = ScoreDistribution.normal(-2.0, 2.0, 2.0, 2.0)
    scores = [x / 4 for x in range(-48, 49)]
    score, expected = threshold(law, scores, 500, 500, 1e-5, 0.95)
    tpr, fpr = law.rates(score)
    assert expected == thresholds.fixed_epsilon_lower(500, 500, math.floor(500 * tpr), math.ceil(500 * fpr), 1e-5, 0.95)
    assert expected > 0.9 * threshold(law, [0.0], 500, 500, 1e-5, 0.95)[1]
    assert 0.0 < expected < thresholds.fixed_largest(500, 500, 1e-5, 0.95)


def test_where_nothing_can_be_expected_the_design_still_discriminates() -> None:
    law = ScoreDistribution.normal(-0.02, 0.2, 0.02, 0.2)
    assert threshold(law, [x / 4 for x in range(-48, 49)], 20, 20, 1e-5, 0.95)[0] == 0.0
    found = design(law, 100, 1e-5, 0.95)
    assert found.expected_epsilon == 0.0
    assert sum(found.rungs[1]) > 50


def test_canaries_speak_in_the_steps_that_k_divides() -> None:
    canaries = CanaryGroups(SignBlocks(12, 3, seed=1), torch.tensor([0, 2]), 10.0)
    clock, spoke = Intermittent(canaries, 3), []
    for step in range(10):
        clock.released(step, torch.zeros(12))
        spoke.append(float(canaries.gradients(torch.tensor([0, 1])).norm()) > 0.0)
    assert [step + 1 for step, said in enumerate(spoke) if said] == [3, 6, 9]
    clock.released(4, torch.zeros(12))
    kept = clock.state()
    clock.restore({})
    assert canaries.silent
    clock.restore({name: np.asarray(value) for name, value in kept.items()})
    assert canaries.silent
    clock.released(5, torch.zeros(12))
    assert not canaries.silent
    with pytest.raises(ValueError, match="at least 1"):
        Intermittent(canaries, 0)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(1, 50))
def test_the_law_by_counting_steps(steps: list[int], every: int) -> None:
    """Full batches: the mean is the number of steps with the record, and the noise comes from all steps."""
    found = end_to_end([(Mixture.full(1, 2.0), n) for n in steps], [1.0] * len(steps), every)
    assert found.mean == pytest.approx(sum(t % every == 0 for t in range(1, sum(steps) + 1)))
    assert found.noise == pytest.approx(2.0 * math.sqrt(sum(steps)))
    assert found.std == 0.0


@pytest.mark.ci
def test_what_is_hidden_shows_less_and_still_conforms(tmp_path: Path) -> None:
    """Mu is 3, or 3 / 5 if one of five steps has the record: bounds are below, and lower for the second."""
    shown = []
    for every in (1, 5):
        audit = audited(
            tmp_path,
            "threat_model={access: final-model, group_size: 1}",
            "claims.four.group_size=1",
            "mechanism.noise_multiplier=1.054",
            "mechanism.sampling={scheme: full}",
            f"audit.canary={{space: gradient, count: 200, every: {every}}}",
        )
        assert not [c for c in audit.checks if c.p_value is not None and c.p_value < 1e-6]
        shown += [f.value for f in audit.findings if f.quantity == "mu" and f.bound == "lower"]
    assert 0.2 < shown[0] < 3.0
    assert shown[1] < min(0.6, shown[0])


def test_a_plan_names_the_canaries_for_most_of_the_proved_epsilon() -> None:
    law, delta = ScoreDistribution.normal(0.0, 1.0, 1.0, 1.0), 1e-5
    proved = curve_lines.gaussian_epsilon(1.0, delta)

    def expected(canaries: int) -> float:
        return design(law, canaries, delta, 0.95).expected_epsilon

    text = scores.needed(0.5 * proved, 100, "canaries", expected)
    count = int(text.split()[-2].replace(",", ""))
    assert text.startswith(f"80% of the proved epsilon {0.5 * proved:.3g} needs about ")
    assert expected(count) >= 0.4 * proved > max(expected(100), expected(count // 10))
    assert scores.needed(0.01 * proved, 1000, "canaries", expected).endswith("is expected")
    unreachable = scores.needed(5.0 * proved, 100, "canaries", expected)
    assert re.search("is not expected from up to 30,000,000 canaries; the best number is [0-9,]+: about ", unreachable)
    assert scores.needed(math.inf, 100, "canaries", expected) == ""


def test_a_plan_states_what_most_of_the_proved_epsilon_needs() -> None:
    spec = spec_at(ATTACKS / "epsilon-4.yaml")
    (power,) = prepare(spec, load_catalog()).plan().power
    interval = theory.group_epsilons(theory.accounted(spec), 1, 20_000, [1e-5], "remove")[0]
    assert f"80% of the proved epsilon {interval.upper:.3g} is not expected from up to" in power.note
