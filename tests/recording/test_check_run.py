"""What ``dpspec check`` says of runs, against accountants that are not ours and schedules written out by hand."""

from __future__ import annotations

import json
import math
import warnings

import pytest
from dp_accounting import dp_event, pld
from opacus.accountants import GaussianAccountant, PRVAccountant, RDPAccountant
from scipy import optimize, stats
from support.checked_runs import Question, check_run
from support.opacus_training import Training

from dpspec.cli.app import main
from dpspec.engine.recorded.section import accountant_epsilon
from dpspec.engine.results.decimals import lower, upper

DELTA = 1e-5


def checked(folder, **question):
    return check_run(folder, Question(**{"delta": DELTA, **question}))


def pld_epsilon(phases, grid=1e-4):
    """By Google's accountant: (noise multiplier, rate, steps)."""
    accountant = pld.PLDAccountant(value_discretization_interval=grid)
    for sigma, rate, steps in phases:
        step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
        accountant.compose(dp_event.SelfComposedDpEvent(step, steps))
    return accountant.get_epsilon(DELTA)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound") / "run"
    Training(epochs=4, optimizer="adamw", physical=16).run(folder)
    return folder


def test_a_sound_run_is_proved_at_what_it_costs(sound):
    expected = pld_epsilon([(1.1, 0.1, 40)])
    found = checked(sound, epsilon=expected * 1.01)
    assert (found.verdict, found.conformance.status, found.fine) == ("proved", "no-deviation-found", True)
    interval = found.costs[1].interval
    assert interval.lower <= expected * (1 + 1e-4)
    assert interval.upper == pytest.approx(expected, rel=1e-3)
    assert [(p.first, p.steps, p.noise_multiplier, p.clip_norm, p.rate) for p in found.phases] == [
        (1, 40, 1.1, 1.0, 0.1)
    ]
    below = checked(sound, epsilon=interval.lower * 0.99)
    assert below.verdict == "open"
    assert "exceeds the claimed" in below.reason


def test_groups_cost_what_their_mixture_does(sound):
    found = checked(sound, epsilon=100.0, group_sizes=(4, 1))
    assert list(found.costs) == [4, 1]
    assert found.costs[4].interval.lower > 2 * found.costs[1].interval.upper
    from dpspec.accounting import Mixture, PrivacyLoss

    expected = PrivacyLoss.of(Mixture.poisson(4, 0.1, 1.1)).compose(40).epsilon(DELTA)
    assert found.costs[4].interval == expected


def test_whoever_adds_a_record_learns_their_number_from_opacus_constants(sound):
    found = checked(sound, epsilon=100.0, adjacency="add-remove")
    assert found.verdict == "open"
    assert found.reason.startswith("The channel constants is open: data-independent-hyperparameters: ")
    assert "the rate 0.1 may be 1 over the number of batches, the divisor 30 may be the floor" in found.reason
    assert [one.status for one in found.assumptions if one.name == "data-independent-hyperparameters"] == ["unchecked"]
    assert [one.status for one in checked(sound).assumptions if one.name == "data-independent-hyperparameters"] == [
        "declared"
    ]


def test_the_accountants_figure_is_the_accountants(sound):
    found = checked(sound)
    accountant = RDPAccountant()
    accountant.history = [(1.1, 0.1, 40)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found.told.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-6)
    assert "because it composes by Renyi divergences (RDP), not by PLD" in found.told.difference
    assert found.told.difference.startswith("The accountant covers the same phases")


def test_the_figure_of_the_default_accountant_is_the_one_that_the_script_prints(tmp_path, capsys):
    """Opacus' PRV accountant adds 0.01 to what it computes: a figure without it would be none that anybody has seen."""
    way = Training(epochs=2, accountant="prv")
    way.run(tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        printed = way.engine.get_epsilon(DELTA)
    found = checked(tmp_path / "run")
    assert found.told.epsilon == pytest.approx(printed, abs=5e-4)
    assert found.told.epsilon > found.costs[1].interval.upper + 0.009
    main(["check", str(tmp_path / "run")])
    page = " ".join(capsys.readouterr().out.split())
    assert f"prv: epsilon {printed:.4g}, recomputed at delta = 1e-5. The accountant covers the same phases" in page
    assert "because it adds 0.01 to its privacy loss random variables (PRV) value as an error margin" in page


@pytest.mark.parametrize("history", [[(0.8, 0.01, 500)], [(1.5, 0.2, 30)], [(2.0, 0.004, 3000)]])
def test_figures_of_opacus_accountants_come_out_again(history):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, kind in (("rdp", RDPAccountant), ("gdp", GaussianAccountant)):
            accountant = kind()
            accountant.history = history
            assert accountant_epsilon(name, history, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-4)
        accountant = PRVAccountant()
        accountant.history = history
        assert accountant_epsilon("prv", history, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), abs=5e-4)
    assert accountant_epsilon("own", history, DELTA) is None


def test_a_noise_schedule_is_composed_step_by_step(tmp_path):
    from opacus.schedulers import StepNoise

    way = Training(epochs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        way.build()
        schedule = StepNoise(way.optimizer_, step_size=10, gamma=0.8)
        with way.recorder(tmp_path / "run"):
            way.train(each=lambda _: schedule.step())
    found = checked(tmp_path / "run", epsilon=50.0)
    phases = [(p.noise_multiplier, p.rate, p.steps) for p in found.phases]
    assert [round(sigma, 6) for sigma, _, _ in phases][:2] == [1.1, 0.88]
    assert found.costs[1].interval.upper == pytest.approx(pld_epsilon(phases, grid=1e-3), rel=1e-3)
    assert found.conformance.status == "no-deviation-found"
    assert found.told.difference.startswith("The accountant covers the same phases")


def test_many_noises_are_rounded_towards_more_cost(tmp_path):
    from opacus.schedulers import ExponentialNoise

    way = Training(epochs=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        way.build()
        schedule = ExponentialNoise(way.optimizer_, gamma=0.99)
        with way.recorder(tmp_path / "run"):
            way.train(each=lambda _: schedule.step())
    found = checked(tmp_path / "run")
    exact = pld_epsilon([(1.1 * 0.99**k, 0.1, 1) for k in range(30)], grid=5e-3)
    assert not found.costs[1].tight
    assert exact * (1 - 1e-4) <= found.costs[1].interval.upper <= 1.01 * exact


def test_shuffled_batches_are_not_amplified(tmp_path):
    Training(poisson=False, epochs=3, noise=2.0).run(tmp_path / "run")
    found = checked(tmp_path / "run", epsilon=100.0, group_sizes=(1, 2))
    assert found.conformance.status == "deviates"
    assert "assumed Poisson sampling; the loader's batches are shuffled" in found.conformance.reason

    def gaussian(mu):
        def excess(e):
            return stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu) - DELTA

        return optimize.brentq(excess, 0.0, 60.0)

    assert found.costs[1].interval.upper == pytest.approx(gaussian(math.sqrt(3) / 2.0), rel=1e-6)
    assert found.costs[2].interval.upper == pytest.approx(gaussian(2 * math.sqrt(3) / 2.0), rel=1e-6)
    assert "the batches are shuffled" in found.told.difference
    assert checked(tmp_path / "run", adjacency="add-remove").costs[1].interval is None


def test_adaptive_clipping_has_no_bound_and_says_why(tmp_path):
    Training(clipping="adaptive").run(tmp_path / "run")
    found = checked(tmp_path / "run", epsilon=100.0)
    assert found.conformance.status == "no-deviation-found"
    assert (found.verdict, found.costs[1].interval) == ("open", None)
    assert "divides its noisy count by the real batch size" in found.reason


@pytest.mark.parametrize("way", [Training(clipping="per_layer"), Training(reduction="sum"), Training(workers=1)])
@pytest.mark.filterwarnings("ignore")
def test_other_ways_conform(way, tmp_path):
    way.run(tmp_path / "run")
    assert checked(tmp_path / "run", epsilon=100.0).fine


def test_many_sound_runs_conform():
    """None of them may be rejected: a false alarm has a probability of 1e-6 in each."""
    import tempfile
    from pathlib import Path

    for seed in range(4):
        with tempfile.TemporaryDirectory() as folder:
            Training(seed=seed, epochs=2).run(Path(folder) / "run")
            assert checked(Path(folder) / "run").conformance.status == "no-deviation-found"


def test_a_loader_that_is_not_the_one_of_the_loop_is_noticed(tmp_path):
    way, other = Training(), Training(seed=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        way.build()
        other.build()
        kept, way.loader = way.loader, other.loader
        recorder = way.recorder(tmp_path / "run")
        way.loader = kept
        with recorder:
            way.train()
    found = checked(tmp_path / "run", epsilon=100.0)
    assert (found.verdict, found.conformance.status) == ("open", "deviates")
    assert "they were not observed at every step" in found.reason


def test_steps_before_the_recording_leave_the_claim_open(tmp_path):
    way = Training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        way.build()
        way.train()
        with way.recorder(tmp_path / "run"):
            way.train()
    found = checked(tmp_path / "run", epsilon=100.0)
    assert (found.verdict, found.conformance.status) == ("open", "no-deviation-found")
    assert "its accountant had counted 20 steps when it began" in found.reason
    assert "it counted 40 steps (20 before the recording), the run has 20" in found.told.difference


def test_noise_that_is_used_again_is_noticed(tmp_path):
    """A generator that is seeded anew before every step: each step's noise is as large as it should be."""
    way = Training(epochs=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        way.build()
        with way.recorder(tmp_path / "run"):
            way.train(each=lambda t: t.optimizer_.generator.manual_seed(t.optimizer_.generator.initial_seed()))
    found = checked(tmp_path / "run", epsilon=100.0)
    assert found.conformance.status == "deviates"
    assert found.conformance.reason.startswith("The executed run deviates from its declaration: independent-noise")


def test_noise_that_is_missing_in_a_small_layer_is_noticed(tmp_path):
    way = Training(epochs=6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        way.build()
        original = way.optimizer_.add_noise

        def without_first_bias():
            original()
            bias = way.optimizer_.params[1]
            bias.grad = bias.summed_grad.view_as(bias).clone()

        way.optimizer_.add_noise = without_first_bias
        with way.recorder(tmp_path / "run"):
            way.train()
    found = checked(tmp_path / "run", epsilon=100.0)
    bad = [check for check in found.checks if check.assumption == "per-layer-noise" and check.p_value < 1e-12]
    assert found.conformance.status == "deviates"
    assert any("0.bias" in check.note for check in bad)


def test_less_noise_than_the_options_say_is_noticed_and_priced(tmp_path):
    way = Training(epochs=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        way.build()
        original = way.optimizer_.add_noise

        def half():
            original()
            for p in way.optimizer_.params:
                p.grad = 0.5 * (p.grad + p.summed_grad.view_as(p))

        way.optimizer_.add_noise = half
        with way.recorder(tmp_path / "run"):
            way.train()
    found = checked(tmp_path / "run", epsilon=100.0)
    assert found.conformance.status == "deviates"
    assert found.measured == pytest.approx(pld_epsilon([(0.55, 0.1, 40)], grid=1e-2), rel=0.1)
    assert found.measured > 2 * found.costs[1].interval.upper


def test_clipping_that_lets_long_gradients_pass_is_noticed(tmp_path):
    way = Training(clip=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        way.build()
        original = way.optimizer_.clip_and_accumulate

        def loose():
            way.optimizer_.max_grad_norm = 0.2
            original()
            way.optimizer_.max_grad_norm = 0.05

        way.optimizer_.clip_and_accumulate = loose
        with way.recorder(tmp_path / "run"):
            way.train()
    found = checked(tmp_path / "run", epsilon=100.0)
    assert "clipping (largest clipped norm" in found.conformance.reason
    assert found.conformance.status == "deviates"


def test_a_divisor_that_is_the_real_batch_is_noticed(tmp_path):
    way = Training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        way.build()

        def by_the_batch():
            for p in way.optimizer_.params:
                p.grad /= max(1, len(p.grad_sample))

        way.optimizer_.scale_grad = by_the_batch
        with way.recorder(tmp_path / "run"):
            way.train()
    found = checked(tmp_path / "run", epsilon=100.0)
    assert "data-independent-hyperparameters (divisor of the gradient" in found.conformance.reason


def test_the_command_prints_text_and_json(sound, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["check", str(sound), "--epsilon", "8", "--delta", "1e-5", "--group-size", "1"]) == 0
    text = capsys.readouterr().out
    page = " ".join(text.split())
    assert page.startswith("PROVED, assuming one-record, ")
    assert " claim: epsilon <= 8 at delta = 1e-5 epsilon " in page
    assert "steps 1 to 40: rate 0.1, noise multiplier 1.1, clip norm 1" in page
    assert "poisson batches (opacus.UniformWithReplacementSampler) from 300 records" in page
    interval = checked(sound).costs[1].interval
    assert f"epsilon <= {upper(interval.upper)} (exact value >= {lower(interval.lower)})" in page
    assert "Zero-out" not in page
    assert "Replacing records by null records (zero-out), seeing every iterate, groups of 1." in page
    assert "The script's accountant rdp: epsilon " in page
    assert max(map(len, text.splitlines())) <= 80
    assert main(["check", str(sound), "--epsilon", "1", "--json"]) == 1
    (audit,) = json.loads(capsys.readouterr().out)["audits"]
    assert audit["verdicts"][0]["verdict"] == "open"
    assert (audit["recording"]["steps"], audit["conformance"]["status"]) == (40, "no-deviation-found")
    assert "these bounds hold for the recorded schedule, not for the run" not in page
    assert main(["check", str(sound), "--all"]) == 5
    every = " ".join(capsys.readouterr().out.split())
    assert "sampling, rate, phase 1: binomial, two-sided" in every
    assert "data-independent-hyperparameters" in every


@pytest.mark.parametrize(
    "arguments", [["--delta", "0"], ["--delta", "1"], ["--epsilon", "-1"], ["--group-size", "0"], ["--epsilon", "nan"]]
)
def test_questions_that_make_no_sense_are_refused(arguments, sound, capsys):
    assert main(["check", str(sound), *arguments]) == 2
    assert arguments[0] in capsys.readouterr().err


def test_reading_a_run_imports_no_torch(sound):
    from dpspec.testing.provider import imported_by

    code = f"""
        from pathlib import Path
        from dpspec.engine.recorded.check import RunClaim as Question, check_run
        assert check_run(Path({str(sound)!r}), Question(delta=1e-5)).audits[0].recording.steps == 40
    """
    assert imported_by(code, ["torch", "opacus"]) == []
