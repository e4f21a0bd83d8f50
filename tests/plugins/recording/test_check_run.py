"""Compare ``dpspec check`` with external accountants and hand-written schedules."""

import dataclasses
import json
import math
import re

import pytest
import torch
from opacus.accountants import GaussianAccountant, PRVAccountant, RDPAccountant
from opacus.schedulers import ExponentialNoise, StepNoise
from scipy import optimize, stats
from support.checked_runs import checked
from support.opacus_training import Training, after_each, recorded, scheduled

from dpspec.cli.app import main
from dpspec.decimals import upper
from dpspec.engine.accountant_figure import accountant_epsilon
from dpspec.reporters.page import render
from dpspec_recording.judge.executed_run import observe
from dpspec_recording.judge.rules import fired_rules
from dpspec_recording.judge.sentences import run_facts
from dpspec_recording.observers.rules import RuleFact, RuleFacts
from dpspec_recording.observers.update_rule.parameters import MOVED

DELTA = 1e-5


def pld_epsilon(phases, grid=1e-4):
    """By Google's accountant: (noise multiplier, rate, steps)."""
    dp_event = pytest.importorskip("dp_accounting").dp_event
    pld = pytest.importorskip("dp_accounting.pld")
    accountant = pld.PLDAccountant(value_discretization_interval=grid)
    for sigma, rate, steps in phases:
        step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
        accountant.compose(dp_event.SelfComposedDpEvent(step, steps))
    return accountant.get_epsilon(DELTA)


@pytest.fixture
def sound(recordings):
    return recordings["adamw"]


@pytest.mark.ci
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
    assert found.told["epsilon"] == pytest.approx(accountant_epsilon("rdp", [(1.1, 0.1, 40)], DELTA))
    cost = f"{interval.upper:.4g}"
    assert f"By PLD, its history has epsilon {cost} and the executed schedule {cost}." in " ".join(
        found.audit.recording.groups[-1].sentences
    )
    below = checked(sound, epsilon=interval.lower * 0.99)
    assert below.verdict == "open"
    assert "exceeds the claimed" in below.reason
    (note,) = (text for text in below.audit.recording.cautions if "dpspec check --history" in text)
    assert "AdamW, or a change of its gradients, may hide a part of these sums" in note
    assert "this is not a lower bound for this run" in note
    assert not any("noisy sums" in text for text in found.audit.recording.cautions)


@pytest.mark.ci
def test_groups_cost_what_their_mixture_does(sound):
    found = checked(sound, epsilon=100.0, group_sizes=(4, 1))
    assert list(found.costs) == [4, 1]
    assert found.costs[4].interval.lower > 2 * found.costs[1].interval.upper
    from dpspec.accounting import Mixture, PrivacyLoss

    expected = PrivacyLoss.of(Mixture.poisson(4, 0.1, 1.1)).compose(40).epsilon(DELTA)
    assert found.costs[4].interval == expected


@pytest.mark.ci
def test_opacus_constants_reveal_the_number_of_records(sound):
    found = checked(sound, epsilon=100.0, adjacency="add-remove")
    assert found.verdict == "open"
    assert found.reason.startswith("The channel constants is open: data-independent-hyperparameters: ")
    assert "the rate 0.1 may be 1 over the number of batches, the divisor 30 may be the floor" in found.reason
    assert [one.status for one in found.assumptions if one.name == "data-independent-hyperparameters"] == ["unchecked"]
    assert [one.status for one in checked(sound).assumptions if one.name == "data-independent-hyperparameters"] == [
        "declared"
    ]


@pytest.mark.ci
def test_the_figure_of_the_default_accountant_is_the_one_that_the_script_prints(tmp_path, capsys):
    """Opacus' PRV accountant adds 0.01 to its result, and so must the reported figure."""
    way = Training(epochs=2, accountant="prv")
    way.run(tmp_path / "run")
    printed = way.engine.get_epsilon(DELTA)
    found = checked(tmp_path / "run")
    assert found.told["epsilon"] == pytest.approx(printed, abs=5e-4)
    assert found.told["epsilon"] > found.costs[1].interval.upper + 0.009
    main(["check", str(tmp_path / "run"), "-v"])
    page = " ".join(capsys.readouterr().out.split())
    assert f"prv: epsilon {printed:.4g}, recomputed at delta = 1e-5. It composes by privacy loss random" in page


@pytest.mark.family
@pytest.mark.parametrize("history", [[(0.8, 0.01, 500)], [(1.5, 0.2, 30)], [(2.0, 0.004, 3000)]])
def test_figures_of_opacus_accountants_come_out_again(history):
    for name, kind in (("rdp", RDPAccountant), ("gdp", GaussianAccountant), ("prv", PRVAccountant)):
        accountant = kind()
        accountant.history = history
        margin = {"abs": 5e-4} if name == "prv" else {"rel": 1e-4}
        assert accountant_epsilon(name, history, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), **margin)
    assert accountant_epsilon("own", history, DELTA) is None


@pytest.mark.ci
def test_a_noise_schedule_is_composed_step_by_step(tmp_path):
    found = recorded(tmp_path / "run", scheduled(lambda o: StepNoise(o, step_size=10, gamma=0.8)))
    phases = [(p.noise_multiplier, p.rate, p.steps) for p in found.phases]
    assert [round(sigma, 6) for sigma, _, _ in phases][:2] == [1.1, 0.88]
    assert found.costs[1].interval.upper == pytest.approx(pld_epsilon(phases, grid=1e-3), rel=1e-3)
    assert found.conformance.status == "no-deviation-found"


@pytest.mark.ci
def test_many_noises_are_rounded_outwards(tmp_path):
    found = recorded(tmp_path / "run", scheduled(lambda o: ExponentialNoise(o, gamma=0.99)), epochs=3)
    exact = pld_epsilon([(1.1 * 0.99**k, 0.1, 1) for k in range(30)], grid=5e-3)
    assert found.costs[1].charges == ("rounding of noise multipliers",)
    lower, upper = found.costs[1].interval
    assert exact / 1.01 <= lower <= exact * (1 + 1e-4)
    assert exact * (1 - 1e-4) <= upper <= 1.01 * exact


@pytest.mark.ci
def test_shuffled_batches_are_not_amplified(recordings):
    found = checked(recordings["shuffled"], epsilon=100.0, group_sizes=(1, 2))
    assert found.conformance.status == "deviates"
    assert "assumed Poisson sampling, although the loader's batches are shuffled" in found.conformance.reason

    def gaussian(mu):
        cdf = stats.norm.cdf
        return optimize.brentq(lambda e: cdf(mu / 2 - e / mu) - math.exp(e) * cdf(-mu / 2 - e / mu) - DELTA, 0.0, 60.0)

    assert found.costs[1].interval.upper == pytest.approx(gaussian(math.sqrt(3) / 2.0), rel=1e-6)
    assert found.costs[2].interval.upper == pytest.approx(gaussian(2 * math.sqrt(3) / 2.0), rel=1e-6)
    assert checked(recordings["shuffled"], adjacency="add-remove").costs[1].interval is None


@pytest.mark.ci
def test_steps_before_the_recording_leave_the_claim_open(tmp_path):
    found = recorded(tmp_path / "run", prepare=Training.train)
    assert found.status == ("open", "no-deviation-found")
    assert "its accountant had counted 20 steps when it began" in found.reason


def other_batches(training):
    other = Training(seed=4).build()
    training.loader = other.loader
    training.train()


def repeated_noise(training):
    """A generator that is seeded before every step: each step's noise is as large as it should be."""
    training.train(each=lambda t: t.private.generator.manual_seed(t.private.generator.initial_seed()))


def without_first_bias(optimizer):
    bias = optimizer.params[1]
    bias.grad = bias.summed_grad.view_as(bias).clone()


def halved(optimizer):
    for p in optimizer.params:
        p.grad = 0.5 * (p.grad + p.summed_grad.view_as(p))


HALF_THE_NOISE = after_each("add_noise", halved)


def loose_clipping(training):
    original = training.private.clip_and_accumulate

    def loose():
        training.private.max_grad_norm = 0.2
        original()
        training.private.max_grad_norm = 0.05

    training.private.clip_and_accumulate = loose


def real_divisor(training):
    def by_the_batch():
        for p in training.private.params:
            p.grad /= max(1, len(p.grad_sample))

    training.private.scale_grad = by_the_batch


@pytest.mark.family
@pytest.mark.parametrize(
    ("given", "assumption", "words"),
    [
        ({"script": other_batches}, "sampling", "steps without an observed batch"),
        ({"script": repeated_noise}, "independent-noise", ""),
        ({"prepare": after_each("add_noise", without_first_bias), "epochs": 6}, "per-layer-noise", "0.bias"),
        ({"prepare": HALF_THE_NOISE}, "noise-scale", "relative to the declared scale"),
        ({"prepare": loose_clipping, "clip": 0.05}, "clipping", "sum longer than its clipped contributions"),
        ({"prepare": real_divisor}, "data-independent-hyperparameters", "divisor of the gradient"),
    ],
)
def test_faults_deviate(given, assumption, words, tmp_path):
    found = recorded(tmp_path / "run", **given)
    assert found.status == ("open", "deviates")
    bad = [f"{one.test} {one.note}" for one in found.checks if one.assumption == assumption and one.p_value < 1e-12]
    assert any(words in text for text in bad)


@pytest.mark.ci
def test_batches_of_another_loader_have_a_fix_in_words(tmp_path):
    found = recorded(tmp_path / "run", other_batches, epochs=1)
    assert found.audit.recording.faults[0].startswith("Iterate the loader that make_private returned")


@pytest.mark.ci
def test_a_second_optimizer_is_the_first_cause(tmp_path):
    def script(training):
        other = torch.optim.SGD(training.model.parameters(), lr=0.1)
        training.train(each=lambda _: other.step())

    found = recorded(tmp_path / "run", script, epochs=1)
    first, *further = found.audit.recording.faults
    assert first.startswith("Another optimizer (SGD) stepped")
    assert "Train all tensors with the private optimizer" in first
    assert not any("SAM" in text or "clamping" in text for text in further)
    assert "Another optimizer (SGD)" in render(found.result).partition("What to fix in the training")[2]


@pytest.mark.ci
def test_an_optimizer_outside_the_model_in_the_first_part_explains_no_move(sound):
    """The caution is of the first part with another optimizer. The move has the cause of a later one."""
    outside, inside = (
        {
            "optimizers": [{"name": "SGD", "inside": number, "outside": 2 - number, "steps": 9, "is_regular": True}],
            "readers": [],
            "before_steps": 0,
        }
        for number in (0, 2)
    )
    run, _ = observe(sound)
    moved = [MOVED.none_found(2)]

    def facts_with(*parts):
        rules = RuleFacts(by_rule=tuple({"second-optimizer": RuleFact(facts=facts)} for facts in parts))
        end = dataclasses.replace(run.end, observed={**run.end.observed, "rules": rules})
        of_parts = dataclasses.replace(run, end=end)
        return [*run_facts(of_parts, moved, fired_rules(of_parts, delta=DELTA, group_size=1, accept={}))]

    assert facts_with(outside, inside) == [MOVED.advice]
    (cause,) = facts_with(inside, outside)
    assert cause.startswith("Another optimizer (SGD) stepped 9 times on 2 tensors of the model.")


def test_confirm_asks_about_mistakes_that_no_step_shows(sound):
    confirmed = " ".join(checked(sound).audit.recording.confirm)
    for words in (
        "(checkpoints, stopping by loss)",
        "features chosen by labels",
        "labels, features, scale, padding, weight, temperature, loss and choice of a record come from it alone",
        "seeds and states of generators are secret: no constant, time, weights or records",
        "no log, threshold or statistic is released",
        "frozen, pruned or initial weights",
        "(no two are equal); no record packs several persons",
        "gradients of all records are finite: no guard skips NaN or overflow",
    ):
        assert words in confirmed


def test_the_command_prints_text_and_json(sound, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["check", str(sound), "--epsilon", "8", "--delta", "1e-5", "--group-size", "1"]) == 0
    text = capsys.readouterr().out
    page, interval = " ".join(text.split()), checked(sound).costs[1].interval
    assert page.startswith(f"PROVED epsilon <= 8 at delta = 1e-5: at most {upper(interval.upper)} (certified)")
    assert "40 steps, rate 0.1, noise multiplier 1.1, clip norm 1, learning rate" in page
    assert "poisson batches from 300 records" in page
    assert len(text.splitlines()) <= 30
    assert max(map(len, text.splitlines())) <= 80
    assert main(["check", str(sound), "--epsilon", "1", "--report", "json=-"]) == 1
    (audit,) = json.loads(capsys.readouterr().out)["audits"]
    assert (audit["recording"]["facts"]["steps"], audit["verdicts"][0]["verdict"]) == (40, "open")
    assert main(["check", str(sound), "-v"]) == 5
    assert re.search(r"sampling, (\d) of \1 tests pass", " ".join(capsys.readouterr().out.split()))


@pytest.mark.parametrize(
    "arguments", [["--delta", "0"], ["--delta", "1"], ["--epsilon", "-1"], ["--group-size", "0"], ["--epsilon", "nan"]]
)
def test_questions_that_make_no_sense_are_refused(arguments, sound, capsys):
    assert main(["check", str(sound), *arguments]) == 2
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.ci
def test_reading_a_run_imports_no_torch(sound):
    from dpspec.testing.provider import imported_by

    code = f"""
        from pathlib import Path
        from dpspec_recording.judge.check import check_run
        from dpspec_recording.judge.run_claim import RunClaim as Question
        assert check_run(Path({str(sound)!r}), Question(delta=1e-5)).audits[0].recording.facts['steps'] == 40
    """
    assert imported_by(code, ["torch", "opacus"]) == []
