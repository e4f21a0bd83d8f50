"""What the attacks show of correct pipelines: close to what ``plan`` promised, and hardly ever more than is true."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from statistics import median

import pytest
from scipy.stats import binom
from support.attacks import attacked, outcomes_of, spec_at, trials_of

from dpspec.contract import Finding, Outcome, Spec
from dpspec.engine.preparing.prepare import prepare
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec.stats.attacks import curve_lines, guess_counts, one_run
from dpspec_group import scores, theory
from dpspec_group.scores import ScoreDistribution

ATTACKS = Path(__file__).parents[3] / "specs" / "attacks"

#: Fewer records train faster and change neither what is true of Poisson batches nor what canaries show.
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


@pytest.mark.parametrize("path", sorted(ATTACKS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_spec_can_be_audited_and_planned(path: Path) -> None:
    for spec in load_specs([path], load_catalog()).specs:  # each cell of a matrix
        prepared = prepare(spec, load_catalog())
        assert prepared.diagnostics == ()
        assert prepared.plan().power


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


def test_twenty_thousand_canaries_show_half_of_an_epsilon_of_four() -> None:
    spec = spec_at(ATTACKS / "epsilon-4.yaml", SMALL)
    (shown,) = lower_of(spec).values()
    assert 3.9 < truth(spec) < 4.0
    assert 0.5 * truth(spec) < shown < truth(spec)
    assert shown > 0.8 * expected(spec)


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
    above, true = {1: 0, 4: 0}, {size: truth(specs[0], size) for size in (1, 4)}  # of the mechanism, whatever the seed
    for spec in specs:
        for size, value in lower_of(spec).items():
            above[size] += value > true[size]
    assert max(above.values()) <= binom.ppf(0.999, 12, 0.05)


def test_more_runs_show_more(tmp_path: Path) -> None:
    spec = attacked(tmp_path, "mechanism.noise_multiplier=4.0", "threat_model.group_size=[4]", "audit.runs=4")
    assert lower_of(spec, 0, 1, 2, 3)[4] > lower_of(spec)[4]
    one, four = (scores.one_run_design(spec, 60, count, 4).expected_epsilon for count in (200, 800))
    assert one < four


def test_plan_promises_what_the_design_does(tmp_path: Path) -> None:
    for text in ("audit.runs=2", "audit={method: many-run, canary: {space: gradient}, runs: 100}"):
        spec = attacked(tmp_path, text)
        power = prepare(spec, load_catalog()).plan().power
        assert [p.at["group_size"] for p in power] == [1, 4]
        assert all("expected if the pipeline is as declared" in p.note for p in power)
        assert all(p.epsilon > float(p.note.split()[1]) for p in power)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [2, 4, 8])
def test_over_two_hundred_seeds(epsilon: int) -> None:
    """Seeds 0 to 199, fixed in advance: at most 21 above the truth at 95% (99.9% binomial quantile).

    These mechanisms are nearly Gaussian at delta 1e-5: there mu says an epsilon that is above the truth in 10 of them
    at most, and at its median .66 of it and more. Measured: in none, and .69.
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
